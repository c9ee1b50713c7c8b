//! Flag groups that several commands share, named as in llama.cpp.

use super::device_flags::DeviceArgs;
use super::speculate::LookupMode;
use crate::model::{RopeOverrides, RopeScaling};
use crate::quant::DType;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// How the model is evaluated.
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub devices: DeviceArgs,
    #[command(flatten)]
    pub numerics: NumericsArgs,
    #[command(flatten)]
    pub rope: RopeArgs,
}

/// Context, batches, threads.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Evaluation")]
pub struct ContextArgs {
    /// Context in tokens: a number, 0 for what the model was trained with, or `auto`,
    /// which is that or what fits [default: auto; `bench`, `logits` and `simple -n N`:
    /// what they need]
    #[arg(short = 'c', long, value_name = "N", value_parser = parse_ctx_size)]
    pub ctx_size: Option<CtxSize>,
    /// Tokens of a prompt handed over at a time
    #[arg(short = 'b', long, value_name = "N", default_value_t = 2048,
          value_parser = positive)]
    pub batch_size: usize,
    /// Tokens of a prompt evaluated at a time, at most --batch-size (also -ub)
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = positive)]
    pub ubatch_size: usize,
    /// Threads; by default one for each core
    #[arg(short = 't', long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<usize>,
}

/// A context as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtxSize {
    /// What fits, up to what the model was trained with.
    Auto,
    /// What the model was trained with.
    Trained,
    Tokens(usize),
}

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvType {
    F16,
    F32,
}

/// Element type of the activations that quantized weights are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Activations {
    Q8,
    F32,
}

/// Precision.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Precision")]
pub struct NumericsArgs {
    /// Element type of the K cache [default: f16] (also -ctk)
    #[arg(long, value_name = "TYPE")]
    pub cache_type_k: Option<KvType>,
    /// Element type of the V cache [default: f16] (also -ctv)
    #[arg(long, value_name = "TYPE")]
    pub cache_type_v: Option<KvType>,
    /// Activations in quantized products [default: q8]
    #[arg(long, value_name = "TYPE")]
    pub activations: Option<Activations>,
    /// F32 activations and F32 KV cache: slow, for checking
    #[arg(long)]
    pub exact: bool,
}

impl NumericsArgs {
    /// Element types of the K and the V cache.
    pub fn kv_types(&self) -> (DType, DType) {
        let pick = |given: Option<KvType>| match given {
            Some(KvType::F16) => DType::F16,
            Some(KvType::F32) => DType::F32,
            None if self.exact => DType::F32,
            None => DType::F16,
        };
        (pick(self.cache_type_k), pick(self.cache_type_v))
    }

    /// True when activations stay in F32.
    pub fn exact_activations(&self) -> bool {
        match self.activations {
            Some(given) => given == Activations::F32,
            None => self.exact,
        }
    }
}

/// RoPE scaling as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScalingArg {
    None,
    Linear,
    Yarn,
}

/// Replacements of the file's RoPE parameters.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "RoPE (default: as the file says)")]
pub struct RopeArgs {
    /// Base of the rotation frequencies
    #[arg(long, value_name = "BASE")]
    pub rope_freq_base: Option<f32>,
    /// Factor on the rotation frequencies; 0.5 doubles the context
    #[arg(long, value_name = "SCALE")]
    pub rope_freq_scale: Option<f32>,
    /// How the context is stretched
    #[arg(long, value_name = "KIND")]
    pub rope_scaling: Option<ScalingArg>,
    /// YaRN: share of extrapolation; 0 interpolates only
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub yarn_ext_factor: Option<f32>,
    /// YaRN: factor on the attention's magnitude
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub yarn_attn_factor: Option<f32>,
    /// YaRN: rotations above which a frequency is not interpolated
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub yarn_beta_fast: Option<f32>,
    /// YaRN: rotations below which a frequency is fully interpolated
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub yarn_beta_slow: Option<f32>,
    /// YaRN: context in tokens before stretching
    #[arg(long, value_name = "N")]
    pub yarn_orig_ctx: Option<u32>,
}

