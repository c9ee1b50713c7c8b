//! `llama-rs pull`: a model into the cache; prints its path.

use super::args::PullArgs;
use super::hub;
use super::output::Product;
use std::io::Write;

/// Runs the command.
pub fn run(args: PullArgs) -> anyhow::Result<()> {
    let path = hub::pull(&args.model)?;
    let mut product = Product::stdout();
    writeln!(product, "{}", path.display())?;
    product.flush()?;
    Ok(())
}
