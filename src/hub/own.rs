//! Files in the cache that this program writes or relies on: regular files only.
//!
//! The folder may be shared. Under a name of ours may lie a link, which would be written
//! through to somewhere else, or a pipe, which would hang.

use crate::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// Opens a regular file; anything else under that name is an error.
///
/// # Errors
/// The name is something else's, or the file system refuses.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let other = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
    if fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(other());
    }
    // It may have become something else just now.
    let file = without_following(options).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(other()),
    }
}

#[cfg(unix)]
fn without_following(options: &mut OpenOptions) -> &mut OpenOptions {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.custom_flags(flags.bits().cast_signed())
}

#[cfg(not(unix))]
fn without_following(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// A new empty file for reading and writing, instead of what is there.
///
/// # Errors
/// The file system refuses.
pub fn create(path: &Path) -> io::Result<File> {
    remove(path)?;
    let mut options = File::options();
    open(path, options.read(true).write(true).create_new(true))
}

/// Removes a file, or an empty folder in its place, if there is one.
///
/// # Errors
/// The file system refuses; a folder is not empty, say.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) {
        true => fs::remove_dir(path),
        false => fs::remove_file(path),
    };
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// An error about removing from the cache, with what to do.
pub fn unremovable(path: &Path, error: &io::Error) -> Error {
    use io::ErrorKind::{DirectoryNotEmpty, IsADirectory};
    let remedy = match error.kind() {
        IsADirectory | DirectoryNotEmpty => "a folder is in its place: look into it and remove it",
        _ => "run the command as the user to whom the cache belongs",
    };
    Error::input(format!(
        "cannot remove {}: {error}; {remedy}",
        path.display()
    ))
}

/// Does something in a folder, which is created for it; once more where another process has
/// removed the folder in between, as it may when nothing is in it yet.
///
/// # Errors
/// The file system refuses.
pub fn in_folder<T>(folder: &Path, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
    const MOST_TRIES: usize = 50;
    let mut tries = 0;
    loop {
        tries += 1;
        match fs::create_dir_all(folder).and_then(|()| act()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && tries < MOST_TRIES => {}
            done => return done,
        }
    }
}

/// Writes a whole file instead of what is there.
///
/// # Errors
/// The file system refuses.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    create(path)?.write_all(text.as_bytes())
}

/// The text of a file; none where it is no regular file, has more than `most_bytes`, or
/// cannot be read.
pub fn read(path: &Path, most_bytes: u64) -> Option<String> {
    let file = open(path, File::options().read(true)).ok()?;
    let mut text = String::new();
    let read = file.take(most_bytes + 1).read_to_string(&mut text).ok()?;
    (read as u64 <= most_bytes).then_some(text)
}

#[cfg(all(test, unix))]
mod tests {
    use super::{create, in_folder, open, read, remove, write};
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    #[test]
    fn a_folder_that_goes_meanwhile_is_made_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("inner");
        let tries = std::cell::Cell::new(0);
        let made = in_folder(&inner, || {
            tries.set(tries.get() + 1);
            if tries.get() < 3 {
                fs::remove_dir(&inner)?;
            }
            create(&inner.join("file"))
        });
        assert!(made.is_ok() && tries.get() == 3);
        let never = in_folder(&inner, || fs::read(inner.join("none")));
        assert!(never.is_err());
        assert!(remove(&inner).is_err());
        remove(&inner.join("file")).expect("removed");
        remove(&inner).expect("removed");
        remove(&inner).expect("nothing to remove");
    }

    #[test]
    fn links_and_pipes_are_neither_followed_nor_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let [precious, link, pipe] = ["a", "b", "c"].map(|name| folder.path().join(name));
        fs::write(&precious, "text").expect("a file");
        symlink(&precious, &link).expect("a link");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo runs").success());
        assert_eq!(read(&precious, 4).as_deref(), Some("text"));
        assert_eq!(read(&precious, 3), None);
        for path in [&link, &pipe] {
            assert!(open(path, File::options().read(true)).is_err());
            assert!(open(path, File::options().write(true)).is_err());
            assert_eq!(read(path, 100), None);
            write(path, "new").expect("replaced");
            assert_eq!(read(path, 100).as_deref(), Some("new"));
        }
        create(&link).expect("emptied");
        assert_eq!(read(&link, 100).as_deref(), Some(""));
        assert_eq!(fs::read(&precious).expect("untouched"), b"text");
    }
}
