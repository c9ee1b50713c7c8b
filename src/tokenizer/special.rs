//! Finds special tokens in text before the rest is tokenized.
//!
//! Longer texts win over shorter ones wherever they stand; of equal lengths
//! the leftmost wins.

use super::vocab::{Kind, Vocab};
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

/// A stretch of the input.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Text(Range<usize>),
    Token(u32),
}

/// What to look for.
#[derive(Clone, Copy)]
pub(super) struct Search<'a> {
    /// Control and unknown tokens as well as user-defined ones.
    pub hidden: bool,
    /// Byte positions, ascending, that no control or unknown token may span.
    pub guards: &'a [usize],
}

/// Longer texts are no special tokens: it bounds the search at each position,
/// and the longest in use have some 40 bytes.
const MAX_SPECIAL_BYTES: usize = 256;

/// The special tokens of a vocabulary, sorted by text.
pub(super) struct Specials {
    ids: Vec<u32>,
    /// `ids[first[b]..first[b + 1]]` begin with byte `b`.
    first: Box<[u32; 257]>,
}

impl Specials {
    pub fn new(vocab: &Vocab) -> Specials {
        let ids = 0..vocab.len() as u32;
        let fits = |id| (1..=MAX_SPECIAL_BYTES).contains(&vocab.text(id).len());
        let mut ids: Vec<u32> = ids
            .filter(|&id| vocab.kind(id).has(Kind::SPECIAL) && fits(id))
            .collect();
        ids.sort_by_key(|&id| (vocab.text(id), id));
        ids.dedup_by_key(|&mut id| vocab.text(id));
        let mut first = Box::new([0; 257]);
        for (byte, at) in first.iter_mut().enumerate() {
            *at = ids.partition_point(|&id| usize::from(vocab.text(id)[0]) < byte) as u32;
        }
        Specials { ids, first }
    }

    /// Ids in the order of their texts.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Cuts a text into special tokens and what is between them.
    pub fn split(&self, vocab: &Vocab, text: &[u8], search: Search) -> Vec<Part> {
        // Occurrences by (length, leftmost).
        let mut heap = BinaryHeap::new();
        let mut guards = search.guards.iter().copied().peekable();
        let add = |heap: &mut BinaryHeap<_>, at: usize, end: usize, guard: usize| {
            if let Some((id, len)) = self.longest(vocab, &text[at..end], guard - at, search.hidden)
            {
                heap.push((len, std::cmp::Reverse(at), id, guard));
            }
        };
        for at in 0..text.len() {
            let byte = usize::from(text[at]);
            if self.first[byte] == self.first[byte + 1] {
                continue;
            }
            while guards.next_if(|&guard| guard <= at).is_some() {}
            let guard = guards.peek().copied().unwrap_or(usize::MAX);
            add(&mut heap, at, text.len(), guard);
        }
        let mut taken: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
        while let Some((len, std::cmp::Reverse(at), id, guard)) = heap.pop() {
            let before = taken.range(..=at).next_back();
            if before.is_some_and(|(_, &(end, _))| end > at) {
                continue;
            }
            match taken.range(at..at + len).next() {
                // A longer token begins inside this one: try what fits before it.
                Some((&start, _)) => add(&mut heap, at, start, guard),
                None => {
                    let (start, end) = strip(vocab.kind(id), text, at, at + len, &taken);
                    taken.insert(start, (end, id));
                }
            }
        }
        parts(text.len(), taken)
    }

    /// The longest special token that `text` begins with; hidden kinds at most
    /// `guard` bytes long.
    fn longest(
        &self,
        vocab: &Vocab,
        text: &[u8],
        guard: usize,
        hidden: bool,
    ) -> Option<(u32, usize)> {
        let first = usize::from(*text.first()?);
        let (from, to) = (self.first[first], self.first[first + 1]);
        let mut range = &self.ids[from as usize..to as usize];
        let mut found = None;
        let mut len = 1;
        // `range` holds the tokens whose first `len` bytes are those of `text`.
        while let Some(&id) = range.first() {
            if vocab.text(id).len() == len {
                let kind = vocab.kind(id);
                if !kind.has(Kind::HIDDEN) || (hidden && len <= guard) {
                    found = Some((id, len));
                }
                range = &range[1..];
            }
            let Some(&next) = text.get(len) else { break };
            let byte = |id: &u32| vocab.text(*id).get(len).copied();
            let from = range.partition_point(|id| byte(id) < Some(next));
            let to = range.partition_point(|id| byte(id) <= Some(next));
            range = &range[from..to];
            len += 1;
        }
        found
    }
}

/// Widens a match over the white space that its token swallows.
fn strip(
    kind: Kind,
    text: &[u8],
    mut start: usize,
    mut end: usize,
    taken: &BTreeMap<usize, (usize, u32)>,
) -> (usize, usize) {
    let space = |at: usize| matches!(text[at], b' ' | b'\t'..=b'\r');
    if kind.has(Kind::LSTRIP) {
        let before = taken.range(..start).next_back();
        let from = before.map_or(0, |(_, &(end, _))| end);
        while start > from && space(start - 1) {
            start -= 1;
        }
    }
    if kind.has(Kind::RSTRIP) {
        let after = taken.range(end..).next();
        let to = after.map_or(text.len(), |(&start, _)| start);
        while end < to && space(end) {
            end += 1;
        }
    }
    (start, end)
}

fn parts(len: usize, taken: BTreeMap<usize, (usize, u32)>) -> Vec<Part> {
    let mut parts = Vec::with_capacity(taken.len() * 2 + 1);
    let mut at = 0;
    for (start, (end, id)) in taken {
        if at < start {
            parts.push(Part::Text(at..start));
        }
        parts.push(Part::Token(id));
        at = end;
    }
    if at < len {
        parts.push(Part::Text(at..len));
    }
    parts
}
