//! As `planned.rs`, with layers on a GPU: what was planned is what is allocated on each
//! device, and what the driver says is gone is that and the overhead.

#[allow(dead_code)] // shared with tests that need more
mod common;
#[path = "common/cuda.rs"]
mod cuda;

use common::{arch_models, params};
use cuda::{Layers, Trials};
use libtest_mimic::{Arguments, Failed};
use llama_rs::backend::cuda::{Context, overhead_bytes};
use llama_rs::memory::placement::OFFLOAD;
use llama_rs::session::Session;
use std::path::{Path, PathBuf};

/// Context, ubatch, `--exact`.
const SETTINGS: [(usize, usize, bool); 3] = [(64, 16, false), (1000, 128, true), (300, 512, false)];

/// A session that has run a whole ubatch and a single token, greedily as commands do.
fn session(
    file: &Path,
    layers: Layers,
    (n_ctx, n_ubatch, exact): (usize, usize, bool),
) -> Result<Session, Failed> {
    let mut session = layers.session(file, params(n_ctx, n_ubatch, exact))?;
    let whole = vec![1; n_ubatch.min(n_ctx)];
    session.eval(&whole)?;
    session.clear();
    session.eval(&whole[..1])?;
    Ok(session)
}

fn planned_is_held(file: &Path, layers: Layers) -> Result<(), Failed> {
    for setting in SETTINGS {
        let session = session(file, layers, setting)?;
        let shares = session.plan().shares.iter().map(|share| share.need);
        let planned: Vec<_> = shares.map(|n| [n.weights, n.kv, n.compute]).collect();
        let held = session.held();
        let held: Vec<_> = held.iter().map(|h| [h.weights, h.kv, h.compute]).collect();
        if planned != held {
            return Err(format!("{setting:?}: planned {planned:?}, held {held:?}").into());
        }
    }
    Ok(())
}

/// Prints the numbers, so that the overhead can be set to what a GPU shows.
fn the_driver_agrees(file: &Path) -> Result<(), Failed> {
    let context = Context::open(0)?;
    let before = context.mem_info()?.0;
    let session = session(file, Layers::CudaAll, (1000, 128, false))?;
    let gone = before.saturating_sub(context.mem_info()?.0);
    let need = session.plan().shares[OFFLOAD].need;
    let ours = need.total() - need.overhead;
    let kib = |bytes: usize| bytes >> 10;
    eprintln!(
        "{}: planned {} KiB and {} of overhead, {} KiB are gone",
        file.display(),
        kib(ours),
        kib(need.overhead),
        kib(gone)
    );
    // 2 % or 32 MiB is what a plan may be off by; 4 to 10 MiB beyond `ours` were seen.
    let slack = (need.total() / 50).max(32 << 20);
    if gone.abs_diff(ours + overhead_bytes(true)) > slack {
        return Err(format!("{} KiB are gone, {} were planned", kib(gone), kib(ours)).into());
    }
    Ok(())
}

/// Models of a folder that a variable names, beside the tiny ones.
fn further_models() -> Vec<(String, Option<PathBuf>)> {
    let Some(folder) = std::env::var_os("LLAMA_RS_PLAN_MODELS") else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(folder).expect("a folder of models");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let files = files.filter(|file| file.extension().is_some_and(|e| e == "gguf"));
    let named = |file: PathBuf| {
        let name = file.file_stem().expect("a name").to_string_lossy();
        (name.to_string(), Some(file.clone()))
    };
    files.map(named).collect()
}

fn main() {
    let args = Arguments::from_args();
    let gpu = Trials::new();
    let mut trials = Vec::new();
    for (name, file) in arch_models().into_iter().chain(further_models()) {
        let Some(file) = file else { continue };
        for (layers, place) in Layers::ALL {
            let (of, at) = (file.clone(), format!("{name}::{place}held"));
            trials.push(gpu.trial(at, layers, move || planned_is_held(&of, layers)));
        }
        let at = format!("{name}::cuda_all::driver");
        trials.push(gpu.trial(at, Layers::CudaAll, move || the_driver_agrees(&file)));
    }
    libtest_mimic::run(&args, trials).exit();
}
