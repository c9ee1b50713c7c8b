//! Flags that hold the generated text to a grammar, named as in llama.cpp.

use crate::sampling::GrammarSource::{self, Gbnf, JsonSchema};
use crate::{Error, Result};
use clap::{ArgGroup, Args};
use std::path::{Path, PathBuf};

/// What the generated text must be; at most one.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("grammar_args").multiple(false)
    .args(["grammar", "grammar_file", "json_schema", "json_schema_file"]))]
pub struct GrammarArgs {
    /// Hold the generated text to this grammar, as GBNF: root ::= "yes" | "no";
    /// an empty one is none, also where a session has one
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

    /// What is given, with a name for messages; an empty `--grammar` is none.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(&self) -> Result<Option<(String, GrammarSource)>> {
        Ok(if let Some(text) = &self.grammar {
            (!text.is_empty()).then(|| ("--grammar".to_string(), Gbnf(text.clone())))
        } else if let Some(file) = &self.grammar_file {
            Some((file.display().to_string(), Gbnf(read(file)?)))
        } else if let Some(text) = &self.json_schema {
            Some(("--json-schema".to_string(), JsonSchema(text.clone())))
        } else if let Some(file) = &self.json_schema_file {
            Some((file.display().to_string(), JsonSchema(read(file)?)))
        } else {
            None
        })
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
