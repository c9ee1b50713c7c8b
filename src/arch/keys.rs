//! An architecture's own metadata keys, `{arch}.{key}`. Zero counts as unset.

use crate::error::{Error, Result};
use crate::gguf::{Metadata, Value};

/// Reads the keys of one architecture.
pub struct Keys<'a> {
    pub meta: &'a Metadata,
    pub arch: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// An integer; zero is unset.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        Ok(self.meta.get_u32(&self.name(key))?.filter(|&v| v != 0))
    }

    /// A float; zero is unset, and so is anything that is not finite.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        let value = self.meta.get_f32(&self.name(key))?;
        Ok(value.filter(|&v| v != 0.0 && v.is_finite()))
    }

    /// As [`Keys::f32`], and above zero.
    pub fn positive(&self, key: &str) -> Result<Option<f32>> {
        match self.f32(key)? {
            Some(value) if value < 0.0 => Err(Error::file(
                self.meta.path(),
                format!("{} is {value}, not a positive number", self.name(key)),
                "the file is damaged; fetch it again",
            )),
            value => Ok(value),
        }
    }

    /// A string; empty is unset.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        Ok(self
            .meta
            .get_str(&self.name(key))?
            .filter(|v| !v.is_empty()))
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.meta.get_bool(&self.name(key))
    }

    /// An integer that must be there, from 1 to `most`.
    pub fn size(&self, key: &str, most: usize) -> Result<usize> {
        let value = self.u32(key)?.ok_or_else(|| self.missing(key))? as usize;
        self.check(key, value, most)
    }

    /// An integer of at most `most`, or `default`.
    pub fn size_or(&self, key: &str, most: usize, default: usize) -> Result<usize> {
        match self.u32(key)? {
            Some(value) => self.check(key, value as usize, most),
            None => Ok(default),
        }
    }

    fn check(&self, key: &str, value: usize, most: usize) -> Result<usize> {
        if value > most {
            return Err(Error::file(
                self.meta.path(),
                format!("{} is {value}, above {most}", self.name(key)),
                "the file is damaged; fetch it again",
            ));
        }
        Ok(value)
    }

    /// One value a layer: the key holds one number for all, or an array.
    pub fn per_layer(&self, key: &str, n_layer: usize, most: usize) -> Result<Option<Vec<usize>>> {
        let name = self.name(key);
        let Some(Value::Array(..)) = self.meta.get(&name) else {
            let value = self.u32(key)?;
            return value
                .map(|v| self.check(key, v as usize, most).map(|v| vec![v; n_layer]))
                .transpose();
        };
        let values = self.meta.get_number_array(&name)?.unwrap_or_default();
        if values.len() < n_layer {
            return Err(Error::file(
                self.meta.path(),
                format!("{name} has {} values for {n_layer} layers", values.len()),
                "the file is damaged; fetch it again",
            ));
        }
        let cast = |v: &f64| self.check(key, v.max(0.0) as usize, most);
        Ok(Some(
            values[..n_layer].iter().map(cast).collect::<Result<_>>()?,
        ))
    }

    /// The error for a key the architecture cannot do without.
    pub fn missing(&self, key: &str) -> Error {
        Error::file(
            self.meta.path(),
            format!("metadata key {} is missing", self.name(key)),
            "the file is damaged or made by an unknown tool; fetch it again or pass --override-kv",
        )
    }
}
