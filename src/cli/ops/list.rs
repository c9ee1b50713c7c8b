//! `ops list`: what each op takes, and who runs it.

use super::OpsArgs;
use crate::backend::check::cases::support::{self, Support};
use crate::backend::check::shapes::{OPS, OpRow};
use crate::backend::cuda::image;
use crate::cli::output::Product;
use serde_json::json;
use std::io::Write;

/// Prints a row for each op.
pub fn run(args: &OpsArgs, ops: &[&OpRow]) -> anyhow::Result<()> {
    let all: Vec<&OpRow> = OPS.iter().collect();
    let ops = if ops.is_empty() { &all[..] } else { ops };
    let support = support::of(&ops.iter().map(|op| op.name).collect::<Vec<_>>())?;
    let mut product = Product::stdout();
    if args.json {
        let rows = ops.iter().zip(&support).map(|(op, s)| {
            json!({
                "op": op.name, "takes": op.takes, "shape": op.form,
                "cpu": known(s, s.cpu), "cuda": known(s, s.cuda), "cases": s.n_cases,
            })
        });
        writeln!(product, "{}", serde_json::Value::Array(rows.collect()))?;
    } else {
        let (op, takes) = ("op", "what it takes; --shape");
        writeln!(product, "{op:<16}  cpu  cuda  cases  {takes}")?;
        for (op, support) in ops.iter().zip(&support) {
            let yes = |there: bool| match known(support, there) {
                Some(true) => "yes",
                Some(false) => "-",
                None => "?",
            };
            let (name, takes) = (op.name, op.takes);
            let form = match op.form {
                "" => String::new(),
                form => format!("; {form}"),
            };
            writeln!(
                product,
                "{name:<16}  {:<3}  {:<4}  {:>5}  {takes}{form}",
                yes(support.cpu),
                yes(support.cuda),
                support.n_cases
            )?;
        }
    }
    product.flush()?;
    if support.iter().any(|s| s.unknown) {
        tracing::info!("`?`: no case asks for it, so it is not known who runs it");
    }
    if !image::present() {
        tracing::info!("cuda: what its kernels cover; this binary was built without them");
    }
    Ok(())
}

/// An answer, where a case gives one.
fn known(support: &Support, there: bool) -> Option<bool> {
    (!support.unknown).then_some(there)
}
