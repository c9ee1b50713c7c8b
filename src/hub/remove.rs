//! Removing models from the cache: only what is ours, and only what nothing names any more.
//!
//! Everything is decided before anything is deleted, and contents go before their names: a
//! removal that breaks off can be done again.

use super::cache::{RepoCache, names_below};
use super::contents::{Partial, partials};
use super::name::{Wanted, What};
use super::tidy::tidy;
use super::unused::unused;
use super::{Event, Report, names_text, own, partial, pick};
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A name of a content in a commit.
pub struct Name {
    /// Path in the repository.
    file: String,
    pub path: PathBuf,
}

/// Removes what is meant: names in all commits, contents that no name refers to any more,
/// partial files; reports each file. Returns the bytes that were freed.
///
/// # Errors
/// Nothing is meant, or it is not clear what; another process is fetching it; what else
/// names its contents cannot be known; or the file system refuses.
pub fn remove(cache: &RepoCache, wanted: &Wanted, report: Report<'_>) -> Result<u64> {
    cache.check_readable()?;
    cache.check_own()?;
    let names = names(&cache.commits(), &wanted.what);
    let mut partials = partials(cache);
    partials.retain(|partial| partial.is_meant(&wanted.what));
    check_clear(wanted, &names, &partials)?;
    let contents = unused(cache, &names, wanted.what == What::Best)
        .map_err(|cause| Error::input(format!("{wanted}: nothing removed: {cause}")))?;
    if names.is_empty() && partials.is_empty() && contents.is_empty() {
        return Err(absent(cache, wanted));
    }
    let _locks = lock_all(cache, &partials)?;
    let mut freed = 0;
    for partial in &partials {
        partial::delete(&partial.path)?;
        freed += partial.bytes.unwrap_or(0);
        let name = partial.name();
        report(Event::Info(format!("removed {name}, partly fetched")));
    }
    for content in &contents {
        freed += delete(content)?;
    }
    let mut told = BTreeSet::new();
    for name in &names {
        freed += delete(&name.path)?;
        // Once for all commits.
        if told.insert(&name.file) {
            report(Event::Info(format!("removed {}", name.file)));
        }
    }
    tidy(cache);
    Ok(freed)
}

/// The names of the models that are meant in these commits; also those whose content is gone.
fn names(commits: &[PathBuf], what: &What) -> Vec<Name> {
    let mut meant = Vec::new();
    for commit in commits {
        let names = names_below(commit);
        let models = pick::models(names.iter().map(String::as_str));
        let models = models.into_iter().filter(|model| model.is(what));
        meant.extend(models.flat_map(|model| model.files).map(|file| Name {
            path: commit.join(&file),
            file,
        }));
    }
    meant
}

/// An error where a word fits several models, and is not a quantization, which all of them
/// would have.
fn check_clear(wanted: &Wanted, names: &[Name], partials: &[Partial]) -> Result<()> {
    let What::Quant(word) = &wanted.what else {
        return Ok(());
    };
    let partials: Vec<String> = partials.iter().map(Partial::name).collect();
    let files = names.iter().map(|name| name.file.as_str());
    let models = pick::models(files.chain(partials.iter().map(String::as_str)));
    if pick::is_quant(word) || models.len() < 2 {
        return Ok(());
    }
    let names = names_text(models.iter().map(|model| model.name().to_string()));
    Err(Error::input(format!(
        "{wanted}: nothing removed: {word} fits several models; name one of: {names}"
    )))
}

/// The error for what is not there, or not in a place that is ours.
fn absent(cache: &RepoCache, wanted: &Wanted) -> Error {
    let strange = names(&cache.snapshots(), &wanted.what);
    Error::input(match strange.first() {
        Some(name) => format!(
            "{wanted}: nothing removed: {} is in a folder that is no commit's; if it is not \
             needed, remove it yourself",
            name.path.display()
        ),
        None => format!("{wanted} is not in the cache; `llama-rs list` shows what is"),
    })
}

/// Deletes a file that another process may delete too; returns the bytes that it freed.
fn delete(path: &Path) -> Result<u64> {
    let meta = fs::symlink_metadata(path);
    match fs::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(0),
        Err(e) => Err(own::unremovable(path, &e)),
        Ok(()) => Ok(meta.map_or(0, |meta| bytes_of(&meta))),
    }
}

/// What is freed where a file is deleted: nothing while it has another name on the disk.
fn bytes_of(meta: &Metadata) -> u64 {
    #[cfg(unix)]
    let last = std::os::unix::fs::MetadataExt::nlink(meta) <= 1;
    // Not to be had elsewhere.
    #[cfg(not(unix))]
    let last = true;
    match meta.is_file() && last {
        true => meta.len(),
        false => 0,
    }
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
