//! What a chain knows of tokens: their bytes, and which of them end a text.

use std::fmt;

/// The bytes of every token, one after another.
#[derive(Clone, PartialEq, Default)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
    /// Ascending.
    eog: Vec<u32>,
}

impl Vocabulary {
    /// `pieces`: the bytes of token 0, 1, ...; empty for one that prints nothing.
    /// `eog`: the ids that end a text.
    pub fn new(pieces: impl Iterator<Item = Vec<u8>>, mut eog: Vec<u32>) -> Vocabulary {
        let mut vocabulary = Vocabulary::default();
        for piece in pieces {
            vocabulary.bytes.extend(piece);
            vocabulary.ends.push(vocabulary.bytes.len());
        }
        eog.sort_unstable();
        vocabulary.eog = eog;
        vocabulary
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A token's bytes; empty when out of range.
    pub fn piece(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let start = match at {
            0 => 0,
            _ => self.ends.get(at - 1).copied().unwrap_or_default(),
        };
        let end = self.ends.get(at).copied().unwrap_or(start);
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Whether a token ends the text.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// The tokens that end the text, ascending.
    pub fn eog_ids(&self) -> &[u32] {
        &self.eog
    }
}

/// In short: the bytes of a vocabulary tell nobody anything.
impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Vocabulary of {} tokens", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_by_id() {
        let pieces = ["a", "", "bcd"].map(|p| p.as_bytes().to_vec());
        let vocabulary = Vocabulary::new(pieces.into_iter(), vec![2, 1]);
        let piece = |id| std::str::from_utf8(vocabulary.piece(id)).unwrap();
        assert_eq!(
            [piece(0), piece(1), piece(2), piece(3)],
            ["a", "", "bcd", ""]
        );
        assert!(vocabulary.is_eog(1) && !vocabulary.is_eog(0));
        assert_eq!(format!("{vocabulary:?}"), "Vocabulary of 3 tokens");
    }
}
