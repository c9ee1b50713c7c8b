//! Contents in the cache that can go, for nothing names them.

use super::cache::RepoCache;
use super::contents::size;
use super::digest::is_hash;
use super::remove::Name;
use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What names refer to.
#[derive(Default)]
struct Used {
    contents: HashSet<PathBuf>,
    /// Sizes of names that are copies, of which no more can be told.
    copies: HashSet<u64>,
}

/// Contents that nothing refers to once these names are gone: theirs, or with `all` every
/// one. What is being fetched, by us or others, is none, and neither is what somebody put or
/// linked into the cache.
///
/// # Errors
/// Why it cannot be known, and what to do.
pub fn unused(cache: &RepoCache, names: &[Name], all: bool) -> Result<Vec<PathBuf>, String> {
    let mut blobs = contents(cache);
    if blobs.is_empty() {
        return Ok(blobs);
    }
    let meant: HashSet<&Path> = names.iter().map(|name| name.path.as_path()).collect();
    let still = used(cache, &meant).map_err(|unseen| {
        format!(
            "{} may name contents and cannot be looked into; if it is not needed, remove it and \
             run the same command again",
            unseen.display()
        )
    })?;
    let mut gone = Used::default();
    for name in names {
        match fs::read_link(&name.path) {
            Ok(_) => gone.contents.extend(fs::canonicalize(&name.path)),
            Err(_) => {
                gone.copies.insert(size(&name.path));
            }
        }
    }
    let sizes: Vec<u64> = blobs.iter().map(|blob| size(blob)).collect();
    // Of which content a copy is one is told by its size, if only one has that.
    let is_copied = |size: u64| {
        let only = sizes.iter().filter(|other| **other == size).count() == 1;
        only && gone.copies.contains(&size) && !still.copies.contains(&size)
    };
    blobs.retain(|blob| match fs::canonicalize(blob) {
        Ok(content) if !still.contents.contains(&content) => {
            all || gone.contents.contains(&content) || is_copied(size(blob))
        }
        _ => false,
    });
    Ok(blobs)
}

/// All contents: regular files that have a hash as their name.
fn contents(cache: &RepoCache) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.blobs()).into_iter().flatten().flatten();
    let contents = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_hash))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    contents.map(|entry| entry.path()).collect()
}

/// What names in any commit but `meant` refer to, however deep they lie and whatever they are
/// called; so not by `names_below`, which knows usual names only. An error is a place that
/// cannot be looked into, and may name any content.
fn used(cache: &RepoCache, meant: &HashSet<&Path>) -> Result<Used, PathBuf> {
    let mut used = Used::default();
    let mut folders = vec![cache.all_snapshots()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(|_| folder.clone())?,
        };
        for entry in entries {
            let entry = entry.map_err(|_| folder.clone())?;
            let path = entry.path();
            let kind = match entry.file_type() {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                kind => kind.map_err(|_| path.clone())?,
            };
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            if meant.contains(&*path) {
                continue;
            }
            match fs::canonicalize(&path) {
                // What is behind it might be anything, even without an end.
                Ok(content) if content.is_dir() => return Err(path),
                Ok(content) => {
                    if kind.is_file() {
                        used.copies.insert(size(&path));
                    }
                    used.contents.insert(content);
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(_) => return Err(path),
            }
        }
    }
    Ok(used)
}
