//! One request for a file, and whether the answer is that file.

use super::failure::{Failure, Tried};
use super::listing::RemoteFile;
use super::partial::Partial;
use super::transport::Transport;
use super::{Event, Report};
use crate::error::{Error, Result};
use std::io::Read;
use ureq::BodyReader;
use ureq::http::{HeaderMap, StatusCode, Uri, header};

/// Bytes read at a time.
const PIECE: usize = 256 << 10;
/// How every GGUF file starts.
const MAGIC: &[u8] = b"GGUF";

/// Asks for what is missing and adds what comes; done when all of the file is there.
pub fn attempt(
    transport: &Transport,
    partial: &mut Partial,
    remote: &RemoteFile,
    uri: &Uri,
    report: Report<'_>,
) -> Tried<()> {
    let (head, body) = transport.get(uri, &range_headers(partial))?.into_parts();
    let length = body.content_length();
    let etag = strong_etag(&head.headers);
    let mut answer = Answer {
        reader: body.into_reader(),
        piece: vec![0; PIECE],
        filled: 0,
        left: remote.size,
    };
    match head.status {
        StatusCode::PARTIAL_CONTENT if partial.len() > 0 => {
            let other =
                etag.is_some() && partial.etag().is_some() && etag.as_deref() != partial.etag();
            if other {
                partial.restart();
                return Err(Failure::again("the file has changed; starting over"));
            }
            if let Err(error) = check_range(&head.headers, partial.len(), remote) {
                // The next run asks for all of it.
                partial.restart();
                return Err(error.into());
            }
            answer.left -= partial.len();
        }
        // What is there is kept until it is sure that this is the file.
        StatusCode::OK => {
            check_start(answer.start()?, length, remote)?;
            partial.restart();
        }
        _ if partial.len() > 0 => {
            partial.restart();
            return Err(Failure::again(
                "the server has no such range; starting over",
            ));
        }
        status => {
            let path = &remote.path;
            return Err(Error::input(format!(
                "{path}: {}, which is not what a model hub answers to a request for a whole \
                 file; check HF_ENDPOINT, or a proxy on the way",
                status.as_u16()
            ))
            .into());
        }
    }
    partial.comes_from(etag)?;
    answer.add_to(partial, remote, report)
}

fn range_headers(partial: &Partial) -> Vec<(header::HeaderName, String)> {
    if partial.len() == 0 {
        return Vec::new();
    }
    let range = (header::RANGE, format!("bytes={}-", partial.len()));
    let same = partial
        .etag()
        .map(|etag| (header::IF_RANGE, etag.to_string()));
    std::iter::once(range).chain(same).collect()
}

/// A body and the piece of it that was read last.
struct Answer {
    reader: BodyReader<'static>,
    piece: Vec<u8>,
    filled: usize,
    /// Bytes of the file that are still to come; what follows them is never read.
    left: u64,
}

impl Answer {
    /// Adds a piece to what is filled; false at the end.
    fn read(&mut self) -> Tried<bool> {
        let room = self.piece.len() - self.filled;
        let room = usize::try_from(self.left).map_or(room, |left| room.min(left));
        if room == 0 {
            return Ok(false);
        }
        let read = self.reader.read(&mut self.piece[self.filled..][..room]);
        let n = read.map_err(|e| Failure::again(format!("the connection broke: {e}")))?;
        self.filled += n;
        self.left -= n as u64;
        Ok(n > 0)
    }

    /// The first bytes, as many as [`MAGIC`] has if there are so many.
    fn start(&mut self) -> Tried<&[u8]> {
        while self.filled < MAGIC.len() && self.read()? {}
        Ok(&self.piece[..self.filled])
    }

    fn add_to(
        mut self,
        partial: &mut Partial,
        remote: &RemoteFile,
        report: Report<'_>,
    ) -> Tried<()> {
        loop {
            partial.append(&self.piece[..self.filled])?;
            report(Event::Bytes {
                file: &remote.path,
                done: partial.len(),
                total: remote.size,
            });
            self.filled = 0;
            if !self.read()? {
                break;
            }
        }
        match partial.len() == remote.size {
            true => Ok(()),
            false => Err(Failure::again("the connection ended early")),
        }
    }
}

/// An error unless the first bytes, and the length, are those of the file.
fn check_start(start: &[u8], length: Option<u64>, remote: &RemoteFile) -> Tried<()> {
    let path = &remote.path;
    if !start.starts_with(&MAGIC[..MAGIC.len().min(start.len())]) {
        let kind = match start.first() {
            Some(b'<' | b' ' | b'\n' | b'\r' | b'\t') => "a web page",
            Some(b'{' | b'[') => "JSON",
            _ => "something that is not GGUF",
        };
        return Err(Failure::Final(Error::input(format!(
            "{path}: the server sends {kind} instead of the file; check HF_ENDPOINT and the \
             network's login page"
        ))));
    }
    match length {
        Some(length) if length != remote.size => {
            Err(lie(remote, &format!("sends {length} bytes")).into())
        }
        _ if start.len() < MAGIC.len() => Err(Failure::again("the connection ended early")),
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
