//! The token list: texts in the file's bytes, found by a compact hash table.
//!
//! A token costs nine bytes here (offset, kind, its share of the table); its
//! text is never copied.

use crate::error::{Error, Result};
use crate::gguf::{FileBytes, Metadata, Value};
use gguf_rs_lib::format::GGUFValueType;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

/// What a token is: GGUF's `tokenizer.ggml.token_type`, plus how it treats the
/// white space around it.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Kind(u8);

impl Kind {
    pub const NORMAL: Kind = Kind(1);
    pub const UNKNOWN: Kind = Kind(2);
    pub const CONTROL: Kind = Kind(4);
    pub const USER_DEFINED: Kind = Kind(8);
    pub const UNUSED: Kind = Kind(16);
    pub const BYTE: Kind = Kind(32);
    /// Swallows the white space that follows it.
    pub const RSTRIP: Kind = Kind(64);
    /// Swallows the white space before it.
    pub const LSTRIP: Kind = Kind(128);
    /// Kinds whose text is looked for before anything else is tokenized.
    pub const SPECIAL: Kind = Kind(Kind::UNKNOWN.0 | Kind::CONTROL.0 | Kind::USER_DEFINED.0);
    /// Kinds that only `parse_special` looks for, and that are never printed.
    pub const HIDDEN: Kind = Kind(Kind::UNKNOWN.0 | Kind::CONTROL.0);

    fn from_gguf(token_type: i32) -> Kind {
        match token_type {
            1 => Kind::NORMAL,
            2 => Kind::UNKNOWN,
            3 => Kind::CONTROL,
            4 => Kind::USER_DEFINED,
            5 => Kind::UNUSED,
            6 => Kind::BYTE,
            _ => Kind::default(),
        }
    }

    /// Whether any bit of `other` is set.
    pub fn has(self, other: Kind) -> bool {
        self.0 & other.0 != 0
    }

    pub fn with(self, other: Kind) -> Kind {
        Kind(self.0 | other.0)
    }
}

/// A numeric metadata array, read where it lies.
struct Numbers {
    ty: GGUFValueType,
    range: Range<usize>,
}

/// Ids are kept in 24 bits of a table slot, beside 8 bits of hash.
const MAX_TOKENS: usize = (1 << 24) - 1;
const EMPTY: u32 = u32::MAX;

/// The token list of one file.
pub(super) struct Vocab {
    bytes: Arc<FileBytes>,
    /// File offset of the token array; `starts` count from here.
    base: usize,
    /// Where each token's text begins; its length is the 8 bytes before.
    starts: Vec<u32>,
    kinds: Vec<Kind>,
    scores: Option<Numbers>,
    /// Open addressing: low 24 bits id, high 8 bits of the hash.
    slots: Vec<u32>,
    seed: u64,
    max_len_bytes: usize,
}

impl Vocab {
    /// Reads `tokenizer.ggml.tokens`, `.token_type` and `.scores`.
    ///
    /// # Errors
    /// No token list, one that is too long, or type and score arrays that are
    /// shorter than it.
    pub fn from_meta(meta: &Metadata) -> Result<Vocab> {
        let bad = |cause: String| Error::file(meta.path(), cause, "fetch the file again");
        let key = "tokenizer.ggml.tokens";
        let tokens = meta
            .get_str_array(key)?
            .ok_or_else(|| bad(format!("metadata key {key} is missing")))?;
        let n_vocab = tokens.len();
        if n_vocab == 0 || n_vocab > MAX_TOKENS {
            return Err(bad(format!(
                "a vocabulary of {n_vocab} tokens, not 1 to {MAX_TOKENS}"
            )));
        }
        let base = match meta.get(key) {
            Some(Value::Array(_, _, range)) if range.len() <= u32::MAX as usize => range.start,
            _ => return Err(bad(format!("metadata key {key} is longer than 4 GiB"))),
        };
        let types = numbers(meta, "tokenizer.ggml.token_type", n_vocab)?;
        let scores = numbers(meta, "tokenizer.ggml.scores", n_vocab)?;
        let mut vocab = Vocab {
            bytes: meta.file_bytes().clone(),
            base,
            starts: Vec::with_capacity(n_vocab),
            kinds: Vec::with_capacity(n_vocab),
            scores,
            slots: vec![EMPTY; (n_vocab * 2).next_power_of_two()],
            seed: RandomState::new().hash_one(base),
            max_len_bytes: 0,
        };
        for (id, (at, text)) in tokens.enumerate() {
            vocab.starts.push((at - base) as u32);
            let kind = match &types {
                Some(types) => Kind::from_gguf(types.at(&vocab.bytes, id) as i32),
                None => Kind::NORMAL,
            };
            vocab.kinds.push(kind);
            vocab.insert(id as u32, text);
        }
        Ok(vocab)
    }

