//! What layers keep: K and V rows of past tokens, one cell a token, and recurrent
//! states, one slot a sequence; and which token each cell holds.
//!
//! Layers with a sliding window share a smaller set of cells, in which a cell
//! is used again once no coming token can see it.

use super::host::available_bytes;
use crate::backend::cpu::Buffer;
use crate::error::{Error, Result};
use crate::graph::{CacheId, CacheKind};
use crate::quant::DType;

/// What one layer keeps, in values: rows of K and V of a cell, states of a slot.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerRows {
    pub k: usize,
    pub v: usize,
    pub swa: bool,
    pub conv: usize,
    pub state: usize,
}

/// How many cells and slots there are, and of which types.
#[derive(Debug, Clone, Copy)]
pub struct CacheSizes {
    /// Of K and V.
    pub types: [DType; 2],
    /// Of full and of sliding-window layers.
    pub n_cells: [usize; 2],
    pub n_slots: usize,
}

impl CacheSizes {
    /// Bytes of one row (a cell's, or a slot's state) of this kind.
    pub fn row_bytes(&self, layer: &LayerRows, kind: CacheKind) -> usize {
        let (dtype, n) = match kind {
            CacheKind::K => (self.types[0], layer.k),
            CacheKind::V => (self.types[1], layer.v),
            CacheKind::Conv => (DType::F32, layer.conv),
            CacheKind::State => (DType::F32, layer.state),
        };
        n / dtype.block_len() * dtype.block_bytes()
    }

    /// Rows of a cache of this kind.
    pub fn n_rows(&self, layer: &LayerRows, kind: CacheKind) -> usize {
        match kind {
            CacheKind::K | CacheKind::V => self.n_cells[usize::from(layer.swa)],
            CacheKind::Conv | CacheKind::State => self.n_slots,
        }
    }

    /// Exact bytes of every cache tensor, by [`CacheId`]; 0 where a layer has none.
    pub fn bytes(&self, layers: &[LayerRows]) -> Vec<usize> {
        let of_layer = |l: &LayerRows| {
            let l = *l;
            let bytes = move |kind| {
                self.n_rows(&l, kind)
                    .saturating_mul(self.row_bytes(&l, kind))
            };
            CacheKind::ALL.map(bytes)
        };
        layers.iter().flat_map(of_layer).collect()
    }
}

/// The memory of the cells that live on the host.
pub struct KvStore {
    /// By [`CacheId`]; `None` for what a device holds.
    buffers: Vec<Option<Buffer>>,
}

impl KvStore {
    /// Allocates the cache tensors of these `bytes` for which `on_host` holds;
    /// `n_ctx` is named when there is no room.
    pub fn new(
        bytes: &[usize],
        n_ctx: usize,
        on_host: &dyn Fn(CacheId) -> bool,
    ) -> Result<KvStore> {
        let held = |at: usize| (bytes[at] > 0 && on_host(CacheId(at))).then(|| bytes[at]);
        let total = (0..bytes.len()).filter_map(held);
        let total = total.fold(0, usize::saturating_add);
        // Memory is handed out untouched, so asking for it does not fail in time.
        if let Some(free) = available_bytes().filter(|&free| total > free) {
            return Err(Error::DoesNotFit(format!(
                "the cache of {n_ctx} tokens needs {} MiB, {} MiB are free; lower -c",
                total >> 20,
                free >> 20
            )));
        }
        let allocate = |bytes| Buffer::new(bytes, "the KV cache");
        let buffers = (0..bytes.len()).map(|at| held(at).map(allocate).transpose());
        Ok(KvStore {
            buffers: buffers.collect::<Result<_>>()?,
        })
    }

    /// The cells of one cache tensor.
    pub fn get(&self, id: CacheId) -> Option<&Buffer> {
        self.buffers.get(id.0)?.as_ref()
    }
}

/// Which token each cell holds.
#[derive(Debug, Clone)]
pub struct Cells {
    /// Position of the token in a cell, -1 when it is empty.
    pos: Vec<i32>,
    /// Sequence of the token.
    seq: Vec<i32>,
    /// Cells from here on have never been used.
    n_used: usize,
    /// `Some(n)`: tokens see less than `n` positions back.
    window: Option<i32>,
    /// Cells that a sequence may have.
    most: usize,
}

impl Cells {
    /// Empty cells, shared evenly by `n_seqs` sequences.
    pub fn new(n_cells: usize, n_seqs: usize, window: Option<u32>) -> Cells {
        Cells {
            pos: vec![-1; n_cells],
            seq: vec![0; n_cells],
            n_used: 0,
            // No position reaches 2^30 (the reader of context sizes sees to it).
            window: window.map(|w| w.min(1 << 30) as i32),
            most: n_cells / n_seqs,
        }
    }

