//! `chat` without a terminal: one-shot answers, commands, a full context, sessions.

#[path = "chat/context.rs"]
mod context;
#[path = "chat/sampling.rs"]
mod sampling;
#[path = "chat/sessions.rs"]
mod sessions;
#[path = "chat/states.rs"]
mod states;

#[path = "cli/sandbox.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod sandbox;
#[path = "cli/tiny.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod tiny;

use sandbox::{Sandbox, json};
use serde_json::Value as Json;
use std::path::PathBuf;

/// The model that says the alphabet, always the same way.
const CHAT: &str = "chat -m model.gguf --temp 0";

/// A model of `models/`.
fn toy(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("models")
        .join(name);
    path.display().to_string()
}

/// The lines of JSON of a run that must succeed.
fn replies(sandbox: &Sandbox, line: &str, stdin: &str) -> Vec<Json> {
    let ran = sandbox.run_with(line, stdin);
    assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
    ran.stdout.lines().map(json).collect()
}

#[test]
fn a_question_is_answered_and_standard_input_left_alone() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_with(&format!("{CHAT} -p w"), "never read\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "xyz\n"));
    // Words do too, and `-f -` joins standard input to them.
    assert_eq!(sandbox.run_with(&format!("{CHAT} w"), "a").stdout, "xyz\n");
    assert_eq!(
        sandbox.run_with(&format!("{CHAT} -p a -f -"), "w").stdout,
        "xyz\n"
    );
    std::fs::write(sandbox.path().join("question.txt"), "x").expect("written");
    assert_eq!(sandbox.good(&format!("{CHAT} -f question.txt")), "yz\n");
    assert_eq!(sandbox.good(&format!("{CHAT} -p a --stop ef")), "bcd\n");
    assert_eq!(sandbox.good(&format!("{CHAT} -p a -n 2")), "bc\n");
    sandbox.bad(&format!("{CHAT} -p "), 1, &["prompt is empty"]);
    sandbox.bad(&format!("{CHAT} -f none.txt"), 1, &["none.txt"]);
}

#[test]
fn json_tells_the_reply_tokens_and_why_it_ended() {
    let sandbox = Sandbox::new();
    let ask = |more: &str| json(&sandbox.good(&format!("{CHAT} --json {more}")));
    let reply = ask("-p w");
    assert_eq!(reply["reply"], "xyz");
    assert_eq!(reply["thinking"], Json::Null);
    assert_eq!(reply["stop_reason"], "end");
    // BOS, a space and `w`.
    assert_eq!(
        (&reply["prompt_tokens"], &reply["reply_tokens"]),
        (&3.into(), &3.into())
    );
    assert_eq!(reply["prefill"]["tokens"], 3);
    // The last token of a reply is not evaluated when it is the end.
    assert_eq!(reply["decode"]["tokens"], 3);
    assert!(reply["decode"]["seconds"].as_f64().is_some_and(|s| s > 0.0));
    assert_eq!(ask("-p a -n 2")["stop_reason"], "length");
    let stopped = ask("-p a --stop de");
    assert_eq!(
        (&stopped["stop_reason"], &stopped["reply"]),
        (&"stop".into(), &"bc".into())
    );
}

#[test]
fn system_prompts_come_first() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("system.txt"), "cd\n").expect("written");
    for flags in [
        "-sys cd",
        "--system-prompt cd",
        "--system-prompt-file system.txt",
    ] {
        let reply = json(&sandbox.good(&format!("{CHAT} --json -p w {flags}")));
        assert_eq!(reply["prompt_tokens"], 5, "{flags}");
    }
    sandbox.bad(
        &format!("{CHAT} -sys a --system-prompt-file system.txt"),
        2,
        &["--system-prompt"],
    );
    let stdin = "/system cd\nw\n/system\n/clear\nw\n";
    let all = replies(&sandbox, &format!("{CHAT} --json"), stdin);
    let n: Vec<&Json> = all.iter().map(|r| &r["prompt_tokens"]).collect();
    assert_eq!(n, [5, 5]);
}

#[test]
fn turns_are_taken_back_and_answered_again() {
    let sandbox = Sandbox::new();
    let counts = |stdin: &str| -> Vec<(u64, u64)> {
        let all = replies(&sandbox, &format!("{CHAT} --json"), stdin);
        let count = |r: &Json, key: &str| r[key].as_u64().expect("a count");
        let pair = |r| (count(r, "prompt_tokens"), count(r, "evaluated_tokens"));
        all.iter().map(pair).collect()
    };
    // BOS, a space, `w`, then `xyz` and `a`: only `a` is new.
    assert_eq!(counts("w\na\n"), [(3, 3), (7, 1)]);
    // Answering again evaluates nothing; the reply before is no part of the prompt.
    assert_eq!(counts("w\n/regenerate\n"), [(3, 3), (3, 0)]);
    // After /undo the second message stands where the first was.
    assert_eq!(counts("w\n/undo\na\n"), [(3, 3), (3, 1)]);
    assert_eq!(counts("w\n/clear\nw\n"), [(3, 3), (3, 0)]);
    let ran = sandbox.run_with(CHAT, "/undo\n");
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("nothing has been said"),
        "{}",
        ran.stderr
    );
}

