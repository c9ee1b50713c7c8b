//! What the JSON of a session holds.

use super::careful;
use super::identity::Identity;
use super::show::Think;
use crate::chat::Transcript;
use crate::sampling::{GrammarSource, SamplingParams};
use crate::{Error, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Marks the file as ours.
pub const FORMAT: &str = "llama-rs chat";
pub const VERSION: u32 = 1;

/// What a chat has come to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Saved {
    format: String,
    version: u32,
    pub model: Identity,
    /// Settings by their flags' names.
    #[serde(deserialize_with = "careful::without_duplicates")]
    sampling: BTreeMap<String, String>,
    /// Whether `--ignore-eos` holds.
    #[serde(default)]
    pub ignore_eos: bool,
    /// What replies are held to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grammar: Option<GrammarSource>,
    /// Replies drawn so far; each draws from a seed of its own.
    pub n_replies: u64,
    /// Turns at the start that the model does not see any more.
    pub n_forgotten: usize,
    /// Tokens that FILE.state holds, unless it is older or newer; files of older programs do
    /// not tell.
    #[serde(default)]
    pub n_cached: Option<usize>,
    think: String,
    messages: Transcript,
}

impl Saved {
    /// What a chat with this model has come to.
    pub fn new(
        model: &Identity,
        transcript: &Transcript,
        sampling: &SamplingParams,
        think: Think,
    ) -> Saved {
        let setting = |name: &str| Some((name.to_string(), sampling.get(name)?));
        Saved {
            format: FORMAT.to_string(),
            version: VERSION,
            model: model.clone(),
            sampling: SamplingParams::NAMES
                .iter()
                .filter_map(|n| setting(n))
                .collect(),
            // Nothing else bans ids.
            ignore_eos: !sampling.banned.is_empty(),
            grammar: sampling.grammar.as_ref().map(|g| g.source().clone()),
            n_replies: 0,
            n_forgotten: 0,
            n_cached: None,
            think: format!("{think:?}").to_lowercase(),
            messages: transcript.clone(),
        }
    }

    /// The settings over those of `base`.
    ///
    /// # Errors
    /// One that there is not, or out of range.
    pub fn sampling(&self, mut base: SamplingParams) -> Result<SamplingParams> {
        for (name, value) in &self.sampling {
            base.set(name, value)?;
        }
        Ok(base)
    }

    /// The messages.
    ///
    /// # Errors
    /// They are none.
    pub fn transcript(&self) -> Result<Transcript> {
        // Not `to_json`, which leaves out what has no place in a chat.
        let messages = serde_json::to_value(&self.messages);
        Transcript::from_json(&messages.map_err(|e| Error::input(e.to_string()))?)
    }

    /// What becomes of thinking.
    ///
    /// # Errors
    /// There is no such way.
    pub fn think(&self) -> Result<Think> {
        let unknown = |_| Error::input(format!("think is {:?}", self.think));
        Think::from_str(&self.think, true).map_err(unknown)
    }
}