    /// Positions, -1 for empty cells, up to the last cell in use.
    pub fn pos(&self) -> &[i32] {
        &self.pos[..self.n_used]
    }

    /// Sequences, up to the last cell in use.
    pub fn seq(&self) -> &[i32] {
        &self.seq[..self.n_used]
    }

    /// Takes a cell for each token of `seq` at positions `first ..`; `None`,
    /// with nothing changed, when there are too few.
    pub fn place(&mut self, seq: i32, first: i32, n_tokens: usize) -> Option<Vec<i32>> {
        let slots = match self.window {
            Some(window) => self.free_or_passed(seq, first - window, n_tokens),
            None => self.free(n_tokens),
        };
        if slots.len() < n_tokens {
            return None;
        }
        for (i, &cell) in slots.iter().enumerate() {
            self.pos[cell] = first + i as i32;
            self.seq[cell] = seq;
            self.n_used = self.n_used.max(cell + 1);
        }
        Some(slots.into_iter().map(|cell| cell as i32).collect())
    }

    /// Takes `cells` for the tokens of `seq` from position `first` on, in that order; false,
    /// with nothing changed, when one is not there, not empty or twice in the list.
    pub fn place_at(&mut self, seq: i32, first: i32, cells: &[usize]) -> bool {
        let too_many = self.window.is_some() && cells.len() > self.most;
        let mut taken = vec![false; self.pos.len()];
        let free = |&cell: &usize| {
            let fresh = taken
                .get_mut(cell)
                .is_some_and(|t| !std::mem::replace(t, true));
            fresh && self.pos[cell] < 0
        };
        if too_many || !cells.iter().all(free) {
            return false;
        }
        for (pos, &cell) in (first..).zip(cells) {
            self.pos[cell] = pos;
            self.seq[cell] = seq;
            self.n_used = self.n_used.max(cell + 1);
        }
        true
    }

    /// At most `n` empty cells.
    fn free(&self, n: usize) -> Vec<usize> {
        // Cells never used come first, so that a long context is not searched.
        let fresh = self.n_used.min(self.pos.len().saturating_sub(n));
        let start = if self.n_used == fresh { fresh } else { 0 };
        let empty = (start..self.pos.len()).filter(|&cell| self.pos[cell] < 0);
        empty.take(n).collect()
    }

    /// At most `n` cells for `seq`: empty ones up to its share, so that it leaves the
    /// others theirs, then its own up to position `passed`, which no coming token sees,
    /// the oldest first, so that what is left has no gaps. Empty ones come from behind
    /// its last token on, so that tokens that were cut off get the cells they had.
    fn free_or_passed(&self, seq: i32, passed: i32, n: usize) -> Vec<usize> {
        let own = self.of(seq);
        let next = own.last().map_or(0, |&last| last + 1);
        let ring = (next..self.pos.len()).chain(0..next);
        let empty = ring.filter(|&cell| self.pos[cell] < 0);
        let mut cells: Vec<usize> = empty
            .take(n.min(self.most.saturating_sub(own.len())))
            .collect();
        let old = own.into_iter().take_while(|&c| self.pos[c] <= passed);
        cells.extend(old.take(n - cells.len()));
        cells
    }

    /// Cells of `seq` in order of position.
    pub fn of(&self, seq: i32) -> Vec<usize> {
        let mut cells: Vec<usize> = (0..self.n_used)
            .filter(|&c| self.seq[c] == seq && self.pos[c] >= 0)
            .collect();
        cells.sort_by_key(|&c| self.pos[c]);
        cells
    }