#[test]
fn another_reply_is_another_draw() {
    let sandbox = Sandbox::new();
    let line =
        "chat -m model.gguf --json --temp 5 --top-k 0 --top-p 1 --min-p 0 -n 12 --ignore-eos";
    let texts = |seed: &str| -> Vec<Json> {
        let all = replies(
            &sandbox,
            &format!("{line} -s {seed}"),
            "w\n/regenerate\n/regenerate\n",
        );
        all.iter().map(|r| r["reply"].clone()).collect()
    };
    let drawn = texts("7");
    assert_ne!(drawn[0], drawn[1]);
    assert_ne!(drawn[1], drawn[2]);
    assert_eq!(drawn, texts("7"));
    // Setting a seed starts its replies over.
    let stdin = "w\n/set seed 7\n/regenerate\n";
    let all = replies(&sandbox, &format!("{line} -s 8"), stdin);
    assert_eq!(all[1]["reply"], drawn[0]);
    // What is set counts from the next reply on.
    let all = replies(&sandbox, &format!("{line} -s 7"), "/set temp 0\nw\n");
    assert_eq!(all[0]["reply"], "xyzabcdefgh");
}

#[test]
fn messages_are_saved_and_loaded() {
    let sandbox = Sandbox::new();
    let saved = sandbox.path().join("chat.json");
    let ran = sandbox.run_with(CHAT, "/system cd\nw\n/save chat.json\n");
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "xyz\n"),
        "{}",
        ran.stderr
    );
    let messages = json(&std::fs::read_to_string(&saved).expect("it was written"));
    assert_eq!(messages[0]["content"], "cd");
    assert_eq!(messages[2]["content"], "xyz");
    let all = replies(&sandbox, &format!("{CHAT} --json"), "/load chat.json\na\n");
    // BOS, a space, `cd`, `w`, `xyz`, `a`.
    assert_eq!(all[0]["prompt_tokens"], 9);
    // `template` reads it as well.
    let text = sandbox.good("template -m model.gguf --messages chat.json");
    assert_eq!(text, "cdwxyz");
    // What is something else is not written over.
    std::fs::write(sandbox.path().join("diary.txt"), "dear diary").expect("written");
    let ran = sandbox.run_with(CHAT, "w\n/save diary.txt\n");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("diary.txt"), "{}", ran.stderr);
    let kept = std::fs::read(sandbox.path().join("diary.txt")).expect("there");
    assert_eq!(kept, b"dear diary");
    for bad in [
        "/load none.json",
        "/load diary.txt",
        "/set colour 1",
        "/set top-p 2",
        "/nonsense",
    ] {
        let ran = sandbox.run_with(CHAT, &format!("{bad}\n"));
        assert_eq!(ran.code, Some(1), "{bad}: {}", ran.stderr);
    }
}

#[test]
fn questions_about_the_chat_are_answered_on_stderr() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_with(CHAT, "w\na\n/stats\n/context\n/help\n/set\n");
    let reply = "xyz\nbcdefghijklmnopqrstuvwxyz\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), reply));
    for part in [
        "7 tokens of prompt, 1 of them evaluated; 25 tokens of reply",
        "32 of 256 tokens used; 2 turns",
        "/regenerate",
        "top-k 40",
    ] {
        assert!(ran.stderr.contains(part), "no {part:?} in {}", ran.stderr);
    }
}

#[test]
fn thinking_is_shown_hidden_or_off() {
    let sandbox = Sandbox::new();
    // The template opens the thinking unless it is switched off; the model writes letters,
    // of which `j` closes nothing, so all of the reply is thinking.
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}\
                    {% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}";
    std::fs::write(sandbox.path().join("t.jinja"), template).expect("written");
    let line = format!("{CHAT} --chat-template-file t.jinja -n 3 -p w");
    let shown = sandbox.good(&line);
    assert!(shown.starts_with("<think>\n"), "{shown:?}");
    assert_eq!(sandbox.good(&format!("{line} --think hide")), "\n");
    assert_eq!(sandbox.good(&format!("{line} --think off")), "xyz\n");
    let reply = json(&sandbox.good(&format!("{line} --json")));
    assert_eq!(reply["reply"], "");
    assert!(
        reply["thinking"]
            .as_str()
            .is_some_and(|t| t.starts_with("<think>\n"))
    );
    // A variable that was given by hand counts as well.
    let mut command = sandbox.command();
    command
        .args(line.split(' '))
        .args(["--chat-template-kwargs", "{\"enable_thinking\":false}"]);
    assert_eq!(command.output().expect("it runs").stdout, b"xyz\n");
    let ran = sandbox.run(&format!("{CHAT} -p w --think off"));
    assert!(
        ran.stderr.contains("cannot switch thinking off"),
        "{}",
        ran.stderr
    );
}

#[test]
fn stdout_holds_the_answer_and_nothing_else() {
    let sandbox = Sandbox::new();
    for flags in ["", " -v", " -vv", " --quiet"] {
        for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "xterm")] {
            let mut command = sandbox.command();
            command
                .args(format!("{CHAT} -p w{flags}").split(' '))
                .env(name, value);
            let output = command.output().expect("it runs");
            assert_eq!(output.stdout, b"xyz\n", "{flags} {name}={value}");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(!stderr.contains('\x1b'), "{stderr}");
            assert_eq!(stderr.is_empty(), flags == " --quiet", "{stderr}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_reply_goes_to_the_clipboard() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let program = sandbox.path().join("wl-copy");
    std::fs::write(&program, "#!/bin/sh\ncat > copied\n").expect("written");
    let may_run = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, may_run).expect("it is ours");
    let path = format!("{}:/usr/bin:/bin", sandbox.path().display());
    let mut command = sandbox.command();
    command.args(CHAT.split(' ')).env("PATH", path);
    let output = command.write_stdin("w\n/copy\n").output().expect("it runs");
    assert!(output.status.success(), "{:?}", output.stderr);
    let copied = std::fs::read(sandbox.path().join("copied")).expect("it was called");
    assert_eq!(copied, b"xyz");
}
