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
    terminal.says("/context", "1 turn");
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
    terminal.says("/save chat.json", "chat.json: 1 turn");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
    let saved = json(folder.path().join("chat.json"));
    assert_eq!(saved[0]["content"], "caf\u{fffd}noir");
}

#[test]
fn keys_leave_no_mark_in_a_reply() {
    let folder = folder();
    // The terminal of a person echoes; that of these tests does not by itself.
    let mut terminal = chat_after("stty echo echoctl", folder.path(), ENDLESS);
    terminal.types("Tell me a story about a fox.\r");
    terminal.sees("Once");
    terminal.types("ahead");
    let more = terminal.sees(" a ");
    terminal.types(CTRL_C);
    let rest = terminal.sees("> ");
    assert!(
        !more.contains("ahead") && !rest.contains("^C"),
        "{more}{rest}"
    );
    terminal.says("/context", "1 turn");
    terminal.types(CTRL_D);
    let (code, settings) = terminal.ends_with_settings();
    assert_eq!(code, 0);
    assert!(settings.contains(" echo "), "{settings}");
}

#[test]
fn a_paste_keeps_what_stood_before_a_byte_that_is_not_utf8() {
    let folder = folder();
    let mut terminal = chat(folder.path(), "-n 4 -c 5000");
    terminal.types("I say: ");
    terminal.sees("I say: ");
    terminal.types_bytes(b"\x1b[200~one\rtwo\tcaf\xe9 noir\rthree\x1b[201~");
    terminal.sees("this is not UTF-8");
    terminal.sees("caf");
    // Neither the rest of the paste nor the end of its line sends anything.
    terminal.types("!\r");
    terminal.says("/context", "1 turn");
    // A long one goes on after what the editor had read ahead.
    let rest = "three\r".repeat(400);
    let paste = [b"\x1b[200~one\rtwo \xe9", rest.as_bytes(), b"END\x1b[201~"].concat();
    terminal.types_bytes(&paste);
    terminal.sees("this is not UTF-8");
    terminal.sees("END");
    terminal.types("\r");
    terminal.says("/context", "2 turns");
    terminal.says("/save chat.json", "chat.json: 2 turns");
    terminal.types(CTRL_D);
    assert_eq!(terminal.ends(), 0);
    let saved = json(folder.path().join("chat.json"));
    assert_eq!(saved[0]["content"], "I say: one\ntwo\tcaf\u{fffd}!");
    let long = saved[2]["content"].as_str().expect("text");
    assert!(long.starts_with("one\ntwo \u{fffd}") && long.ends_with("three\nEND"));
    assert!(long.len() > 1000, "{} bytes", long.len());
}