    /// Forgets the tokens of `seq` at `from` and later. False when the tokens
    /// left lack some that the one at `from` would see: then the sequence must
    /// be evaluated again from the start.
    pub fn truncate(&mut self, seq: i32, from: i32) -> bool {
        let mut left = 0;
        let oldest_seen = self.window.map_or(0, |w| (from - w + 1).max(0));
        for cell in 0..self.n_used {
            if self.seq[cell] != seq {
                continue;
            }
            if self.pos[cell] >= from {
                self.pos[cell] = -1;
            } else if self.pos[cell] >= oldest_seen {
                left += 1;
            }
        }
        while self.n_used > 0 && self.pos[self.n_used - 1] < 0 {
            self.n_used -= 1;
        }
        left == from - oldest_seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_beyond_memory_is_refused_before_it_is_touched() {
        let layer = LayerRows {
            k: 1024,
            v: 1024,
            state: 100,
            ..LayerRows::default()
        };
        let sizes = |n| CacheSizes {
            types: [DType::F16, DType::F32],
            n_cells: [n, 1],
            n_slots: 3,
        };
        let large = sizes(1 << 40).bytes(&[layer]);
        let refused = KvStore::new(&large, 1 << 40, &|_| true);
        assert!(matches!(refused, Err(Error::DoesNotFit(_))));
        let elsewhere = KvStore::new(&large, 1 << 40, &|_| false).expect("nothing");
        assert!(elsewhere.get(CacheId(0)).is_none());
        let small = sizes(16).bytes(&[layer]);
        assert_eq!(small, [16 * 2048, 16 * 4096, 0, 3 * 400]);
        let store = KvStore::new(&small, 16, &|id| id.0 == 1 || id.0 == 2).expect("64 KiB");
        assert_eq!(store.get(CacheId(1)).map(Buffer::bytes), Some(16 * 4096));
        assert!(store.get(CacheId(0)).is_none() && store.get(CacheId(2)).is_none());
    }

    #[test]
    fn window_cells_are_used_again_only_when_nobody_sees_them() {
        // Window 4, ubatch 2: 6 cells serve any length.
        let mut cells = Cells::new(6, 1, Some(4));
        for first in (0..40).step_by(2) {
            let slots = cells.place(0, first, 2).expect("a free cell");
            assert_eq!(slots.len(), 2);
            let held = cells.pos();
            for p in first..first + 2 {
                for seen in (p - 3).max(0)..=p {
                    assert!(held.contains(&seen), "{p} must still see {seen}: {held:?}");
                }
            }
        }
    }

    #[test]
    fn a_long_sequence_leaves_the_others_their_cells() {
        let mut cells = Cells::new(12, 2, Some(4));
        for first in 0..40 {
            cells.place(0, first, 1).expect("a free cell");
        }
        let held = |cells: &Cells, seq| -> Vec<i32> {
            cells.of(seq).iter().map(|&c| cells.pos()[c]).collect()
        };
        assert_eq!(held(&cells, 0), [34, 35, 36, 37, 38, 39]);
        for first in (0..40).step_by(2) {
            cells.place(1, first, 2).expect("a free cell");
        }
        assert_eq!(held(&cells, 1), [34, 35, 36, 37, 38, 39]);
        assert_eq!(held(&cells, 0), [34, 35, 36, 37, 38, 39]);
    }

    #[test]
    fn tokens_that_were_cut_off_get_the_cells_they_had() {
        let (mut plain, mut cut) = (Cells::new(7, 1, Some(4)), Cells::new(7, 1, Some(4)));
        for at in 0..30 {
            let want = plain.place(0, at, 1).expect("a free cell");
            // With two more, of which nothing is kept.
            let slots = cut.place(0, at, 3).expect("free cells");
            assert_eq!(slots[..1], want, "{at}");
            assert!(cut.truncate(0, at + 1), "{at}");
        }
    }

    #[test]
    fn truncation_says_when_the_window_is_gone() {
        let mut cells = Cells::new(6, 1, Some(4));
        for first in (0..10).step_by(2) {
            cells.place(0, first, 2).expect("a free cell");
        }
        // Held: 4 to 9. A token at 8 sees 5, 6, 7: fine.
        assert!(cells.clone().truncate(0, 8));
        // A token at 6 would see 3, which is gone.
        assert!(!cells.clone().truncate(0, 6));
        // Nothing is seen by a token at 0.
        assert!(cells.truncate(0, 0));
        assert_eq!(cells.pos().len(), 0);
    }

    #[test]
    fn cells_can_be_chosen() {
        let mut cells = Cells::new(4, 1, None);
        for bad in [&[4, 0][..], &[1, 1]] {
            assert!(!cells.place_at(0, 5, bad) && cells.pos().is_empty());
        }
        assert!(cells.place_at(0, 5, &[2, 0]));
        assert_eq!((cells.pos(), cells.of(0)), (&[6, -1, 5][..], vec![2, 0]));
        assert!(!cells.place_at(1, 0, &[1, 2]));
        assert_eq!(cells.place(1, 0, 2), Some(vec![1, 3]));
        // Of a window each sequence has its share only.
        let mut shared = Cells::new(4, 2, Some(2));
        assert!(!shared.place_at(0, 0, &[0, 1, 2]) && shared.place_at(0, 0, &[1, 2]));
    }

    #[test]
    fn full_cells_refuse_without_change() {
        let mut cells = Cells::new(4, 1, None);
        assert_eq!(cells.place(0, 0, 3), Some(vec![0, 1, 2]));
        assert_eq!(cells.place(0, 3, 2), None);
        assert_eq!(cells.pos(), [0, 1, 2]);
        assert!(cells.truncate(0, 1));
        assert_eq!(cells.place(0, 1, 3), Some(vec![1, 2, 3]));
    }
}
