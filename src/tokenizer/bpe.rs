//! Byte-level BPE (`gpt2`): words from a pre-tokenizer, pairs joined by the
//! rank of their merge.

use super::merge::{Join, Merger, NONE, Symbol};
use super::pre::Pre;
use super::split::Splitter;
use super::spm::{escape_spaces, symbol_lens};
use super::vocab::Vocab;
use crate::error::{Error, Result};
use crate::gguf::Metadata;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// Merges and words of one vocabulary.
pub(super) struct Bpe {
    pub pre: &'static Pre,
    /// Patterns take milliseconds to compile; a file that is only opened does not wait for them.
    splitter: OnceLock<Splitter>,
    merges: Merges,
    /// Symbol of each byte: its token, or a stand-in at `n_vocab` and above.
    byte_ids: Box<[u32; 256]>,
}

/// `(left, right)` ids to rank and joined id.
struct Merges {
    /// In rank order: left, right, joined.
    entries: Vec<[u32; 3]>,
    /// Open addressing over `entries`.
    slots: Vec<u32>,
    seed: u64,
}

impl Bpe {
    /// Reads `tokenizer.ggml.merges`.
    ///
    /// # Errors
    /// No merges where the pre-tokenizer's model needs them.
    pub fn new(meta: &Metadata, vocab: &Vocab, pre: &'static Pre) -> Result<Bpe> {
        let key = "tokenizer.ggml.merges";
        let texts = match meta.get_str_array(key)? {
            Some(texts) => Some(texts),
            None if pre.without_merges => None,
            None => {
                return Err(Error::file(
                    meta.path(),
                    format!("metadata key {key} is missing, which BPE needs"),
                    "fetch another file of this model",
                ));
            }
        };
        let mut names = Names {
            vocab,
            extra: HashMap::new(),
        };
        let mut merges = Merges::with_capacity(texts.as_ref().map_or(0, |t| t.len()));
        let mut joined = Vec::new();
        for (_, text) in texts.into_iter().flatten() {
            // A part may begin with a space, never be empty.
            let Some(space) = text.iter().skip(1).position(|&b| b == b' ') else {
                continue;
            };
            let (left, right) = (&text[..space + 1], &text[space + 2..]);
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            merges.push(names.id(left), names.id(right), names.id(&joined));
        }
        let mut byte_ids = Box::new([NONE; 256]);
        for (byte, id) in byte_ids.iter_mut().enumerate() {
            let byte = byte as u8;
            *id = match pre.raw_utf8 {
                false => names.id(byte_to_char(byte).encode_utf8(&mut [0; 4]).as_bytes()),
                true => names.id(format!("<0x{byte:02X}>").as_bytes()),
            };
        }
        Ok(Bpe {
            pre,
            splitter: OnceLock::new(),
            merges,
            byte_ids,
        })
    }

    /// Appends the tokens of a text.
    pub fn encode(&self, vocab: &Vocab, text: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        let splitter = self.splitter.get_or_init(|| Splitter::new(self.pre.stages));
        let escaped;
        let text = match self.pre.escape_spaces {
            true => {
                escaped = escape_spaces(text, false);
                &escaped
            }
            false => text,
        };
        let mut from = 0;
        for to in word_ends(splitter, text) {
            self.encode_word(vocab, &text[from..to], merger, out);
            from = to;
        }
    }

    fn encode_word(&self, vocab: &Vocab, word: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        let newlines = self.pre.raw_utf8 && word.iter().all(|&b| b == b'\n');
        let whole = (self.pre.ignore_merges || newlines).then(|| self.whole_word(vocab, word));
        if let Some(id) = whole.flatten() {
            out.push(id);
            return;
        }
        merger.clear();
        if self.pre.raw_utf8 {
            let mut at = 0;
            for len in symbol_lens(word) {
                let id = vocab.id(&word[at..at + len]);
                merger.push(id.unwrap_or(NONE), len);
                at += len;
            }
        } else {
            for &byte in word {
                merger.push(self.byte_ids[byte as usize], 1);
            }
        }
        let n_vocab = vocab.len() as u32;
        for symbol in merger.merge(|left: &Symbol, right: &Symbol| self.merges.get(left, right)) {
            if symbol.id < n_vocab {
                out.push(symbol.id);
                continue;
            }
            // No token for this piece: its bytes, as far as they have tokens.
            let bytes = word[symbol.range()].iter();
            let ids = bytes.map(|&byte| self.byte_ids[byte as usize]);
            out.extend(ids.filter(|&id| id < n_vocab));
        }
    }

