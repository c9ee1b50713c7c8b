//! `llama-rs rm`: a model out of the cache.

use super::args::RmArgs;
use super::hub;
use super::output::human_bytes;

/// Runs the command.
pub fn run(args: RmArgs) -> anyhow::Result<()> {
    let freed = hub::remove(&args.model)?;
    let size = human_bytes(usize::try_from(freed).unwrap_or(usize::MAX));
    tracing::info!("{}: removed, {freed} bytes ({size}) freed", args.model);
    Ok(())
}
