//! Flags of sampling, named as in llama.cpp.

use super::grammar_flags::GrammarArgs;
use crate::gguf::Metadata;
use crate::sampling::{
    DryParams, Grammar, GrammarSource, SamplerKind, SamplingParams, Vocabulary, parse_bias,
};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use clap::Args;
use std::sync::Arc;

/// How the next token is chosen, and when to stop.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Seed; -1 is a new one each time
    #[arg(short = 's', long, value_name = "N", allow_negative_numbers = true,
          value_parser = parse_seed)]
    pub seed: Option<Seed>,
    /// Temperature; 0 is greedy
    #[arg(long, visible_alias = "temperature", value_name = "T")]
    pub temp: Option<f32>,
    /// Keep the K most probable tokens; 0 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<i32>,
    /// Keep the most probable tokens up to this probability; 1 keeps all
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Drop tokens below this share of the best one's probability
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Divide the logits of repeated tokens; 1 is off
    #[arg(long, value_name = "F")]
    pub repeat_penalty: Option<f32>,
    /// Tokens back that count as repeated; 0 is none, -1 is all
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub repeat_last_n: Option<i32>,
    /// Subtract from the logits of tokens that have appeared
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtract from the logits of tokens for each appearance
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    #[command(flatten)]
    pub more: MoreSamplingArgs,
    #[command(flatten)]
    pub grammar: GrammarArgs,
    /// Never choose an end-of-generation token
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", conflicts_with = "grammar_args")]
    pub ignore_eos: Option<bool>,
    /// Stop where this text would appear (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

/// The rarer ones.
#[derive(Debug, Clone, Args)]
pub struct MoreSamplingArgs {
    /// Which samplers run, in this order
    /// [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]
    #[arg(long, value_name = "NAMES", value_parser = SamplerKinds::from_names)]
    pub samplers: Option<SamplerKinds>,
    /// The same in letters [default: edskypmxt]
    #[arg(long, visible_alias = "sampler-seq", value_name = "LETTERS",
          conflicts_with = "samplers", value_parser = SamplerKinds::from_letters)]
    pub sampling_seq: Option<SamplerKinds>,
    /// Tokens that --typical, --top-p, --min-p and XTC leave at least
    #[arg(long, value_name = "N")]
    pub min_keep: Option<usize>,
    /// Keep the tokens whose surprise is nearest to the expected one, up to this
    /// probability; 1 keeps all
    #[arg(long, visible_alias = "typical-p", value_name = "P")]
    pub typical: Option<f32>,
    /// Drop logits this many standard deviations below the best; 0 or less keeps all
    #[arg(
        long,
        visible_alias = "top-nsigma",
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub top_n_sigma: Option<f32>,
    /// XTC: how often the top choices but the last are dropped, 0 to 1
    #[arg(long, value_name = "P")]
    pub xtc_probability: Option<f32>,
    /// XTC: the probability of a top choice [default: 0.1]; above 0.5 is off
    #[arg(long, value_name = "P")]
    pub xtc_threshold: Option<f32>,
    /// Let the temperature move by this much, up where the model is unsure
    #[arg(long, value_name = "T")]
    pub dynatemp_range: Option<f32>,
    /// Exponent on how unsure it is, as a share of the most possible [default: 1]
    #[arg(long, value_name = "F")]
    pub dynatemp_exp: Option<f32>,
    #[command(flatten)]
    pub dry: DryArgs,
    /// Keep the surprise of the text near --mirostat-ent: version 1 or 2, in place of
    /// what else drops tokens; 0 is off
    #[arg(long, value_name = "VERSION")]
    pub mirostat: Option<u8>,
    /// Mirostat's learning rate [default: 0.1]
    #[arg(long, value_name = "F")]
    pub mirostat_lr: Option<f32>,
    /// Mirostat's surprise, in bits [default: 5]
    #[arg(long, value_name = "BITS")]
    pub mirostat_ent: Option<f32>,
    /// Add to the logit of a token, as 15043+1 or 15043-1.5; 15043-inf bans it
    /// (repeatable)
    #[arg(short = 'l', long, value_name = "ID(+|-)BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
}

