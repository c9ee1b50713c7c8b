//! Drafts leave no trace: tokens evaluated together have the logits, to the bit, that
//! they have one after another, and so have those that come after a draft was cut off.
//! For every tiny model, wherever batches keep bits.

#[allow(dead_code, reason = "shared with other tests")]
mod common;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "common/cuda.rs"]
mod cuda;

use common::{arch_models, params};
use cuda::{Layers, Trials};
use libtest_mimic::{Arguments, Failed};
use llama_rs::session::Session;
use llama_rs::session::lookup::MOST_TOKENS;
use std::path::Path;

/// Tokens that are drafted over: beyond the window of every tiny model, and its cells.
const N_TOKENS: usize = 90;

fn tokens(seed: usize, n: usize) -> Vec<u32> {
    (0..n)
        .map(|i| ((i * 37 + seed * 11) % 120) as u32)
        .collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Logits after each of some tokens, evaluated at once.
fn together(session: &mut Session, tokens: &[u32]) -> Result<Vec<Vec<u32>>, Failed> {
    let mut all = Vec::new();
    session.eval_all(tokens, &mut |_, row| {
        all.push(bits(row));
        Ok(())
    })?;
    Ok(all)
}

/// Batches of two to eight tokens, of which as many are kept as happens to be.
fn check(file: &Path, layers: Layers, exact: bool) -> Result<(), Failed> {
    let new = || layers.session(file, params(128, 16, exact));
    let (mut plain, mut ahead) = (new()?, new()?);
    if !ahead.batches_keep_bits() {
        return Err("the session says that its batches do not keep bits".into());
    }
    let text = tokens(1, N_TOKENS);
    let mut want = Vec::new();
    for token in &text {
        want.push(bits(plain.eval(&[*token])?));
    }
    let mut at = 0;
    while at + MOST_TOKENS < N_TOKENS {
        let width = 2 + at % (MOST_TOKENS - 1);
        // Recurrent states cannot be cut back.
        let n_kept = match ahead.needs_checkpoints() {
            true => width,
            false => 1 + at % width,
        };
        let wrong = tokens(at + 2, width - n_kept);
        let batch = [&text[at..at + n_kept], &wrong[..]].concat();
        let got = together(&mut ahead, &batch)?;
        for (i, got) in got.iter().enumerate().take(n_kept) {
            if *got != want[at + i] {
                return Err(format!("token {} in {i} of {width}", at + i).into());
            }
        }
        at += n_kept;
        ahead.truncate(at)?;
        if ahead.n_past() != at {
            return Err(format!("{} of {at} tokens left", ahead.n_past()).into());
        }
    }
    Ok(())
}

/// The ids found on the way are those of the logits.
fn ids(file: &Path, layers: Layers) -> Result<(), Failed> {
    let mut session = layers.session(file, params(64, 16, false))?;
    let text = tokens(3, 20);
    let mut want = Vec::new();
    session.eval_all(&text, &mut |_, row| {
        let mut best = 0;
        (0..row.len()).for_each(|i| best = if row[i] > row[best] { i } else { best });
        want.push(Some(best as u32));
        Ok(())
    })?;
    session.clear();
    let got = session.eval_all_greedy(&text)?;
    match got == want {
        true => Ok(()),
        false => Err(format!("{got:?} for {want:?}").into()),
    }
}

fn main() {
    let args = Arguments::from_args();
    let gpu = Trials::new();
    let mut trials = Vec::new();
    for (name, file) in arch_models() {
        let Some(file) = file else {
            continue;
        };
        for (layers, place) in [(Layers::Cpu, ""), (Layers::CudaAll, "cuda_all::")] {
            for (exact, how) in [(false, "bits"), (true, "bits_exact")] {
                if exact && matches!(layers, Layers::CudaAll) {
                    continue; // kernels for F32 activations do not keep bits yet
                }
                let file = file.clone();
                let check = move || check(&file, layers, exact);
                trials.push(gpu.trial(format!("{name}::{place}{how}"), layers, check));
            }
            let file = file.clone();
            let check = move || ids(&file, layers);
            trials.push(gpu.trial(format!("{name}::{place}ids"), layers, check));
        }
    }
    libtest_mimic::run(&args, trials).exit();
}
