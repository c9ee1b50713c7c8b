//! The settings of a chain and their ranges.

use super::{DryParams, Grammar, SamplerKind, Vocabulary};
use crate::error::{Error, Result};
use crate::gguf::Metadata;
use std::fmt::Display;
use std::sync::Arc;

/// What a chain is made from; names as in llama.cpp.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Which samplers run, in this order; the draw follows.
    pub samplers: Vec<SamplerKind>,
    /// Temperature; 0 or less is greedy.
    pub temp: f32,
    /// The temperature moves by this much with the entropy; 0 is off.
    pub dynatemp_range: f32,
    /// Exponent on the entropy's share of the highest possible one.
    pub dynatemp_exponent: f32,
    /// Candidates kept; 0 or less keeps all.
    pub top_k: i32,
    /// Probability the kept candidates reach, 0 to 1; 1 keeps all.
    pub top_p: f32,
    /// Least probability relative to the best, 0 to 1; 0 keeps all.
    pub min_p: f32,
    /// Probability the kept typical candidates pass, 0 to 1; 1 keeps all.
    pub typical_p: f32,
    /// Standard deviations that a logit may lie below the best; 0 or less keeps all.
    pub top_n_sigma: f32,
    /// How often the top choices are dropped, 0 to 1; 0 is never.
    pub xtc_probability: f32,
    /// Probability from which a candidate is a top choice; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Candidates that typical, top-p, min-p and XTC leave at least.
    pub min_keep: usize,
    /// Divides the logits of repeated tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Accepted tokens that count as repeated; 0 is off, -1 all.
    pub repeat_last_n: i32,
    /// Subtracted from the logit of any repeated token; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once for each repetition; 0 is off.
    pub frequency_penalty: f32,
    pub dry: DryParams,
    /// 1 or 2 is that version of mirostat in place of what cuts the list; 0 is off.
    pub mirostat: u8,
    /// Surprise that mirostat keeps to, in bits.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate.
    pub mirostat_eta: f32,
    /// Added to these tokens' logits before all else; `-inf` bans.
    pub logit_bias: Vec<(u32, f32)>,
    /// `None` draws one; [`super::Chain::seed`] tells which.
    pub seed: Option<u64>,
    /// Ids never chosen.
    pub banned: Vec<u32>,
    /// The tokens' bytes, which DRY needs.
    pub vocabulary: Option<Arc<Vocabulary>>,
    /// What the text is held to; its tokens are masked before all samplers.
    pub grammar: Option<Arc<Grammar>>,
}

impl SamplingParams {
    /// Always the most probable token.
    pub fn greedy() -> Self {
        SamplingParams {
            temp: 0.0,
            ..Self::chat_defaults()
        }
    }

