//! A content that is being fetched: `blobs/<id>.partial`.
//!
//! Beside it `blobs/<id>.partial.json` notes which file it will be and the server's `ETag`,
//! so that a later run can ask for the rest of the same bytes.

use super::cache::sync_folder;
use super::digest::{Hasher, Kind};
use super::listing::RemoteFile;
use super::own;
use super::place::unwritable;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes hashed at a time.
const PIECE: usize = 256 << 10;
/// Bytes a note may have: a path of 1 KiB, an `ETag` of some 100 bytes.
const MOST_NOTE_BYTES: u64 = 64 << 10;

/// What is noted beside a partial file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Note {
    /// Path in the repository.
    pub file: String,
    pub etag: Option<String>,
}

/// An open partial file and the hash of what is in it.
pub struct Partial {
    blob: PathBuf,
    path: PathBuf,
    /// None until the first good answer.
    file: Option<File>,
    hash: Kind,
    /// Bytes of the whole.
    size: u64,
    hasher: Hasher,
    len: u64,
    note: Note,
}

impl Partial {
    /// Opens what an earlier run left, if anything, and reads it.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn open(blob: &Path, remote: &RemoteFile) -> Result<Partial> {
        let path = path_of(blob);
        let mut options = File::options();
        // What cannot be opened, a link, say, is replaced by the first bytes.
        let there = own::open(&path, options.read(true).write(true)).ok();
        let mut partial = Partial {
            file: there,
            blob: blob.to_path_buf(),
            hash: remote.hash,
            size: remote.size,
            hasher: Hasher::new(remote.hash, remote.size),
            len: 0,
            note: read_note(&path).unwrap_or_default(),
            path,
        };
        partial.note.file.clone_from(&remote.path);
        let there = partial.file.as_ref().and_then(|file| file.metadata().ok());
        // What is too long is not worth reading.
        if there.is_some_and(|meta| meta.len() <= remote.size) {
            partial.hash_existing()?;
        }
        if partial.len == 0 || partial.len > remote.size {
            partial.restart();
        }
        Ok(partial)
    }

    fn hash_existing(&mut self) -> Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        // No further, though another program may add to it.
        let mut file = file.take(self.size.saturating_add(1));
        let mut piece = vec![0; PIECE];
        loop {
            let n = file
                .read(&mut piece)
                .map_err(|e| unusable(&self.path, &e))?;
            if n == 0 {
                return Ok(());
            }
            self.hasher.update(&piece[..n]);
            self.len += n as u64;
        }
    }

    /// Bytes that are there.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The `ETag` of what they came from, when the server gave one that promises bytes.
    pub fn etag(&self) -> Option<&str> {
        self.note.etag.as_deref()
    }

    /// Throws away what is there.
    pub fn restart(&mut self) {
        self.file = None;
        clear(&self.path);
        self.hasher = Hasher::new(self.hash, self.size);
        self.len = 0;
        self.note.etag = None;
    }

    /// Notes what the next bytes come from; before there are any, so that they have a name.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn comes_from(&mut self, etag: Option<String>) -> Result<()> {
        self.note.etag = etag;
        let text = serde_json::to_string(&self.note).unwrap_or_default();
        let note = note_path(&self.path);
        own::in_folder(self.folder(), || own::write(&note, &text)).map_err(|e| unusable(&note, &e))
    }

    fn folder(&self) -> &Path {
        self.blob.parent().unwrap_or(&self.blob)
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    /// The file system refuses; no space is left, say.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let folder = self.blob.parent().unwrap_or(&self.blob);
                let created = own::in_folder(folder, || own::create(&self.path));
                none.insert(created.map_err(|e| unusable(&self.path, &e))?)
            }
        };
        file.write_all(bytes)
            .map_err(|e| unusable(&self.path, &e))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Gives a whole file its final name.
    ///
    /// # Errors
    /// It is not what the hub has (then it is deleted), or the file system refuses.
    pub fn finish(self, remote: &RemoteFile) -> Result<()> {
        let folder = self.blob.parent().unwrap_or(&self.blob);
        let hash = self.hasher.finish();
        if self.len != remote.size || hash != remote.id {
            clear(&self.path);
            return Err(Error::input(format!(
                "{}: corrupted on the way: {} bytes with {} {hash}, expected {} with {}; \
                 it was deleted, run the same command again",
                remote.path,
                self.len,
                remote.hash.name(),
                remote.size,
                remote.id
            )));
        }
        let synced = self.file.map_or(Ok(()), |file| file.sync_all());
        match synced.and_then(|()| fs::rename(&self.path, &self.blob)) {
            // Another process has removed it; naming it will show that it is gone.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            done => done.map_err(|e| unusable(&self.path, &e))?,
        }
        clear(&self.path);
        sync_folder(folder);
        Ok(())
    }
}

