//! Rows of a product, shared out among the threads, which take from each other's shares
//! when their own is done: cores seldom run equally fast (12 % apart for seconds on two
//! that share their host), and every product ends at a barrier.
//!
//! A thread takes its share from the front, an eighth of what is left each time; others
//! take half of what is left, from the end. Which thread multiplies a row does not change
//! its bits.

use super::matmul::{Piece, ROW_TILE};
use super::pool::Worker;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tiles of rows that nobody has taken yet: the first in the upper half, the end in the
/// lower. A run sets it before its first barrier, so what was taken is never seen again.
struct Left(AtomicU64);

impl Left {
    fn set(&self, tiles: Range<u32>) {
        let both = u64::from(tiles.start) << 32 | u64::from(tiles.end);
        self.0.store(both, Ordering::Relaxed);
    }

    fn get(&self) -> Range<u32> {
        let both = self.0.load(Ordering::Relaxed);
        (both >> 32) as u32..both as u32
    }

    /// Some of the tiles, at least `least`: for their owner from the front, for others from
    /// the end, where taking is rarer and slower.
    fn take(&self, least: u32, owner: bool) -> Option<Range<u32>> {
        let mut taken = None;
        // Nothing but the tiles themselves is handed over: barriers order the data.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |both| {
                let left = (both >> 32) as u32..both as u32;
                let n = left.len() as u32;
                let piece = (n / if owner { 8 } else { 2 }).max(least).min(n);
                let (mine, rest) = match owner {
                    true => (left.start..left.start + piece, left.start + piece..left.end),
                    false => (left.end - piece..left.end, left.start..left.end - piece),
                };
                taken = (piece > 0).then_some(mine);
                taken.as_ref()?;
                Some(u64::from(rest.start) << 32 | u64::from(rest.end))
            });
        taken
    }
}

/// Shares of all products of a graph.
pub struct Shares {
    /// Rows of each product.
    rows: Vec<usize>,
    /// What is left of each thread's share of each.
    left: Vec<Vec<Left>>,
}

impl Shares {
    /// Shares of products with so many rows each, for `n_threads`.
    pub fn new(rows: Vec<usize>, n_threads: usize) -> Shares {
        let none = || rows.iter().map(|_| Left(AtomicU64::new(0))).collect();
        let left = (0..n_threads).map(|_| none()).collect();
        Shares { rows, left }
    }

    /// The share that thread `ith` of `nth` has of the rows of a product.
    fn share(&self, (ith, nth): (usize, usize), product: usize) -> Range<usize> {
        let rows = self.rows[product];
        let cut = |i: usize| (rows.div_ceil(ROW_TILE) * i / nth * ROW_TILE).min(rows);
        cut(ith)..cut(ith + 1)
    }

    /// Gives a thread its shares; a barrier must follow before anyone takes.
    pub fn begin(&self, worker: &Worker<'_>) {
        for (product, left) in self.left[worker.ith].iter().enumerate() {
            let share = self.share((worker.ith, worker.nth), product);
            left.set(0..share.len().div_ceil(ROW_TILE) as u32);
        }
    }

    /// What this thread multiplies next, some `least` rows or more, as long as there are
    /// any.
    pub fn take(&self, worker: &Worker<'_>, product: usize, least: usize) -> Option<Piece> {
        let least = least.div_ceil(ROW_TILE).max(1) as u32;
        let own = self.left[worker.ith][product].take(least, true);
        let own = own.map(|tiles| (worker.ith, tiles));
        let (ith, tiles) = own.or_else(|| self.take_from_others(worker, product, least))?;
        Some(Piece {
            share: self.share((ith, worker.nth), product),
            tiles: tiles.start as usize..tiles.end as usize,
        })
    }

    /// Tiles of the thread that has most left.
    fn take_from_others(
        &self,
        worker: &Worker<'_>,
        product: usize,
        least: u32,
    ) -> Option<(usize, Range<u32>)> {
        let left = |i: usize| &self.left[i][product];
        loop {
            let others = (0..worker.nth).filter(|&i| i != worker.ith);
            // Shares only shrink, so where all were empty they stay so.
            let (most, other) = others.map(|i| (left(i).get().len(), i)).max()?;
            if most == 0 {
                return None;
            }
            // Someone may have been faster; then there is less left to look through.
            if let Some(tiles) = left(other).take(least, false) {
                return Some((other, tiles));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::pool::Pool;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    /// Tiles of all pieces that threads took of `rows` rows, and how many each took.
    fn taken(rows: usize, n_threads: usize, slow: bool) -> (Vec<Piece>, Vec<usize>) {
        let mut pool = Pool::new(n_threads).expect("threads");
        let shares = Shares::new(vec![77, rows], n_threads);
        let pieces = Mutex::new(Vec::new());
        let counts: Vec<_> = (0..n_threads).map(|_| AtomicUsize::new(0)).collect();
        pool.run(&|worker: &Worker<'_>| {
            shares.begin(worker);
            worker.barrier();
            while let Some(piece) = shares.take(worker, 1, 40) {
                counts[worker.ith].fetch_add(piece.tiles.len(), Ordering::Relaxed);
                pieces.lock().expect("no panic").push(piece);
                if slow && worker.ith == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(30));
                }
            }
        });
        let counts = counts.into_iter().map(AtomicUsize::into_inner).collect();
        (pieces.into_inner().expect("no panic"), counts)
    }

    #[test]
    fn every_tile_is_taken_once() {
        for (rows, n_threads) in [(0, 2), (1, 3), (16, 2), (50, 2), (1000, 3), (4096, 5)] {
            let (pieces, _) = taken(rows, n_threads, false);
            let mut seen = vec![0; rows];
            for Piece { share, tiles } in pieces {
                for tile in tiles {
                    let at = share.start + tile * ROW_TILE;
                    assert!(at < share.end && share.end <= rows, "{rows} {n_threads}");
                    for times in &mut seen[at..share.end.min(at + ROW_TILE)] {
                        *times += 1;
                    }
                }
            }
            assert_eq!(seen, vec![1; rows], "{rows} rows, {n_threads} threads");
        }
    }

    #[test]
    fn a_slow_thread_is_helped() {
        let (_, counts) = taken(16 * 1000, 2, true);
        assert!(counts[0] < 400 && counts[1] > 600, "{counts:?}");
    }
}