impl RopeArgs {
    /// What replaces the file's own parameters.
    pub fn overrides(&self) -> RopeOverrides {
        RopeOverrides {
            freq_base: self.rope_freq_base,
            freq_scale: self.rope_freq_scale,
            scaling: self.rope_scaling.map(|kind| match kind {
                ScalingArg::None => RopeScaling::None,
                ScalingArg::Linear => RopeScaling::Linear,
                ScalingArg::Yarn => RopeScaling::Yarn,
            }),
            ext_factor: self.yarn_ext_factor,
            attn_factor: self.yarn_attn_factor,
            beta_fast: self.yarn_beta_fast,
            beta_slow: self.yarn_beta_slow,
            orig_ctx: self.yarn_orig_ctx,
        }
    }
}

/// Tokens evaluated before they are chosen.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Speculation")]
pub struct DraftArgs {
    /// Draft what followed the last time that the text said the same, and evaluate the
    /// draft at once; the text stays the same
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub lookup: LookupMode,
}

/// Which chat template, and what it is told.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Template")]
pub struct TemplateArgs {
    /// Jinja text of the chat template, or `chatml`; by default the model's
    #[arg(
        long,
        value_name = "TEMPLATE",
        conflicts_with = "chat_template_file",
        allow_hyphen_values = true
    )]
    pub chat_template: Option<String>,
    /// File with the chat template
    #[arg(long, value_name = "FILE")]
    pub chat_template_file: Option<PathBuf>,
    /// JSON object of further variables, such as {"enable_thinking":false}
    #[arg(long, value_name = "JSON", value_parser = parse_object)]
    pub chat_template_kwargs: Option<JsonObject>,
}

/// A JSON object given as an argument.
pub type JsonObject = serde_json::Map<String, serde_json::Value>;

fn parse_object(text: &str) -> std::result::Result<JsonObject, String> {
    serde_json::from_str(text).map_err(|e| format!("not a JSON object: {e}"))
}

/// Positions are 32-bit integers, so no count of tokens is larger.
const MAX_TOKENS: usize = i32::MAX as usize;

/// A count of tokens.
pub fn token_count(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= MAX_TOKENS => Ok(n),
        _ => Err(format!("not a whole number from 0 to {MAX_TOKENS}")),
    }
}

/// A context: a number of tokens or `auto`.
pub fn parse_ctx_size(text: &str) -> std::result::Result<CtxSize, String> {
    match text {
        "auto" => Ok(CtxSize::Auto),
        _ => match token_count(text) {
            Ok(0) => Ok(CtxSize::Trained),
            Ok(n) => Ok(CtxSize::Tokens(n)),
            Err(error) => Err(format!("{error}, nor `auto`")),
        },
    }
}

/// As [`token_count`], from 1.
pub fn positive(text: &str) -> std::result::Result<usize, String> {
    match token_count(text) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("not a whole number from 1 to {MAX_TOKENS}")),
    }
}

/// More threads than any machine has cores; each costs memory, and a process may have only
/// so many.
const MAX_THREADS: usize = 1024;

/// A count of threads.
pub fn thread_count(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_THREADS).contains(&n) => Ok(n),
        _ => Err(format!("not a whole number from 1 to {MAX_THREADS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::NumericsArgs;
    use crate::quant::DType;

    #[test]
    fn exact_means_f32_unless_a_type_is_given() {
        let mut args = NumericsArgs {
            cache_type_k: Some(super::KvType::F16),
            cache_type_v: None,
            activations: None,
            exact: true,
        };
        assert_eq!(args.kv_types(), (DType::F16, DType::F32));
        assert!(args.exact_activations());
        args.exact = false;
        assert_eq!(args.kv_types(), (DType::F16, DType::F16));
        assert!(!args.exact_activations());
    }
}
