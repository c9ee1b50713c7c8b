//! One chat at a time in a session.

use crate::{Error, Result};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Bytes of a lock file: a process number.
const MOST_BYTES: u64 = 20;

/// FILE.lock beside a session's FILE, which is locked as long as a chat has the session. It
/// goes with the chat; one that a killed process left is not locked any more.
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the session for this process.
    ///
    /// # Errors
    /// Another process has it, which is named; the folder cannot be written to; FILE.lock is
    /// something else.
    pub fn take(session: &Path) -> Result<Lock> {
        // A link and what it stands for are one session.
        let real = session.canonicalize();
        let mut path = real
            .unwrap_or_else(|_| session.to_path_buf())
            .into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        loop {
            let opened = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            let refused = |e: io::Error| {
                let remedy = "give a --session in a folder that you may write to";
                Error::file(&path, format!("cannot be written: {e}"), remedy)
            };
            let mut file = opened.map_err(refused)?;
            let holder = holder(&path, &mut file)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::file(
                        session,
                        format!("is in use by another chat{holder}"),
                        "leave that one first, or give another --session",
                    ));
                }
                // Its chat has just ended and removed it.
                Ok(()) if !is_at(&file, &path) => continue,
                // Or the file system has no locks: then chats are not told apart.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // Only for messages.
            let _ = (file.set_len(0))
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            return Ok(Lock { path, _file: file });
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The process that wrote the file, for messages; empty where it has not yet.
///
/// # Errors
/// It is no lock, so it must stay as it is.
fn holder(path: &Path, file: &mut File) -> Result<String> {
    let mut text = String::new();
    // Reading a pipe would not end.
    let is_file = file.metadata().is_ok_and(|m| m.is_file());
    let mut start = Read::take(&mut *file, MOST_BYTES + 1);
    let is_read = is_file && start.read_to_string(&mut text).is_ok();
    let number = text.trim();
    let ours = is_read && number.chars().all(|c| c.is_ascii_digit());
    match (ours, number) {
        (true, "") => Ok(String::new()),
        (true, number) => Ok(format!(" (process {number})")),
        (false, _) => Err(Error::file(
            path,
            "is in the way of the session's lock",
            "move it, or give another --session",
        )),
    }
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |m: std::fs::Metadata| (m.dev(), m.ino());
    match (file.metadata(), path.metadata()) {
        (Ok(ours), Ok(there)) => place(ours) == place(there),
        _ => false,
    }
}

/// Files that are open cannot be removed.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}
