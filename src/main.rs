//! The `llama-rs` program: parse, run, exit code.

use clap::Parser;
use llama_rs::cli::{self, args, argv, output};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = argv::long_flags(std::env::args_os());
    let cli = match args::Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    output::init(cli.global);
    match cli::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report(&error),
    }
}
