//! Removing models from the cache: only what is ours, and only what nothing names any more.

use super::cache::{RepoCache, files_below, names_below, read_ref};
use super::contents::{Partial, partials, size};
use super::name::{Wanted, What};
use super::{Event, Report, own, partial, pick};
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Removes what is meant: names in all commits, contents that no name refers to any more,
/// partial files. Returns the bytes that were freed.
///
/// # Errors
/// Nothing is meant, another process is fetching it, or the file system refuses.
pub fn remove(cache: &RepoCache, wanted: &Wanted, report: Report<'_>) -> Result<u64> {
    cache.check_readable()?;
    cache.check_own()?;
    let names = names(cache, &wanted.what);
    let mut partials = partials(cache);
    partials.retain(|partial| pick::is_meant(&partial.name(), &wanted.what));
    let all = wanted.what == What::Best;
    if names.is_empty() && partials.is_empty() {
        check_nameless(cache, wanted)?;
    }
    let _locks = lock_all(cache, &partials)?;
    let mut freed = 0;
    for partial in &partials {
        partial::delete(&partial.path)?;
        freed += partial.bytes.unwrap_or(0);
    }
    let mut contents = HashSet::new();
    let mut sizes = HashSet::new();
    for name in &names {
        if fs::read_link(name).is_ok() {
            contents.extend(fs::canonicalize(name));
        } else {
            // A copy: its content cannot be told but by its size.
            sizes.insert(size(name));
        }
        delete(name)?;
    }
    match unreferenced(cache) {
        Ok(blobs) => {
            for blob in blobs {
                let copied = sizes.contains(&size(&blob));
                let meant = fs::canonicalize(&blob).is_ok_and(|blob| contents.contains(&blob));
                if all || copied || meant {
                    freed += size(&blob);
                    delete(&blob)?;
                }
            }
        }
        Err(unseen) => report(Event::Warning(format!(
            "the contents are kept: {}",
            unseen.cause()
        ))),
    }
    tidy(cache);
    Ok(freed)
}

/// The names of the models that are meant in all commits; also those whose content is gone.
fn names(cache: &RepoCache, what: &What) -> Vec<PathBuf> {
    let mut meant = Vec::new();
    for snapshot in cache.snapshots() {
        let names = names_below(&snapshot);
        let models = pick::models(names.iter().map(String::as_str));
        let models = models.iter().filter(|model| model.is(what));
        meant.extend(
            models
                .flat_map(|model| &model.files)
                .map(|file| snapshot.join(file)),
        );
    }
    meant
}

/// An error unless there are contents without names, and all of the repository is meant: a
/// model of which only some files came has such.
fn check_nameless(cache: &RepoCache, wanted: &Wanted) -> Result<()> {
    if wanted.what == What::Best {
        match unreferenced(cache) {
            Ok(blobs) if !blobs.is_empty() => return Ok(()),
            Err(unseen) if !files_below(&cache.blobs()).is_empty() => {
                let cause = unseen.cause();
                return Err(Error::input(format!("{wanted}: nothing removed: {cause}")));
            }
            _ => {}
        }
    }
    Err(Error::input(format!(
        "{wanted} is not in the cache; `llama-rs list` shows what is"
    )))
}

fn delete(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(|e| own::unremovable(path, &e))
}

/// Locks what is being removed, so that nobody is fetching it.
fn lock_all(cache: &RepoCache, partials: &[Partial]) -> Result<Vec<File>> {
    let mut locks = Vec::new();
    for partial in partials {
        let Ok(file) = own::open(&cache.lock(&partial.id), File::options().write(true)) else {
            continue;
        };
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Error::input(format!(
                "another process is fetching {}; wait for it, or stop it",
                partial.name()
            )));
        }
        locks.push(file);
    }
    Ok(locks)
}

/// A place below `snapshots` that cannot be looked into, and may name any content.
struct Unseen(PathBuf);

impl Unseen {
    fn cause(&self) -> String {
        format!(
            "{} may name them and cannot be looked into; if it is not needed, remove it and run \
             the same command again",
            self.0.display()
        )
    }
}

/// Contents that no name in any commit refers to. What is being fetched, by us or others,
/// is none, and neither is what somebody linked into the cache.
fn unreferenced(cache: &RepoCache) -> std::result::Result<Vec<PathBuf>, Unseen> {
    let used = used(cache)?;
    let blobs = files_below(&cache.blobs()).into_iter();
    let blobs = blobs
        .filter(|name| !name.contains(['.', '/']))
        .map(|name| cache.blob(&name))
        .filter(|blob| fs::symlink_metadata(blob).is_ok_and(|meta| meta.is_file()))
        .filter(|blob| fs::canonicalize(blob).is_ok_and(|content| !used.contains(&content)));
    Ok(blobs.collect())
}

/// What names in any commit refer to, however deep they lie and whatever they are called;
/// so not by [`names_below`], which knows usual names only.
fn used(cache: &RepoCache) -> std::result::Result<HashSet<PathBuf>, Unseen> {
    let mut used = HashSet::new();
    let mut folders = vec![cache.all_snapshots()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(|_| Unseen(folder.clone()))?,
        };
        for entry in entries {
            let entry = entry.map_err(|_| Unseen(folder.clone()))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|_| Unseen(path.clone()))?;
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            match fs::canonicalize(&path) {
                // What is behind it might be anything, even without an end.
                Ok(content) if content.is_dir() => return Err(Unseen(path)),
                Ok(content) => {
                    used.insert(content);
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(_) => return Err(Unseen(path)),
            }
        }
    }
    Ok(used)
}

/// Removes folders that are empty now, notes of commits that are gone, and at last the
/// repository's folder, unless somebody else has put something into it.
fn tidy(cache: &RepoCache) {
    let snapshots = cache.snapshots();
    for snapshot in &snapshots {
        remove_empty(snapshot);
    }
    let refs = cache.refs();
    for name in files_below(&refs) {
        let note = refs.join(name);
        let commit = read_ref(&note);
        let is_gone = |snapshot: &PathBuf| snapshot.ends_with(&commit) && !snapshot.exists();
        if snapshots.iter().any(is_gone) {
            // It only names what is gone; the next pull writes it anew.
            let _ = fs::remove_file(note);
        }
    }
    let left = cache.snapshots().iter().any(|snapshot| snapshot.exists());
    if left || !files_below(&cache.blobs()).is_empty() {
        return;
    }
    // What other tools note of files that are not on the hub: nothing is in it.
    let absent = cache.dir.join(".no_exist");
    let is_empty = |path: &PathBuf| {
        fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == 0)
    };
    let marks = names_below(&absent)
        .into_iter()
        .map(|name| absent.join(name));
    let notes = names_below(&refs).into_iter().map(|name| refs.join(name));
    for note in notes.chain(marks.filter(is_empty)) {
        // What stays keeps its folder.
        let _ = fs::remove_file(note);
    }
    for folder in [&absent, &refs] {
        remove_empty(folder);
    }
    for folder in [&cache.blobs(), &cache.all_snapshots(), &cache.dir] {
        // Fails, as it should, where there is something in it.
        let _ = fs::remove_dir(folder);
    }
}

/// Removes a folder if nothing but folders is in it.
fn remove_empty(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // Fails, as it should, where there is something in it.
    let _ = fs::remove_dir(dir);
}
