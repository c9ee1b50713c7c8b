//! Flags that hold the generated text to a grammar, named as in llama.cpp.

use crate::sampling::{Grammar, Vocabulary};
use crate::{Error, Result};
use clap::{ArgGroup, Args};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the generated text must be; at most one.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("grammar_args").multiple(false)
    .args(["grammar", "grammar_file", "json_schema", "json_schema_file"]))]
pub struct GrammarArgs {
    /// Hold the generated text to this grammar, as GBNF: root ::= "yes" | "no"
    #[arg(long, value_name = "GBNF", allow_hyphen_values = true)]
    pub grammar: Option<String>,
    /// Hold it to the grammar in this file
    #[arg(long, value_name = "FILE")]
    pub grammar_file: Option<PathBuf>,
    /// Hold it to JSON that fits this schema; {} is any object
    #[arg(short = 'j', long, value_name = "SCHEMA")]
    pub json_schema: Option<String>,
    /// Hold it to JSON that fits the schema in this file (also -jf)
    #[arg(long, value_name = "FILE")]
    pub json_schema_file: Option<PathBuf>,
}

impl GrammarArgs {
    /// True when one of them is.
    pub fn is_given(&self) -> bool {
        self.grammar.is_some()
            || self.grammar_file.is_some()
            || self.json_schema.is_some()
            || self.json_schema_file.is_some()
    }

    /// The grammar, over the tokens of `vocabulary`.
    ///
    /// # Errors
    /// A file that cannot be read; what is wrong with the grammar or the schema.
    pub fn read(&self, vocabulary: Arc<Vocabulary>) -> Result<Option<Grammar>> {
        let grammar = if let Some(text) = &self.grammar {
            Grammar::from_gbnf("--grammar", text, vocabulary)
        } else if let Some(file) = &self.grammar_file {
            Grammar::from_gbnf(&file.display().to_string(), &read(file)?, vocabulary)
        } else if let Some(text) = &self.json_schema {
            Grammar::from_json_schema("--json-schema", text, vocabulary)
        } else if let Some(file) = &self.json_schema_file {
            Grammar::from_json_schema(&file.display().to_string(), &read(file)?, vocabulary)
        } else {
            return Ok(None);
        };
        grammar.map(Some)
    }
}

/// What a limit on tokens means that ended a text before the grammar lets it end.
pub fn cut(n_tokens: usize) -> Error {
    Error::DoesNotFit(format!(
        "-n {n_tokens} ends the text before the grammar or schema does, so it is not whole; \
         raise -n, or give -n -1"
    ))
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file)
        .map_err(|e| Error::file(file, e.to_string(), "give the path of a text file"))
}
