//! The commands and their own flags; shared flag groups are in `flags.rs`.

use super::bench::BenchArgs;
use super::chat::ChatArgs;
use super::fit_params::FitArgs;
use super::flags::{DraftArgs, EvalArgs, TemplateArgs, token_count};
use super::model_flags::{HubArgs, ModelArgs, parse_wanted};
use super::ops::OpsArgs;
use super::output;
use super::sampling_flags::SamplingArgs;
use crate::hub::Wanted;
use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

/// Runs GGUF language models from the command line.
#[derive(Debug, Parser)]
#[command(name = "llama-rs", version = output::version(), about, propagate_version = true,
          args_override_self = true)] // so that flags after a pasted line count
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
pub struct GlobalArgs {
    /// Say more on stderr; twice for everything
    #[arg(short = 'v', long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Say nothing but errors on stderr
    #[arg(long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// No colours, and no progress bars, on a terminal
    #[arg(long, global = true)]
    pub no_color: bool,
    /// Also append the messages to this file, with their time; --quiet does not hold there
    #[arg(long, global = true, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print a prompt and its continuation
    Simple(SimpleArgs),
    /// Talk to a model in turns
    Chat(ChatArgs),
    /// Measure prefill and decode speed
    Bench(BenchArgs),
    /// Print the flags that fit the memory that there is; reads no weights
    FitParams(FitArgs),
    /// Print the token ids of a text
    Tokenize(TokenizeArgs),
    /// Print what the model predicts after each prompt token, as JSON
    Logits(LogitsArgs),
    /// Print messages rendered by a chat template
    Template(RenderArgs),
    /// Print metadata and tensors of a file
    Inspect(InspectArgs),
    /// List what a model can run on: the CPU and the GPUs
    Devices(DevicesArgs),
    /// List, check or time the ops that graphs are made of
    Ops(OpsArgs),
    /// Fetch a model into the cache and print its path
    Pull(PullArgs),
    /// List the models in the cache
    List(ListArgs),
    /// Remove a model from the cache
    Rm(RmArgs),
    /// Print completions for a shell, to be put where it looks for them
    Completions(CompletionsArgs),
    /// Print the manual page of the program or of a command, for man(1)
    Man(ManArgs),
}

impl Command {
    /// The flags that name a model on a hub, where it has them.
    pub fn on_hub(&self) -> Option<&HubArgs> {
        match self {
            Command::Simple(args) => Some(&args.model.hub),
            Command::Chat(args) => Some(&args.model.hub),
            Command::Bench(args) => Some(&args.model.hub),
            Command::FitParams(args) => Some(&args.model.hub),
            Command::Tokenize(args) => Some(&args.model.hub),
            Command::Logits(args) => Some(&args.model.hub),
            Command::Template(args) => Some(&args.model.hub),
            Command::Inspect(args) => Some(&args.hub),
            Command::Devices(_) | Command::Ops(_) => None,
            Command::Pull(_) | Command::List(_) | Command::Rm(_) => None,
            Command::Completions(_) | Command::Man(_) => None,
        }
    }
}