    /// Of equal texts the first id counts.
    fn insert(&mut self, id: u32, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        self.max_len_bytes = self.max_len_bytes.max(text.len());
        if let Err(free) = self.find(text) {
            let tag = (hash(text, self.seed) >> 56) as u32;
            self.slots[free] = tag << 24 | id;
        }
    }

    /// The id of a text, or the slot where it would go.
    fn find(&self, text: &[u8]) -> std::result::Result<u32, usize> {
        let h = hash(text, self.seed);
        let tag = (h >> 56) as u32;
        let mask = self.slots.len() - 1;
        let mut at = h as usize & mask;
        // Half the slots are empty, so the walk ends.
        loop {
            let slot = self.slots[at];
            if slot == EMPTY {
                return Err(at);
            }
            let id = slot & MAX_TOKENS as u32;
            if slot >> 24 == tag && self.text(id) == text {
                return Ok(id);
            }
            at = (at + 1) & mask;
        }
    }

    /// The id whose text this is.
    pub fn id(&self, text: &[u8]) -> Option<u32> {
        if text.is_empty() || text.len() > self.max_len_bytes {
            return None;
        }
        self.find(text).ok()
    }

    /// A token's text as the file has it; empty when out of range.
    pub fn text(&self, id: u32) -> &[u8] {
        let Some(&start) = self.starts.get(id as usize) else {
            return &[];
        };
        let start = self.base + start as usize;
        let len = self.bytes[..start].last_chunk::<8>();
        let len = len.map_or(0, |len| u64::from_le_bytes(*len) as usize);
        self.bytes.get(start..start + len).unwrap_or_default()
    }

    /// A token's kind; no kind when out of range.
    pub fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or_default()
    }

    pub fn set_kind(&mut self, id: u32, kind: Kind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    /// A token's score (SPM: log probability or merge order); 0 without scores.
    pub fn score(&self, id: u32) -> f32 {
        match &self.scores {
            Some(scores) => scores.at(&self.bytes, id as usize),
            None => 0.0,
        }
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Bytes of the longest text.
    pub fn max_len_bytes(&self) -> usize {
        self.max_len_bytes
    }
}

impl Numbers {
    fn at(&self, bytes: &[u8], index: usize) -> f32 {
        let at = self.range.start + index * 4;
        let raw = bytes.get(at..at + 4).and_then(<[u8]>::first_chunk::<4>);
        let raw = raw.copied().unwrap_or_default();
        match self.ty {
            GGUFValueType::F32 => f32::from_le_bytes(raw),
            _ => i32::from_le_bytes(raw) as f32,
        }
    }
}

/// An array of at least `n_vocab` 32-bit numbers, if the key is there.
fn numbers(meta: &Metadata, key: &str, n_vocab: usize) -> Result<Option<Numbers>> {
    use GGUFValueType as T;
    let bad = |cause| Err(Error::file(meta.path(), cause, "fetch the file again"));
    match meta.get(key) {
        None => Ok(None),
        Some(&Value::Array(_, len, _)) if len < n_vocab => bad(format!(
            "metadata key {key} has {len} elements for {n_vocab} tokens"
        )),
        Some(Value::Array(ty @ (T::F32 | T::I32 | T::U32), _, range)) => Ok(Some(Numbers {
            ty: *ty,
            range: range.clone(),
        })),
        Some(_) => bad(format!(
            "metadata key {key} is not an array of 32-bit numbers"
        )),
    }
}

/// A seeded hash: files are hostile, so the place of a text must not be
/// predictable. Folded 64x64-bit multiplication, eight bytes a step.
fn hash(bytes: &[u8], seed: u64) -> u64 {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 / golden ratio
    let fold = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        (wide as u64) ^ ((wide >> 64) as u64)
    };
    let mut h = fold(seed ^ bytes.len() as u64, MIX);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = chunk.first_chunk().copied().unwrap_or_default();
        h = fold(h ^ u64::from_le_bytes(word), MIX ^ seed);
    }
    let tail = chunks.remainder().iter();
    let word = tail.fold(0u64, |word, &b| word << 8 | u64::from(b));
    fold(h ^ word, MIX ^ seed.rotate_left(32))
}
