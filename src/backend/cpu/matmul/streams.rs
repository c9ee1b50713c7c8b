//! One token's products in tiles whose rows lie far apart.

use super::driver::{CACHE_LINE, MOST_ROW_BYTES, Ops, chunk_len};
use super::operands::{Acts, Weights};
use super::{Piece, ROW_TILE};

/// One token: multiplies rows in tiles whose 16 rows lie far apart, so that each thread
/// reads 16 streams from front to back. Processors follow those by themselves, and read
/// more that way than when asked for the next 16 rows ahead: 33 to 35 GB/s for 26 to 31 on
/// two Zen 4 cores. Gives the first tile of the share whose rows lie together.
///
/// # Safety
/// As for [`driver::run`](super::driver::run); `piece` is inside `w`.
pub unsafe fn run(
    ops: &Ops,
    w: &Weights,
    acts: &Acts,
    piece: &Piece,
    (tx, ty): (&[u32], &[u32]),
    (y, y_stride): (*mut f32, usize),
) -> usize {
    let ([token], [to]) = (tx, ty) else {
        return 0;
    };
    // Float rows are read 16 bytes at a time.
    let whole = w.dtype.is_quantized() || w.row_bytes.is_multiple_of(16);
    let Some(dot) = ops.dot.filter(|_| whole && piece.share.len() >= ROW_TILE) else {
        return 0;
    };
    let chunk = chunk_len(w, 1);
    // SAFETY: the caller's contract.
    let y = unsafe { y.add(*to as usize * y_stride) };
    let apart = rows_apart(piece.share.len(), w.row_bytes);
    for r in piece.spread(apart) {
        let r = piece.share.start + r;
        let mut sums = [0.0; ROW_TILE];
        for k0 in (0..w.k).step_by(chunk) {
            let at = k0 / w.dtype.block_len() * w.dtype.block_bytes();
            let src = w.bytes[r * w.row_bytes + at..].as_ptr();
            let k = (k0, chunk.min(w.k - k0));
            let stride = apart * w.row_bytes;
            // SAFETY: 16 rows `apart` are inside the share, values `k` in them.
            unsafe { dot((src, stride), k, acts, *token, sums.as_mut_ptr()) };
        }
        for (i, sum) in sums.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { y.add(r + i * apart).write(sum) };
        }
    }
    apart
}

/// How far apart the rows of a tile lie, given at least 16: their distance in bytes stays
/// below what gather offsets hold, and they do not all fall on few sets of a cache.
fn rows_apart(n_rows: usize, row_bytes: usize) -> usize {
    let most = (n_rows / ROW_TILE).min(MOST_ROW_BYTES / row_bytes).max(1);
    let spread = |apart: &usize| !(apart * row_bytes / CACHE_LINE).is_multiple_of(8);
    let near = most.saturating_sub(8).max(1)..=most;
    near.rev().find(spread).unwrap_or(most)
}
