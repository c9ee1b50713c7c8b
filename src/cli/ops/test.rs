//! `ops test`: a backend against the CPU's reference.

use super::OpsArgs;
use crate::backend::Device;
use crate::backend::check::case::Case;
use crate::backend::check::cases;
use crate::backend::check::shapes::OpRow;
use crate::backend::check::target::{CpuTarget, CudaTarget, Target, Verdict};
use crate::cli::output::{Product, progress};
use crate::{Error, Result};
use serde_json::{Value as Json, json};
use std::io::Write;

/// Most bytes of a shape from the command line: the reference runs on the CPU.
const MOST_BYTES: usize = 1 << 30;

/// What became of the cases.
#[derive(Default)]
struct Counts {
    ok: usize,
    failed: usize,
    unsupported: usize,
}

/// Prints a line for each case, and the counts.
///
/// # Errors
/// A case failed.
pub fn run(args: &OpsArgs, ops: &[&OpRow]) -> anyhow::Result<()> {
    let cases = chosen(args, ops)?;
    let device = super::device(args)?;
    let target = match device {
        Device::Cpu => Target::Cpu(CpuTarget::new(super::n_threads(args))),
        Device::Cuda(index) => Target::Cuda(CudaTarget::open(index)?),
    };
    let mut product = Product::stdout();
    let mut counts = Counts::default();
    let mut rows = Vec::new();
    let bar = progress(cases.len(), "ops test");
    for case in &cases {
        let verdict = target.check(case);
        let row = counts.row(case, &verdict);
        if args.json {
            rows.push(row);
        } else {
            bar.suspend(|| product.stream(line(case, &verdict).as_bytes()))?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let Counts {
        ok,
        failed,
        unsupported,
    } = counts;
    match args.json {
        true => writeln!(product, "{}", Json::Array(rows))?,
        false => writeln!(
            product,
            "{device}: {ok} OK, {failed} failed, {unsupported} not supported"
        )?,
    }
    product.flush()?;
    match failed {
        0 => Ok(()),
        _ => Err(Error::input(format!(
            "{failed} of {} cases failed on {device}; the lines with FAIL say how",
            cases.len()
        ))
        .into()),
    }
}

/// The case of `--shape`, or those of the table.
fn chosen(args: &OpsArgs, ops: &[&OpRow]) -> Result<Vec<Case>> {
    if let (Some(shape), [op]) = (&args.shape, ops) {
        return Ok(vec![op.sample(shape, MOST_BYTES)?.case()]);
    }
    let mut cases = cases::all();
    cases.retain(|case| ops.is_empty() || ops.iter().any(|op| op.name == case.op()));
    match cases.is_empty() {
        true => Err(Error::input(format!(
            "{} has no cases of its own; others run it, see llama-rs ops list",
            ops.iter().map(|op| op.name).collect::<Vec<_>>().join(", ")
        ))),
        false => Ok(cases),
    }
}

impl Counts {
    /// Counts a verdict; gives it as JSON.
    fn row(&mut self, case: &Case, verdict: &Result<Verdict>) -> Json {
        let mut row = json!({ "case": case.name });
        let status = match verdict {
            Ok(Verdict::Close(nmse)) => {
                self.ok += 1;
                row["nmse"] = json!(nmse);
                "OK"
            }
            Ok(Verdict::NotSupported) => {
                self.unsupported += 1;
                "not supported"
            }
            Err(error) => {
                self.failed += 1;
                row["error"] = json!(error.to_string());
                "FAIL"
            }
        };
        row["status"] = json!(status);
        row
    }
}

fn line(case: &Case, verdict: &Result<Verdict>) -> String {
    let name = &case.name;
    match verdict {
        Ok(Verdict::Close(nmse)) => format!("{name}  OK {nmse:.1e}\n"),
        Ok(Verdict::NotSupported) => format!("{name}  not supported\n"),
        Err(error) => format!("{name}  FAIL {error}\n"),
    }
}