    /// What llama.cpp's users get when nothing is said.
    pub fn chat_defaults() -> Self {
        SamplingParams {
            samplers: SamplerKind::default_order(),
            temp: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry: DryParams::default(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
            seed: None,
            banned: Vec::new(),
            vocabulary: None,
            grammar: None,
        }
    }

    /// Takes over what the file recommends (`general.sampling.*`).
    ///
    /// # Errors
    /// A key of the wrong type or out of range, naming the file.
    pub fn from_meta(mut self, meta: &Metadata) -> Result<Self> {
        for (name, value) in [
            ("temp", &mut self.temp),
            ("top_p", &mut self.top_p),
            ("min_p", &mut self.min_p),
            ("penalty_repeat", &mut self.repeat_penalty),
            ("xtc_probability", &mut self.xtc_probability),
            ("xtc_threshold", &mut self.xtc_threshold),
            ("mirostat_tau", &mut self.mirostat_tau),
            ("mirostat_eta", &mut self.mirostat_eta),
        ] {
            if let Some(v) = meta.get_f32(&format!("general.sampling.{name}"))? {
                *value = v;
            }
        }
        for (name, value) in [
            ("top_k", &mut self.top_k),
            ("penalty_last_n", &mut self.repeat_last_n),
        ] {
            if let Some(v) = meta.get_i32(&format!("general.sampling.{name}"))? {
                *value = v;
            }
        }
        if let Some(v) = meta.get_i32("general.sampling.mirostat")? {
            // What is no version is told with the other ranges.
            self.mirostat = u8::try_from(v).unwrap_or(u8::MAX);
        }
        if let Some(sequence) = meta.get_str("general.sampling.sequence")? {
            self.samplers = known_samplers(sequence, meta);
        }
        self.check().map_err(|e| {
            Error::file(
                meta.path(),
                format!("general.sampling: {e}"),
                "give the setting as a flag or with --override-kv",
            )
        })?;
        Ok(self)
    }

    /// Holds every setting against its range.
    ///
    /// # Errors
    /// The first setting that is out of its range, which is named.
    pub fn check(&self) -> Result<()> {
        let unit = 0.0..=1.0;
        for (name, value) in [
            ("top-p", self.top_p),
            ("min-p", self.min_p),
            ("typical", self.typical_p),
            ("xtc-probability", self.xtc_probability),
            ("xtc-threshold", self.xtc_threshold),
        ] {
            hold(name, value, unit.contains(&value), "from 0 to 1")?;
        }
        for (name, value) in [
            ("temp", self.temp),
            ("top-n-sigma", self.top_n_sigma),
            ("presence-penalty", self.presence_penalty),
            ("frequency-penalty", self.frequency_penalty),
        ] {
            hold(name, value, value.is_finite(), "a finite number")?;
        }
        for (name, value, least) in [
            ("dynatemp-range", self.dynatemp_range, 0.0),
            ("dynatemp-exp", self.dynatemp_exponent, 0.0),
            ("dry-multiplier", self.dry.multiplier, 0.0),
            ("dry-base", self.dry.base, 1.0),
            ("mirostat-lr", self.mirostat_eta, 0.0),
        ] {
            let want = format!("a finite number from {least}");
            hold(name, value, value.is_finite() && value >= least, &want)?;
        }
        for (name, value) in [
            ("repeat-penalty", self.repeat_penalty),
            ("mirostat-ent", self.mirostat_tau),
        ] {
            let ok = value.is_finite() && value > 0.0;
            hold(name, value, ok, "a finite number above 0")?;
        }
        for (name, value) in [
            ("repeat-last-n", self.repeat_last_n),
            ("dry-penalty-last-n", self.dry.penalty_last_n),
        ] {
            hold(name, value, value >= -1, "-1 (all), 0 (off) or a count")?;
        }
        hold(
            "mirostat",
            self.mirostat,
            self.mirostat <= 2,
            "0 (off), 1 or 2",
        )?;
        for &(_, bias) in &self.logit_bias {
            let ok = bias.is_finite() || bias == f32::NEG_INFINITY;
            hold("logit-bias", bias, ok, "a finite number or -inf")?;
        }
        Ok(())
    }
}

/// The samplers that a file names; others have new ones from time to time, which are no
/// reason to refuse the file.
fn known_samplers(sequence: &str, meta: &Metadata) -> Vec<SamplerKind> {
    let mut samplers = Vec::new();
    for name in sequence.split(';') {
        match SamplerKind::from_names(name) {
            Ok(known) => samplers.extend(known),
            Err(error) => {
                let path = meta.path().display();
                tracing::warn!("{path}: general.sampling.sequence: {error}; it is left out");
            }
        }
    }
    samplers
}

fn hold(name: &str, value: impl Display, ok: bool, want: &str) -> Result<()> {
    match ok {
        true => Ok(()),
        false => Err(Error::input(format!(
            "sampling: {name} is {value}; it must be {want}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_held() {
        assert!(SamplingParams::greedy().check().is_ok());
        type Spoil = fn(&mut SamplingParams);
        let bad: [(&str, Spoil); 20] = [
            ("temp", |p| p.temp = f32::NAN),
            ("top-p", |p| p.top_p = 1.5),
            ("min-p", |p| p.min_p = f32::NAN),
            ("repeat-penalty", |p| p.repeat_penalty = 0.0),
            ("repeat-last-n", |p| p.repeat_last_n = -2),
            ("presence-penalty", |p| p.presence_penalty = f32::INFINITY),
            ("frequency-penalty", |p| p.frequency_penalty = f32::NAN),
            ("typical", |p| p.typical_p = -0.1),
            ("xtc-probability", |p| p.xtc_probability = 1.1),
            ("xtc-threshold", |p| p.xtc_threshold = f32::NAN),
            ("top-n-sigma", |p| p.top_n_sigma = f32::INFINITY),
            ("dynatemp-range", |p| p.dynatemp_range = -1.0),
            ("dynatemp-exp", |p| p.dynatemp_exponent = f32::INFINITY),
            ("dry-multiplier", |p| p.dry.multiplier = -1.0),
            ("dry-base", |p| p.dry.base = 0.9),
            ("dry-penalty-last-n", |p| p.dry.penalty_last_n = -2),
            ("mirostat", |p| p.mirostat = 3),
            ("mirostat-ent", |p| p.mirostat_tau = 0.0),
            ("mirostat-lr", |p| p.mirostat_eta = -0.1),
            ("logit-bias", |p| p.logit_bias = vec![(0, f32::INFINITY)]),
        ];
        for (name, spoil) in bad {
            let mut params = SamplingParams::chat_defaults();
            spoil(&mut params);
            let message = params.check().unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("sampling: {name} is ")),
                "{message}"
            );
            assert!(!message.contains('\n'));
        }
    }

    /// A file of one `general.sampling` key: an f32 or an i32.
    fn file_with(key: &str, value: std::result::Result<f32, i32>) -> crate::gguf::Gguf {
        use crate::gguf::{FileBytes, Gguf};
        let key = format!("general.sampling.{key}");
        let (ty, value) = match value {
            Ok(float) => (6u32, float.to_le_bytes()),
            Err(int) => (5u32, int.to_le_bytes()),
        };
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([0u64, 1, key.len() as u64].map(u64::to_le_bytes).concat());
        bytes.extend(key.as_bytes());
        bytes.extend([ty.to_le_bytes(), value].concat());
        let path = std::path::Path::new("m.gguf");
        let read = FileBytes::read(path, &mut bytes.as_slice(), bytes.len() as u64);
        Gguf::from_bytes(path, read.unwrap()).unwrap()
    }

    #[test]
    fn the_file_recommends() {
        let from = |key, value| {
            let gguf = file_with(key, value);
            SamplingParams::chat_defaults().from_meta(&gguf.meta)
        };
        let base = SamplingParams::chat_defaults;
        let want = |change: fn(&mut SamplingParams)| {
            let mut params = base();
            change(&mut params);
            params
        };
        assert_eq!(from("temp", Ok(1.5)).unwrap(), want(|p| p.temp = 1.5));
        assert_eq!(from("top_p", Ok(0.5)).unwrap(), want(|p| p.top_p = 0.5));
        assert_eq!(from("min_p", Ok(0.25)).unwrap(), want(|p| p.min_p = 0.25));
        assert_eq!(from("top_k", Err(7)).unwrap(), want(|p| p.top_k = 7));
        assert_eq!(from("top_k", Err(-1)).unwrap(), want(|p| p.top_k = -1));
        let repeat = from("penalty_repeat", Ok(1.25)).unwrap();
        assert_eq!(repeat, want(|p| p.repeat_penalty = 1.25));
        let last_n = from("penalty_last_n", Err(9)).unwrap();
        assert_eq!(last_n, want(|p| p.repeat_last_n = 9));
        assert_eq!(from("mirostat", Err(2)).unwrap(), want(|p| p.mirostat = 2));
        assert!(from("mirostat", Err(-1)).is_err());
        let xtc = from("xtc_threshold", Ok(0.5)).unwrap();
        assert_eq!(xtc, want(|p| p.xtc_threshold = 0.5));
        let text = from("top_p", Ok(2.0)).unwrap_err().to_string();
        assert!(
            text.starts_with("m.gguf: ") && text.contains("top-p is 2"),
            "{text}"
        );
        assert!(from("top_k", Ok(2.5)).is_err(), "a float is no count");
    }
}
