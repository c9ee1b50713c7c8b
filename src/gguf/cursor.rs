//! Reads numbers and strings from a file's bytes, never past their end.

use crate::error::{Error, Result};
use std::ops::Range;
use std::path::Path;

const FETCH_AGAIN: &str = "fetch the file again";
/// Names in messages are cut here: those in a file may be 64 KiB long.
const MOST_SHOWN_CHARS: usize = 80;

/// A position in a file; every length is bounded by the bytes that remain.
pub(super) struct Cursor<'a> {
    pub path: &'a Path,
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    /// An error about this file.
    pub fn bad(&self, cause: impl Into<String>) -> Error {
        Error::file(self.path, cause, FETCH_AGAIN)
    }

    /// The next `n` bytes; `what` names them in the error.
    pub fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8]> {
        let left = &self.bytes[self.at..];
        let taken = usize::try_from(n).ok().and_then(|n| left.get(..n));
        let Some(taken) = taken else {
            return Err(self.bad(format!(
                "truncated or damaged: {} needs {n} bytes at offset {}, the file has {} left",
                shown(what),
                self.at,
                left.len()
            )));
        };
        self.at += taken.len();
        Ok(taken)
    }

    /// A little-endian number.
    pub fn u32(&mut self, what: &str) -> Result<u32> {
        let bytes = self.take(4, what)?;
        Ok(bytes.iter().rev().fold(0, |v, &b| v << 8 | u32::from(b)))
    }

    /// A little-endian number.
    pub fn u64(&mut self, what: &str) -> Result<u64> {
        let bytes = self.take(8, what)?;
        Ok(bytes.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)))
    }

    /// Where a string of a `u64` length and its bytes lies.
    pub fn string(&mut self, what: &str) -> Result<Range<usize>> {
        let len = self.u64(what)?;
        let len = self.take(len, what)?.len();
        Ok(self.at - len..self.at)
    }

    /// A key or a tensor's name: UTF-8 of at most `most` bytes.
    pub fn name(&mut self, what: &str, most: usize) -> Result<&'a str> {
        let range = self.string(what)?;
        if range.len() > most {
            return Err(self.bad(format!(
                "{what} at offset {} is {} bytes long, more than {most}",
                range.start,
                range.len()
            )));
        }
        let at = range.start;
        std::str::from_utf8(&self.bytes[range])
            .map_err(|_| self.bad(format!("{what} at offset {at} is not valid UTF-8")))
    }
}

/// A name from a file, fit for a one-line message on a terminal.
pub(super) fn shown(name: &str) -> String {
    let mut text: String = (name.chars().take(MOST_SHOWN_CHARS))
        .flat_map(char::escape_debug)
        .collect();
    if name.chars().nth(MOST_SHOWN_CHARS).is_some() {
        text.push_str("...");
    }
    text
}
