//! A long chat: what each turn evaluates, and what a full context does.

use super::{CHAT, Json, Sandbox, json, replies, toy};

const TURNS: usize = 200;

fn count(reply: &Json, key: &str) -> u64 {
    reply[key].as_u64().expect("a count")
}

#[test]
fn each_of_200_turns_evaluates_only_what_is_new() {
    let sandbox = Sandbox::new();
    let all = replies(
        &sandbox,
        &format!("{CHAT} --json -c 4096"),
        &"w\n".repeat(TURNS),
    );
    assert_eq!(all.len(), TURNS);
    for (turn, reply) in all.iter().enumerate() {
        assert_eq!(reply["reply"], "xyz");
        // BOS, a space, and four tokens a turn, the last reply not yet.
        assert_eq!(count(reply, "prompt_tokens"), 3 + 4 * turn as u64);
        assert_eq!(
            count(reply, "evaluated_tokens"),
            if turn == 0 { 3 } else { 1 }
        );
    }
}

/// A chat with a toy model, of short greedy replies.
fn short(name: &str, flags: &str) -> String {
    let model = toy(name);
    let line = format!("chat -m {model} --device cpu --temp 0 --json -n 8 {flags}");
    line.trim_end().to_string()
}

const TOYS: [&str; 2] = ["toy-llama.gguf", "toy-mamba2.gguf"];

#[test]
fn caches_of_both_kinds_keep_what_was_said() {
    for name in TOYS {
        let sandbox = Sandbox::new();
        let line = short(name, "-s 1");
        let stdin = "Hello!\nHow are you?\n/regenerate\nWhat are you?\n";
        let all = replies(&sandbox, &line, stdin);
        let [first, second, again, third] = &all[..] else {
            panic!("{} replies", all.len());
        };
        assert_eq!(
            count(first, "evaluated_tokens"),
            count(first, "prompt_tokens")
        );
        for (reply, before) in [(second, first), (third, second)] {
            // What came before, with its reply, is not evaluated again.
            let old = count(before, "prompt_tokens") + count(before, "reply_tokens") - 1;
            let new = count(reply, "prompt_tokens") - old;
            assert!(
                count(reply, "evaluated_tokens") <= new + 2,
                "{name}: {reply}"
            );
        }
        // A prompt that is cached as a whole is answered as it was.
        assert_eq!(count(again, "evaluated_tokens"), 0);
        assert_eq!(again["reply"], second["reply"]);
    }
}

/// A template that writes replies otherwise once they are history, as those that drop
/// thinking do, and opens the assistant's turn with something that history lacks.
const REWRITES: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.role == 'assistant' %}{{ m.content[-4:] }}{% else %}{{ m.content }}{% endif %}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\nWell, {% endif %}";

#[test]
fn a_rewritten_history_costs_only_the_last_turn() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("t.jinja"), REWRITES).expect("written");
    for name in TOYS {
        let line = short(name, "--chat-template-file t.jinja");
        let stdin = "Tell me a story about a fox.\nWhat is rain?\nHello!\nHow are you?\n";
        let all = replies(&sandbox, &line, stdin);
        for pair in all.windows(2) {
            let kept = count(&pair[1], "prompt_tokens") - count(&pair[1], "evaluated_tokens");
            // All of the prompt before but for the few tokens that open the reply.
            assert!(
                kept + 12 >= count(&pair[0], "prompt_tokens"),
                "{name}: {}",
                pair[1]
            );
        }
        // As if each turn had been evaluated from the start.
        let messages = sandbox.path().join("chat.json");
        let saved = format!(
            "{}/save chat.json\n",
            &stdin[..stdin.len() - "How are you?\n".len()]
        );
        replies(&sandbox, &line, &saved);
        let fresh = replies(&sandbox, &line, "/load chat.json\nHow are you?\n");
        assert_eq!(fresh[0]["reply"], all[3]["reply"], "{name}");
        std::fs::remove_file(messages).expect("it was there");
    }
}