/// Where a prompt comes from.
#[derive(Debug, Clone, Args)]
pub struct PromptArgs {
    /// The prompt; words are joined with spaces
    #[arg(allow_negative_numbers = true, conflicts_with = "prompt")]
    pub words: Vec<String>,
    /// The prompt as one argument
    #[arg(short = 'p', long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the prompt from a file, bytes verbatim; `-` joins standard input
    /// to the prompt
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `simple`.
#[derive(Debug, Args)]
pub struct SimpleArgs {
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Tokens to generate; -1 is until the end
    #[arg(short = 'n', long = "predict", visible_alias = "n-predict", value_name = "N",
          default_value_t = 32, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    pub n_predict: i64,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub eval: EvalArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub drafts: DraftArgs,
}

/// `tokenize`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("text").required(true).multiple(true)
    .args(["words", "prompt", "file", "stdin"]))]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Read the text from standard input, bytes verbatim
    #[arg(long, conflicts_with_all = ["words", "prompt", "file"])]
    pub stdin: bool,
    /// Print `{"ids":[...]}`
    #[arg(long, conflicts_with = "ids")]
    pub json: bool,
    /// Print `[1, 2]`
    #[arg(long)]
    pub ids: bool,
    /// Add no BOS or EOS, even where the file wants them
    #[arg(long)]
    pub no_bos: bool,
    /// Read the text of special tokens as ordinary text
    #[arg(long)]
    pub no_parse_special: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `logits`.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// Token ids, as `1,2,3`
    #[arg(long, value_name = "IDS", value_parser = parse_ids,
          conflicts_with_all = ["prompt", "file"], required_unless_present_any = ["prompt", "file"])]
    pub tokens: Option<Ids>,
    /// The prompt; BOS is added as the file wants, special text is parsed
    #[arg(short = 'p', long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the prompt from a file, bytes verbatim; `-` is standard input
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// Print the K most probable ids with their log-probabilities instead
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub top: Option<u32>,
    /// Also continue greedily by N tokens
    #[arg(
        short = 'n',
        long = "predict",
        visible_alias = "n-predict",
        value_name = "N",
        default_value_t = 0,
        value_parser = token_count
    )]
    pub n_predict: usize,
    /// Print JSON (the only format)
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub eval: EvalArgs,
}

/// `template`.
#[derive(Debug, Args)]
pub struct RenderArgs {
    #[command(flatten)]
    pub template: TemplateArgs,
    /// JSON array of `{role, content}`; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub messages: PathBuf,
    /// Text of the BOS token; by default the model's, or none
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub bos: Option<String>,
    /// Text of the EOS token; by default the model's, or none
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub eos: Option<String>,
    /// The time that `strftime_now` sees, such as 2024-07-26T00:00:00
    #[arg(long, value_name = "ISO")]
    pub now: Option<String>,
    /// Leave out the start of the assistant's turn
    #[arg(long)]
    pub no_generation_prompt: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The file to look into; else LLAMA_RS_MODEL, else the toy model in the program
    #[arg(conflicts_with = "hf_repo")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// The model: QUANT is a word of the file's name, FILE ends in .gguf; by default Q4_K_M
    /// or what is nearest
    #[arg(value_name = "USER/REPO[:QUANT|:FILE]", value_parser = parse_wanted)]
    pub model: Wanted,
}

/// `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The models: all of the repository, or those with this word in their names
    #[arg(value_name = "USER/REPO[:QUANT|:FILE]", value_parser = parse_wanted)]
    pub model: Wanted,
}

/// `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    pub shell: Shell,
}

/// `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The command, such as `chat`; by default the program
    pub command: Option<String>,
}

/// Token ids of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

/// Reads `1,2,3`, also as `[1, 2, 3]`; no ids at all is the command's error.
fn parse_ids(text: &str) -> Result<Ids, String> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    if inner.trim().is_empty() {
        return Ok(Ids(Vec::new()));
    }
    let ids = inner.split(',').map(|id| {
        let id = id.trim();
        id.parse::<u32>()
            .map_err(|_| format!("{id:?} is not a token id"))
    });
    ids.collect::<Result<_, _>>().map(Ids)
}

#[cfg(test)]
mod tests {
    use super::{Cli, Ids, parse_ids};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_flags_of_every_command_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ids_are_read_with_and_without_brackets() {
        assert_eq!(parse_ids("1,2,3"), Ok(Ids(vec![1, 2, 3])));
        assert_eq!(parse_ids("[1, 2]"), Ok(Ids(vec![1, 2])));
        assert_eq!(parse_ids(""), Ok(Ids(vec![])));
        assert!(parse_ids("1,,2").is_err());
        assert!(parse_ids("-1").is_err());
    }

    #[test]
    fn negative_values_are_values() {
        let words = "llama-rs simple -n -1 --n-gpu-layers -1 -s -1 is -5 odd";
        let cli = Cli::try_parse_from(words.split(' ')).map_err(|e| e.to_string());
        let super::Command::Simple(args) = cli.expect("parses").command else {
            panic!("not simple");
        };
        assert_eq!(args.n_predict, -1);
        assert_eq!(args.prompt.words, ["is", "-5", "odd"]);
    }
}
