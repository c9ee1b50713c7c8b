//! Settings as text under the names of their flags: what `/set` changes and a saved chat
//! keeps.

use super::{SamplerKind, SamplingParams};
use crate::error::{Error, Result};
use std::str::FromStr;

impl SamplingParams {
    /// The settings that [`SamplingParams::set`] knows.
    pub const NAMES: [&'static str; 26] = [
        "samplers",
        "temp",
        "dynatemp-range",
        "dynatemp-exp",
        "top-k",
        "top-p",
        "min-p",
        "typical",
        "top-n-sigma",
        "xtc-probability",
        "xtc-threshold",
        "min-keep",
        "repeat-penalty",
        "repeat-last-n",
        "presence-penalty",
        "frequency-penalty",
        "dry-multiplier",
        "dry-base",
        "dry-allowed-length",
        "dry-penalty-last-n",
        "dry-sequence-breaker",
        "mirostat",
        "mirostat-ent",
        "mirostat-lr",
        "logit-bias",
        "seed",
    ];

    /// Changes one setting; `name` is its flag without dashes in front. Biases are
    /// separated by commas, sequence breakers are a JSON list.
    ///
    /// # Errors
    /// A name that there is not, or a value out of range; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let mut changed = self.clone();
        changed.assign(&name.replace('_', "-"), value)?;
        changed.check()?;
        *self = changed;
        Ok(())
    }

    fn assign(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "samplers" => self.samplers = SamplerKind::from_names(value)?,
            "temp" => self.temp = number(name, value)?,
            "dynatemp-range" => self.dynatemp_range = number(name, value)?,
            "dynatemp-exp" => self.dynatemp_exponent = number(name, value)?,
            "top-k" => self.top_k = number(name, value)?,
            "top-p" => self.top_p = number(name, value)?,
            "min-p" => self.min_p = number(name, value)?,
            "typical" => self.typical_p = number(name, value)?,
            "top-n-sigma" => self.top_n_sigma = number(name, value)?,
            "xtc-probability" => self.xtc_probability = number(name, value)?,
            "xtc-threshold" => self.xtc_threshold = number(name, value)?,
            "min-keep" => self.min_keep = number(name, value)?,
            "repeat-penalty" => self.repeat_penalty = number(name, value)?,
            "repeat-last-n" => self.repeat_last_n = number(name, value)?,
            "presence-penalty" => self.presence_penalty = number(name, value)?,
            "frequency-penalty" => self.frequency_penalty = number(name, value)?,
            "dry-multiplier" => self.dry.multiplier = number(name, value)?,
            "dry-base" => self.dry.base = number(name, value)?,
            "dry-allowed-length" => self.dry.allowed_length = number(name, value)?,
            "dry-penalty-last-n" => self.dry.penalty_last_n = number(name, value)?,
            "dry-sequence-breaker" => self.dry.sequence_breakers = texts(name, value)?,
            "mirostat" => self.mirostat = number(name, value)?,
            "mirostat-ent" => self.mirostat_tau = number(name, value)?,
            "mirostat-lr" => self.mirostat_eta = number(name, value)?,
            "logit-bias" => self.logit_bias = biases(value)?,
            "seed" if value == "-1" => self.seed = None,
            "seed" => self.seed = Some(number(name, value)?),
            _ => {
                return Err(Error::input(format!(
                    "sampling: there is no setting {name:?}; there are {}",
                    Self::NAMES.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// One setting as [`SamplingParams::set`] takes it; `None`: there is no such name.
    pub fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            "samplers" => SamplerKind::to_names(&self.samplers),
            "temp" => self.temp.to_string(),
            "dynatemp-range" => self.dynatemp_range.to_string(),
            "dynatemp-exp" => self.dynatemp_exponent.to_string(),
            "top-k" => self.top_k.to_string(),
            "top-p" => self.top_p.to_string(),
            "min-p" => self.min_p.to_string(),
            "typical" => self.typical_p.to_string(),
            "top-n-sigma" => self.top_n_sigma.to_string(),
            "xtc-probability" => self.xtc_probability.to_string(),
            "xtc-threshold" => self.xtc_threshold.to_string(),
            "min-keep" => self.min_keep.to_string(),
            "repeat-penalty" => self.repeat_penalty.to_string(),
            "repeat-last-n" => self.repeat_last_n.to_string(),
            "presence-penalty" => self.presence_penalty.to_string(),
            "frequency-penalty" => self.frequency_penalty.to_string(),
            "dry-multiplier" => self.dry.multiplier.to_string(),
            "dry-base" => self.dry.base.to_string(),
            "dry-allowed-length" => self.dry.allowed_length.to_string(),
            "dry-penalty-last-n" => self.dry.penalty_last_n.to_string(),
            "dry-sequence-breaker" => serde_json::json!(self.dry.sequence_breakers).to_string(),
            "mirostat" => self.mirostat.to_string(),
            "mirostat-ent" => self.mirostat_tau.to_string(),
            "mirostat-lr" => self.mirostat_eta.to_string(),
            "logit-bias" => {
                let each = self.logit_bias.iter();
                let each = each.map(|(id, bias)| format!("{id}{bias:+}"));
                each.collect::<Vec<_>>().join(",")
            }
            "seed" => self.seed.map_or("-1".to_string(), |seed| seed.to_string()),
            _ => return None,
        })
    }
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| {
        Error::input(format!(
            "sampling: {name} cannot be {value:?}; give a number"
        ))
    })
}