/// `<blob>.partial`.
pub fn path_of(blob: &Path) -> PathBuf {
    with_ending(blob, ".partial")
}

/// The id of the content of which a name in `blobs` is a partial file or its note.
pub fn id_of(name: &str) -> Option<&str> {
    name.strip_suffix(".json")
        .unwrap_or(name)
        .strip_suffix(".partial")
}

fn note_path(partial: &Path) -> PathBuf {
    with_ending(partial, ".json")
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(ending);
    PathBuf::from(name)
}

/// What is noted beside a partial file.
pub fn read_note(partial: &Path) -> Option<Note> {
    let text = own::read(&note_path(partial), MOST_NOTE_BYTES)?;
    let mut note: Note = serde_json::from_str(&text).ok()?;
    // It becomes a header.
    note.etag = note
        .etag
        .filter(|etag| etag.bytes().all(|b| matches!(b, 0x20..0x7f)));
    Some(note)
}

/// Deletes a partial file and its note, as far as they are there.
///
/// # Errors
/// The file system refuses; a folder is in its place, say.
pub fn delete(partial: &Path) -> Result<()> {
    for path in [partial, &note_path(partial)] {
        own::remove(path).map_err(|e| own::unremovable(path, &e))?;
    }
    Ok(())
}

/// As [`delete`], as far as that goes.
fn clear(partial: &Path) {
    // What stays is found and checked, or overwritten, by the next run.
    let _ = delete(partial);
}

fn unusable(path: &Path, error: &std::io::Error) -> Error {
    unwritable(format!("cannot write {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::{Partial, path_of, read_note};
    use crate::hub::digest::Kind;
    use crate::hub::listing::RemoteFile;

    /// SHA-256 of `abc` (FIPS 180-4, example 1).
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn remote() -> RemoteFile {
        RemoteFile {
            path: "m.gguf".into(),
            size: 3,
            id: ABC.into(),
            hash: Kind::Sha256,
        }
    }

    #[test]
    fn what_is_whole_gets_its_name_after_a_pause_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let blob = folder.path().join(ABC);
        let mut partial = Partial::open(&blob, &remote()).expect("open");
        partial.comes_from(Some("\"e\"".into())).expect("noted");
        partial.append(b"ab").expect("written");
        drop(partial);
        let mut partial = Partial::open(&blob, &remote()).expect("open");
        assert_eq!((partial.len(), partial.etag()), (2, Some("\"e\"")));
        partial.append(b"c").expect("written");
        partial.finish(&remote()).expect("whole");
        assert_eq!(std::fs::read(&blob).expect("a file"), b"abc");
        assert!(!path_of(&blob).exists());
        assert!(read_note(&path_of(&blob)).is_none());
    }

    #[test]
    fn what_is_wrong_or_too_long_never_gets_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let blob = folder.path().join(ABC);
        let mut partial = Partial::open(&blob, &remote()).expect("open");
        partial.append(b"abd").expect("written");
        let error = partial.finish(&remote()).expect_err("wrong bytes");
        assert!(error.to_string().contains("corrupted"), "{error}");
        assert!(!blob.exists() && !path_of(&blob).exists());
        std::fs::write(path_of(&blob), "abcd").expect("written");
        let partial = Partial::open(&blob, &remote()).expect("open");
        assert_eq!(partial.len(), 0);
        assert!(!path_of(&blob).exists());
    }

    #[test]
    fn nothing_is_created_before_there_is_an_answer() {
        let folder = tempfile::tempdir().expect("a folder");
        let blob = folder.path().join("blobs").join(ABC);
        let mut partial = Partial::open(&blob, &remote()).expect("open");
        assert!(!folder.path().join("blobs").exists());
        partial.comes_from(None).expect("noted");
        assert_eq!(read_note(&path_of(&blob)).expect("a note").file, "m.gguf");
        partial.append(b"abc").expect("written");
        partial.finish(&remote()).expect("whole");
    }
}
