//! Samplers and grammars in a chat: each reply anew, also where the context shifts, and
//! after the chat was left.

use super::{CHAT, Sandbox, json, replies, toy};

#[test]
fn a_grammar_holds_each_reply_and_no_prompt() {
    let sandbox = Sandbox::new();
    let line = format!("{CHAT} --json --grammar root::=\"no\"|\"yes\"");
    let all = replies(&sandbox, &line, "no\nw\n/regenerate\nyes\n");
    let texts: Vec<&str> = all.iter().filter_map(|r| r["reply"].as_str()).collect();
    assert_eq!(texts.len(), 4);
    for text in texts {
        assert!(["no", "yes"].contains(&text), "{text}");
    }
}

#[test]
fn a_text_that_is_cut_before_its_grammar_ends_is_told() {
    let sandbox = Sandbox::new();
    let grammar = "--grammar root::=\"x\"\"y\"\"z\"?";
    for (command, begun) in [("simple -m model.gguf", "w"), (CHAT, "")] {
        for (n, text, whole) in [
            (0, "", false),
            (1, "x", false),
            (2, "xy", true),
            (3, "xyz", true),
            (4, "xyz", true),
        ] {
            let line = format!("{command} --quiet {grammar} -n {n} -p w");
            let ran = sandbox.run(&line);
            assert_eq!(ran.stdout, format!("{begun}{text}\n"), "{line}");
            assert_eq!(ran.code, Some(if whole { 0 } else { 3 }), "{line}");
            assert_eq!(ran.stderr.is_empty(), whole, "{line}: {}", ran.stderr);
            let told = ran.stderr.lines().count() == 1 && ran.stderr.contains("raise -n");
            assert_eq!(told, !whole, "{line}: {}", ran.stderr);
        }
    }
    // Without a grammar -n is all that was asked for.
    assert_eq!(sandbox.run(&format!("{CHAT} -n 1 -p w")).code, Some(0));
    let line = format!("{CHAT} --json {grammar} -n 1");
    let ran = sandbox.run(&format!("{line} -p w"));
    assert_eq!(
        (ran.code, &json(&ran.stdout)["reply"]),
        (Some(3), &"x".into())
    );
    // In a chat others follow.
    let ran = sandbox.run_with(&line, "w\nw\n");
    assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 2));
    assert_eq!(ran.stderr.matches("raise -n").count(), 2, "{}", ran.stderr);
}

#[test]
fn a_grammar_goes_on_where_the_context_shifts() {
    let sandbox = Sandbox::new();
    // What begins a reply cannot come again, so a text begun anew would be another one.
    let grammar = "root::=\"x\"[^x]*|\"b\"[^b]*";
    let line = format!("{CHAT} -c 34 --on-full shift --grammar {grammar}");
    let ran = sandbox.run_with(&line, "w\nw\na\n");
    assert_eq!(ran.stdout, "xyz\nxyz\nbcdefghijklmnopqrstuvwxyz\n");
    assert!(ran.stderr.contains("the model forgets"), "{}", ran.stderr);
}

#[test]
fn all_settings_are_kept_in_a_session() {
    let sandbox = Sandbox::new();
    let model = toy("toy-llama.gguf");
    let bare = format!("chat -m {model} --device cpu --json -n 12");
    let line = format!("{bare} -s 5 --temp 2");
    let (first, second) = ("Hello!\n", "What is rain?\n");
    let plain = replies(&sandbox, &line, &[first, second].concat());
    for (flags, set) in [
        ("--samplers top_p;temperature --logit-bias 300+9", ""),
        ("--mirostat 2 --mirostat-ent 2", ""),
        ("--typical 0.3", "/set xtc-probability 1\n"),
        (
            "--min-keep 3",
            "/set dry-multiplier 50\n/set dry-allowed-length 0\n",
        ),
    ] {
        let line = format!("{line} {flags}");
        let whole = replies(&sandbox, &line, &[first, set, second].concat());
        assert_ne!(whole[1]["reply"], plain[1]["reply"], "{flags}");
        let kept = format!("{line} --session s.json");
        replies(&sandbox, &kept, &[first, set].concat());
        // Without the flags.
        let resumed = replies(&sandbox, &format!("{bare} --session s.json"), second);
        assert_eq!(resumed[0]["reply"], whole[1]["reply"], "{flags}");
        std::fs::remove_file(sandbox.path().join("s.json")).expect("it was written");
    }
}

#[test]
fn grammars_and_ignored_ends_are_kept_in_a_session() {
    let sandbox = Sandbox::new();
    let resumed = |flags: &str| {
        let line = format!("{CHAT} --json -n 5 --session s.json {flags}");
        replies(&sandbox, line.trim_end(), "w\n")[0]["reply"].clone()
    };
    for (flags, reply) in [
        ("--grammar root::=\"no\"|\"yes\"", "no"),
        ("", "no"),
        // Another one, which is kept then.
        ("--grammar root::=\"ab\"", "ab"),
        ("", "ab"),
        ("--grammar=", "xyz"),
        ("", "xyz"),
        ("--ignore-eos", "xyza"),
        ("", "xyza"),
        ("--ignore-eos=false", "xyz"),
        ("", "xyz"),
        // One excludes the other.
        ("--ignore-eos", "xyza"),
        ("--grammar root::=\"ab\"", "ab"),
        ("--ignore-eos", "xyza"),
    ] {
        assert_eq!(resumed(flags), reply, "{flags}");
    }
    let file = sandbox.path().join("s.json");
    let saved = std::fs::read_to_string(&file).expect("saved");
    let bad = saved.replace(
        "\"ignore_eos\"",
        "\"grammar\": {\"gbnf\": \"root\"}, \"ignore_eos\"",
    );
    std::fs::write(&file, bad).expect("written");
    let line = format!("{CHAT} --session s.json");
    sandbox.bad(&format!("{line} -p w"), 1, &["s.json", "grammar", "line 1"]);
    sandbox.good(&format!("{line} --grammar= -p w"));
}
