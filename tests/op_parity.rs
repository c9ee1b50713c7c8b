//! Every op and every type of weights on CUDA against the CPU's F32 reference, over
//! tables of shapes; each graph runs three times and must give equal bits.
//!
//! Without a usable GPU all trials are ignored; with `LLAMA_RS_REQUIRE_CUDA=1` they
//! fail. `LLAMA_RS_PARITY=small` runs a few of the smallest cases that together launch
//! every kernel (for `compute-sanitizer`); `LLAMA_RS_PARITY=reference` only the CPU's
//! half. `LLAMA_RS_TEST_VERBOSE` prints each error that was accepted.

#[path = "op_parity/attn.rs"]
mod attn;
#[path = "op_parity/case.rs"]
mod case;
#[path = "op_parity/cases.rs"]
mod cases;
#[path = "op_parity/chunk.rs"]
mod chunk;
#[path = "op_parity/device.rs"]
mod device;
#[path = "op_parity/elementwise.rs"]
mod elementwise;
#[allow(dead_code, reason = "shared with tests/ops.rs")]
#[path = "ops/harness.rs"]
mod harness;
#[path = "op_parity/heads.rs"]
mod heads;
#[path = "common/kernel_sources.rs"]
mod kernel_sources;
#[path = "op_parity/moe.rs"]
mod moe;
#[path = "op_parity/mul_mat.rs"]
mod mul_mat;
#[path = "op_parity/reduce.rs"]
mod reduce;
#[path = "op_parity/rows.rs"]
mod rows;

use case::Case;
use device::gpu;
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::Path;

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

fn trial(case: Case, mode: Mode, verbose: bool) -> Trial {
    let name = case.name.clone();
    Trial::test(name, move || {
        let error = match (mode, gpu()) {
            (Mode::Reference, _) => device::check_reference(&case),
            (_, Ok(gpu)) => device::check(gpu, &case),
            (_, Err(reason)) => Err(reason.clone()),
        };
        match error {
            Ok(error) => {
                if verbose {
                    eprintln!("{:.1e} {}", error, case.name);
                }
                Ok(())
            }
            Err(text) => Err(Failed::from(text)),
        }
    })
}

/// Whether every kernel has a case, where the sources are.
fn coverage() -> Trial {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda-kernels");
    let missing = !sources.exists();
    let check = move || cases::check_coverage(&sources).map_err(Failed::from);
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
        device::check_refusal(case)?;
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
