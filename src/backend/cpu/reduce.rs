//! ARGMAX, TOP_K, SUM_ROWS, MEAN, SUM, CUMSUM. Sums are f64, as long rows lose digits in
//! f32.
//!
//! Rows are worked on in blocks of a fixed length, and what blocks give is put together
//! from the first to the last, so that no result depends on the number of threads. Of a
//! few long rows every thread takes some blocks.

use super::pool::Worker;
use super::view::View;
use super::{Ctx, Node, simd_reduce};
use crate::graph::Op;
use std::cmp::Ordering;
use std::ops::Range;

/// Values of a block: 32 KB, a level-1 cache; a block takes microseconds, more than a
/// barrier.
const BLOCK: usize = 8192;

/// The blocks of a tensor, row by row.
struct Blocks {
    x: View,
    per_row: usize,
}

impl Blocks {
    fn new(x: View) -> Blocks {
        let per_row = x.ne[0].div_ceil(BLOCK);
        Blocks { x, per_row }
    }

    fn len(&self) -> usize {
        self.x.n_rows() * self.per_row
    }

    /// Numbers of the blocks of a row.
    fn of_row(&self, row: usize) -> Range<usize> {
        row * self.per_row..(row + 1) * self.per_row
    }

    /// Row and first column of a block.
    fn place(&self, block: usize) -> (usize, usize) {
        (block / self.per_row, block % self.per_row * BLOCK)
    }

    fn values(&self, block: usize) -> &[f32] {
        let (row, first) = self.place(block);
        let row = self.x.row(self.x.row_at(row));
        &row[first..row.len().min(first + BLOCK)]
    }
}

/// True when the blocks of `x` (full width) are shared out, not its rows: with eight rows
/// a thread the last ones keep some threads waiting for an eighth of the time at most.
fn shares_blocks(x: &View, n_threads: usize) -> bool {
    n_threads > 1 && x.ne[0] > BLOCK && x.n_rows() < 8 * n_threads
}

/// Scratch bytes of each of `n_threads`: a word for each block that it takes, in runs of
/// fewer threads too.
pub fn scratch_bytes(op: &Op, x: &View, n_threads: usize) -> usize {
    let words = match op {
        Op::Sum => sum_chunks(x),
        _ if shares_blocks(x, n_threads) => Blocks::new(*x).len().div_ceil(2),
        _ => 0,
    };
    8 * words
}

/// Puts the words of this thread's share of `n` into its scratch; all threads then may
/// read all of them with [`word`], until the next barrier.
fn spread(ctx: &Ctx<'_>, worker: &Worker<'_>, n: usize, word: impl Fn(usize) -> u64) {
    let mine = ctx.scratch.words(worker);
    for (to, i) in mine.iter_mut().zip(worker.share(n, 1)) {
        *to = word(i);
    }
    worker.barrier();
}

/// Word `i` of `n` that were spread.
fn word(ctx: &Ctx<'_>, worker: &Worker<'_>, n: usize, i: usize) -> u64 {
    // The last thread whose share, from n * ith / nth on, begins at i or before.
    let ith = ((i + 1) * worker.nth - 1) / n;
    ctx.scratch.word_of(ith, i - n * ith / worker.nth)
}

/// Calls `finish` for each row, on one thread, with what `of_block` gives for its blocks.
fn by_blocks(
    ctx: &Ctx<'_>,
    node: &Node,
    worker: &Worker<'_>,
    of_block: impl Fn(&[f32]) -> u64,
    finish: impl Fn(usize, &mut dyn Iterator<Item = u64>),
) {
    let blocks = Blocks::new(node.src(ctx, 0));
    let rows = worker.share(blocks.x.n_rows(), 1);
    let of_block = |b| of_block(blocks.values(b));
    if !shares_blocks(&node.src[0], worker.nth) {
        for r in rows {
            finish(r, &mut blocks.of_row(r).map(of_block));
        }
        return;
    }
    let n = blocks.len();
    spread(ctx, worker, n, of_block);
    for r in rows {
        finish(r, &mut blocks.of_row(r).map(|b| word(ctx, worker, n, b)));
    }
    worker.barrier();
}

/// Larger first; equal values by rising index; NaN last.
fn by_value(row: &[f32], a: i32, b: i32) -> Ordering {
    let (x, y) = (row[a as usize], row[b as usize]);
    let order = match (x.is_nan(), y.is_nan()) {
        (false, false) => y.partial_cmp(&x).unwrap_or(Ordering::Equal),
        (nan_x, nan_y) => nan_x.cmp(&nan_y),
    };
    order.then(a.cmp(&b))
}

/// Index of the largest value of each row; ties go to the lowest index, NaN is last.
pub fn argmax(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    let max = |x: &[f32]| u64::from(simd_reduce::max(ctx.simd, x).to_bits());
    by_blocks(ctx, node, worker, max, |r, maxima| {
        let row = x.row(x.row_at(r));
        let (mut best, mut first) = (f32::NEG_INFINITY, 0);
        for (block, max) in maxima.map(|m| f32::from_bits(m as u32)).enumerate() {
            if max > best {
                (best, first) = (max, block * BLOCK);
            }
        }
        // A row of NaN has no such value.
        let at = row[first..].iter().position(|v| *v == best);
        dst.put_int([0; 3], r, at.map_or(0, |at| (first + at) as i32));
    });
}

