//! Keys and pastes that are no plain text.

use super::*;

#[test]
fn ctrl_d_counts_while_a_reply_comes_and_in_a_block() {
    let folder = folder();
    let mut terminal = chat(folder.path(), "-n 100 --ignore-eos -c 5000");
    terminal.types("\"\"\"\rone");
    terminal.sees("one");
    terminal.types(CTRL_D);
    terminal.sees("ends the message");
    terminal.types("\"\"\"\r");
    terminal.says("/context", "1 turns");
    terminal.types("Tell me a story about a fox.\r");
    terminal.sees("Once");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
}

#[test]
fn bytes_that_are_not_utf8_cost_no_chat() {
    let folder = folder();
    let mut terminal = chat(folder.path(), "-n 4");
    terminal.types("caf");
    terminal.sees("caf");
    terminal.types_bytes(b"\xe9 ");
    terminal.sees("this is not UTF-8");
    terminal.sees("> caf");
    terminal.types("noir\r");
    terminal.says("/save chat.json", "chat.json: 1 turns");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
    let saved = json(folder.path().join("chat.json"));
    assert_eq!(saved[0]["content"], "caf\u{fffd}noir");
}

#[test]
fn ctrl_c_leaves_no_mark_in_a_reply() {
    let folder = folder();
    // The terminal of a person echoes; that of these tests does not by itself.
    let mut terminal = chat_after("stty echo echoctl", folder.path(), ENDLESS);
    terminal.types("Tell me a story about a fox.\r");
    terminal.sees("Once");
    terminal.types(CTRL_C);
    let rest = terminal.sees("> ");
    assert!(!rest.contains("^C"), "{rest:?}");
    // Between replies the terminal is as it was.
    terminal.says("/context", "1 turns");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
}
