//! Flags that say which model: a file, or one on a hub; named as in llama.cpp.

use crate::Result;
use crate::gguf::Value;
use crate::hub::{Wanted, check_path};
use clap::Args;
use std::path::PathBuf;

/// Which file, and how it is read.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// The GGUF file; else LLAMA_RS_MODEL, else the toy model in the program
    #[arg(short = 'm', long, value_name = "FILE", conflicts_with = "hf_repo")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// Read the file into memory instead of mapping it
    #[arg(long)]
    pub no_mmap: bool,
    /// Replace a metadata key; TYPE is int, float, bool or str (repeatable)
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_parser = parse_override)]
    pub override_kv: Vec<(String, Value)>,
}

/// A model on a hub instead of a file.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct HubArgs {
    /// A model of Hugging Face, fetched when it is not in the cache: QUANT is a word of the
    /// file's name, FILE ends in .gguf; by default Q4_K_M or what is nearest (also -hf)
    #[arg(long, value_name = "USER/REPO[:QUANT|:FILE]", value_parser = parse_wanted)]
    pub hf_repo: Option<Wanted>,
    /// This file of the repository (also -hff)
    #[arg(long, value_name = "FILE", requires = "hf_repo", value_parser = parse_file)]
    pub hf_file: Option<String>,
}

impl HubArgs {
    /// What is asked for, if anything.
    ///
    /// # Errors
    /// The file is named twice: an error of usage.
    pub fn wanted(&self) -> Result<Option<Wanted>> {
        match (&self.hf_repo, &self.hf_file) {
            (Some(wanted), Some(file)) => wanted.clone().with_file(file).map(Some),
            (wanted, _) => Ok(wanted.clone()),
        }
    }
}

/// Reads `USER/REPO`, with `:QUANT` or `:FILE`, or a file's address.
pub fn parse_wanted(text: &str) -> std::result::Result<Wanted, String> {
    Wanted::parse(text).map_err(|error| error.to_string())
}

/// Reads the name of a file in a repository.
fn parse_file(text: &str) -> std::result::Result<String, String> {
    check_path(text).map_err(|error| error.to_string())?;
    Ok(text.to_string())
}

/// Reads `KEY=TYPE:VALUE`.
fn parse_override(text: &str) -> std::result::Result<(String, Value), String> {
    let (key, typed) = text.split_once('=').ok_or("no `=` after the key")?;
    let (kind, value) = typed.split_once(':').ok_or("no `TYPE:` before the value")?;
    let bad = |want: &str| format!("{value:?} is not {want}");
    let value = match kind {
        "int" => {
            let v: i64 = value.parse().map_err(|_| bad("an integer"))?;
            u64::try_from(v).map_or(Value::Int(v), Value::Uint)
        }
        "float" => Value::Float(value.parse().map_err(|_| bad("a number"))?),
        "bool" => Value::Bool(value.parse().map_err(|_| bad("true or false"))?),
        "str" => Value::Text(value.to_string()),
        _ => return Err(format!("type {kind:?} is not int, float, bool or str")),
    };
    if key.is_empty() {
        return Err("no key before the `=`".to_string());
    }
    Ok((key.to_string(), value))
}

#[cfg(test)]
mod tests {
    use super::parse_override;
    use crate::gguf::Value;

    #[test]
    fn an_override_has_key_type_and_value() {
        let good = |text: &str, value: Value| {
            assert_eq!(parse_override(text), Ok(("a.b".to_string(), value)));
        };
        good("a.b=int:7", Value::Uint(7));
        good("a.b=int:-7", Value::Int(-7));
        good("a.b=float:1e-5", Value::Float(1e-5));
        good("a.b=bool:true", Value::Bool(true));
        good("a.b=str:x=y:z", Value::Text("x=y:z".to_string()));
        for bad in [
            "a.b",
            "a.b=7",
            "a.b=int:x",
            "a.b=u8:1",
            "=int:1",
            "a=bool:1",
        ] {
            assert!(parse_override(bad).is_err(), "{bad}");
        }
    }
}