    fn whole_word(&self, vocab: &Vocab, word: &[u8]) -> Option<u32> {
        if self.pre.raw_utf8 {
            return vocab.id(word);
        }
        // Every byte takes at least one in the vocabulary's spelling.
        if word.len() > vocab.max_len_bytes() {
            return None;
        }
        let spelled: String = word.iter().map(|&byte| byte_to_char(byte)).collect();
        vocab.id(spelled.as_bytes())
    }

    /// The bytes that a normal token's text spells.
    pub fn decode(&self, text: &[u8], out: &mut Vec<u8>) {
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                match char_to_byte(c) {
                    Some(byte) => out.push(byte),
                    None => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            out.extend_from_slice(chunk.invalid());
        }
    }
}

/// Ends of words in bytes that need not be UTF-8: each invalid byte is cut as
/// U+FFFD would be, and stays the byte it is.
fn word_ends(splitter: &Splitter, text: &[u8]) -> Vec<usize> {
    if let Ok(text) = std::str::from_utf8(text) {
        return splitter.cuts(text);
    }
    let mut shown = String::with_capacity(text.len() + text.len() / 8);
    let mut invalid_at = Vec::new();
    for chunk in text.utf8_chunks() {
        shown.push_str(chunk.valid());
        for _ in chunk.invalid() {
            invalid_at.push(shown.len());
            shown.push(char::REPLACEMENT_CHARACTER);
        }
    }
    let widened = char::REPLACEMENT_CHARACTER.len_utf8() - 1;
    let mut before = 0;
    let ends = splitter.cuts(&shown).into_iter().map(|end| {
        while invalid_at.get(before).is_some_and(|&at| at < end) {
            before += 1;
        }
        end - before * widened
    });
    ends.collect()
}

/// Ids of texts; what the vocabulary lacks gets a stand-in behind it.
struct Names<'a> {
    vocab: &'a Vocab,
    extra: HashMap<Vec<u8>, u32>,
}

impl Names<'_> {
    fn id(&mut self, text: &[u8]) -> u32 {
        if let Some(id) = self.vocab.id(text) {
            return id;
        }
        let next = (self.vocab.len() + self.extra.len()) as u32;
        *self.extra.entry(text.to_vec()).or_insert(next)
    }
}

impl Merges {
    fn with_capacity(n_merges: usize) -> Merges {
        Merges {
            entries: Vec::with_capacity(n_merges),
            slots: vec![NONE; (n_merges * 3 / 2 + 1).next_power_of_two()],
            seed: RandomState::new().hash_one(n_merges),
        }
    }

    /// The entry of a pair, or the slot where it would go.
    fn find(&self, left: u32, right: u32) -> std::result::Result<usize, usize> {
        let key = u128::from(u64::from(left) << 32 | u64::from(right)) + 1;
        let wide = key * u128::from(self.seed | 1);
        let mask = self.slots.len() - 1;
        let mut at = ((wide >> 64) as usize ^ (wide >> 32) as usize) & mask;
        // A third of the slots stay empty, so the walk ends.
        loop {
            match self.entries.get(self.slots[at] as usize) {
                None => return Err(at),
                Some(&[l, r, _]) if (l, r) == (left, right) => return Ok(self.slots[at] as usize),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    /// Of equal pairs the first counts.
    fn push(&mut self, left: u32, right: u32, joined: u32) {
        if let Err(free) = self.find(left, right) {
            self.slots[free] = self.entries.len() as u32;
            self.entries.push([left, right, joined]);
        }
    }

    fn get(&self, left: &Symbol, right: &Symbol) -> Option<Join> {
        let rank = self.find(left.id, right.id).ok()?;
        let id = self.entries[rank][2];
        let rank = rank as u32;
        Some(Join { rank, id })
    }
}

/// GPT-2's spelling of bytes: printable Latin-1 stands for itself, the other
/// 68 bytes are U+0100 onwards in their order.
fn byte_to_char(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0x00..=0x20 => shifted(byte),
        0x7F..=0xA0 => shifted(byte - 0x7F + 0x21),
        0xAD => shifted(0x43),
    }
}

fn shifted(index: u8) -> char {
    char::from_u32(0x100 + u32::from(index)).unwrap_or_default()
}

fn char_to_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_is_one_to_one() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255 {
            assert!(seen.insert(byte_to_char(byte)));
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(byte_to_char(0xAD), 'Ń');
    }
}
