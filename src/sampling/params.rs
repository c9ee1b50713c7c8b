//! The settings of a chain and their ranges.

use crate::error::{Error, Result};
use crate::gguf::Metadata;

/// What a chain is made from; names as in llama.cpp.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Temperature; 0 or less is greedy.
    pub temp: f32,
    /// Candidates kept; 0 or less keeps all.
    pub top_k: i32,
    /// Probability the kept candidates reach, 0 to 1; 1 keeps all.
    pub top_p: f32,
    /// Least probability relative to the best, 0 to 1; 0 keeps all.
    pub min_p: f32,
    /// Divides the logits of repeated tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Accepted tokens that count as repeated; 0 is off, -1 all.
    pub repeat_last_n: i32,
    /// Subtracted from the logit of any repeated token; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once for each repetition; 0 is off.
    pub frequency_penalty: f32,
    /// `None` draws one; [`super::Chain::seed`] tells which.
    pub seed: Option<u64>,
    /// Ids never chosen.
    pub banned: Vec<u32>,
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
            temp: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
            banned: Vec::new(),
        }
    }

    /// Takes over what the file recommends (`general.sampling.*`).
    ///
    /// # Errors
    /// A key of the wrong type or out of range, naming the file.
    pub fn from_meta(mut self, meta: &Metadata) -> Result<Self> {
        let float = |name: &str, value: &mut f32| -> Result<()> {
            if let Some(v) = meta.get_f32(&format!("general.sampling.{name}"))? {
                *value = v;
            }
            Ok(())
        };
        float("temp", &mut self.temp)?;
        float("top_p", &mut self.top_p)?;
        float("min_p", &mut self.min_p)?;
        float("penalty_repeat", &mut self.repeat_penalty)?;
        if let Some(v) = meta.get_i32("general.sampling.top_k")? {
            self.top_k = v;
        }
        if let Some(v) = meta.get_i32("general.sampling.penalty_last_n")? {
            self.repeat_last_n = v;
        }
        for name in ["sequence", "xtc_probability", "mirostat"] {
            let key = format!("general.sampling.{name}");
            if meta.get(&key).is_some() {
                tracing::warn!("{key} of {} has no effect here", meta.path().display());
            }
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
    pub(super) fn check(&self) -> Result<()> {
        let unit = 0.0..=1.0;
        let rules: [(&str, f64, bool, &str); 7] = [
            (
                "temp",
                self.temp.into(),
                self.temp.is_finite(),
                "a finite number",
            ),
            (
                "top-p",
                self.top_p.into(),
                unit.contains(&self.top_p),
                "from 0 to 1",
            ),
            (
                "min-p",
                self.min_p.into(),
                unit.contains(&self.min_p),
                "from 0 to 1",
            ),
            (
                "repeat-penalty",
                self.repeat_penalty.into(),
                self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0,
                "a finite number above 0",
            ),
            (
                "repeat-last-n",
                self.repeat_last_n.into(),
                self.repeat_last_n >= -1,
                "-1 (all), 0 (off) or a count",
            ),
            (
                "presence-penalty",
                self.presence_penalty.into(),
                self.presence_penalty.is_finite(),
                "a finite number",
            ),
            (
                "frequency-penalty",
                self.frequency_penalty.into(),
                self.frequency_penalty.is_finite(),
                "a finite number",
            ),
        ];
        match rules.iter().find(|(_, _, ok, _)| !ok) {
            None => Ok(()),
            Some((name, value, _, want)) => Err(Error::input(format!(
                "sampling: {name} is {value}; it must be {want}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_held() {
        assert!(SamplingParams::greedy().check().is_ok());
        type Spoil = fn(&mut SamplingParams);
        let bad: [(&str, Spoil); 7] = [
            ("temp", |p| p.temp = f32::NAN),
            ("top-p", |p| p.top_p = 1.5),
            ("min-p", |p| p.min_p = f32::NAN),
            ("repeat-penalty", |p| p.repeat_penalty = 0.0),
            ("repeat-last-n", |p| p.repeat_last_n = -2),
            ("presence-penalty", |p| p.presence_penalty = f32::INFINITY),
            ("frequency-penalty", |p| p.frequency_penalty = f32::NAN),
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
        assert_eq!(from("mirostat", Err(2)).unwrap(), base());
        let text = from("top_p", Ok(2.0)).unwrap_err().to_string();
        assert!(
            text.starts_with("m.gguf: ") && text.contains("top-p is 2"),
            "{text}"
        );
        assert!(from("top_k", Ok(2.5)).is_err(), "a float is no count");
    }
}
