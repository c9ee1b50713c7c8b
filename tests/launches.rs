//! Launches that do the work of several (attention with what is ahead of it, chains of
//! products) give the bits of those that they stand for: every tiny model on the GPU, with
//! `LLAMA_RS_CHAIN=off` in another process and without, token by token and four at a time.

#[allow(dead_code, reason = "shared with other tests")]
mod common;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "common/cuda.rs"]
mod cuda;

use common::{arch_models, params};
use cuda::{Layers, Trials};
use libtest_mimic::{Arguments, Failed};
use std::path::Path;
use std::process::Command;

/// Asks this program for the bits of a file instead of trials.
const BITS_OF: &str = "LLAMA_RS_LAUNCHES_OF";

/// Tokens of a run: beyond the window of every tiny model, over more than one split of
/// attention.
const N_TOKENS: usize = 150;

/// The bits of the logits after each token, on a line, for both widths.
fn bits(file: &Path) -> llama_rs::Result<String> {
    let mut lines = String::new();
    for width in [1, 4] {
        let mut session = Layers::CudaAll.session(file, params(256, 16, false))?;
        let tokens: Vec<u32> = (0..N_TOKENS)
            .map(|i| ((i * 37 + 11) % 120) as u32)
            .collect();
        for some in tokens.chunks(width) {
            for x in session.eval(some)? {
                lines += &format!("{:08x}", x.to_bits());
            }
            lines.push('\n');
        }
    }
    Ok(lines)
}

fn in_another_process(file: &Path, chain: &str) -> Result<String, Failed> {
    let mut program = Command::new(std::env::current_exe()?);
    let done = program
        .env(BITS_OF, file)
        .env("LLAMA_RS_CHAIN", chain)
        .output()?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned().into());
    }
    Ok(String::from_utf8(done.stdout)?)
}

fn check(file: &Path) -> Result<(), Failed> {
    let (several, one) = (
        in_another_process(file, "on")?,
        in_another_process(file, "off")?,
    );
    if one.lines().count() != N_TOKENS + N_TOKENS.div_ceil(4) {
        return Err(format!("{} lines of bits", one.lines().count()).into());
    }
    match several.lines().zip(one.lines()).position(|(a, b)| a != b) {
        None if several.len() == one.len() => Ok(()),
        at => Err(format!("other bits from run {at:?} on").into()),
    }
}

fn main() {
    if let Some(file) = std::env::var_os(BITS_OF) {
        match bits(Path::new(&file)) {
            Ok(bits) => print!("{bits}"),
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(1);
            }
        }
        return;
    }
    let args = Arguments::from_args();
    let gpu = Trials::new();
    let trials = arch_models().into_iter().filter_map(|(name, file)| {
        let file = file?;
        Some(gpu.trial(name, Layers::CudaAll, move || check(&file)))
    });
    libtest_mimic::run(&args, trials.collect()).exit();
}
