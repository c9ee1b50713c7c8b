//! What goes where: stdout holds the product alone, whatever is said of colours and
//! messages; and the commands that need no model.

#[path = "cli/sandbox.rs"]
mod sandbox;
#[path = "cli/tiny.rs"]
mod tiny;

use sandbox::{Sandbox, json};

/// The built program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_llama-rs");

#[test]
fn the_log_file_has_what_stderr_has_and_more() {
    let sandbox = Sandbox::new();
    let log = || std::fs::read_to_string(sandbox.path().join("log.txt")).unwrap_or_default();
    let ran = sandbox.run("simple -m model.gguf --quiet --log-file log.txt x");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("xyz\n", ""));
    let first = log();
    assert!(
        first.contains("prefill") && !first.contains('\x1b'),
        "{first}"
    );
    for line in first.lines() {
        let (time, _) = line.split_once(' ').expect("a time");
        assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
    }
    // A second run goes on after it; errors are there too.
    let ran = sandbox.run("simple -m none.gguf --log-file log.txt x");
    assert_eq!(ran.code, Some(1));
    let second = log();
    assert!(second.starts_with(&first), "{second}");
    let last = second.lines().last().unwrap_or_default();
    assert!(last.contains("Z error: none.gguf: "), "{last}");
    let devices = json(&sandbox.good("devices --json -vv --log-file log.txt"));
    assert!(devices.is_array() || devices.is_object());
    let line = "simple -m model.gguf --log-file no/log.txt x";
    sandbox.bad(line, 1, &["no/log.txt", "--log-file"]);
}

#[test]
fn completions_offer_commands_and_long_flags() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.good(&format!("completions {shell}"));
        for part in [
            "simple",
            "fit-params",
            "n-gpu-layers",
            "json-schema-file",
            "log-file",
        ] {
            assert!(script.contains(part), "{shell} has no {part}");
        }
        // Where that shell is installed, it can read the script.
        let path = sandbox.path().join("script");
        std::fs::write(&path, script).expect("written");
        let read = std::process::Command::new(shell)
            .arg("-n")
            .arg(&path)
            .status();
        assert!(
            read.is_err() || read.is_ok_and(|status| status.success()),
            "{shell}"
        );
    }
    // Bash jumps from one to the other, also in commands with a hyphen.
    let bash = sandbox.good("completions bash");
    let chosen = bash
        .lines()
        .filter_map(|l| l.trim().strip_prefix("cmd=\"")?.strip_suffix('"'));
    for label in chosen.filter(|c| !c.is_empty()) {
        assert!(bash.contains(&format!("\n        {label})\n")), "{label}");
    }
    sandbox.bad("completions nush", 2, &["nush", "bash"]);
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let sandbox = Sandbox::new();
    let page = sandbox.good("man");
    for part in [".TH llama-rs", "simple", "\\-\\-quiet"] {
        assert!(page.contains(part), "no {part}");
    }
    let page = sandbox.good("man simple");
    for part in [
        ".TH llama-rs-simple 1  \"llama-rs 0.",
        "\\-\\-temp",
        "\\-\\-log\\-file",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    sandbox.bad("man nonsense", 1, &["nonsense", "simple"]);
}

#[test]
fn samplers_and_grammars_are_heard() {
    let sandbox = Sandbox::new();
    let simple = |flags: &str| sandbox.good(&format!("simple -m model.gguf {flags}"));
    // Greedily it is `xyz`; g is token 10.
    assert_eq!(simple("-l 10+100 -n 1 x"), "xg\n");
    assert_eq!(simple("--grammar root::=[a-c]{3} x"), "xabc\n");
    assert_eq!(simple("--json-schema {\"const\":true} x"), "xtrue\n");
    assert_eq!(
        simple("--temp 1 --top-n-sigma 0.1 --xtc-probability 0 x"),
        "xyz\n"
    );
    let described = |flags: &str| {
        let ran = sandbox.run(&format!("simple -m model.gguf {flags} x"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stderr
    };
    let mirostat = described("--mirostat 2 -s 3");
    assert!(
        mirostat.contains("mirostat 2 tau 5 eta 0.1 seed 3"),
        "{mirostat}"
    );
    let dry = described("--samplers dry;temperature --dry-multiplier 0.8 --temp 0.5 -s 3");
    assert!(dry.contains("dry 0.8 base 1.75"), "{dry}");
    assert!(
        dry.contains("temp 0.5, dist seed 3") && !dry.contains("top-k"),
        "{dry}"
    );
    let sequence = "--override-kv general.sampling.sequence=str:temperature;new_one;top_k";
    let of_file = described(&format!("{sequence} -s 3"));
    assert!(
        of_file.contains("; temp 0.8, top-k 40, dist seed 3"),
        "{of_file}"
    );
}

#[test]
fn settings_that_cannot_be_are_refused_with_their_range() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("bad.gbnf"), "root ::= \"a").expect("written");
    for (flags, code, parts) in [
        (
            "--samplers top_k;tail",
            2,
            &["\"tail\"", "penalties;dry"][..],
        ),
        ("--sampling-seq kq", 2, &["\"q\"", "edskypmxt"]),
        ("--mirostat 3", 1, &["mirostat is 3", "0 (off), 1 or 2"]),
        (
            "--xtc-threshold 7",
            1,
            &["xtc-threshold is 7", "from 0 to 1"],
        ),
        ("-l 64+1", 1, &["no token 64", "64"]),
        ("-l 3*1", 2, &["15043+1"]),
        (
            "--grammar-file bad.gbnf",
            1,
            &["bad.gbnf: line 1, column 12", "quote"],
        ),
        ("--grammar-file none.gbnf", 1, &["none.gbnf"]),
        ("--json-schema {", 1, &["--json-schema: no JSON"]),
        // This vocabulary has no quotes.
        (
            "--json-schema {\"const\":\"a\"}",
            1,
            &["grammar", "no token"],
        ),
        ("--json-schema {} --grammar root::=x", 2, &["--grammar"]),
        ("--json-schema {} --ignore-eos", 2, &["--ignore-eos"]),
    ] {
        sandbox.bad(&format!("simple -m model.gguf {flags} x"), code, parts);
    }
}

