//! The command line: one file a command.
//!
//! stdout carries only the product; everything else goes to stderr.

pub mod args;
pub mod argv;
mod bench;
mod builtin;
mod chat;
mod completions;
mod device_choice;
mod device_flags;
mod devices;
mod fit_params;
mod flags;
mod generate;
mod grammar_flags;
mod hub;
mod inspect;
mod interrupt;
mod list;
mod load;
pub mod log;
mod logits;
mod model_flags;
mod model_path;
mod ops;
pub mod output;
mod prompt;
mod pull;
mod rm;
mod sampling_flags;
mod simple;
mod sizes;
mod speculate;
mod template;
mod template_source;
mod tokenize;
mod write_file;

use args::{Cli, Command};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use std::ffi::OsString;

/// Reads the command line.
///
/// # Errors
/// What is wrong with it, for [`output::usage`].
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let cli = Cli::try_parse_from(argv::long_flags(words))?;
    // Of two flags at once, which clap cannot see.
    let wanted = cli.command.on_hub().map(model_flags::HubArgs::wanted);
    match wanted {
        Some(Err(error)) => Err(Cli::command().error(ErrorKind::ArgumentConflict, error)),
        _ => Ok(cli),
    }
}

/// Runs one command; [`output::report`] turns its error into a line and an exit code.
pub fn run(command: Command) -> anyhow::Result<()> {
    let interrupt = interrupt::Interrupt::install()?;
    match command {
        Command::Simple(args) => simple::run(args, &interrupt),
        Command::Chat(args) => chat::run(args, &interrupt),
        Command::Bench(args) => bench::run(args),
        Command::FitParams(args) => fit_params::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Template(args) => template::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Ops(args) => ops::run(args),
        Command::Pull(args) => pull::run(args),
        Command::List(args) => list::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => completions::man(args),
    }
}
