//! `--session`: a chat that was left goes on as if it had not been.

use super::{CHAT, Sandbox, json, replies, toy};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Sampled, so that random numbers must go on too.
fn line(model: &str) -> String {
    let model = toy(model);
    format!("chat -m {model} --device cpu --json -n 10 -s 11 --temp 1 --repeat-penalty 1.1")
}

const SAID: [&str; 3] = [
    "Tell me a story about a fox.\n",
    "Hello!\n",
    "What are you?\n",
];

struct Files {
    session: PathBuf,
    state: PathBuf,
}

fn files(sandbox: &Sandbox) -> Files {
    Files {
        session: sandbox.path().join("s.json"),
        state: sandbox.path().join("s.json.state"),
    }
}

#[test]
fn a_resumed_chat_is_the_uninterrupted_one() {
    for model in ["toy-llama.gguf", "toy-mamba2.gguf"] {
        let sandbox = Sandbox::new();
        let whole = replies(&sandbox, &line(model), &SAID.concat());
        for (turn, said) in SAID.iter().enumerate() {
            let line = format!("{} --session s.json", line(model));
            let resumed = replies(&sandbox, &line, said);
            for key in ["reply", "evaluated_tokens", "prompt_tokens", "seed"] {
                assert_eq!(
                    resumed[0][key], whole[turn][key],
                    "{model}: turn {turn}: {key}"
                );
            }
        }
        let state = files(&sandbox).state.metadata().expect("a state");
        assert!(state.len() > 1000);
    }
}

#[test]
fn a_prompt_that_was_saved_whole_is_answered_as_it_was() {
    for model in ["toy-llama.gguf", "toy-mamba2.gguf"] {
        let sandbox = Sandbox::new();
        let model = toy(model);
        let line = format!("chat -m {model} --device cpu --json -n 10 --temp 0 --session s.json");
        let first = replies(&sandbox, &line, &SAID[..2].concat());
        let again = replies(&sandbox, &line, "/regenerate\n");
        for key in ["reply", "prompt_tokens"] {
            assert_eq!(again[0][key], first[1][key], "{model}: {key}");
        }
        // Not all of it was evaluated again.
        let n_evaluated = again[0]["evaluated_tokens"].as_u64();
        assert!(n_evaluated < first[1]["prompt_tokens"].as_u64(), "{model}");
    }
}

#[test]
fn settings_of_the_first_day_count_on_the_second() {
    let sandbox = Sandbox::new();
    let short = |flags: &str, said: &str| {
        let line = format!(
            "chat -m {} --device cpu --json -n 10{flags}",
            toy("toy-llama.gguf")
        );
        replies(&sandbox, &line, said)
    };
    let flags = " -s 11 --temp 1 --top-k 7";
    let whole = short(flags, &format!("{}/set top-k 9\n{}", SAID[0], SAID[1]));
    short(
        &format!("{flags} --session s.json"),
        &format!("{}/set top-k 9\n", SAID[0]),
    );
    let resumed = short(" --session s.json", SAID[1]);
    assert_eq!(resumed[0]["reply"], whole[1]["reply"]);
    assert_eq!(resumed[0]["seed"], 12);
    // A flag wins over what was saved.
    let greedy = short(" --session s.json --temp 0", SAID[2]);
    assert_eq!(greedy[0]["seed"], serde_json::Value::Null);
}

