//! Files that are replaced as a whole: after a crash there is the old one or the new one.

use crate::{Error, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Ends the name under which a file is written. It is always the same, so that what a process
/// that was killed left behind is gone with the next write; nobody else uses it.
const UNFINISHED: &str = ".llama-rs.tmp";

/// Replaces `path` with what `write` writes; only the user may read it. A link stays one.
///
/// # Errors
/// The file cannot be written; what was there is untouched.
pub fn replace(path: &Path, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    need_folder(path)?;
    try_replace(path, write).map_err(|e| refused(path, &e))
}

/// An error unless the folder of `path` is there.
pub fn need_folder(path: &Path) -> Result<()> {
    match folder(path).is_dir() {
        true => Ok(()),
        false => Err(cannot_write(path, "there is no such folder")),
    }
}

fn cannot_write(path: &Path, cause: &str) -> Error {
    Error::file(
        path,
        format!("cannot be written: {cause}"),
        "give a file in a folder that you may write to",
    )
}

/// What the operating system's refusal means.
fn refused(path: &Path, error: &io::Error) -> Error {
    let remedy = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "the disk is full: make room on it, or give a file on another"
        }
        ErrorKind::FileTooLarge => {
            "the disk is full, or files may not be so large (ulimit -f): make room, or give a \
             file on another"
        }
        _ => return cannot_write(path, &error.to_string()),
    };
    Error::file(path, format!("cannot be written: {error}"), remedy)
}

fn try_replace(
    path: &Path,
    write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let folder = folder(&path);
    let mut file = unfinished(&path, &folder)?;
    let mut out = BufWriter::new(file.as_file_mut());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    file.as_file().sync_all()?;
    file.persist(&path)?;
    // The name has to last too; not every system lets a folder be opened.
    if let Ok(folder) = File::open(&folder) {
        folder.sync_all()?;
    }
    Ok(())
}

/// The file to write, which is deleted when it is not renamed. One that a killed process left
/// is replaced; one that is being written is not.
fn unfinished(path: &Path, folder: &Path) -> io::Result<NamedTempFile> {
    let mut name = OsString::from(path.file_name().unwrap_or_default());
    name.push(UNFINISHED);
    let create = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix(&name).rand_bytes(0).tempfile_in(folder)
    };
    let mut file = create();
    if file
        .as_ref()
        .is_err_and(|e| e.kind() == ErrorKind::AlreadyExists)
    {
        let old = folder.join(&name);
        let open = File::open(&old)?;
        if matches!(open.try_lock(), Err(std::fs::TryLockError::WouldBlock)) {
            return Err(io::Error::other("another program is writing it"));
        }
        std::fs::remove_file(&old)?;
        file = create();
    }
    // Of the error only the kind: its text names a file that the user does not know.
    let file = file.map_err(|e| io::Error::from(e.kind()))?;
    // Where files cannot be locked, two that write at once are not told apart.
    let _ = file.as_file().try_lock();
    Ok(file)
}

/// The folder of a file.
pub fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::replace;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_write_that_fails_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        replace(&path, &mut |out| out.write_all(b"one")).expect("written");
        let failed = replace(&path, &mut |out| {
            out.write_all(b"two")?;
            Err(Error::other("the disk is full"))
        });
        let text = failed.expect_err("it failed").to_string();
        assert!(text.contains("the disk is full"), "{text}");
        assert_eq!(std::fs::read(&path).expect("there"), b"one");
        // Nor is anything else left behind.
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1);
        let nowhere = folder.path().join("none/a");
        let failed = replace(&nowhere, &mut |_| Ok(())).expect_err("nowhere");
        let text = failed.to_string();
        assert!(text.contains("there is no such folder"), "{text}");
    }

    #[test]
    fn what_a_killed_process_left_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        std::fs::write(folder.path().join("a.llama-rs.tmp"), "half").expect("written");
        replace(&path, &mut |out| out.write_all(b"one")).expect("written");
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1);
        // What another one is writing is left to it.
        let first = replace(&path, &mut |out| {
            out.write_all(b"two")?;
            let second = replace(&path, &mut |out| out.write_all(b"three"));
            let text = second.expect_err("it is being written").to_string();
            assert!(text.contains("another program"), "{text}");
            Ok(())
        });
        first.expect("written");
        assert_eq!(std::fs::read(&path).expect("there"), b"two");
    }

    #[test]
    fn a_full_disk_is_told_as_one() {
        let folder = tempfile::tempdir().expect("a folder");
        for kind in [ErrorKind::StorageFull, ErrorKind::FileTooLarge] {
            let path = folder.path().join("a");
            let failed = replace(&path, &mut |_| Err(Error::from(kind)));
            let text = failed.expect_err("it failed").to_string();
            assert!(text.contains("the disk is full"), "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn only_the_user_reads_it_and_links_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").expect("written");
        symlink(&file, &link).expect("a link");
        replace(&link, &mut |out| out.write_all(b"new")).expect("written");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).expect("there"), b"new");
        let mode = file.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
