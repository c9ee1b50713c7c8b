//! `llama-rs ops`: the ops that graphs are made of, listed, checked, timed.

mod args;
mod list;
mod perf;
mod test;

use super::device_choice;
use super::device_flags::parse_device;
use crate::backend::Device;
use crate::backend::check::shapes::{self, OpRow};
use crate::session::Session;
use crate::{Error, Result};
pub use args::{OpsAction, OpsArgs};

/// Runs the command.
pub fn run(args: OpsArgs) -> anyhow::Result<()> {
    let ops = ops(&args)?;
    match args.action {
        OpsAction::List => list::run(&args, &ops),
        OpsAction::Test => test::run(&args, &ops),
        OpsAction::Perf => perf::run(&args, &ops),
    }
}

/// The ops that `-o` names, each once; none when all are meant.
fn ops(args: &OpsArgs) -> Result<Vec<&'static OpRow>> {
    let mut ops: Vec<&'static OpRow> = Vec::new();
    let names = args.ops.iter().map(|name| name.trim());
    for name in names.filter(|name| !name.is_empty()) {
        let op = shapes::find(name)?;
        if !ops.iter().any(|known| known.name == op.name) {
            ops.push(op);
        }
    }
    match (&args.shape, args.action) {
        _ if args.backend.is_some() && matches!(args.action, OpsAction::List) => Err(Error::input(
            "ops list shows every backend and takes no -b; leave it out",
        )),
        (Some(_), OpsAction::List) => Err(Error::input(
            "ops list takes no --shape; give it to ops test or ops perf",
        )),
        (Some(shape), _) if ops.len() != 1 => Err(Error::input(format!(
            "--shape {shape} is of one op; name one with -o"
        ))),
        _ => Ok(ops),
    }
}

/// The device that `-b` names, or the best there is.
fn device(args: &OpsArgs) -> Result<Device> {
    let named = match &args.backend {
        Some(name) => Some(parse_device(name).map_err(|e| Error::input(format!("-b: {e}")))?),
        None => None,
    };
    device_choice::device(named)
}

fn n_threads(args: &OpsArgs) -> usize {
    args.threads.unwrap_or_else(Session::default_threads)
}