/// Indices of the largest values of each row, by falling value.
pub fn top_k(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_int_rows(worker) {
        best(x.row(at), out);
    }
}

/// Indices of the `out.len()` largest values of a row, by falling value.
pub fn best(row: &[f32], out: &mut [i32]) {
    let mut ids: Vec<i32> = (0..row.len() as i32).collect();
    if out.len() < ids.len() {
        ids.select_nth_unstable_by(out.len() - 1, |&a, &b| by_value(row, a, b));
        ids.truncate(out.len());
    }
    ids.sort_unstable_by(|&a, &b| by_value(row, a, b));
    out.copy_from_slice(&ids);
}

/// Sum of each row, times `factor`.
pub fn sum_rows(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, factor: f64) {
    let dst = node.dst(ctx);
    let sum = |x: &[f32]| simd_reduce::sum(ctx.simd, x).to_bits();
    by_blocks(ctx, node, worker, sum, |r, sums| {
        let sum: f64 = sums.map(f64::from_bits).sum();
        dst.own_columns(dst.row_at(r), 0..1)[0] = (sum * factor) as f32;
    });
}

/// Mean of each row.
pub fn mean(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let n = node.src(ctx, 0).ne[0];
    sum_rows(ctx, node, worker, 1.0 / n as f64);
}

/// Rows that SUM takes together, so that short ones too make about a block.
fn rows_of_chunk(x: &View) -> usize {
    (BLOCK / x.ne[0].max(1)).max(1)
}

/// Pieces in which SUM is worked out: several rows each, or blocks of long ones.
fn sum_chunks(x: &View) -> usize {
    x.n_rows().div_ceil(rows_of_chunk(x)) * x.ne[0].div_ceil(BLOCK)
}

/// Sum of all values.
pub fn sum(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let x = node.src(ctx, 0);
    let (n, rows) = (sum_chunks(&x), rows_of_chunk(&x));
    let blocks = Blocks::new(x);
    spread(ctx, worker, n, |chunk| {
        // A chunk of several rows has one block a row.
        let chunk = chunk * rows..((chunk + 1) * rows).min(blocks.len());
        let sums = chunk.map(|b| simd_reduce::sum(ctx.simd, blocks.values(b)));
        sums.sum::<f64>().to_bits()
    });
    if worker.ith == 0 {
        let sums = (0..n).map(|i| f64::from_bits(word(ctx, worker, n, i)));
        node.dst(ctx).own_columns([0; 3], 0..1)[0] = sums.sum::<f64>() as f32;
    }
    worker.barrier();
}

/// Running sum of each row.
pub fn cumsum(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let dst = node.dst(ctx);
    let blocks = Blocks::new(node.src(ctx, 0));
    // Block `b`, before which `before` was summed up in its row; gives the sum with it.
    let scan = |b: usize, before: f64| {
        let ((row, first), x) = (blocks.place(b), blocks.values(b));
        let out = dst.own_columns(dst.row_at(row), first..first + x.len());
        before + simd_reduce::running_sum(ctx.simd, x, before, out)
    };
    if !shares_blocks(&node.src[0], worker.nth) {
        for r in worker.share(dst.n_rows(), 1) {
            blocks.of_row(r).fold(0.0, |before, b| scan(b, before));
        }
        return;
    }
    let n = blocks.len();
    spread(ctx, worker, n, |b| {
        simd_reduce::total(ctx.simd, blocks.values(b)).to_bits()
    });
    let mut before = None;
    for b in worker.share(n, 1) {
        let (row, first) = blocks.place(b);
        let earlier = || {
            let earlier = blocks.of_row(row).start..b;
            let sums = earlier.map(|b| f64::from_bits(word(ctx, worker, n, b)));
            sums.fold(0.0, |sum, x| sum + x)
        };
        let sum = match before {
            Some(sum) if first > 0 => sum,
            _ => earlier(),
        };
        before = Some(scan(b, sum));
    }
    worker.barrier();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::DType;

    /// The pool leaves threads out of a run without changing the scratch.
    #[test]
    fn scratch_is_enough_for_runs_of_fewer_threads() {
        for ne in [
            [BLOCK, 3],
            [100_000, 1],
            [100_000, 20],
            [BLOCK + 1, 7],
            [40, 90_000],
        ] {
            let x = View {
                ptr: std::ptr::null_mut(),
                dtype: DType::F32,
                ne: [ne[0], ne[1], 1, 1],
                nb: [4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1]],
                live: None,
            };
            for n_threads in 1..9 {
                let held = |op| scratch_bytes(&op, &x, n_threads);
                for nth in 1..=n_threads {
                    assert!(held(Op::Sum) >= 8 * sum_chunks(&x).div_ceil(nth));
                    if shares_blocks(&x, nth) {
                        assert!(held(Op::Argmax) >= 8 * Blocks::new(x).len().div_ceil(nth));
                    }
                }
            }
        }
    }
}
