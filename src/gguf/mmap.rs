//! The bytes of a model file: memory-mapped, or read into memory (`--no-mmap`).
//!
//! A map is a promise: the caller must not let another process shorten the
//! file while it is mapped. Model files are written once and then only read,
//! and the loader checks every offset against the length seen when mapping.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

/// Read-only bytes of a whole file, aligned to at least 64 bytes.
pub struct FileBytes(Storage);

enum Storage {
    Map(memmap2::Mmap),
    /// `u128` backing keeps 16-byte alignment; `offset` skips to a 64-byte border.
    Memory {
        words: Vec<u128>,
        offset: usize,
        len: usize,
    },
}

impl FileBytes {
    /// Opens `path`, mapped (`mmap`) or read into memory.
    pub fn open(path: &Path, mmap: bool) -> Result<FileBytes> {
        let io = |source| Error::Io {
            what: format!("{}: cannot be opened", path.display()),
            source,
        };
        let mut file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(Error::file(
                path,
                "not a regular file",
                "give the path of a .gguf file",
            ));
        }
        let len = usize::try_from(meta.len())
            .map_err(|_| Error::file(path, "too large for this machine", "use a 64-bit build"))?;
        if len == 0 {
            return Err(Error::file(path, "the file is empty", "download it again"));
        }
        if mmap {
            // SAFETY: the map is read-only; see the module text for the promise.
            let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
            return Ok(FileBytes(Storage::Map(map)));
        }
        let mut words = vec![0u128; len.div_ceil(16) + 4];
        let base = words.as_ptr() as usize;
        let offset = base.next_multiple_of(64) - base;
        // SAFETY: the vector holds `len + 64` initialised bytes from its start.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>().add(offset), len)
        };
        file.read_exact(bytes).map_err(io)?;
        Ok(FileBytes(Storage::Memory { words, offset, len }))
    }
}

impl Deref for FileBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Map(map) => map,
            Storage::Memory { words, offset, len } => {
                // SAFETY: `offset + len` bytes lie inside the vector (see `open`).
                unsafe {
                    std::slice::from_raw_parts(words.as_ptr().cast::<u8>().add(*offset), *len)
                }
            }
        }
    }
}
