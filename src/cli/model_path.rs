//! Which model file: `-m`, `-hf`, else the environment, else a fetched SmolLM2.

use super::hub;
use super::model_flags::HubArgs;
use crate::{Error, Result};
use std::path::{Path, PathBuf};

const VARIABLE: &str = "LLAMA_RS_MODEL";
const FOLDER: &str = "models";

/// The file to open, fetched if need be; an error says how to get one.
pub fn find(given: Option<&Path>, on_hub: &HubArgs) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_path_buf());
    }
    if let Some(wanted) = on_hub.wanted()? {
        return hub::find(&wanted);
    }
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    fetched(Path::new(FOLDER)).ok_or_else(|| {
        Error::input(format!(
            "no model: none of -m FILE, -hf USER/REPO and {VARIABLE} is given and there is no \
             {FOLDER}/SmolLM2*.gguf here; pass one, or run `scripts/get-model.sh smollm2`"
        ))
    })
}

/// The first `SmolLM2*.gguf` of a folder, by name.
fn fetched(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let name = names
        .filter(|name| name.starts_with("SmolLM2") && name.ends_with(".gguf"))
        .min()?;
    Some(folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::fetched;

    #[test]
    fn the_first_smollm2_by_name_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(fetched(folder.path()), None);
        for name in ["SmolLM2-b.gguf", "SmolLM2-a.gguf", "SmolLM2.txt", "A.gguf"] {
            std::fs::write(folder.path().join(name), "").expect("a file");
        }
        assert_eq!(
            fetched(folder.path()),
            Some(folder.path().join("SmolLM2-a.gguf"))
        );
    }
}
