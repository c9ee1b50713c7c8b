//! `llama-rs pull`: a model into the cache; prints its path.

use super::args::PullArgs;
use super::hub;
use super::output::Product;
use std::io::Write;

/// Runs the command.
pub fn run(args: PullArgs) -> anyhow::Result<()> {
    let path = hub::pull(&args.model)?;
    let mut product = Product::stdout();
    // As it is, for it need not be UTF-8.
    product.write_all(path.as_os_str().as_encoded_bytes())?;
    product.write_all(b"\n")?;
    product.flush()?;
    Ok(())
}
