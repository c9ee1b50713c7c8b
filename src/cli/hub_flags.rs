//! Flags that name a model on a hub, as in llama.cpp.

use crate::Result;
use crate::hub::Wanted;
use clap::Args;

/// A model on a hub instead of a file.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct HubArgs {
    /// A model of Hugging Face, fetched when it is not in the cache: QUANT is a word of the
    /// file's name, FILE ends in .gguf; by default Q4_K_M or what is nearest (also -hf)
    #[arg(long, value_name = "USER/REPO[:QUANT|:FILE]", value_parser = parse_wanted)]
    pub hf_repo: Option<Wanted>,
    /// This file of the repository (also -hff)
    #[arg(long, value_name = "FILE", requires = "hf_repo")]
    pub hf_file: Option<String>,
}

impl HubArgs {
    /// What is asked for, if anything.
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
