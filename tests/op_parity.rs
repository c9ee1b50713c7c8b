//! Every op and every type of weights on CUDA against the CPU's F32 reference, over
//! tables of shapes; each graph runs three times and must give equal bits.
//!
//! Without a usable GPU all trials are ignored; with `LLAMA_RS_REQUIRE_CUDA=1` they
//! fail. `LLAMA_RS_PARITY=small` runs a few of the smallest cases that together launch
//! every kernel (for `compute-sanitizer`); `LLAMA_RS_PARITY=reference` only the CPU's
//! half. `LLAMA_RS_TEST_VERBOSE` prints each error that was accepted.

#[path = "common/kernel_sources.rs"]
mod kernel_sources;

use libtest_mimic::{Arguments, Failed, Trial};
use llama_rs::backend::check::case::Case;
use llama_rs::backend::check::cases;
use llama_rs::backend::check::target::{self, CudaTarget, Target, Verdict};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

/// Fills the compute buffer on the device with NaN.
const POISON: &str = "LLAMA_RS_POISON";

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    All,
    /// Not poisoned: `initcheck` wants to see what was never written.
    Small,
    Reference,
}

fn mode() -> Mode {
    match std::env::var("LLAMA_RS_PARITY").as_deref() {
        Ok("small") => Mode::Small,
        Ok("reference") => Mode::Reference,
        _ => Mode::All,
    }
}

/// The first GPU, or why there is none to use.
fn gpu() -> &'static Result<Target, String> {
    static GPU: OnceLock<Result<Target, String>> = OnceLock::new();
    GPU.get_or_init(|| match CudaTarget::open(0) {
        Ok(gpu) => Ok(Target::Cuda(gpu)),
        Err(error) => Err(error.to_string()),
    })
}

/// The largest error of a case; a case without kernels fails.
fn check(case: &Case, mode: Mode) -> Result<f64, String> {
    let verdict = match (mode, gpu()) {
        (Mode::Reference, _) => target::check_reference(case).map(Verdict::Close),
        (_, Ok(gpu)) => gpu.check(case),
        (_, Err(reason)) => return Err(reason.clone()),
    };
    match verdict {
        Ok(Verdict::Close(error)) => Ok(error),
        Ok(Verdict::NotSupported) => Err("a node has no CUDA kernel".to_string()),
        Err(error) => Err(error.to_string()),
    }
}

fn trial(case: Case, mode: Mode, verbose: bool) -> Trial {
    let name = case.name.clone();
    Trial::test(name, move || match check(&case, mode) {
        Ok(error) => {
            if verbose {
                eprintln!("{:.1e} {}", error, case.name);
            }
            Ok(())
        }
        Err(text) => Err(Failed::from(text)),
    })
}

/// True for kernels that no node launches: uploads do, or nothing does, since F32
/// weights are multiplied with F32 activations, but every type has these.
fn launched_unseen(entry: &str) -> bool {
    let unused = ["mul_mat_F32", "mul_mat_id_F32", "mul_mat_vec_F32"];
    // They stand for launches that have cases; tests/launches.rs and tests/mamba_token.rs hold
    // their bits together, cases of whole MoE layers run the experts' (`LLAMA_RS_EXPERTS=on`).
    let several = ["chain", "moe_up_", "moe_down", "ssm_token_"];
    let stands_for = several.iter().any(|name| entry.starts_with(name));
    entry.starts_with("rearrange_") || unused.contains(&entry) || stands_for
}

/// Needs no GPU: every case has kernels, and every kernel in `sources` has a case.
fn check_coverage(sources: &Path) -> Result<(), String> {
    let launched = cases::all().into_par_iter().map(|case| {
        let launched = cases::launches(&case).map_err(|e| format!("{}: {e}", case.name))?;
        Ok(launched.0.into_iter().map(|l| l.0).collect::<Vec<_>>())
    });
    let launched: Result<Vec<_>, String> = launched.collect();
    let launched: BTreeSet<String> = launched?.into_iter().flatten().collect();
    let entries = kernel_sources::entries(sources);
    let missing = |name: &&String| !launched_unseen(name) && !launched.contains(*name);
    let missing: Vec<_> = entries.iter().filter(missing).collect();
    let unknown: Vec<_> = launched.difference(&entries).collect();
    match missing.is_empty() && unknown.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "kernels without a case: {missing:?}; launched, but in no source: {unknown:?}"
        )),
    }
}

/// Whether every kernel has a case, where the sources are.
fn coverage() -> Trial {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda-kernels");
    let missing = !sources.exists();
    let check = move || check_coverage(&sources).map_err(Failed::from);
    Trial::test("every kernel has a case", check).with_ignored_flag(missing)
}

/// Whether comparing can fail at all, for one case of each kind of result.
fn refusal() -> Result<(), Failed> {
    let kinds = [
        "ADD/",
        "GET_ROWS/Q4_K/",
        "ARGMAX/random/",
        "SET_ROWS/F16/k=131,",
        "MOE_ROUTE/used=2,",
        "MUL_MAT/Q4_K/",
        "ATTN/",
    ];
    let all = cases::all();
    for kind in kinds {
        let case = all.iter().find(|c| c.name.starts_with(kind));
        let case = case.ok_or_else(|| format!("no case {kind}"))?;
        target::check_refusal(case)?;
    }
    Ok(())
}

/// The same program again with a poisoned compute buffer.
fn again_with_poison() -> std::io::Result<std::process::ExitStatus> {
    std::process::Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(POISON, "1")
        .status()
}

fn main() {
    let args = Arguments::from_args();
    let mode = mode();
    if mode == Mode::All && std::env::var_os(POISON).is_none() {
        let status = again_with_poison().expect("this program starts again");
        std::process::exit(status.code().unwrap_or(1));
    }
    let required = std::env::var("LLAMA_RS_REQUIRE_CUDA").is_ok_and(|v| v == "1");
    let mut ignored = false;
    if mode != Mode::Reference
        && let (Err(reason), false) = (gpu(), required)
    {
        eprintln!("skipped: {reason}");
        ignored = true;
    }
    let cases = match mode {
        Mode::Small => cases::covering(cases::all()),
        _ => cases::all(),
    };
    let verbose = std::env::var_os("LLAMA_RS_TEST_VERBOSE").is_some();
    let trials = cases.into_iter();
    let trials = trials.map(|c| trial(c, mode, verbose).with_ignored_flag(ignored));
    let mut trials: Vec<Trial> = trials.collect();
    trials.push(coverage());
    trials.push(Trial::test("a wrong outcome is refused", refusal));
    libtest_mimic::run(&args, trials).exit();
}
