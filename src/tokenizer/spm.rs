//! SPM (`tokenizer.ggml.model` = `llama`): pairs join by score, what is no
//! token falls back to byte tokens.

use super::merge::{Join, Merger, NONE, Symbol};
use super::vocab::Vocab;

/// U+2581, which stands for a space in the vocabulary.
pub(super) const SPACE: &[u8] = "\u{2581}".as_bytes();

/// Tokens for the 256 bytes.
pub(super) struct Spm {
    byte_ids: Box<[u32; 256]>,
}

impl Spm {
    /// Byte tokens are `<0xXX>`, else the byte itself, else `unknown`.
    pub fn new(vocab: &Vocab, unknown: Option<u32>) -> Spm {
        let mut byte_ids = Box::new([NONE; 256]);
        for (byte, id) in byte_ids.iter_mut().enumerate() {
            let byte = byte as u8;
            let found = vocab
                .id(format!("<0x{byte:02X}>").as_bytes())
                .or_else(|| vocab.id(&[byte]))
                .or(unknown);
            *id = found.unwrap_or(NONE);
        }
        Spm { byte_ids }
    }

    /// Appends the tokens of a text; `space_prefix` puts a space before it.
    pub fn encode(
        &self,
        vocab: &Vocab,
        text: &[u8],
        space_prefix: bool,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        let text = escape_spaces(text, space_prefix);
        merger.clear();
        for len in symbol_lens(&text) {
            merger.push(NONE, len);
        }
        let join = |left: &Symbol, right: &Symbol| {
            let id = vocab.id(&text[left.range().start..right.range().end])?;
            let rank = descending(vocab.score(id));
            Some(Join { rank, id })
        };
        for symbol in merger.merge(join) {
            let piece = &text[symbol.range()];
            match symbol.id {
                NONE => match vocab.id(piece) {
                    Some(id) => out.push(id),
                    None => out.extend(self.bytes(piece)),
                },
                id => out.push(id),
            }
        }
    }

    fn bytes<'a>(&'a self, piece: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
        let ids = piece.iter().map(|&byte| self.byte_ids[byte as usize]);
        ids.filter(|&id| id != NONE)
    }
}

/// Replaces each space by U+2581.
pub(super) fn escape_spaces(text: &[u8], space_prefix: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 2 + SPACE.len());
    if space_prefix {
        out.extend_from_slice(SPACE);
    }
    for &byte in text {
        match byte {
            b' ' => out.extend_from_slice(SPACE),
            byte => out.push(byte),
        }
    }
    out
}

/// Bytes of each UTF-8 character; a byte that is part of none counts alone.
pub(super) fn symbol_lens(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
    text.utf8_chunks().flat_map(|chunk| {
        let valid = chunk.valid().chars().map(char::len_utf8);
        valid.chain(chunk.invalid().iter().map(|_| 1))
    })
}

/// Orders scores from the highest to the lowest.
fn descending(score: f32) -> u32 {
    // Adding zero makes -0 and 0 equal; flipping makes the bits of floats
    // ascend as the floats do.
    let bits = (score + 0.0).to_bits();
    let ascending = match bits >> 31 {
        0 => bits | 1 << 31,
        _ => !bits,
    };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_rank_first() {
        let scores = [f32::INFINITY, 1e9, 0.5, 0.0, -0.5, -1e9, f32::NEG_INFINITY];
        for pair in scores.windows(2) {
            assert!(descending(pair[0]) < descending(pair[1]), "{pair:?}");
        }
        assert_eq!(descending(0.0), descending(-0.0));
    }
}