#[test]
fn stop_keeps_the_reply_and_exits_with_3() {
    let sandbox = Sandbox::new();
    let full = "context of 5 tokens is full";
    let ran = sandbox.run(&format!("{CHAT} -c 5 -p a"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), "bcd\n"));
    assert!(ran.stderr.contains(full), "{}", ran.stderr);
    let ran = sandbox.run(&format!("{CHAT} -c 5 --json -p a"));
    assert_eq!(ran.code, Some(3));
    assert_eq!(json(&ran.stdout)["stop_reason"], "context_full");
    // An over-long prompt names both counts.
    sandbox.bad(
        &format!("{CHAT} --quiet -c 5 -p abcdefgh"),
        3,
        &["10 tokens", "holds 5"],
    );
}

#[cfg(unix)]
#[test]
fn texts_without_an_end_are_too_long() {
    let sandbox = Sandbox::new();
    for (flags, part) in [
        ("-f /dev/zero", "the prompt is too long"),
        (
            "-p w --system-prompt-file /dev/zero",
            "/dev/zero is too long",
        ),
        (
            "-p w --chat-template-file /dev/zero",
            "/dev/zero is too long",
        ),
        // 4 MiB, which this template writes more often than any template may.
        (
            "-f long --chat-template-file t.jinja",
            "the prompt is too long",
        ),
    ] {
        std::fs::write(sandbox.path().join("long"), "w".repeat(4 << 20)).expect("written");
        let twenty = "{{ messages[0].content }}".repeat(20);
        std::fs::write(sandbox.path().join("t.jinja"), twenty).expect("written");
        let ran = sandbox.run(&format!("{CHAT} {flags}"));
        assert_eq!(ran.code, Some(3), "{flags}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{flags}: {}", ran.stderr);
    }
    let zeros = std::fs::File::open("/dev/zero").expect("a device");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_llama-rs"))
        .args(format!("{CHAT} --quiet").split(' '))
        .current_dir(sandbox.path())
        .stdin(zeros)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn error_drops_the_reply() {
    let sandbox = Sandbox::new();
    let line = format!("{CHAT} -c 5 --on-full error");
    sandbox.bad(
        &format!("{line} --quiet --json -p a"),
        3,
        &["context of 5 tokens is full"],
    );
    let ran = sandbox.run_with(&format!("{line} --session s.json"), "a\n");
    assert_eq!(ran.code, Some(3));
    let session = std::fs::read_to_string(sandbox.path().join("s.json")).expect("saved");
    assert_eq!(json(&session)["messages"], serde_json::json!([]));
}

#[test]
fn shift_forgets_the_oldest_turns_and_keeps_the_system_prompt() {
    let sandbox = Sandbox::new();
    let line = format!("{CHAT} --json -c 64 --on-full shift -sys cd --session s.json");
    let all = replies(&sandbox, &line, &"w\n".repeat(TURNS));
    for reply in &all {
        assert_eq!(
            (&reply["reply"], &reply["stop_reason"]),
            (&"xyz".into(), &"end".into())
        );
        assert!(count(reply, "prompt_tokens") <= 64);
    }
    let shorter =
        |pair: &&[Json]| count(&pair[1], "prompt_tokens") < count(&pair[0], "prompt_tokens");
    let n_shifts = all.windows(2).filter(shorter).count();
    // Each makes room of a quarter of the context, four turns; 14 turns fit at first.
    assert!((30..=50).contains(&n_shifts), "{n_shifts}");
    let session = std::fs::read_to_string(sandbox.path().join("s.json")).expect("saved");
    let session = json(&session);
    // Of what was said nothing is lost.
    assert_eq!(
        session["messages"].as_array().map(Vec::len),
        Some(1 + 2 * TURNS)
    );
    assert!(session["n_forgotten"].as_u64().is_some_and(|n| n > 180));
}

#[test]
fn shift_makes_room_in_the_middle_of_a_reply() {
    let sandbox = Sandbox::new();
    // The third reply does not fit beside the first two turns.
    let line = format!("{CHAT} --json -c 34 --on-full shift");
    let ran = sandbox.run_with(&line, "w\nw\na\n");
    assert!(ran.stderr.contains("the model forgets"), "{}", ran.stderr);
    let third = json(ran.stdout.lines().last().expect("a reply"));
    assert_eq!(third["reply"], "bcdefghijklmnopqrstuvwxyz");
    assert_eq!(third["stop_reason"], "end");
    // One that fits nowhere stops.
    let ran = sandbox.run_with(&format!("{CHAT} -c 20 --on-full shift"), "w\na\n");
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert_eq!(ran.stdout, "xyz\nbcdefghijklmnopqrs\n");
}

#[test]
fn after_shifts_the_model_reads_what_is_left_and_nothing_else() {
    let said = "Tell me about dogs.\nWhat is rain?\nI like tea.\nWhat do bees do?\n\
                I got a kitten today!\nWhat is a friend?\nHello!\nWhat are you?\n";
    for name in TOYS {
        let sandbox = Sandbox::new();
        let flags = "-sys Hi -c 96 --on-full shift --session s.json";
        let all = replies(&sandbox, &short(name, flags), said);
        assert!(n_forgotten(&sandbox) >= 2, "{name}");
        same_without_forgotten(&sandbox, &short(name, ""), all.last().expect("a reply"));
    }
}

fn session(sandbox: &Sandbox) -> Json {
    let session = std::fs::read_to_string(sandbox.path().join("s.json"));
    json(&session.expect("saved"))
}

fn n_forgotten(sandbox: &Sandbox) -> usize {
    count(&session(sandbox), "n_forgotten") as usize
}

/// Holds the last reply of a session, to `What are you?`, to that of a chat in which nothing
/// was said but what is left of it.
fn same_without_forgotten(sandbox: &Sandbox, line: &str, last: &Json) {
    let session = session(sandbox);
    let messages = session["messages"].as_array().expect("messages");
    // The system prompt, then what was neither forgotten nor said last.
    let mut left = vec![messages[0].clone()];
    left.extend_from_slice(&messages[1 + 2 * n_forgotten(sandbox)..messages.len() - 2]);
    let left = serde_json::to_string(&left).expect("text");
    std::fs::write(sandbox.path().join("left.json"), left).expect("written");
    let fresh = replies(sandbox, line, "/load left.json\nWhat are you?\n");
    for key in ["reply", "prompt_tokens"] {
        assert_eq!(fresh[0][key], last[key], "{line}: {key}");
    }
}

#[test]
fn two_shifts_within_a_turn_add_up() {
    for name in TOYS {
        let sandbox = Sandbox::new();
        let line = format!("chat -m {} --device cpu --temp 0 --json -n 60", toy(name));
        let goes_on = |said: &str| {
            let flags = "-sys Hi -c 96 --on-full shift --session s.json";
            let ran = sandbox.run_with(&format!("{line} {flags}"), said);
            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
            ran
        };
        goes_on("Hello!\nHow are you?\nHello!\nI like tea.\nHello!\n");
        // One before the reply, and another in it.
        let ran = goes_on("Tell me a story about a fox.\n");
        let n_shifts = ran.stderr.matches("the model forgets").count();
        assert!(n_shifts >= 2, "{name}: {}", ran.stderr);
        let ran = goes_on("What are you?\n");
        same_without_forgotten(&sandbox, &line, &json(&ran.stdout));
    }
}

/// Pages in use now, in KiB.
#[cfg(target_os = "linux")]
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let number = line.and_then(|l| l.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).expect("a number")
}

#[cfg(target_os = "linux")]
#[test]
fn a_long_chat_does_not_grow() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    let sandbox = Sandbox::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_llama-rs"))
        .args(format!("{CHAT} --quiet -c 64 --on-full shift").split(' '))
        .current_dir(sandbox.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut turns = |n: usize| {
        for _ in 0..n {
            stdin.write_all(b"w\n").expect("it reads");
            let reply = lines.next().expect("a reply").expect("text");
            assert_eq!(reply, "xyz");
        }
    };
    turns(50);
    let before = resident_kib(child.id());
    turns(TURNS - 50);
    let after = resident_kib(child.id());
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
    // 150 turns of messages are some KiB; allocators keep some pages of what was freed.
    assert!(after < before + 2048, "from {before} to {after} KiB");
}