/// What is taken from tokens that would carry on a repetition.
#[derive(Debug, Clone, Args)]
pub struct DryArgs {
    /// DRY: taken from the logits of tokens that would carry on a repetition; 0 is off
    #[arg(long, value_name = "F")]
    pub dry_multiplier: Option<f32>,
    /// DRY: factor for each token that the repetition is longer [default: 1.75]
    #[arg(long, value_name = "F")]
    pub dry_base: Option<f32>,
    /// DRY: shortest repetition that counts, in tokens [default: 2]
    #[arg(long, value_name = "N")]
    pub dry_allowed_length: Option<usize>,
    /// DRY: tokens back that are looked at; 0 is none, -1 is all [default: -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub dry_penalty_last_n: Option<i32>,
    /// DRY: text over which no repetition reaches, in place of \n, :, " and *
    /// (repeatable); `none` is none
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
}

impl DryArgs {
    fn over(&self, base: DryParams) -> DryParams {
        let breakers = &self.dry_sequence_breaker;
        DryParams {
            multiplier: self.dry_multiplier.unwrap_or(base.multiplier),
            base: self.dry_base.unwrap_or(base.base),
            allowed_length: self.dry_allowed_length.unwrap_or(base.allowed_length),
            penalty_last_n: self.dry_penalty_last_n.unwrap_or(base.penalty_last_n),
            sequence_breakers: match breakers.is_empty() {
                true => base.sequence_breakers,
                false => {
                    let given = breakers.iter().filter(|text| *text != "none");
                    given.map(|text| unescape(text)).collect()
                }
            },
        }
    }
}

/// Samplers as given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplerKinds(pub Vec<SamplerKind>);

impl SamplerKinds {
    fn from_names(text: &str) -> Result<SamplerKinds> {
        SamplerKind::from_names(text).map(SamplerKinds)
    }

    fn from_letters(text: &str) -> Result<SamplerKinds> {
        SamplerKind::from_letters(text).map(SamplerKinds)
    }
}

/// A seed as given; `None` asks for a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub Option<u64>);

impl SamplingArgs {
    /// True when a flag asks for sampling instead of the most probable token.
    pub fn asks_for_sampling(&self) -> bool {
        let more = &self.more;
        let given = [
            self.temp,
            self.top_p,
            self.min_p,
            more.typical,
            more.top_n_sigma,
            more.xtc_probability,
            more.dynatemp_range,
        ];
        given.iter().any(Option::is_some)
            || self.seed.is_some()
            || self.top_k.is_some()
            || more.samplers.is_some()
            || more.sampling_seq.is_some()
            || more.mirostat.is_some()
    }

    /// Sampling with the defaults of `chat`, then the file's, then these flags.
    pub fn sampled(&self, meta: &Metadata, tokenizer: &Tokenizer) -> Result<SamplingParams> {
        let defaults = SamplingParams::chat_defaults().from_meta(meta)?;
        self.over(defaults, tokenizer)
    }

    /// Greedy unless a flag asks for sampling.
    pub fn greedy_by_default(
        &self,
        meta: &Metadata,
        tokenizer: &Tokenizer,
    ) -> Result<SamplingParams> {
        if self.asks_for_sampling() {
            return self.sampled(meta, tokenizer);
        }
        self.over(SamplingParams::greedy(), tokenizer)
    }