fn texts(name: &str, value: &str) -> Result<Vec<String>> {
    serde_json::from_str(value).map_err(|_| {
        Error::input(format!(
            "sampling: {name} cannot be {value:?}; give a JSON list of texts"
        ))
    })
}

fn biases(value: &str) -> Result<Vec<(u32, f32)>> {
    let each = value.split(',').filter(|one| !one.trim().is_empty());
    each.map(|one| {
        parse_bias(one).map_err(|why| Error::input(format!("sampling: {one:?} is {why}")))
    })
    .collect()
}

/// Reads a token's id and what is added to its logit, such as `15043-1.5`; `15043-inf`
/// bans it.
///
/// # Errors
/// Something else, as the end of a sentence.
pub fn parse_bias(text: &str) -> std::result::Result<(u32, f32), String> {
    let parsed = text.find(['+', '-']).and_then(|at| {
        // The sign belongs to the number.
        let (id, bias) = text.split_at(at);
        Some((id.trim().parse().ok()?, bias.trim().parse().ok()?))
    });
    let bias = parsed.filter(|(_, bias): &(u32, f32)| *bias < f32::INFINITY);
    bias.ok_or_else(|| "not a token id and a bias, such as 15043+1 or 15043-inf".to_string())
}

#[cfg(test)]
mod tests {
    use super::{SamplingParams, parse_bias};

    #[test]
    fn every_name_can_be_set_and_read_back() {
        let base = SamplingParams::chat_defaults();
        for name in SamplingParams::NAMES {
            let mut params = base.clone();
            let value = match name {
                "samplers" => "top_k;temperature",
                "dry-sequence-breaker" => r#"["\n",", "]"#,
                "logit-bias" => "15043+1.5,7-inf",
                _ if name.ends_with('k') || name.ends_with('n') => "7",
                _ => "1",
            };
            params.set(name, value).expect("it is in range");
            assert_eq!(params.get(name).as_deref(), Some(value), "{name}");
            // Back to where it was, by text alone.
            let text = base.get(name).expect("a value");
            params.set(name, &text).expect("it was valid");
            assert_eq!(params, base, "{name}");
        }
        assert_eq!(base.get("colour"), None);
    }

    #[test]
    fn what_makes_no_sense_changes_nothing() {
        let mut params = SamplingParams::chat_defaults();
        for (name, value, part) in [
            ("colour", "1", "top-k"),
            ("temp", "warm", "number"),
            ("top-k", "2.5", "number"),
            ("top_p", "2", "from 0 to 1"),
            ("samplers", "top_k;tail", "no sampler"),
            ("dry-sequence-breaker", "none", "JSON list"),
            ("logit-bias", "7+1,8", "token id"),
            ("mirostat", "3", "1 or 2"),
        ] {
            let error = params.set(name, value).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(params, SamplingParams::chat_defaults());
    }

    #[test]
    fn a_bias_is_an_id_and_a_signed_number() {
        assert_eq!(parse_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(parse_bias("7-1.5e1"), Ok((7, -15.0)));
        assert_eq!(parse_bias("0-inf"), Ok((0, f32::NEG_INFINITY)));
        for bad in ["", "7", "+1", "a+1", "7+", "7+inf", "7-nan", "-1+1", "7*2"] {
            assert!(parse_bias(bad).is_err(), "{bad}");
        }
    }
}
