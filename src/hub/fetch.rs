//! One file from the hub into the cache: locked, resumed, retried, verified.

use super::attempt::attempt;
use super::cache::RepoCache;
use super::digest::hash_of;
use super::failure::{Failure, Tried};
use super::listing::RemoteFile;
use super::partial::Partial;
use super::place::unwritable;
use super::transport::{Transport, pause_after};
use super::{Event, Report, own, size_text};
use crate::error::{Error, Result};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};
use ureq::http::Uri;

/// An attempt that brings this much is a start from anew: retries count from there.
const PROGRESS: u64 = 16 << 20;

/// Fetches one content unless it is there; a second process waits for the first. With
/// `check` what is there must have its hash, else it is fetched anew.
///
/// # Errors
/// The server fails for good, sends something else, or the file system refuses.
pub fn blob(
    transport: &Transport,
    cache: &RepoCache,
    remote: &RemoteFile,
    uri: &Uri,
    check: bool,
    report: Report<'_>,
) -> Tried<()> {
    // A whole content needs no lock, which a cache that is read-only has none of.
    let there = is_there(cache, remote);
    if there && (!check || is_intact(cache, remote, report)?) {
        return Ok(());
    }
    let _lock = lock(&cache.lock(&remote.id), remote, report)?;
    // Another process may have fetched it meanwhile, or repaired it.
    if is_there(cache, remote) && (!there || is_intact(cache, remote, report)?) {
        return Ok(());
    }
    if is_there(cache, remote) {
        let (path, hash) = (&remote.path, remote.hash.name());
        let text = format!("{path}: damaged in the cache, its {hash} is another; fetching it anew");
        report(Event::Warning(text));
    }
    let mut partial = Partial::open(&cache.blob(&remote.id), remote)?;
    report(Event::Info(announcement(remote, partial.len())));
    let started = Instant::now();
    complete(transport, &mut partial, remote, uri, report)?;
    partial.finish(remote)?;
    let seconds = started.elapsed().as_secs_f64();
    let size = size_text(remote.size);
    report(Event::Info(format!(
        "{}: {size} in {seconds:.1} s",
        remote.path
    )));
    Ok(())
}

/// True when the content is in the cache.
pub fn is_there(cache: &RepoCache, remote: &RemoteFile) -> bool {
    let there = fs::metadata(cache.blob(&remote.id));
    there.is_ok_and(|meta| meta.is_file() && meta.len() == remote.size)
}

/// True when the content in the cache has its hash.
fn is_intact(cache: &RepoCache, remote: &RemoteFile, report: Report<'_>) -> Result<bool> {
    let (path, size) = (&remote.path, size_text(remote.size));
    let name = remote.hash.name();
    report(Event::Info(format!(
        "{path}: in the cache; checking the {name} of {size}"
    )));
    let blob = cache.blob(&remote.id);
    let hash = File::open(&blob).and_then(|file| hash_of(file, remote.hash, remote.size));
    if hash
        .as_ref()
        .is_err_and(|e| e.kind() == ErrorKind::NotFound)
    {
        // Another process has just removed it.
        return Ok(false);
    }
    let hash = hash.map_err(|e| {
        let advice = "run `llama-rs rm` for it, or set HF_HUB_CACHE to another folder";
        Error::input(format!("cannot read {}: {e}; {advice}", blob.display()))
    })?;
    Ok(hash == remote.id)
}

fn announcement(remote: &RemoteFile, done: u64) -> String {
    let (path, size) = (&remote.path, size_text(remote.size));
    match done {
        0 => format!("fetching {path}, {size}"),
        _ => format!(
            "fetching {path}, {size}; {} are here already",
            size_text(done)
        ),
    }
}

/// Waits for the lock; `None` where the file system has none.
fn lock(path: &Path, remote: &RemoteFile, report: Report<'_>) -> Result<Option<File>> {
    let refused = |e| unwritable(format!("cannot lock {}", path.display()), &e);
    let open = || {
        let mut options = File::options();
        own::open(path, options.write(true).create(true).truncate(false))
    };
    let file = own::in_folder(path.parent().unwrap_or(path), open).map_err(refused)?;
    let locked = match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            report(Event::Info(format!(
                "another process is fetching {}; waiting for it",
                remote.path
            )));
            file.lock()
        }
        Err(TryLockError::Error(error)) => Err(error),
    };
    match locked {
        Ok(()) => Ok(Some(file)),
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(None),
        Err(e) => Err(refused(e)),
    }
}

/// Attempts until everything is there.
fn complete(
    transport: &Transport,
    partial: &mut Partial,
    remote: &RemoteFile,
    uri: &Uri,
    report: Report<'_>,
) -> Tried<()> {
    let warn = |text: String| report(Event::Warning(text));
    let mut pauses = transport.pauses();
    let mut counted_from = partial.len();
    while partial.len() < remote.size {
        let failure = match attempt(transport, partial, remote, uri, report) {
            Ok(()) => continue,
            Err(failure) => failure,
        };
        let (cause, asked): (String, Option<Duration>) = match failure {
            // The list of files was there a moment ago.
            Failure::Unreachable(cause, _) => (cause, None),
            Failure::Again(cause, asked) => (cause, asked),
            Failure::Final(error) => return Err(error.into()),
        };
        if partial.len() >= counted_from.saturating_add(PROGRESS) {
            pauses.reset();
            counted_from = partial.len();
        }
        let Some(pause) = pauses.next(asked) else {
            let (done, all) = (size_text(partial.len()), size_text(remote.size));
            return Err(Error::input(format!(
                "{}: {cause}; {done} of {all} are here, run the same command again to continue",
                remote.path
            ))
            .into());
        };
        pause_after(&cause, pause, &warn);
    }
    Ok(())
}
