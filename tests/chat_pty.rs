//! `chat` at a terminal, with the toy model: what a person types, and what the terminal and
//! the operating system send.
#![cfg(unix)]

#[path = "chat_pty/keys.rs"]
mod keys;

use rexpect::process::{Signal, WaitStatus};
use rexpect::session::{Options, PtySession, spawn_with_options};
use serde_json::Value as Json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Generous, for a build without optimization on a busy machine.
const TIMEOUT_MS: u64 = 60_000;
/// Replies that end only when they are stopped; the context holds more than is awaited.
const ENDLESS: &str = "--ignore-eos -c 5000";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A chat in a terminal of its own.
struct Terminal(PtySession);

/// Starts a chat in `folder`, where its history lies, too.
fn chat(folder: &Path, flags: &str) -> Terminal {
    chat_after("true", folder, flags)
}

/// As [`chat`], after a command of the shell in the same terminal.
fn chat_after(first: &str, folder: &Path, flags: &str) -> Terminal {
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/toy-llama.gguf");
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{first}; exec \"$0\" \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_llama-rs"))
        .current_dir(folder)
        .env("TERM", "xterm")
        .env("LLAMA_RS_HISTORY", folder.join("history"))
        .env("EDITOR", "sed -i s/France/Spain/")
        .env_remove("VISUAL")
        .args(["chat", "--device", "cpu", "--temp", "0", "-m"])
        .arg(model)
        .args(flags.split_whitespace());
    let options = Options::new()
        .timeout_ms(Some(TIMEOUT_MS))
        .strip_ansi_escape_codes(true);
    let mut session = spawn_with_options(command, options).expect("a terminal");
    session.process_mut().set_kill_timeout(Some(2000));
    let mut terminal = Terminal(session);
    terminal.sees("/exit leaves");
    terminal.sees("> ");
    terminal
}

impl Terminal {
    /// Waits for `text`; gives what came before it.
    fn sees(&mut self, text: &str) -> String {
        match self.0.exp_string(text) {
            Ok(before) => before,
            Err(error) => panic!("no {text:?}: {error}"),
        }
    }

    fn types_bytes(&mut self, keys: &[u8]) {
        use std::io::Write;
        let mut terminal = self.0.process().get_file_handle().expect("the terminal");
        terminal.write_all(keys).expect("the terminal is there");
    }

    fn types(&mut self, keys: &str) {
        self.0.send(keys).expect("the terminal is there");
        self.0.flush().expect("the terminal is there");
    }

    /// Sends a line and waits until `answer` is seen and the next one can be typed.
    fn says(&mut self, line: &str, answer: &str) {
        self.types(&format!("{line}\r"));
        self.sees(answer);
        self.sees("> ");
    }

    fn settings(&self) -> String {
        let terminal = self.0.process().get_file_handle().expect("the terminal");
        let output = Command::new("stty").arg("-a").stdin(terminal).output();
        String::from_utf8_lossy(&output.expect("stty").stdout).into_owned()
    }

    fn resize(&self, columns: u32) {
        let terminal = self.0.process().get_file_handle().expect("the terminal");
        let mut stty = Command::new("stty");
        stty.args(["cols", &columns.to_string(), "rows", "24"]);
        let status = stty.stdin(Stdio::from(terminal)).status();
        assert!(status.expect("stty").success());
    }

    fn kill(&mut self, signal: Signal) {
        self.0.process_mut().signal(signal).expect("it runs");
    }

    /// Waits for the end; gives the exit code.
    fn ends(self) -> i32 {
        self.ends_with_settings().0
    }

