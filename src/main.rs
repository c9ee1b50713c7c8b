//! The `llama-rs` program: parse, run, exit code.

use llama_rs::cli::{self, log, output};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    if let Err(error) = log::init(&cli.global) {
        return output::report(&error.into());
    }
    match cli::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report(&error),
    }
}
