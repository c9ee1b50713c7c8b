//! Grammars: texts that a model is held to.
//!
//! A [`Grammar`] is read from GBNF or made from a JSON schema. Before the samplers run,
//! the tokens that it does not let come next are dropped, so what is sampled always
//! fits; where the text may end the end tokens are allowed, and where it must, only
//! they. Grammars are as hostile as other files: nesting, size, and the work of a step
//! are bounded.

mod expr;
mod gbnf;
mod matcher;
mod program;
mod recursion;
mod schema;
mod stacks;
#[cfg(test)]
mod tests;

pub(super) use matcher::{Mask, Matcher};

use super::Vocabulary;
use crate::error::{Error, Result};
use matcher::SortedTokens;
use program::Program;
use serde_json::Value as Json;
use std::sync::Arc;

/// Bytes of a grammar or a schema.
const MAX_BYTES: usize = 1 << 20;

/// A grammar and the vocabulary whose tokens it chooses from.
#[derive(Debug)]
pub struct Grammar {
    program: Program,
    vocabulary: Arc<Vocabulary>,
    tokens: SortedTokens,
}

impl Grammar {
    /// Reads GBNF, whose text is what its rule `root` says; `name` is for messages.
    ///
    /// # Errors
    /// What is wrong with it, with line and column; a rule that begins with itself; a
    /// grammar without any text, or one that is too large.
    pub fn from_gbnf(name: &str, text: &str, vocabulary: Arc<Vocabulary>) -> Result<Grammar> {
        Self::build(name, text.len(), vocabulary, || gbnf::parse(text))
    }

    /// Makes a grammar of the JSON texts that fit a schema.
    ///
    /// Properties come in the schema's order, others only where
    /// `additionalProperties` asks for them; of spaces there is at most one, of lines
    /// one break.
    ///
    /// # Errors
    /// No JSON, or a part of JSON Schema that is not supported, which is named.
    pub fn from_json_schema(
        name: &str,
        text: &str,
        vocabulary: Arc<Vocabulary>,
    ) -> Result<Grammar> {
        Self::build(name, text.len(), vocabulary, || {
            let schema: Json = serde_json::from_str(text).map_err(|e| format!("no JSON: {e}"))?;
            schema::rules(&schema)
        })
    }

    fn build(
        name: &str,
        n_bytes: usize,
        vocabulary: Arc<Vocabulary>,
        rules: impl FnOnce() -> std::result::Result<(expr::Rules, usize), String>,
    ) -> Result<Grammar> {
        let program = match n_bytes > MAX_BYTES {
            true => Err(format!("{n_bytes} bytes are more than {MAX_BYTES}")),
            false => rules().and_then(|(rules, root)| Program::new(&rules, root)),
        };
        Ok(Grammar {
            program: program.map_err(|what| Error::input(format!("{name}: {what}")))?,
            tokens: SortedTokens::new(&vocabulary),
            vocabulary,
        })
    }
}

/// Two are equal only where they are the same one.
impl PartialEq for Grammar {
    fn eq(&self, other: &Grammar) -> bool {
        std::ptr::eq(self, other)
    }
}
