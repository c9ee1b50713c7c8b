//! Which model file: `-m`, else the environment, else a fetched SmolLM2.

use crate::{Error, Result};
use std::path::{Path, PathBuf};

const VARIABLE: &str = "LLAMA_RS_MODEL";
const FOLDER: &str = "models";

/// The file to open; an error says how to get one.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_path_buf());
    }
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    fetched(Path::new(FOLDER)).ok_or_else(|| {
        Error::input(format!(
            "no model: neither -m FILE nor {VARIABLE} is given and there is no \
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
