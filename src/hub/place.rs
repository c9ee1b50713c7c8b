//! Places in the cache that something else takes.

use super::cache::RepoCache;
use super::listing::RemoteFile;
use crate::error::{Error, Result};
use std::fs;
use std::io;
use std::path::Path;

/// An error where a file's content or name could not get its place; asked before anything is
/// fetched.
///
/// # Errors
/// A folder is there, or a link or a file in the place of a folder.
pub fn check(cache: &RepoCache, commit: &str, file: &RemoteFile) -> Result<()> {
    let name = cache.name(commit, &file.path);
    check_folders(cache, &name)?;
    for path in [&cache.blob(&file.id), &name] {
        if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) {
            let error = io::ErrorKind::IsADirectory.into();
            return Err(unwritable(
                format!("cannot create {}", path.display()),
                &error,
            ));
        }
    }
    Ok(())
}

/// An error where a name's folder, or one above it in the cache, is something else.
///
/// # Errors
/// It is a link or a file.
pub fn check_folders(cache: &RepoCache, name: &Path) -> Result<()> {
    let folders = name.ancestors().skip(1);
    let mut folders = folders.take_while(|folder| *folder != cache.dir);
    folders.try_for_each(|folder| {
        check_no_link(folder)?;
        match fs::symlink_metadata(folder).is_ok_and(|meta| !meta.is_dir()) {
            true => Err(unwritable(
                format!("cannot create {}", folder.display()),
                &io::ErrorKind::AlreadyExists.into(),
            )),
            false => Ok(()),
        }
    })
}

/// An error where a folder is a link, for what is behind it is somebody else's.
///
/// # Errors
/// It is one.
pub fn check_no_link(folder: &Path) -> Result<()> {
    match folder.is_symlink() {
        true => Err(Error::file(
            folder,
            "is a link, and only what is in the cache itself is changed",
            "remove it, or set HF_HUB_CACHE to the folder that is meant",
        )),
        false => Ok(()),
    }
}

/// An error about writing to the cache, with what to do.
pub fn unwritable(what: String, error: &io::Error) -> Error {
    use io::ErrorKind::{
        AlreadyExists, DirectoryNotEmpty, InvalidInput, IsADirectory, NotADirectory, StorageFull,
    };
    let remedy = match error.kind() {
        IsADirectory | DirectoryNotEmpty => "a folder is in its place: look into it and remove it",
        NotADirectory | AlreadyExists => {
            "a file is in the place of a folder: remove it, or set HF_HUB_CACHE to another folder"
        }
        // As `own::open` has it.
        InvalidInput => "remove it",
        StorageFull => "make room, or set HF_HUB_CACHE to a folder on another disk",
        _ => "set HF_HUB_CACHE to a folder that can be written",
    };
    Error::input(format!("{what}: {error}; {remedy}"))
}
