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
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::sync::Arc;

/// Bytes of a grammar or a schema.
const MAX_BYTES: usize = 1 << 20;

/// A grammar as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrammarSource {
    /// Its rule `root` is the text.
    Gbnf(String),
    /// The text is JSON that fits: properties come in the schema's order, others only where
    /// `additionalProperties` asks for them; of spaces there is at most one, of lines one
    /// break.
    JsonSchema(String),
}

impl GrammarSource {
    fn rules(&self) -> std::result::Result<(expr::Rules, usize), String> {
        let (GrammarSource::Gbnf(text) | GrammarSource::JsonSchema(text)) = self;
        if text.len() > MAX_BYTES {
            return Err(format!("{} bytes are more than {MAX_BYTES}", text.len()));
        }
        if let GrammarSource::Gbnf(text) = self {
            return gbnf::parse(text);
        }
        let schema: Json = serde_json::from_str(text).map_err(|e| format!("no JSON: {e}"))?;
        schema::rules(&schema)
    }
}

/// A grammar and the vocabulary whose tokens it chooses from.
#[derive(Debug)]
pub struct Grammar {
    source: GrammarSource,
    program: Program,
    vocabulary: Arc<Vocabulary>,
    tokens: SortedTokens,
}

impl Grammar {
    /// Makes a grammar; `name` is for messages.
    ///
    /// # Errors
    /// What is wrong with it, of GBNF with line and column; a rule that begins with itself; a
    /// part of JSON Schema that is not supported, which is named; a grammar without any text,
    /// or one that is too large.
    pub fn new(name: &str, source: GrammarSource, vocabulary: Arc<Vocabulary>) -> Result<Grammar> {
        let rules = source.rules();
        let program = rules.and_then(|(rules, root)| Program::new(&rules, root));
        Ok(Grammar {
            source,
            program: program.map_err(|what| Error::input(format!("{name}: {what}")))?,
            tokens: SortedTokens::new(&vocabulary),
            vocabulary,
        })
    }

    /// What it was made of.
    pub fn source(&self) -> &GrammarSource {
        &self.source
    }
}

/// Two are equal only where they are the same one.
impl PartialEq for Grammar {
    fn eq(&self, other: &Grammar) -> bool {
        std::ptr::eq(self, other)
    }
}
