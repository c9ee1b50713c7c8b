//! `llama-rs completions` and `llama-rs man`: what the command line can do, for shells
//! and for man(1). Neither needs a model.

use super::args::{Cli, CompletionsArgs, ManArgs};
use super::output::Product;
use crate::Error;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;

/// Runs `completions`. Single-dash spellings such as `-ngl` are left out: shells offer
/// the long flags that they stand for.
pub fn run(args: CompletionsArgs) -> anyhow::Result<()> {
    let mut command = Cli::command();
    let name = command.get_name().to_string();
    // It panics where it cannot write, so not to stdout, which may be closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Bash {
        // clap_complete 4.6 gives the parts of a program's name with a hyphen other labels
        // than it jumps to, so nothing was completed after a command.
        script = script.replace("llama__subcmd__rs__", "llama__rs__");
    }
    let mut product = Product::stdout();
    product.write_all(script.as_bytes())?;
    product.flush()?;
    Ok(())
}

/// Runs `man`.
pub fn man(args: ManArgs) -> anyhow::Result<()> {
    let mut command = Cli::command();
    // Puts the flags of every command on all pages, and names them llama-rs-chat and so on.
    command.build();
    let page = match &args.command {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            found.ok_or_else(|| {
                let names = command.get_subcommands().map(|c| c.get_name());
                let names: Vec<&str> = names.collect();
                Error::input(format!(
                    "man: there is no command {name:?}; there are {}",
                    names.join(", ")
                ))
            })?
        }
    };
    let mut product = Product::stdout();
    // The same page whatever it was built for.
    let source = concat!("llama-rs ", env!("CARGO_PKG_VERSION"));
    let manual = clap_mangen::Man::new(page).source(source);
    manual.render(&mut product)?;
    product.flush()?;
    Ok(())
}
