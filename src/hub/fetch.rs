//! One file from the hub into the cache: locked, resumed, retried, verified.

use super::cache::RepoCache;
use super::listing::RemoteFile;
use super::partial::Partial;
use super::transport::{Failure, Transport, Tried, pause_after};
use super::{Event, Report, size_text};
use crate::error::{Error, Result};
use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};
use ureq::http::{HeaderMap, StatusCode, Uri, header};

/// Bytes read at a time.
const PIECE: usize = 256 << 10;
/// An attempt that brings this much is a start from anew: retries count from there.
const PROGRESS: u64 = 16 << 20;
/// How every GGUF file starts.
const MAGIC: &[u8] = b"GGUF";

/// Fetches one content unless it is there; a second process waits for the first.
///
/// # Errors
/// The server fails for good, sends something else, or the file system refuses.
pub fn blob(
    transport: &Transport<'_>,
    cache: &RepoCache,
    remote: &RemoteFile,
    uri: &Uri,
    report: Report<'_>,
) -> Tried<()> {
    let blob = cache.blob(&remote.id);
    fs::create_dir_all(cache.blobs())
        .map_err(|e| Error::io(format!("cannot create {}", cache.blobs().display()), e))?;
    let _lock = lock(&cache.lock(&remote.id), remote, report)?;
    if is_there(cache, remote) {
        return Ok(());
    }
    let mut partial = Partial::open(&blob, remote)?;
    report(Event::Info(announcement(remote, partial.len())));
    let started = Instant::now();
    match complete(transport, &mut partial, remote, uri, report) {
        Ok(()) => {}
        Err(Attempt::Useless(error)) => {
            partial.discard();
            return Err(error.into());
        }
        Err(Attempt::Failed(failure)) => return Err(failure),
    }
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
    let refused = |e| Error::io(format!("cannot lock {}", path.display()), e);
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(refused)?;
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    let file = options.open(path).map_err(refused)?;
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
        Err(e) if e.kind() == std::io::ErrorKind::Unsupported => Ok(None),
        Err(e) => Err(refused(e)),
    }
}

/// Why an attempt ended early.
enum Attempt {
    Failed(Failure),
    /// What is there is not the file; it must not stay.
    Useless(Error),
}

impl<T: Into<Failure>> From<T> for Attempt {
    fn from(failure: T) -> Attempt {
        Attempt::Failed(failure.into())
    }
}

/// Attempts until everything is there.
fn complete(
    transport: &Transport<'_>,
    partial: &mut Partial,
    remote: &RemoteFile,
    uri: &Uri,
    report: Report<'_>,
) -> std::result::Result<(), Attempt> {
    let warn = |text: String| report(Event::Warning(text));
    let mut pauses = transport.pauses();
    let mut counted_from = partial.len();
    while partial.len() < remote.size {
        let failure = match attempt(transport, partial, remote, uri, report) {
            Ok(()) => continue,
            Err(Attempt::Failed(failure)) => failure,
            useless => return useless,
        };
        let (cause, asked): (String, Option<Duration>) = match failure {
            // The list of files was there a moment ago.
            Failure::Unreachable(cause) => (cause, None),
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

/// One request, from where the file ends.
fn attempt(
    transport: &Transport<'_>,
    partial: &mut Partial,
    remote: &RemoteFile,
    uri: &Uri,
    report: Report<'_>,
) -> std::result::Result<(), Attempt> {
    let mut headers = Vec::new();
    if partial.len() > 0 {
        headers.push((header::RANGE, format!("bytes={}-", partial.len())));
        if let Some(etag) = partial.etag() {
            headers.push((header::IF_RANGE, etag.to_string()));
        }
    }
    let (head, body) = transport.get(uri, &headers)?.into_parts();
    let length = body.content_length();
    match head.status {
        StatusCode::PARTIAL_CONTENT if partial.len() > 0 => {
            check_range(&head.headers, partial.len(), remote)?;
        }
        StatusCode::OK => partial.restart()?,
        _ if partial.len() > 0 => {
            partial.restart()?;
            return Err(Failure::again("the server has no such range; starting over").into());
        }
        status => {
            let path = &remote.path;
            return Err(Error::input(format!("{path}: unexpected answer {status}")).into());
        }
    }
    let mut reader = body.into_reader();
    let mut next = |piece: &mut [u8]| {
        reader
            .read(piece)
            .map_err(|e| Failure::again(format!("the connection broke: {e}")))
    };
    let mut piece = vec![0; PIECE];
    let mut filled = 0;
    if partial.len() == 0 {
        while filled < MAGIC.len() {
            match next(&mut piece[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        check_start(&piece[..filled], length, remote)?;
    }
    partial.comes_from(strong_etag(&head.headers))?;
    loop {
        if filled as u64 > remote.size - partial.len() {
            return Err(Attempt::Useless(lie(remote, "sends more")));
        }
        partial.append(&piece[..filled])?;
        report(Event::Bytes {
            file: &remote.path,
            done: partial.len(),
            total: remote.size,
        });
        filled = next(&mut piece)?;
        if filled == 0 {
            break;
        }
    }
    match partial.len() == remote.size {
        true => Ok(()),
        false => Err(Failure::again("the connection ended early").into()),
    }
}

/// An error unless the first bytes, and the length, are those of the file.
fn check_start(start: &[u8], length: Option<u64>, remote: &RemoteFile) -> Result<()> {
    let path = &remote.path;
    if !start.starts_with(&MAGIC[..MAGIC.len().min(start.len())]) {
        let kind = match start.first() {
            Some(b'<' | b' ' | b'\n' | b'\r' | b'\t') => "a web page",
            Some(b'{' | b'[') => "JSON",
            _ => "something that is not GGUF",
        };
        return Err(Error::input(format!(
            "{path}: the server sends {kind} instead of the file; check HF_ENDPOINT and the \
             network's login page"
        )));
    }
    match length {
        Some(length) if length != remote.size => Err(lie(remote, &format!("sends {length} bytes"))),
        _ => Ok(()),
    }
}

/// An error unless `Content-Range: bytes START-END/SIZE` continues the file.
fn check_range(headers: &HeaderMap, start: u64, remote: &RemoteFile) -> Result<()> {
    let range = headers.get(header::CONTENT_RANGE);
    let range = range
        .and_then(|range| range.to_str().ok())
        .unwrap_or_default();
    let bounds = range
        .strip_prefix("bytes ")
        .and_then(|range| range.split_once('/'));
    let fits = bounds.is_some_and(|(range, size)| {
        let from = range.split('-').next().and_then(|from| from.parse().ok());
        from == Some(start) && (size == "*" || size.parse() == Ok(remote.size))
    });
    match fits {
        true => Ok(()),
        false => {
            let shown = super::name::shown(range);
            Err(lie(remote, &format!("continues with {shown:?} at {start}")))
        }
    }
}

fn lie(remote: &RemoteFile, does: &str) -> Error {
    Error::input(format!(
        "{}: the server {does}, the hub lists {} bytes; refused, try again later",
        remote.path, remote.size
    ))
}

/// The `ETag` when it promises the same bytes (a weak one, `W/"..."`, does not).
fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(header::ETAG)?.to_str().ok()?;
    etag.starts_with('"').then(|| etag.to_string())
}
