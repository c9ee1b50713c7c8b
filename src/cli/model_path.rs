//! Which model: `-m`, `-hf`, else the environment, else the one in the program.

use super::model_flags::HubArgs;
use super::{builtin, hub};
use crate::Result;
use crate::gguf::Gguf;
use std::path::{Path, PathBuf};

const VARIABLE: &str = "LLAMA_RS_MODEL";

/// Opens the model that is meant, fetched if need be; `mmap` as for [`Gguf::open`].
pub fn open(given: Option<&Path>, on_hub: &HubArgs, mmap: bool) -> Result<Gguf> {
    match named(given, on_hub)? {
        Some(path) => Gguf::open(&path, mmap),
        None => builtin::open(),
    }
}

/// The file that the flags or the environment name, if they do.
fn named(given: Option<&Path>, on_hub: &HubArgs) -> Result<Option<PathBuf>> {
    if let Some(path) = given {
        return Ok(Some(path.to_path_buf()));
    }
    if let Some(wanted) = on_hub.wanted()? {
        return hub::find(&wanted).map(Some);
    }
    let variable = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    Ok(variable.map(PathBuf::from))
}