#[test]
fn a_torn_or_missing_state_is_evaluated_again() {
    let sandbox = Sandbox::new();
    let model = format!(
        "chat -m {} --device cpu --json -n 10 --temp 0",
        toy("toy-llama.gguf")
    );
    let line = format!("{model} --session s.json");
    let whole = replies(&sandbox, &model, &SAID.concat());
    replies(&sandbox, &line, &SAID[..2].concat());
    let Files { session, state } = files(&sandbox);
    let (messages, good) = (std::fs::read(&session), std::fs::read(&state));
    let (messages, good) = (messages.expect("saved"), good.expect("saved"));
    let mut changed = good.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    let torn = [
        Some(&good[..middle]),
        Some(&[]),
        Some(&changed),
        None,
        Some(&good),
    ];
    for (case, bytes) in torn.into_iter().enumerate() {
        std::fs::write(&session, &messages).expect("written");
        match bytes {
            Some(bytes) => std::fs::write(&state, bytes).expect("written"),
            None => std::fs::remove_file(&state).expect("removed"),
        }
        let ran = sandbox.run_with(&line, SAID[2]);
        let reply = json(&ran.stdout);
        assert_eq!(reply["reply"], whole[2]["reply"], "case {case}");
        let is_good = case == 4;
        let all = reply["evaluated_tokens"] == reply["prompt_tokens"];
        assert_eq!(all, !is_good, "case {case}: {reply}");
        assert_eq!(
            ran.stderr.contains("s.json.state"),
            !is_good,
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn a_state_older_than_the_messages_saves_most_of_the_work() {
    let sandbox = Sandbox::new();
    let line = format!("{CHAT} --json --session s.json");
    replies(&sandbox, &line, "w\n");
    let state = std::fs::read(files(&sandbox).state).expect("saved");
    let ran = sandbox.run_with(&line, "w\n");
    assert!(!ran.stderr.contains("evaluated again"), "{}", ran.stderr);
    std::fs::write(files(&sandbox).state, state).expect("written");
    let ran = sandbox.run_with(&line, "w\n");
    let resumed = json(&ran.stdout);
    // BOS, a space, and four tokens a turn; the state holds the first seven.
    assert_eq!(resumed["prompt_tokens"], 11);
    assert_eq!(resumed["evaluated_tokens"], 5);
    assert!(ran.stderr.contains("evaluated again"), "{}", ran.stderr);
}

#[test]
fn another_models_session_is_refused_by_name() {
    let sandbox = Sandbox::new();
    replies(
        &sandbox,
        &format!("{} --session s.json", line("toy-llama.gguf")),
        "Hello!\n",
    );
    let before = std::fs::read(files(&sandbox).session).expect("saved");
    let other = format!("{} --session s.json", line("toy-mamba2.gguf"));
    let ran = sandbox.run_with(&other, "Hello!\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    for part in ["s.json", "is a session of", "not of"] {
        assert!(ran.stderr.contains(part), "no {part:?} in {}", ran.stderr);
    }
    assert_eq!(
        std::fs::read(files(&sandbox).session).expect("kept"),
        before
    );
}

#[test]
fn sessions_that_cannot_be_kept_are_refused_at_once() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("diary.txt"), "dear diary").expect("written");
    sandbox.bad(
        &format!("{CHAT} --session diary.txt -p w"),
        1,
        &["diary.txt"],
    );
    sandbox.bad(
        &format!("{CHAT} --session none/s.json -p w"),
        1,
        &["none/s.json"],
    );
}

#[test]
fn forgotten_turns_stay_forgotten() {
    let sandbox = Sandbox::new();
    let line = format!("{CHAT} --json -c 24 --on-full shift");
    let said = "w\n".repeat(12);
    let whole = replies(&sandbox, &line, &said);
    let first = replies(&sandbox, &format!("{line} --session s.json"), &said[..16]);
    let rest = replies(&sandbox, &format!("{line} --session s.json"), &said[16..]);
    let resumed = first.iter().chain(&rest);
    for (turn, (got, want)) in resumed.zip(&whole).enumerate() {
        for key in ["reply", "prompt_tokens", "evaluated_tokens"] {
            assert_eq!(got[key], want[key], "turn {turn}: {key}");
        }
    }
}

#[test]
fn a_reader_that_has_had_enough_costs_nothing_that_was_said() {
    let sandbox = Sandbox::new();
    let line = format!("{CHAT} --quiet --ignore-eos -c 1000000 --session s.json -p a");
    let mut child = Command::new(env!("CARGO_BIN_EXE_llama-rs"))
        .args(line.split(' '))
        .current_dir(sandbox.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut some = [0; 16];
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut some).expect("output");
    drop(stdout);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    let session = std::fs::read_to_string(files(&sandbox).session).expect("saved");
    let reply = &json(&session)["messages"][1]["content"];
    assert!(
        reply
            .as_str()
            .is_some_and(|r| r.starts_with("bcdefghijklmnop")),
        "{reply}"
    );
}

#[test]
fn numbers_that_nobody_saved_do_no_harm() {
    let sandbox = Sandbox::new();
    let line = format!("{CHAT} --json --session s.json");
    replies(&sandbox, &line, "w\n");
    let Files { session, .. } = files(&sandbox);
    let text = std::fs::read_to_string(&session).expect("saved");
    let odd = text
        .replace("\"n_replies\": 1", "\"n_replies\": 18446744073709551615")
        .replace("\"n_cached\": 6", "\"n_cached\": 18446744073709551615");
    assert_ne!(odd, text);
    std::fs::write(&session, odd).expect("written");
    let resumed = replies(&sandbox, &line, "w\nw\n");
    assert_eq!(resumed[1]["reply"], "xyz");
}

#[cfg(unix)]
#[test]
fn a_session_beyond_the_limit_on_files_is_an_error_and_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let before = std::fs::read_dir(sandbox.path()).expect("there").count();
    // In blocks of 512 or 1024 bytes; the state is larger.
    let call = format!(
        "ulimit -f 4; exec \"$0\" --quiet chat -m {} --device cpu -n 4 --session s.json -p Hello",
        toy("toy-llama.gguf")
    );
    let output = Command::new("sh")
        .args(["-c", &call, env!("CARGO_BIN_EXE_llama-rs")])
        .current_dir(sandbox.path())
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("the disk is full"), "{stderr}");
    // The messages fit.
    let after = std::fs::read_dir(sandbox.path()).expect("there").count();
    assert_eq!(after, before + 1);
}

