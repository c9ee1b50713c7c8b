//! Private memory of a process that evaluates on the CPU, against the plan. A test alone
//! in its process, so that the memory is its own. Only Linux tells it so.
#![cfg(target_os = "linux")]

#[allow(dead_code)] // shared with tests that need more
mod common;

use common::params;
use llama_rs::gguf::Gguf;
use llama_rs::model::{Model, Overrides};
use llama_rs::session::{Session, SessionParams};
use std::path::Path;
use std::sync::Arc;

/// Beyond the plan: threads' stacks, the vocabulary, graphs. The larger of both counts.
const SLACK_BYTES: usize = 16 << 20;
const SLACK_SHARE: f64 = 0.03;

/// Anonymous resident bytes of this process.
fn private_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse::<usize>().ok())
        .expect("a number")
        << 10
}

/// Fills the whole context, so that every planned byte has been written.
#[test]
fn peak_private_memory_is_what_was_planned() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/toy-llama.gguf");
    for (n_ctx, n_ubatch, exact) in [(4096, 512, true), (2048, 2048, false)] {
        let gguf = Gguf::open(&file, true).expect("the file opens");
        let model = Arc::new(Model::load(gguf, &Overrides::default()).expect("the model loads"));
        let before = private_bytes();
        // One thread is quick enough, and does not wait for others on a busy machine.
        let params = SessionParams {
            n_threads: 1,
            ..params(n_ctx, n_ubatch, exact)
        };
        let mut session = Session::new(model, params).expect("a session");
        let mut peak = 0;
        let tokens: Vec<u32> = (0..n_ctx as u32).map(|at| 1 + at % 1000).collect();
        let (prompt, rest) = tokens.split_at(n_ctx - 8);
        for tokens in prompt.chunks(n_ubatch).chain(rest.chunks(1)) {
            session.eval(tokens).expect("room for all");
            peak = peak.max(private_bytes());
        }
        let need = session.plan().shares[0].need;
        let (planned, taken) = (need.kv + need.compute, peak.saturating_sub(before));
        eprintln!("-c {n_ctx} -ub {n_ubatch}: planned {planned}, taken {taken}");
        let slack = SLACK_BYTES.max((planned as f64 * SLACK_SHARE) as usize);
        assert!(
            taken.abs_diff(planned) <= slack,
            "planned {planned}, taken {taken}"
        );
    }
}
