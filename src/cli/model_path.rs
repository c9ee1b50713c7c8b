//! Which model: `-m`, `-hf`, else the environment, else the one in the program.

use super::model_flags::HubArgs;
use super::{builtin, hub};
use crate::gguf::Gguf;
use crate::hub::Wanted;
use crate::{Error, Result};
use std::path::Path;

const VARIABLE: &str = "LLAMA_RS_MODEL";

/// Opens the model that is meant, fetched if need be; `mmap` as for [`Gguf::open`].
pub fn open(given: Option<&Path>, on_hub: &HubArgs, mmap: bool) -> Result<Gguf> {
    if let Some(path) = given {
        return Gguf::open(path, mmap);
    }
    if let Some(wanted) = on_hub.wanted()? {
        let path = hub::find(&wanted)?;
        return Gguf::open(&path, mmap).map_err(|error| of_cache(error, &wanted));
    }
    match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => Gguf::open(Path::new(&path), mmap),
        None => builtin::open(),
    }
}

/// An error about a file of the cache: a damaged one is not for its user to find or fetch.
fn of_cache(error: Error, wanted: &Wanted) -> Error {
    match error {
        Error::File {
            file,
            cause,
            remedy,
        } if is_damage(&remedy) => Error::File {
            file,
            cause,
            remedy: format!(
                "it is damaged in the cache: `llama-rs rm {wanted}`, then run the same command again"
            ),
        },
        error => error,
    }
}

/// True for the advice that is given where a file is not what it should be.
fn is_damage(remedy: &str) -> bool {
    let again = remedy.contains("fetch") && remedy.contains("again");
    let other = ["give the path", "use the page's", "run `git lfs pull`"];
    // Such a key may as well be what its author wrote.
    !remedy.contains("--override-kv")
        && (again || other.iter().any(|start| remedy.starts_with(start)))
}