#[test]
fn other_messages_do_not_take_the_place_of_a_session_unasked() {
    let sandbox = Sandbox::new();
    let line = format!("{CHAT} --session s.json");
    replies_as_text(&sandbox, &line, "w\n");
    let former = std::fs::read(files(&sandbox).session).expect("saved");
    // Not by /save, from this chat or another.
    for (line, file) in [
        (&line[..], "s.json"),
        (CHAT, "s.json"),
        (&line, "s.json.state"),
    ] {
        let ran = sandbox.run_with(line, &format!("a\n/undo\n/save {file}\n"));
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("name another file"), "{}", ran.stderr);
    }
    let ran = sandbox.run_with(&format!("{CHAT} --session new.json"), "/save ./new.json\n");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    // What the chat has written itself it may write again, but no other chat.
    replies_as_text(&sandbox, CHAT, "w\n/save a.json\na\n/save a.json\n");
    assert_eq!(sandbox.run_with(CHAT, "w\n/save a.json\n").code, Some(1));
    let messages = |bytes: &[u8]| json(&String::from_utf8_lossy(bytes))["messages"].clone();
    for (said, kept) in [
        ("/clear\nw\n", "s.json.bak"),
        ("/load a.json\n", "s.json.bak2"),
    ] {
        let ran = sandbox.run_with(&line, said);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stderr.contains(kept), "{}", ran.stderr);
        let bytes = std::fs::read(sandbox.path().join(kept)).expect("kept");
        assert_eq!(messages(&bytes), messages(&former));
    }
}

/// A run that must succeed.
fn replies_as_text(sandbox: &Sandbox, line: &str, stdin: &str) {
    let ran = sandbox.run_with(line, stdin);
    assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_are_no_sessions() {
    let sandbox = Sandbox::new();
    let made = Command::new("mkfifo")
        .arg(sandbox.path().join("pipe"))
        .status();
    assert!(made.expect("mkfifo").success());
    for file in ["/dev/full", "/dev/zero", "pipe"] {
        let part = "no regular file";
        sandbox.bad(&format!("{CHAT} --session {file} -p w"), 1, &[part]);
        let ran = sandbox.run_with(CHAT, &format!("/load {file}\n"));
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
}

#[test]
fn a_session_has_one_chat_at_a_time() {
    let sandbox = Sandbox::new();
    let line = format!("{CHAT} --quiet --session s.json");
    let mut first = Command::new(env!("CARGO_BIN_EXE_llama-rs"))
        .args(line.split(' '))
        .current_dir(sandbox.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = first.stdin.take().expect("a pipe");
    stdin.write_all(b"w\n").expect("it reads");
    let mut reply = [0; 4];
    let stdout = first.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut reply).expect("a reply");
    let process = format!("process {}", first.id());
    let parts = ["in use", &process, "another --session"];
    sandbox.bad(&format!("{CHAT} --session s.json -p w"), 1, &parts);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("s.json", sandbox.path().join("link")).expect("a link");
        sandbox.bad(&format!("{CHAT} --session link -p w"), 1, &parts);
    }
    drop(stdin);
    assert!(first.wait().expect("it ends").success());
    let lock = sandbox.path().join("s.json.lock");
    assert!(!lock.exists());
    // What a killed process left is in nobody's way, what is no lock stays.
    std::fs::write(&lock, "4711\n").expect("written");
    replies_as_text(&sandbox, &line, "w\n");
    std::fs::write(&lock, "my notes on locks").expect("written");
    sandbox.bad(&format!("{line} -p w"), 1, &["s.json.lock", "in the way"]);
    let kept = std::fs::read(&lock).expect("there");
    assert_eq!(kept, b"my notes on locks");
}
