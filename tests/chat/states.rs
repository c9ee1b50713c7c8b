//! FILE.state beside a session: whatever it holds costs time at most.

use super::{CHAT, Json, Sandbox, json, replies};
use sha2::{Digest, Sha256};
use std::process::{Command, Stdio};

/// Bytes of the SHA-256 at the end.
const HASH_BYTES: usize = 32;
/// Where the first length stands: after the format's name.
const FIRST_LENGTH: usize = 8;

/// A session of one turn, and the bytes of its state.
fn saved(sandbox: &Sandbox) -> Vec<u8> {
    replies(sandbox, &format!("{CHAT} --json --session s.json"), "w\n");
    std::fs::read(sandbox.path().join("s.json.state")).expect("saved")
}

/// Where the length of each part stands, and where the part begins.
fn lengths(state: &[u8]) -> Vec<(usize, usize)> {
    let mut at = FIRST_LENGTH;
    let mut all = Vec::new();
    while at < state.len() - HASH_BYTES {
        let len = u64::from_le_bytes(state[at..at + 8].try_into().expect("8 bytes"));
        all.push((at, at + 8));
        at += 8 + len as usize;
    }
    all
}

/// Goes on with `state`, under a limit of memory far below what it claims to need.
fn resumed(sandbox: &Sandbox, flags: &str) -> (Json, String) {
    let messages = std::fs::read(sandbox.path().join("s.json")).expect("saved");
    let call =
        format!("ulimit -v 8388608; exec \"$0\" {CHAT} --json --session s.json {flags} -p w");
    let output = Command::new("sh")
        .args(["-c", &call, env!("CARGO_BIN_EXE_llama-rs")])
        .current_dir(sandbox.path())
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    std::fs::write(sandbox.path().join("s.json"), messages).expect("written");
    (json(&String::from_utf8_lossy(&output.stdout)), stderr)
}

#[cfg(unix)]
#[test]
fn absurd_lengths_with_a_right_hash_are_refused() {
    let sandbox = Sandbox::new();
    let good = saved(&sandbox);
    let file = sandbox.path().join("s.json.state");
    let lengths = lengths(&good);
    assert_eq!(lengths.len(), 4);
    // The caches begin with a name and a fingerprint; then tokens and cells of either kind.
    let caches = lengths[2].1;
    let in_caches = [16, 24, 32].map(|at| caches + at);
    for at in lengths.iter().map(|l| l.0).chain(in_caches) {
        for absurd in [u64::MAX, 1 << 40, u64::MAX / 4] {
            let mut bad = good.clone();
            bad[at..at + 8].copy_from_slice(&absurd.to_le_bytes());
            let body = bad.len() - HASH_BYTES;
            let hash = Sha256::digest(&bad[..body]);
            bad[body..].copy_from_slice(hash.as_slice());
            std::fs::write(&file, bad).expect("written");
            let (reply, stderr) = resumed(&sandbox, "");
            assert_eq!(reply["reply"], "xyz", "{at}: {absurd}");
            assert_eq!(reply["evaluated_tokens"], reply["prompt_tokens"], "{at}");
            assert!(stderr.contains("s.json.state: "), "{at}: {stderr}");
        }
    }
    std::fs::write(&file, good).expect("written");
    assert_eq!(resumed(&sandbox, "").0["evaluated_tokens"], 1);
}

#[cfg(unix)]
#[test]
fn a_state_larger_than_the_caches_is_not_read() {
    let sandbox = Sandbox::new();
    let good = saved(&sandbox);
    let file = sandbox.path().join("s.json.state");
    // With a hole of 64 GiB after what was saved.
    let state = std::fs::File::options().write(true).open(&file);
    let state = state.expect("it is there");
    state.set_len(1 << 36).expect("a file with a hole");
    let (reply, stderr) = resumed(&sandbox, "");
    assert_eq!(reply["reply"], "xyz");
    assert_eq!(reply["evaluated_tokens"], reply["prompt_tokens"]);
    assert!(
        stderr.contains("context of this size: more than"),
        "{stderr}"
    );
    // One of a longer context that holds few tokens serves a shorter one.
    std::fs::write(&file, good).expect("written");
    assert_eq!(resumed(&sandbox, "-c 32").0["evaluated_tokens"], 1);
}
