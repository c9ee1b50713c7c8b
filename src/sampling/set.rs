//! Settings as text under the names of their flags: what `/set` changes and a saved chat
//! keeps.

use super::SamplingParams;
use crate::error::{Error, Result};
use std::str::FromStr;

impl SamplingParams {
    /// The settings that [`SamplingParams::set`] knows.
    pub const NAMES: [&'static str; 9] = [
        "temp",
        "top-k",
        "top-p",
        "min-p",
        "repeat-penalty",
        "repeat-last-n",
        "presence-penalty",
        "frequency-penalty",
        "seed",
    ];

    /// Changes one setting; `name` is its flag without dashes in front.
    ///
    /// # Errors
    /// A name that there is not, or a value out of range; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let mut changed = self.clone();
        let name = name.replace('_', "-");
        match name.as_str() {
            "temp" => changed.temp = number(&name, value)?,
            "top-k" => changed.top_k = number(&name, value)?,
            "top-p" => changed.top_p = number(&name, value)?,
            "min-p" => changed.min_p = number(&name, value)?,
            "repeat-penalty" => changed.repeat_penalty = number(&name, value)?,
            "repeat-last-n" => changed.repeat_last_n = number(&name, value)?,
            "presence-penalty" => changed.presence_penalty = number(&name, value)?,
            "frequency-penalty" => changed.frequency_penalty = number(&name, value)?,
            "seed" if value == "-1" => changed.seed = None,
            "seed" => changed.seed = Some(number(&name, value)?),
            _ => {
                return Err(Error::input(format!(
                    "sampling: there is no setting {name:?}; there are {}",
                    Self::NAMES.join(", ")
                )));
            }
        }
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// One setting as [`SamplingParams::set`] takes it; `None`: there is no such name.
    pub fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            "temp" => self.temp.to_string(),
            "top-k" => self.top_k.to_string(),
            "top-p" => self.top_p.to_string(),
            "min-p" => self.min_p.to_string(),
            "repeat-penalty" => self.repeat_penalty.to_string(),
            "repeat-last-n" => self.repeat_last_n.to_string(),
            "presence-penalty" => self.presence_penalty.to_string(),
            "frequency-penalty" => self.frequency_penalty.to_string(),
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

#[cfg(test)]
mod tests {
    use super::SamplingParams;

    #[test]
    fn every_name_can_be_set_and_read_back() {
        let base = SamplingParams::chat_defaults();
        for name in SamplingParams::NAMES {
            let mut params = base.clone();
            let value = if name.ends_with('k') || name.ends_with('n') {
                "7"
            } else {
                "1"
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
        ] {
            let error = params.set(name, value).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(params, SamplingParams::chat_defaults());
    }
}
