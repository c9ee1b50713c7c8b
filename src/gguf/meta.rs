//! Typed access to GGUF metadata.
//!
//! Scalars are decoded when the file is opened; strings and arrays stay in the
//! file's bytes and are read where they lie, so a vocabulary of 262,144 tokens
//! costs no copy.

use super::FileBytes;
use crate::error::{Error, Result};
use gguf_rs_lib::format::GGUFValueType;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A metadata value. `Range`s are byte offsets into the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Uint(u64),
    Int(i64),
    Float(f64),
    Bool(bool),
    /// A string that lies in the file (not necessarily UTF-8).
    Str(std::ops::Range<usize>),
    /// A string given at run time (`--override-kv`).
    Text(String),
    /// An array: element type, element count, byte range of its elements.
    Array(GGUFValueType, usize, std::ops::Range<usize>),
}

/// All key-value pairs of one file.
#[derive(Clone)]
pub struct Metadata {
    path: PathBuf,
    bytes: Arc<FileBytes>,
    /// In file order.
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    pub(super) fn new(path: &Path, bytes: Arc<FileBytes>) -> Self {
        Metadata {
            path: path.to_path_buf(),
            bytes,
            entries: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Sets or replaces a value; returns whether the key was there before.
    pub fn set(&mut self, key: &str, value: Value) -> bool {
        if let Some(&at) = self.index.get(key) {
            self.entries[at].1 = value;
            return true;
        }
        self.index.insert(key.to_string(), self.entries.len());
        self.entries.push((key.to_string(), value));
        false
    }

    /// The file these keys come from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The raw value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    fn wrong(&self, key: &str, want: &str, got: &Value) -> Error {
        let got = match got {
            Value::Uint(_) | Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a bool",
            Value::Str(_) | Value::Text(_) => "a string",
            Value::Array(..) => "an array",
        };
        Error::file(
            &self.path,
            format!("metadata key {key} is {got}, not {want}"),
            "the file is damaged or made by an unknown tool; fetch it again or pass --override-kv",
        )
    }

    /// A non-negative integer.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Uint(v)) => Ok(Some(*v)),
            Some(Value::Int(v)) if *v >= 0 => Ok(Some(*v as u64)),
            Some(other) => Err(self.wrong(key, "a non-negative integer", other)),
        }
    }

    /// A non-negative integer below 2^32.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>> {
        match self.get_u64(key)? {
            None => Ok(None),
            Some(v) => u32::try_from(v).map(Some).map_err(|_| {
                let v = Value::Uint(v);
                self.wrong(key, "an integer below 2^32", &v)
            }),
        }
    }

    /// An integer from -2^31 to 2^31 - 1.
    pub fn get_i32(&self, key: &str) -> Result<Option<i32>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let narrow = match value {
            Value::Uint(v) => i32::try_from(*v).ok(),
            Value::Int(v) => i32::try_from(*v).ok(),
            _ => None,
        };
        match narrow {
            Some(v) => Ok(Some(v)),
            None => Err(self.wrong(key, "an integer of 32 bits", value)),
        }
    }

    /// A float (integers are converted).
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(v)) => Ok(Some(*v as f32)),
            Some(Value::Uint(v)) => Ok(Some(*v as f32)),
            Some(Value::Int(v)) => Ok(Some(*v as f32)),
            Some(other) => Err(self.wrong(key, "a number", other)),
        }
    }

    /// A bool.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(other) => Err(self.wrong(key, "a bool", other)),
        }
    }

    /// A string's bytes (GGUF promises UTF-8, files do not always keep it).
    pub fn get_bytes(&self, key: &str) -> Result<Option<&[u8]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Str(range)) => Ok(Some(&self.bytes[range.clone()])),
            Some(Value::Text(text)) => Ok(Some(text.as_bytes())),
            Some(other) => Err(self.wrong(key, "a string", other)),
        }
    }

    /// A string; bytes that are not UTF-8 are an error.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        let Some(bytes) = self.get_bytes(key)? else {
            return Ok(None);
        };
        std::str::from_utf8(bytes).map(Some).map_err(|_| {
            Error::file(
                &self.path,
                format!("metadata key {key} is not valid UTF-8"),
                "the file is damaged; fetch it again",
            )
        })
    }

    /// An array of strings, read in place.
    pub fn get_str_array(&self, key: &str) -> Result<Option<StrArray<'_>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(GGUFValueType::String, len, range)) => Ok(Some(StrArray {
                bytes: &self.bytes[range.clone()],
                left: *len,
                base: range.start,
            })),
            Some(other) => Err(self.wrong(key, "an array of strings", other)),
        }
    }

    /// An array of numbers (or bools, as 0 and 1) as f64; every GGUF integer in
    /// use here is exact in f64.
    pub fn get_number_array(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let Value::Array(ty, _, range) = value else {
            return Err(self.wrong(key, "an array of numbers", value));
        };
        let raw = &self.bytes[range.clone()];
        macro_rules! read {
            ($t:ty) => {
                raw.chunks_exact(size_of::<$t>())
                    .map(|c| <$t>::from_le_bytes(c.try_into().unwrap_or_default()) as f64)
                    .collect()
            };
        }
        Ok(Some(match ty {
            GGUFValueType::U8 | GGUFValueType::Bool => read!(u8),
            GGUFValueType::I8 => read!(i8),
            GGUFValueType::U16 => read!(u16),
            GGUFValueType::I16 => read!(i16),
            GGUFValueType::U32 => read!(u32),
            GGUFValueType::I32 => read!(i32),
            GGUFValueType::U64 => read!(u64),
            GGUFValueType::I64 => read!(i64),
            GGUFValueType::F32 => read!(f32),
            GGUFValueType::F64 => read!(f64),
            GGUFValueType::String | GGUFValueType::Array => {
                return Err(self.wrong(key, "an array of numbers", value));
            }
        }))
    }

    /// The bytes that `Value` ranges point into.
    pub fn file_bytes(&self) -> &Arc<FileBytes> {
        &self.bytes
    }
}

/// Strings of a metadata array, in order; each item is `(file offset, bytes)`.
#[derive(Clone)]
pub struct StrArray<'a> {
    bytes: &'a [u8],
    left: usize,
    base: usize,
}

impl<'a> StrArray<'a> {
    /// Strings not yet read.
    pub fn len(&self) -> usize {
        self.left
    }

    /// True when no string is left.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> Iterator for StrArray<'a> {
    /// Byte offset of the string in the file, and its bytes.
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        // The parser has checked every length; a short array ends the walk.
        let (head, rest) = self.bytes.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*head)).ok()?;
        let text = rest.get(..len)?;
        let at = self.base + 8;
        self.bytes = &rest[len..];
        self.base = at + len;
        self.left = self.left.checked_sub(1)?;
        Some((at, text))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}
