//! The flags of `ops`.

use crate::cli::flags::thread_count;
use clap::{Args, ValueEnum};

/// What `ops` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpsAction {
    /// What each op takes, and which backends run it
    List,
    /// Compare a backend with the CPU's reference
    Test,
    /// Time each op: bytes and operations per second, share of the memory's peak
    Perf,
}

/// `ops`.
#[derive(Debug, Args)]
pub struct OpsArgs {
    pub action: OpsAction,
    /// These ops only, by ggml's names, as ADD,MUL_MAT
    #[arg(short = 'o', long = "op", value_name = "OP", value_delimiter = ',')]
    pub ops: Vec<String>,
    /// `cpu`, `cuda0`, ...; by default the first GPU that can be used, else the CPU
    #[arg(short = 'b', long, visible_alias = "device", value_name = "NAME")]
    pub backend: Option<String>,
    /// This shape of the one op, instead of the table, as 200000,16 or
    /// q4_K:4096,14336,8; `ops list` says what each op takes
    #[arg(long, value_name = "SHAPE", requires = "ops")]
    pub shape: Option<String>,
    /// Threads of the CPU; by default one for each core
    #[arg(short = 't', long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
