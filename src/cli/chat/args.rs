//! The flags of `llama-rs chat`.

use super::show::Think;
use super::turn::OnFull;
use crate::cli::args::PromptArgs;
use crate::cli::flags::{DraftArgs, EvalArgs, TemplateArgs};
use crate::cli::model_flags::ModelArgs;
use crate::cli::sampling_flags::SamplingArgs;
use clap::Args;
use std::path::PathBuf;

/// `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Instructions to the model, before the first message (also -sys)
    #[arg(
        long = "system-prompt",
        value_name = "TEXT",
        allow_hyphen_values = true
    )]
    pub system_prompt: Option<String>,
    /// Read the instructions from a file
    #[arg(long, value_name = "FILE", conflicts_with = "system_prompt")]
    pub system_prompt_file: Option<PathBuf>,
    /// Keep the chat in a file, and go on from it next time; what the model remembers is
    /// in FILE.state beside it; /clear and /load keep what was there in FILE.bak
    #[arg(long, value_name = "FILE")]
    pub session: Option<PathBuf>,
    /// When the context is full
    #[arg(long, value_name = "WAY", default_value = "stop")]
    pub on_full: OnFull,
    /// What becomes of a model's thinking [default: show]
    #[arg(long, value_name = "WAY")]
    pub think: Option<Think>,
    /// Print each reply as a line of JSON: text, tokens, timings, why it ended
    #[arg(long)]
    pub json: bool,
    /// Tokens a reply may have; -1 is until its end
    #[arg(short = 'n', long = "predict", visible_alias = "n-predict", value_name = "N",
          default_value_t = -1, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    pub n_predict: i64,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub eval: EvalArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub drafts: DraftArgs,
}
