//! The hash by which the hub knows a content, and checking it.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::io::{self, Read};

/// Bytes hashed at a time.
const PIECE: usize = 256 << 10;

/// Which hash names a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SHA-256 of the bytes: what is in LFS, as nearly every model is.
    Sha256,
    /// Git's name of a blob, SHA-1 of `blob LEN\0` and the bytes: what is not in LFS.
    Git,
}

impl Kind {
    /// Hexadecimal digits of the hash.
    pub fn digits(self) -> usize {
        match self {
            Kind::Sha256 => 64,
            Kind::Git => 40,
        }
    }

    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sha256 => "SHA-256",
            Kind::Git => "git hash",
        }
    }
}

/// A hash that is being computed.
pub enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    /// Of a content that will have `size` bytes.
    pub fn new(kind: Kind, size: u64) -> Hasher {
        match kind {
            Kind::Sha256 => Hasher::Sha256(Sha256::new()),
            Kind::Git => Hasher::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }

    /// Adds bytes at the end.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Git(hasher) => hasher.update(bytes),
        }
    }

    /// The hash, in lower-case hexadecimal digits.
    pub fn finish(self) -> String {
        match self {
            Hasher::Sha256(hasher) => hex(&hasher.finalize()),
            Hasher::Git(hasher) => hex(&hasher.finalize()),
        }
    }
}

/// The hash of what a reader gives, of which there should be `size` bytes.
///
/// # Errors
/// It cannot be read.
pub fn hash_of(mut reader: impl Read, kind: Kind, size: u64) -> io::Result<String> {
    let mut hasher = Hasher::new(kind, size);
    let mut piece = vec![0; PIECE];
    loop {
        match reader.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            n => hasher.update(&piece[..n]),
        }
    }
}

/// True for what a content or a commit can be called: the digits of a hash.
pub fn is_hash(text: &str) -> bool {
    let kinds = [Kind::Sha256, Kind::Git];
    let length = kinds.iter().any(|kind| kind.digits() == text.len());
    length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Hasher, Kind};

    fn hash(kind: Kind, text: &str) -> String {
        let mut hasher = Hasher::new(kind, text.len() as u64);
        hasher.update(text.as_bytes());
        hasher.finish()
    }

    #[test]
    fn hashes_are_those_of_the_standard_and_of_git() {
        // FIPS 180-4, example 1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash(Kind::Sha256, "abc"), abc);
        // `printf 'hello\n' | git hash-object --stdin`, and of nothing.
        let hello = "ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(hash(Kind::Git, "hello\n"), hello);
        let nothing = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
        assert_eq!(hash(Kind::Git, ""), nothing);
        for kind in [Kind::Sha256, Kind::Git] {
            assert_eq!(hash(kind, "x").len(), kind.digits());
        }
    }
}
