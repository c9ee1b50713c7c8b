//! What a model keeps of a chat, as a file: the tokens, and the caches after them. The file
//! says of itself which tokens it holds, so one that is older than the messages still saves
//! most of the work, and one that is damaged costs only time.

use super::careful::read_at_most;
use crate::cli::write_file;
use crate::session::Session;
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::path::Path;

/// Opens a state file; the digits are the format's version.
const MAGIC: &[u8; 8] = b"LRCHAT01";
/// The model's digest, tokens, caches, checkpoints; the length stands before each.
const N_PARTS: usize = 4;
/// What follows when the file does not serve.
pub const EVALUATED_AGAIN: &str = "messages that it lacks are evaluated again, and rounding may \
                                   differ from an uninterrupted chat";
/// Bytes of a SHA-256, which ends the file.
const HASH_BYTES: usize = 32;

/// Writes what `session` keeps of `tokens`, which it has evaluated with the model of this
/// digest.
///
/// # Errors
/// The device or the file system fails; an older file is untouched then.
pub fn write(path: &Path, digest: &str, session: &Session, tokens: &[u32]) -> Result<()> {
    let ids: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
    let caches = session.save_seq(0)?;
    let checkpoints = session.save_checkpoints(0);
    write_file::replace(path, &mut |out| {
        let mut out = Hashing(out, Sha256::new());
        out.write_all(MAGIC)?;
        for part in [digest.as_bytes(), &ids, &caches, &checkpoints] {
            out.write_all(&(part.len() as u64).to_le_bytes())?;
            out.write_all(part)?;
        }
        let hash = out.1.finalize();
        out.0.write_all(&hash)
    })
}

/// Makes `session` what was written, and gives the tokens that it has then.
///
/// # Errors
/// No such file, a damaged one, or one of a session that keeps other things: the session is
/// empty then.
pub fn read(path: &Path, digest: &str, session: &mut Session) -> Result<Vec<u32>> {
    let bad = |cause: String| Error::file(path, cause, EVALUATED_AGAIN);
    let bytes = read_at_most(path, most_bytes(digest, session))
        .map_err(|e| bad(format!("cannot be read into a context of this size: {e}")))?;
    let parts = parts(&bytes).ok_or_else(|| bad("is cut off or damaged".to_string()))?;
    let [model, ids, caches, checkpoints] = parts;
    if model != digest.as_bytes() {
        return Err(bad("is of another model".to_string()));
    }
    let (ids, rest) = ids.as_chunks::<4>();
    let tokens: Vec<u32> = ids.iter().map(|id| u32::from_le_bytes(*id)).collect();
    let loaded = session
        .load_seq(0, caches)
        .and_then(|()| session.load_checkpoints(0, checkpoints));
    let fits = rest.is_empty() && session.n_past() == tokens.len();
    if loaded.is_err() || !fits {
        session.clear();
    }
    loaded.map_err(|e| bad(e.to_string()))?;
    match fits {
        true => Ok(tokens),
        false => Err(bad("does not fit its own tokens".to_string())),
    }
}

/// Bytes of a file that `session` could have written.
fn most_bytes(digest: &str, session: &Session) -> u64 {
    let numbers = N_PARTS * size_of::<u64>();
    let ids = session.n_ctx() * size_of::<u32>();
    let parts = digest.len() + ids + session.most_saved_bytes();
    (MAGIC.len() + numbers + parts + HASH_BYTES) as u64
}

/// The parts of an undamaged file.
fn parts(bytes: &[u8]) -> Option<[&[u8]; N_PARTS]> {
    let (body, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH_BYTES)?)?;
    let mut rest = body.strip_prefix(MAGIC)?;
    if Sha256::digest(body).as_slice() != hash {
        return None;
    }
    let mut parts = [&[][..]; N_PARTS];
    for part in &mut parts {
        let (len, after) = rest.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        (*part, rest) = after.split_at_checked(len)?;
    }
    rest.is_empty().then_some(parts)
}

/// Passes bytes on and hashes them.
struct Hashing<'a>(&'a mut dyn Write, Sha256);

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.0.write(bytes)?;
        self.1.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