    /// What the flags give, the rest from `base`. Of a grammar and --ignore-eos, which
    /// exclude each other, one that is given ends the other.
    ///
    /// # Errors
    /// Settings out of range; a grammar that is wrong.
    pub fn over(&self, base: SamplingParams, tokenizer: &Tokenizer) -> Result<SamplingParams> {
        let more = &self.more;
        let n_vocab = tokenizer.n_vocab();
        if let Some((id, _)) = more.logit_bias.iter().find(|b| b.0 as usize >= n_vocab) {
            return Err(Error::input(format!(
                "--logit-bias: there is no token {id}; the vocabulary has {n_vocab}"
            )));
        }
        let given = more.samplers.as_ref().or(more.sampling_seq.as_ref());
        let mut params = SamplingParams {
            samplers: given.map_or(base.samplers, |given| given.0.clone()),
            temp: self.temp.unwrap_or(base.temp),
            dynatemp_range: more.dynatemp_range.unwrap_or(base.dynatemp_range),
            dynatemp_exponent: more.dynatemp_exp.unwrap_or(base.dynatemp_exponent),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            typical_p: more.typical.unwrap_or(base.typical_p),
            top_n_sigma: more.top_n_sigma.unwrap_or(base.top_n_sigma),
            xtc_probability: more.xtc_probability.unwrap_or(base.xtc_probability),
            xtc_threshold: more.xtc_threshold.unwrap_or(base.xtc_threshold),
            min_keep: more.min_keep.unwrap_or(base.min_keep),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(base.repeat_last_n),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            dry: more.dry.over(base.dry),
            mirostat: more.mirostat.unwrap_or(base.mirostat),
            mirostat_tau: more.mirostat_ent.unwrap_or(base.mirostat_tau),
            mirostat_eta: more.mirostat_lr.unwrap_or(base.mirostat_eta),
            logit_bias: match more.logit_bias.is_empty() {
                true => base.logit_bias,
                false => more.logit_bias.clone(),
            },
            seed: self.seed.map_or(base.seed, |seed| seed.0),
            banned: match self.ignore_eos {
                Some(true) => tokenizer.eog_ids(),
                None if !self.grammar.is_given() => base.banned,
                Some(false) | None => Vec::new(),
            },
            vocabulary: base.vocabulary,
            grammar: base.grammar.filter(|_| self.ignore_eos != Some(true)),
        };
        params.check()?;
        need_vocabulary(&mut params, tokenizer);
        if self.grammar.is_given() {
            params.grammar = None;
        }
        if let Some((name, source)) = self.grammar.read()? {
            hold_to(&mut params, &name, source, tokenizer)?;
        }
        Ok(params)
    }
}

/// Holds the text to a grammar; `name` is for messages.
///
/// # Errors
/// What is wrong with the grammar.
pub fn hold_to(
    params: &mut SamplingParams,
    name: &str,
    source: GrammarSource,
    tokenizer: &Tokenizer,
) -> Result<()> {
    let vocabulary = (params.vocabulary).get_or_insert_with(|| vocabulary(tokenizer));
    let grammar = Grammar::new(name, source, vocabulary.clone())?;
    params.grammar = Some(Arc::new(grammar));
    Ok(())
}

/// Adds the tokens' bytes to settings that need them.
pub fn need_vocabulary(params: &mut SamplingParams, tokenizer: &Tokenizer) {
    if params.dry.multiplier > 0.0 && params.vocabulary.is_none() {
        params.vocabulary = Some(vocabulary(tokenizer));
    }
}

/// What sampling needs to know of the tokens; those that print nothing have no bytes.
fn vocabulary(tokenizer: &Tokenizer) -> Arc<Vocabulary> {
    let ids = 0..u32::try_from(tokenizer.n_vocab()).unwrap_or(u32::MAX);
    let pieces = ids.map(|id| match tokenizer.is_control(id) {
        true => Vec::new(),
        false => tokenizer.piece(id),
    });
    Arc::new(Vocabulary::new(pieces, tokenizer.eog_ids()))
}

/// `\n`, `\t`, `\r` and `\\` as shells hand them over.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let next = match c {
            '\\' => chars.as_str().chars().next(),
            _ => None,
        };
        let escaped = match next {
            Some('n') => Some('\n'),
            Some('t') => Some('\t'),
            Some('r') => Some('\r'),
            Some('\\') => Some('\\'),
            _ => None,
        };
        if escaped.is_some() {
            chars.next();
        }
        out.push(escaped.unwrap_or(c));
    }
    out
}

fn parse_seed(text: &str) -> std::result::Result<Seed, String> {
    if text == "-1" {
        return Ok(Seed(None));
    }
    let seed = text.parse().map_err(|_| "not a whole number or -1")?;
    Ok(Seed(Some(seed)))
}

#[cfg(test)]
mod tests {
    use super::{Seed, parse_seed, unescape};

    #[test]
    fn a_seed_is_a_number_or_minus_one() {
        assert_eq!(parse_seed("-1"), Ok(Seed(None)));
        assert_eq!(parse_seed("42"), Ok(Seed(Some(42))));
        assert!(parse_seed("-2").is_err());
    }

    #[test]
    fn breakers_may_be_written_with_escapes() {
        assert_eq!(unescape(r"a\nb\\n\q\"), "a\nb\\n\\q\\");
    }
}
