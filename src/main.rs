//! The `llama-rs` program: parse, run, exit code.

use llama_rs::cli::{self, output};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    output::init(cli.global);
    match cli::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report(&error),
    }
}
