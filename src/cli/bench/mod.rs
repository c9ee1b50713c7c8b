//! `llama-rs bench`: prefill and decode speed on fixed token ids.

mod args;
mod measure;
mod memory;
mod plan;
mod report;
mod stats;

pub use args::BenchArgs;

use super::device_choice::{self, Choice};
use super::flags::EvalArgs;
use super::load;
use super::output::progress;
use crate::gguf::Gguf;
use crate::memory::planner::Wish;
use crate::model::Model;
use crate::{Error, Result};
use memory::Bandwidths;
use plan::{Kind, Test};
use report::{Report, Setting, Subject};
use std::sync::Arc;

/// How the model is evaluated, and where.
struct How {
    eval: EvalArgs,
    choice: Choice,
    n_threads: usize,
}

/// Runs the command.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    let groups = plan::groups(&args);
    let (subject, model) = open(&args)?;
    let how = |eval: EvalArgs| {
        for group in &groups {
            wish(&model, &eval, group)?;
        }
        Ok(How {
            choice: device_choice::choose(&eval.devices)?,
            n_threads: load::n_threads(&eval.context),
            eval,
        })
    };
    let hows: Vec<How> = args
        .evaluations()
        .into_iter()
        .map(how)
        .collect::<Result<_>>()?;
    let mut bandwidths = Bandwidths::default();
    let is_decode = |test: &Test| matches!(test.kind, Kind::Decode(_));
    if groups.iter().flatten().any(is_decode) {
        // Before anything is loaded: it needs room.
        for how in &hows {
            bandwidths.measure(&how.choice.placement, how.n_threads)?;
        }
    }
    let mut report = Report::new(args.output, subject);
    for how in &hows {
        for group in &groups {
            tests(&model, how, group, args.repeats, &bandwidths, &mut report)?;
        }
    }
    report.finish()
}

fn open(args: &BenchArgs) -> Result<(Subject, Arc<Model>)> {
    let gguf: Gguf = load::open(&args.model)?;
    let path = gguf.path.display().to_string();
    let dtype = report::main_type(&gguf);
    let n_params = gguf
        .tensors
        .iter()
        .map(|t| t.shape.iter().product::<u64>())
        .sum();
    let model = load::model_with(gguf, &args.rope)?;
    let subject = Subject {
        path,
        arch: model.arch_name().to_string(),
        dtype,
        bytes: model.weight_bytes(),
        n_params,
    };
    Ok((subject, model))
}

/// A context with room for every test of a group.
fn wish(model: &Model, eval: &EvalArgs, group: &[Test]) -> Result<Wish> {
    let needed = group.iter().map(Test::n_ctx).max().unwrap_or(1);
    let wish = load::wish(&eval.context, model, load::exactly(needed));
    match group.iter().find(|test| test.n_ctx() > wish.n_ctx) {
        Some(test) => Err(Error::DoesNotFit(format!(
            "the test {test} needs a context of {} tokens, -c gives {}; raise it or leave it out",
            test.n_ctx(),
            wish.n_ctx
        ))),
        None => Ok(wish),
    }
}

/// Runs the tests of a group, and reports each at once. They share a session; another
/// number of sequences has its own, as it would in use.
fn tests(
    model: &Arc<Model>,
    how: &How,
    group: &[Test],
    repeats: u32,
    bandwidths: &Bandwidths,
    report: &mut Report,
) -> anyhow::Result<()> {
    let n_seqs = group.first().map_or(1, |test| test.n_seqs);
    let wish = wish(model, &how.eval, group)?;
    let mut session = load::session_of(n_seqs, &how.choice, model, &how.eval, wish, false)?;
    tracing::info!("{}", load::describe_context(&session, model));
    let bandwidth = bandwidths.of_session(&session, how.n_threads);
    let setting = Setting::new(&session, &how.eval, how.n_threads);
    for &test in group {
        let bar = progress(repeats as usize + 1, &test.to_string());
        let samples = measure::measure(&mut session, model.n_vocab(), test, repeats, &bar);
        bar.finish_and_clear();
        let bytes_per_step = memory::bytes_per_step(model, &session, test);
        report.add(&setting, test, &samples?, bytes_per_step, bandwidth)?;
    }
    Ok(())
}
