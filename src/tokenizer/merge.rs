//! The loop that BPE and SPM share: join neighbours, the best pair first.
//!
//! A linked list of symbols and a heap of pairs: n symbols take O(n log n)
//! time and no recursion, whatever the text.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No neighbour, or no token.
pub(super) const NONE: u32 = u32::MAX;

/// A piece of the text being merged.
#[derive(Clone, Copy)]
pub(super) struct Symbol {
    /// Token (or stand-in) of this piece; `NONE` when it has none yet.
    pub id: u32,
    /// Byte range in the text; `len` is 0 once it was joined to its left.
    pub start: u32,
    pub len: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

/// What a pair may become.
pub(super) struct Join {
    /// Smaller joins first; of equals, the leftmost.
    pub rank: u32,
    /// Token of the joined piece.
    pub id: u32,
}

/// (rank, left, right, joined length, joined id), smallest first.
type Candidate = Reverse<(u32, u32, u32, u32, u32)>;

/// Symbols of one text; kept between texts for its memory.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate>,
}

impl Merger {
    /// Forgets the last text.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends a symbol of `len` bytes behind the last one.
    pub fn push(&mut self, id: u32, len: usize) {
        let start = self.symbols.last().map_or(0, |s| s.start + s.len);
        let index = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        self.symbols.push(Symbol {
            id,
            start,
            len: len as u32,
            prev: index.wrapping_sub(1),
            next: NONE,
        });
    }

    /// Joins pairs until `join` allows none; yields what is left, in order.
    pub fn merge(
        &mut self,
        join: impl Fn(&Symbol, &Symbol) -> Option<Join>,
    ) -> impl Iterator<Item = &Symbol> {
        for left in 1..self.symbols.len() as u32 {
            self.consider(left - 1, left, &join);
        }
        while let Some(Reverse((_, left, right, len, id))) = self.heap.pop() {
            let (l, r) = (self.symbols[left as usize], self.symbols[right as usize]);
            // Either side was joined to something else since.
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            self.symbols[right as usize].len = 0;
            let joined = &mut self.symbols[left as usize];
            (joined.id, joined.len, joined.next) = (id, len, r.next);
            if r.next != NONE {
                self.symbols[r.next as usize].prev = left;
                self.consider(left, r.next, &join);
            }
            if l.prev != NONE {
                self.consider(l.prev, left, &join);
            }
        }
        self.symbols.iter().filter(|s| s.len > 0)
    }

    fn consider(&mut self, left: u32, right: u32, join: impl Fn(&Symbol, &Symbol) -> Option<Join>) {
        let (l, r) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some(Join { rank, id }) = join(l, r) {
            let candidate = (rank, left, right, l.len + r.len, id);
            self.heap.push(Reverse(candidate));
        }
    }
}
