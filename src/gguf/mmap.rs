//! The bytes of a model file: memory-mapped, read into memory (`--no-mmap`), or part of
//! the program.
//!
//! A map is a promise: the caller must not let another process shorten the
//! file while it is mapped. Model files are written once and then only read,
//! and the loader checks every offset against the length seen when mapping.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Deref;
use std::path::Path;

/// Alignment of the first byte wherever the file lies.
const ALIGN_BYTES: usize = 64;

/// Read-only bytes of a whole file, aligned to at least 64 bytes.
pub struct FileBytes(Storage);

enum Storage {
    Map(memmap2::Mmap),
    /// The file begins at `offset`, the first aligned byte.
    Memory {
        bytes: Vec<u8>,
        offset: usize,
    },
    Static(&'static [u8]),
}

impl FileBytes {
    /// Opens `path`, mapped (`mmap`) or read into memory.
    ///
    /// # Errors
    /// A file that is missing, unreadable, empty, not a regular file, or too
    /// large for memory.
    pub fn open(path: &Path, mmap: bool) -> Result<FileBytes> {
        // Before opening: to open a pipe would wait for its other end.
        let meta = std::fs::metadata(path).map_err(|e| unreadable(path, e))?;
        if !meta.is_file() {
            return Err(Error::file(
                path,
                "not a regular file",
                "give the path of a .gguf file",
            ));
        }
        if meta.len() == 0 {
            return Err(Error::file(path, "the file is empty", "fetch it again"));
        }
        let mut file = File::open(path).map_err(|e| unreadable(path, e))?;
        if mmap {
            // SAFETY: the map is read-only; see the module text for the promise.
            let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| unreadable(path, e))?;
            return Ok(FileBytes(Storage::Map(map)));
        }
        FileBytes::read(path, &mut file, meta.len())
    }

    /// A file that is part of the program.
    ///
    /// # Panics
    /// Bytes that are not aligned to 64.
    pub fn from_static(bytes: &'static [u8]) -> FileBytes {
        assert!(
            (bytes.as_ptr() as usize).is_multiple_of(ALIGN_BYTES),
            "embedded bytes are aligned"
        );
        FileBytes(Storage::Static(bytes))
    }

    /// Reads `len_bytes` bytes into memory; `path` is their name in messages.
    ///
    /// # Errors
    /// Too large for memory, a read that fails, or an early end.
    pub fn read(path: &Path, from: &mut impl Read, len_bytes: u64) -> Result<FileBytes> {
        let mut bytes = Vec::new();
        // Twice the alignment: `read_to_end` grows a vector it cannot fill further.
        let room = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let room = room.saturating_add(2 * ALIGN_BYTES);
        if bytes.try_reserve_exact(room).is_err() {
            return Err(Error::DoesNotFit(format!(
                "{}: no memory for {len_bytes} bytes; leave out --no-mmap or use a smaller model",
                path.display()
            )));
        }
        let misaligned = |bytes: &Vec<u8>| bytes.as_ptr() as usize % ALIGN_BYTES;
        let offset = (ALIGN_BYTES - misaligned(&bytes)) % ALIGN_BYTES;
        bytes.resize(offset, 0);
        let read = from.take(len_bytes).read_to_end(&mut bytes);
        let read = read.map_err(|e| unreadable(path, e))?;
        if read as u64 != len_bytes {
            return Err(Error::file(
                path,
                format!("the file shrank from {len_bytes} to {read} bytes while it was read"),
                "wait until it is complete",
            ));
        }
        assert!(
            (misaligned(&bytes) + offset).is_multiple_of(ALIGN_BYTES),
            "the vector stayed in place"
        );
        Ok(FileBytes(Storage::Memory { bytes, offset }))
    }
}

impl Deref for FileBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Map(map) => map,
            Storage::Memory { bytes, offset } => &bytes[*offset..],
            Storage::Static(bytes) => bytes,
        }
    }
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    let remedy = match error.kind() {
        ErrorKind::NotFound => "check the path, or fetch a model with `llama-rs pull USER/REPO`",
        ErrorKind::PermissionDenied => "check the file's permissions",
        _ => "check the disk, or copy the file elsewhere",
    };
    Error::file(path, format!("cannot be read: {error}"), remedy)
}
