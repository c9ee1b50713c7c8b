//! `llama-rs rm`: a model out of the cache.

use super::args::RmArgs;
use super::output::human_bytes;
use crate::hub::Hub;

/// Runs the command.
pub fn run(args: RmArgs) -> anyhow::Result<()> {
    let freed = Hub::from_env()?.remove(&args.model)?;
    let size = human_bytes(usize::try_from(freed).unwrap_or(usize::MAX));
    tracing::info!("{}: removed, {freed} bytes ({size}) freed", args.model);
    Ok(())
}