/// Names of variables and their values; `None` is not set.
type Variables = [(&'static str, Option<&'static str>); 2];

/// All that may be said of messages and colours.
fn combinations() -> Vec<(&'static str, Variables)> {
    let mut all = Vec::new();
    for flags in ["", "-v", "-vv", "--quiet", "--no-color", "-v --no-color"] {
        for no_color in [None, Some("1")] {
            for term in [None, Some("dumb"), Some("xterm-256color")] {
                all.push((flags, [("NO_COLOR", no_color), ("TERM", term)]));
            }
        }
    }
    all
}

#[test]
fn stdout_is_the_text_alone_in_a_pipe() {
    let sandbox = Sandbox::new();
    for (flags, variables) in combinations() {
        let mut command = sandbox.command();
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = command
            .args(["simple", "-m", "model.gguf", "x"])
            .args(flags.split_whitespace())
            .output()
            .expect("the program starts");
        assert_eq!(output.stdout, b"xyz\n", "{flags} {variables:?}");
        assert!(!output.stderr.contains(&0x1b), "{flags} {variables:?}");
        assert_eq!(output.stderr.is_empty(), flags == "--quiet");
    }
}

#[cfg(unix)]
mod terminal {
    use super::*;
    use rexpect::session::spawn_command;
    use std::process::Command;

    /// What a terminal gets of `simple ... REDIRECTION`.
    fn at_terminal(
        sandbox: &Sandbox,
        flags: &str,
        redirection: &str,
        variables: Variables,
    ) -> String {
        let mut command = Command::new("sh");
        command
            .current_dir(sandbox.path())
            .env_remove("LLAMA_RS_MODEL")
            .arg("-c")
            .arg(format!(
                "{PROGRAM} simple -m model.gguf x {flags} {redirection}"
            ));
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut session = spawn_command(command, Some(60_000)).expect("a terminal");
        session.exp_eof().expect("the end")
    }

    #[test]
    fn stdout_is_the_text_alone_at_a_terminal() {
        let sandbox = Sandbox::new();
        for (flags, variables) in combinations() {
            let shown = at_terminal(&sandbox, flags, "2>err.txt", variables);
            // A terminal turns line ends round.
            assert_eq!(shown, "xyz\r\n", "{flags} {variables:?}");
        }
    }

    #[test]
    fn stderr_has_colours_at_a_terminal_unless_someone_says_no() {
        let sandbox = Sandbox::new();
        for (flags, variables) in combinations() {
            // An error has one in every case.
            let flags = format!("{flags} --mirostat 7");
            let shown = at_terminal(&sandbox, &flags, ">out.txt", variables);
            assert!(
                shown.contains("error: ") || shown.contains("mirostat is 7"),
                "{shown}"
            );
            let [(_, no_color), (_, term)] = variables;
            let wanted =
                no_color.is_none() && term != Some("dumb") && !flags.contains("--no-color");
            assert_eq!(
                shown.contains('\x1b'),
                wanted,
                "{flags} {variables:?}: {shown:?}"
            );
            let out = std::fs::read(sandbox.path().join("out.txt")).expect("a file");
            assert!(out.is_empty(), "{flags} {variables:?}");
        }
    }
}
