//! Signals and pipes, on systems that have them.

use super::sandbox::Sandbox;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// Runs without end until interrupted, or until its long context is full.
const ENDLESS: &str = "--ignore-eos -n -1 -c 1000000";

fn start(sandbox: &Sandbox, line: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_llama-rs"))
        .args(line.split(' '))
        .current_dir(sandbox.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

fn read_some(child: &mut Child) {
    let mut some = [0; 16];
    let stdout = child.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut some).expect("output");
}

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    let status = Command::new("kill").args(["-INT", &pid]).status();
    assert!(status.expect("kill runs").success());
}

#[test]
fn an_interrupted_simple_exits_with_130() {
    let sandbox = Sandbox::new();
    let mut child = start(&sandbox, &format!("simple -m model.gguf {ENDLESS} a"));
    read_some(&mut child);
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(output.stdout.last(), Some(&b'\n'));
}

#[test]
fn an_interrupted_reply_leaves_the_chat_running() {
    let sandbox = Sandbox::new();
    let mut child = start(&sandbox, &format!("chat -m model.gguf --temp 0 {ENDLESS}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"a\n/exit\n").expect("written");
    read_some(&mut child);
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
}

#[test]
fn a_closed_pipe_is_a_quiet_success() {
    let sandbox = Sandbox::new();
    let line = format!("simple --quiet -m model.gguf {ENDLESS} a");
    let mut child = start(&sandbox, &line);
    read_some(&mut child);
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn a_stderr_that_cannot_be_written_to_changes_nothing() {
    let sandbox = Sandbox::new();
    let full = std::fs::File::options().write(true).open("/dev/full");
    let output = Command::new(env!("CARGO_BIN_EXE_llama-rs"))
        .args("simple -m model.gguf -n 2 a".split(' '))
        .current_dir(sandbox.path())
        .stdin(Stdio::null())
        .stderr(full.expect("a device"))
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"abc\n");
}
