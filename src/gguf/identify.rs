//! Says what a file is when it is not a GGUF file we can read.

use crate::error::{Error, Result};
use std::path::Path;

/// Checks the magic.
///
/// # Errors
/// Another kind of file, named where it is a common mistake.
pub(super) fn check_magic(path: &Path, bytes: &[u8]) -> Result<()> {
    if bytes.starts_with(b"GGUF") {
        return Ok(());
    }
    let head = &bytes[..bytes.len().min(512)];
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let starts = |magics: &[&[u8]]| magics.iter().any(|magic| head.starts_with(magic));
    let (cause, remedy) = if text.starts_with("<!doctype") || text.starts_with("<html") {
        (
            "a saved web page, not a GGUF file",
            "use the page's download link for the .gguf file",
        )
    } else if text.starts_with("version https://git-lfs") {
        (
            "a Git LFS pointer, not the file itself",
            "run `git lfs pull` or download the .gguf file",
        )
    } else if starts(&[b"PK\x03\x04"]) {
        (
            "a zip or PyTorch file, not a GGUF file",
            "convert the model to GGUF first",
        )
    } else if starts(&[b"ggml", b"lmgg", b"tjgg"]) {
        (
            "an old GGML file from before GGUF",
            "fetch the model in GGUF format",
        )
    } else if bytes.len() < 4 {
        ("too short for a GGUF file", "fetch the file again")
    } else {
        ("not a GGUF file", "give the path of a .gguf file")
    };
    Err(Error::file(path, cause, remedy))
}

/// Checks the version; 2 and 3 have the same layout.
///
/// # Errors
/// A version that cannot be read, or a big-endian file.
pub(super) fn check_version(path: &Path, version: u32) -> Result<()> {
    match version {
        2 | 3 => Ok(()),
        1 => Err(Error::file(
            path,
            "GGUF version 1 is no longer readable",
            "convert the model again to version 3",
        )),
        v if (1..=3).contains(&v.swap_bytes()) => Err(Error::file(
            path,
            "a big-endian GGUF file",
            "fetch the little-endian file of this model",
        )),
        v => Err(Error::file(
            path,
            format!("GGUF version {v} is unknown"),
            "versions 2 and 3 can be read; fetch another file or a newer llama-rs",
        )),
    }
}