    /// As [`Terminal::ends`], with the terminal's settings, unless a signal killed the process.
    fn ends_with_settings(self) -> (i32, String) {
        let started = Instant::now();
        loop {
            match self.0.process().status() {
                Some(WaitStatus::Exited(_, code)) => {
                    let settings = self.settings();
                    assert!(!settings.contains("-icanon"), "raw mode stays: {settings}");
                    return (code, settings);
                }
                Some(WaitStatus::Signaled(_, signal, _)) => {
                    return (-(signal as i32), String::new());
                }
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
            assert!(
                started.elapsed().as_millis() < TIMEOUT_MS.into(),
                "it stays"
            );
        }
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn json(path: PathBuf) -> Json {
    let bytes = std::fs::read(path).expect("the file is there");
    serde_json::from_slice(&bytes).expect("JSON")
}

#[test]
fn forty_pasted_lines_are_one_message() {
    let folder = folder();
    let mut terminal = chat(folder.path(), "-n 4");
    let mut lines: Vec<String> = (1..40).map(|n| format!("line {n} \\")).collect();
    lines.push("line 40".to_string());
    // Terminals send carriage returns for line ends.
    terminal.types(&format!("\x1b[200~{}\x1b[201~", lines.join("\r")));
    terminal.sees("line 40");
    terminal.types("\r");
    terminal.says("/context", "1 turn");
    terminal.says("/save chat.json", "chat.json: 1 turn");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
    let saved = json(folder.path().join("chat.json"));
    // The backslashes were pasted, so they are part of the text.
    assert_eq!(saved[0]["content"], lines.join("\n"));
}

#[test]
fn blocks_backslashes_and_wide_characters_are_typed() {
    let folder = folder();
    let mut terminal = chat(folder.path(), "-n 4");
    terminal.types("\"\"\"\r/help\rtwo\"\"\"\r");
    terminal.says("/context", "1 turn");
    terminal.types("one\\\rtwo\r");
    terminal.says("/context", "2 turns");
    // Two backspaces take two characters, not bytes or columns.
    terminal.types("Grüße 漢字🦀\x7f\x7f!\r");
    terminal.says("/context", "3 turns");
    terminal.types("/sa\t chat.json\r");
    terminal.sees("chat.json: 3 turns");
    terminal.types("/exit\r");
    assert_eq!(terminal.ends(), 0);
    let saved = json(folder.path().join("chat.json"));
    let said = [0, 2, 4].map(|at| saved[at]["content"].as_str().expect("text").to_string());
    assert_eq!(said, ["/help\ntwo", "one\ntwo", "Grüße 漢!"]);
}

#[test]
fn ctrl_c_stops_a_reply_and_clears_a_line() {
    let folder = folder();
    let mut terminal = chat(folder.path(), ENDLESS);
    terminal.types("Tell me a story about a fox.\r");
    terminal.sees("Once");
    terminal.types(CTRL_C);
    terminal.sees("> ");
    terminal.says("/context", "1 turn");
    // The half that was said stays, and another turn follows.
    terminal.types("What is rain?\r");
    terminal.sees("Rain");
    terminal.types(CTRL_C);
    terminal.sees("> ");
    terminal.types("never sent");
    terminal.sees("never sent");
    terminal.types(CTRL_C);
    terminal.sees("(Ctrl-D or /exit leaves)");
    terminal.says("/context", "2 turns");
    // Sent as a signal it does the same.
    terminal.kill(Signal::SIGINT);
    terminal.sees("(Ctrl-D or /exit leaves)");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn a_chat_that_was_killed_goes_on() {
    let folder = folder();
    let flags = "-n 12 --session s.json";
    let mut terminal = chat(folder.path(), flags);
    terminal.types("Hello!\r");
    terminal.says("/context", "1 turn");
    terminal.types("What is rain?\r");
    terminal.says("/context", "2 turns");
    terminal.says("/undo", "taken back: What is rain?");
    terminal.says("/save chat.json", "chat.json: 1 turn");
    terminal.kill(Signal::SIGKILL);
    assert_eq!(terminal.ends(), -9);
    let mut terminal = chat(folder.path(), flags);
    terminal.says("/context", "1 turn");
    terminal.types("What are you?\r");
    // All but the new message is in the cache.
    terminal.types("/stats\r");
    let stats = terminal.sees(" of them evaluated");
    let (_, evaluated) = stats.rsplit_once(' ').expect("numbers");
    assert!(evaluated.parse::<u32>().expect("a number") < 20, "{stats}");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
    let saved = json(folder.path().join("s.json"));
    assert_eq!(
        saved["messages"][0],
        json(folder.path().join("chat.json"))[0]
    );
    assert_eq!(saved["messages"][2]["content"], "What are you?");
}

#[test]
fn sigterm_saves_and_gives_the_terminal_back() {
    for in_reply in [true, false] {
        let folder = folder();
        let mut terminal = chat(folder.path(), &format!("{ENDLESS} --session s.json"));
        terminal.types("Tell me a story about a fox.\r");
        terminal.sees("Once");
        if !in_reply {
            terminal.types(CTRL_C);
            terminal.sees("> ");
            terminal.types("half a li");
            terminal.sees("half a li");
        }
        terminal.kill(Signal::SIGTERM);
        // As shells tell it: 128 and the signal.
        assert_eq!(terminal.ends(), 143);
        let saved = json(folder.path().join("s.json"));
        let reply = saved["messages"][1]["content"].as_str().expect("a reply");
        assert!(reply.starts_with("Once"), "{reply}");
        assert!(folder.path().join("s.json.state").exists());
    }
}

#[test]
fn a_window_may_change_while_a_reply_streams() {
    let folder = folder();
    let mut terminal = chat(folder.path(), ENDLESS);
    terminal.types("Tell me a story about a fox.\r");
    terminal.sees("Once");
    for columns in [40, 10, 132] {
        terminal.resize(columns);
    }
    terminal.sees(" a ");
    terminal.types(CTRL_C);
    terminal.sees("> ");
    terminal.resize(60);
    terminal.says("/context", "1 turn");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn lines_are_remembered_for_the_user_alone() {
    let folder = folder();
    let mut terminal = chat(folder.path(), "-n 4");
    terminal.types("What is the capital of France?\r");
    terminal.says("/context", "1 turn");
    // The message is edited, and sent instead.
    terminal.types("/edit\r");
    terminal.says("/context", "1 turn");
    terminal.says("/undo", "taken back: What is the capital of Spain?");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
    let history = folder.path().join("history");
    let mode = history.metadata().expect("a history").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = std::fs::read_to_string(&history).expect("text");
    assert!(text.contains("What is the capital of France?"), "{text}");
    // Ctrl-R finds it another day.
    let mut terminal = chat(folder.path(), "-n 4");
    terminal.types("\x12capital");
    terminal.sees("What is the capital of France?");
    terminal.types("\r");
    terminal.says("/context", "1 turn");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn an_answer_on_a_terminal_is_only_text() {
    let folder = folder();
    let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/toy-llama.gguf");
    for (flags, name, value) in [
        ("", "TERM", "xterm"),
        ("-v", "TERM", "dumb"),
        ("--quiet", "NO_COLOR", "1"),
    ] {
        let mut command = Command::new("sh");
        let call = "exec \"$0\" chat --device cpu --temp 0 -n 4 -p Hello! -m \"$1\" $2 2>errors";
        command
            .current_dir(folder.path())
            .env(name, value)
            .args(["-c", call, env!("CARGO_BIN_EXE_llama-rs")])
            .arg(&model)
            .arg(flags);
        let options = Options::new().timeout_ms(Some(TIMEOUT_MS));
        let mut session = spawn_with_options(command, options).expect("a terminal");
        let text = session.exp_eof().expect("it ends");
        let letters = text
            .trim_end()
            .chars()
            .all(|c| c.is_ascii_alphabetic() || " !'".contains(c));
        assert!(
            letters && text.trim().len() > 4,
            "{flags} {name}={value}: {text:?}"
        );
    }
}
