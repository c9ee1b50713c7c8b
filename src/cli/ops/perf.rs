//! `ops perf`: how long each op takes, and how much of the memory's bandwidth it uses.

use super::OpsArgs;
use crate::backend::Device;
use crate::backend::check::perf::{Bench, Timing};
use crate::backend::check::perf_table;
use crate::backend::check::sample::Sample;
use crate::backend::check::shapes::OpRow;
use crate::cli::output::{Product, progress};
use crate::{Error, Result};
use serde_json::{Value as Json, json};
use std::io::Write;

/// Prints a row for each sample.
pub fn run(args: &OpsArgs, ops: &[&OpRow]) -> anyhow::Result<()> {
    let device = super::device(args)?;
    // What cannot be timed is told before the bandwidth is measured.
    let most_bytes = Bench::most_bytes_of(device);
    let samples = chosen(args, ops, most_bytes)?;
    let bench = match device {
        Device::Cpu => Bench::cpu(super::n_threads(args))?,
        Device::Cuda(index) => Bench::cuda(index)?,
    };
    tracing::info!(
        "{device} ({}): peak {:.0} GB/s, measured by a large copy; each time is the \
         median of repeated runs of many instances on random operands of their own, \
         divided by their number; spread is between the quartiles",
        bench.description(),
        bench.peak / 1e9
    );
    let mut product = Product::stdout();
    if !args.json {
        product.stream(HEAD.as_bytes())?;
    }
    let mut rows = Vec::new();
    let bar = progress(samples.len(), "ops perf");
    // What was timed before an error is printed all the same.
    let mut done = Ok(());
    for sample in &samples {
        let timing = match bench.time(sample) {
            Ok(timing) => timing,
            Err(error) => {
                done = Err(error.into());
                break;
            }
        };
        let row = Row {
            sample,
            timing,
            peak: bench.peak,
        };
        if args.json {
            rows.push(row.json(device));
        } else {
            bar.suspend(|| product.stream(row.line().as_bytes()))?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.json {
        writeln!(product, "{}", Json::Array(rows))?;
    }
    product.flush()?;
    done
}

/// The sample of `--shape`, or those of the table.
fn chosen(args: &OpsArgs, ops: &[&OpRow], most_bytes: usize) -> Result<Vec<Sample>> {
    if let (Some(shape), [op]) = (&args.shape, ops) {
        return Ok(vec![op.sample(shape, most_bytes)?]);
    }
    // One without a shape is no use among others either.
    ops.iter().try_for_each(|op| op.need_shape())?;
    let names: Vec<&str> = ops.iter().map(|op| op.name).collect();
    let samples = perf_table::samples(&names, most_bytes)?;
    match samples.is_empty() {
        true => Err(Error::input(format!(
            "no shape of {} is in the table; give one with --shape, see llama-rs ops list",
            names.join(", ")
        ))),
        false => Ok(samples),
    }
}

const HEAD: &str = "op                us a run   spread      GB/s   peak   GFLOP/s  shape\n";

/// A sample and how long it took; `None` where there is no kernel.
struct Row<'a> {
    sample: &'a Sample,
    timing: Option<Timing>,
    /// Bytes per second.
    peak: f64,
}

impl Row<'_> {
    fn bytes_per_second(&self, timing: &Timing) -> f64 {
        self.sample.bytes as f64 / timing.seconds
    }

    fn line(&self) -> String {
        let (op, shape) = (self.sample.op, &self.sample.shape);
        let Some(timing) = &self.timing else {
            return format!("{op:<16}  {:<46}  {shape}\n", "not supported");
        };
        let bytes = self.bytes_per_second(timing);
        let flops = match self.sample.flops {
            0 => "-".to_string(),
            flops => format!("{:.0}", flops as f64 / timing.seconds / 1e9),
        };
        let [low, high] = timing.quartiles;
        let note = if timing.short { "; short run" } else { "" };
        format!(
            "{op:<16}  {:>8.2}  {:>6.1}%  {:>8.1}  {:>4.0}%  {flops:>8}  {shape}{note}\n",
            timing.seconds * 1e6,
            (high - low) / timing.seconds * 100.0,
            bytes / 1e9,
            bytes / self.peak * 100.0
        )
    }

    fn json(&self, device: Device) -> Json {
        let sample = self.sample;
        let mut row = json!({
            "op": sample.op, "shape": sample.shape, "backend": device.to_string(),
            "supported": self.timing.is_some(), "bytes": sample.bytes, "flops": sample.flops,
            "peak_gb_s": self.peak / 1e9,
        });
        if let Some(timing) = &self.timing {
            let bytes = self.bytes_per_second(timing);
            row["us"] = json!(timing.seconds * 1e6);
            row["us_quartiles"] = json!(timing.quartiles.map(|s| s * 1e6));
            row["gb_s"] = json!(bytes / 1e9);
            row["gflop_s"] = json!(sample.flops as f64 / timing.seconds / 1e9);
            row["share_of_peak"] = json!(bytes / self.peak);
            row["instances"] = json!(timing.n_sets);
            row["repeats"] = json!(timing.repeats);
            row["short"] = json!(timing.short);
        }
        row
    }
}
