//! The flags of `bench`: those of other commands, of which some are lists here.

use crate::cli::device_flags::{DeviceArgs, PlaceArgs, parse_layers};
use crate::cli::flags::{ContextArgs, CtxSize, EvalArgs, NumericsArgs, RopeArgs};
use crate::cli::flags::{parse_ctx_size, positive, thread_count, token_count};
use crate::cli::model_flags::ModelArgs;
use crate::memory::GpuLayers;
use clap::{Args, ValueEnum};

/// Sequences that are decoded side by side; each takes a cache of its own.
const MOST_SEQUENCES: usize = 1024;

/// Output format of `bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchFormat {
    /// A table as llama-bench prints it
    Md,
    /// One array with an object for each test
    Json,
    Csv,
}

/// `bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Flags with N,.. take lists, and every combination is measured. \
          A test's first run is not counted."
)]
pub struct BenchArgs {
    /// Prompt tokens of a prefill test; 0 is no such test
    #[arg(short = 'p', long = "n-prompt", value_name = "N,..", default_value = "512",
          value_delimiter = ',', value_parser = token_count)]
    pub n_prompt: Vec<usize>,
    /// Tokens of a decode test, one at a time; 0 is no such test
    #[arg(short = 'n', long = "n-gen", value_name = "N,..", default_value = "128",
          value_delimiter = ',', value_parser = token_count)]
    pub n_gen: Vec<usize>,
    /// Tokens that are in the context before a test starts
    #[arg(short = 'd', long = "n-depth", value_name = "N,..", default_value = "0",
          value_delimiter = ',', value_parser = token_count)]
    pub n_depth: Vec<usize>,
    /// Sequences that a decode test continues side by side, each by -n tokens (also -npl)
    #[arg(long = "n-parallel", value_name = "N,..", default_value = "1",
          value_delimiter = ',', value_parser = sequence_count)]
    pub n_seqs: Vec<usize>,
    /// Repeats of a test
    #[arg(short = 'r', long = "repetitions", value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Output format
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "md"
    )]
    pub output: BenchFormat,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub lists: EvalLists,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub numerics: NumericsArgs,
    #[command(flatten)]
    pub rope: RopeArgs,
}

/// Flags of [`EvalArgs`] as lists.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Evaluation")]
pub struct EvalLists {
    /// Context of each sequence in tokens, as in other commands [default: what the tests
    /// need]
    #[arg(short = 'c', long, value_name = "N", value_parser = parse_ctx_size)]
    pub ctx_size: Option<CtxSize>,
    /// Tokens of a prompt handed over at a time
    #[arg(short = 'b', long, value_name = "N,..", default_value = "2048",
          value_delimiter = ',', value_parser = positive)]
    pub batch_size: Vec<usize>,
    /// Tokens of a prompt evaluated at a time, at most --batch-size (also -ub)
    #[arg(long, value_name = "N,..", default_value = "512",
          value_delimiter = ',', value_parser = positive)]
    pub ubatch_size: Vec<usize>,
    /// Threads; by default one for each core
    #[arg(short = 't', long, value_name = "N,..", value_delimiter = ',',
          value_parser = thread_count)]
    pub threads: Vec<usize>,
    /// Layers on the GPU, as in other commands [default: auto] (also -ngl)
    #[arg(long = "n-gpu-layers", visible_alias = "gpu-layers", value_name = "N,..",
          allow_negative_numbers = true, value_delimiter = ',', value_parser = parse_layers)]
    pub n_gpu_layers: Vec<GpuLayers>,
}

impl BenchArgs {
    /// Every combination of the lists that say how a model is evaluated.
    pub fn evaluations(&self) -> Vec<EvalArgs> {
        let mut all = Vec::new();
        for n_gpu_layers in or_none(&self.lists.n_gpu_layers) {
            for threads in or_none(&self.lists.threads) {
                for &batch_size in &self.lists.batch_size {
                    for &ubatch_size in &self.lists.ubatch_size {
                        all.push(EvalArgs {
                            context: ContextArgs {
                                ctx_size: self.lists.ctx_size,
                                batch_size,
                                ubatch_size,
                                threads,
                            },
                            devices: DeviceArgs {
                                n_gpu_layers,
                                place: self.place.clone(),
                            },
                            numerics: self.numerics.clone(),
                            rope: self.rope.clone(),
                        });
                    }
                }
            }
        }
        all
    }
}

/// The values of a list, or once none.
fn or_none<T: Copy>(list: &[T]) -> Vec<Option<T>> {
    match list.is_empty() {
        true => vec![None],
        false => list.iter().copied().map(Some).collect(),
    }
}

fn sequence_count(text: &str) -> Result<usize, String> {
    match positive(text) {
        Ok(n) if n <= MOST_SEQUENCES => Ok(n),
        _ => Err(format!("not a whole number from 1 to {MOST_SEQUENCES}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    fn args(flags: &str) -> BenchArgs {
        let words = format!("llama-rs bench {flags}");
        let cli = Cli::try_parse_from(words.split_whitespace()).map_err(|e| e.to_string());
        match cli.expect("parses").command {
            Command::Bench(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lists_give_every_combination() {
        let default = args("");
        assert_eq!(default.n_prompt, [512]);
        assert_eq!(
            (default.n_seqs.as_slice(), default.n_depth[0]),
            (&[1][..], 0)
        );
        let all = default.evaluations();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].context.threads, None);
        let all = args("--ubatch-size 64,128 -t 1,2 --n-gpu-layers 0,all").evaluations();
        let of = |e: &EvalArgs| {
            let layers = e.devices.n_gpu_layers.expect("given");
            (layers, e.context.threads, e.context.ubatch_size)
        };
        let (none, every) = (GpuLayers::Count(0), GpuLayers::All);
        let got: Vec<_> = all.iter().map(of).collect();
        assert_eq!(got.len(), 8);
        assert_eq!(got[0], (none, Some(1), 64));
        assert_eq!(got[1], (none, Some(1), 128));
        assert_eq!(got[7], (every, Some(2), 128));
    }

    #[test]
    fn sequences_are_bounded() {
        assert_eq!(args("--n-parallel 1,16").n_seqs, [1, 16]);
        assert!(sequence_count("0").is_err() && sequence_count("1025").is_err());
    }
}
