//! Files that are replaced as a whole: after a crash there is the old one or the new one.

use crate::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Replaces `path` with what `write` writes; only the user may read it. A link stays one.
///
/// # Errors
/// The file cannot be written; what was there is untouched.
pub fn replace(path: &Path, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    try_replace(path, write).map_err(|e| cannot_write(path, &e.to_string()))
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

fn try_replace(
    path: &Path,
    write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let folder = folder(&path);
    let mut file = tempfile::NamedTempFile::new_in(&folder)?;
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

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::replace;
    use std::io::Error;

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
        assert!(replace(&nowhere, &mut |_| Ok(())).is_err());
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
