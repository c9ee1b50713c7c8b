//! Walks tiles of W, chunks of k and blocks of tokens.
//!
//! ```text
//! for each 16 rows: for each chunk of k: unpack, then for each block of
//! tokens: acc [16, tokens] += tile * x; at last acc goes to y
//! ```
//!
//! A tile is unpacked once for all tokens. Its chunk stays in the L1 cache
//! while the tokens' chunks come from L2.

use std::ops::Range;

use super::acts::ACT_GROUP;
use super::operands::{Acts, Weights};
use super::q16::VALUE_STEP;
use super::tile::{GROUP_STEP, Q_STEP, SCALE_STEP, Tile};
use super::{ActKind, Piece, ROW_TILE, along, streams};
use crate::quant::DType;

/// Values of a chunk for one or a few tokens: small, so that unpacking one
/// overlaps with multiplying the one before.
const K_CHUNK_DECODE: usize = 256;
/// Values of a chunk for many tokens: 12 KiB of lanes and 3 or 6 of factors leave
/// room in the L1 cache for twelve tokens' 14.
const K_CHUNK: usize = 768;
/// Values of a chunk in f32: 16 KiB.
pub const K_CHUNK_F32: usize = 256;
/// Up to this many tokens W comes from memory faster than it is used, so the
/// next tile is asked for ahead of time.
const DECODE_TOKENS: usize = 8;
/// Values of a chunk in 16 bits: 13 KiB with their steps, beside twelve tokens' 10.
const K_CHUNK_16: usize = 384;
/// Bytes of a chunk's f32 values, or 16-bit lanes and steps.
const VALUES_BYTES: usize = K_CHUNK_F32 * ROW_TILE * 4;
const _: () =
    assert!(K_CHUNK_16 * VALUE_STEP + K_CHUNK_16 / ACT_GROUP * SCALE_STEP <= VALUES_BYTES);
pub const CACHE_LINE: usize = 64;
/// Most bytes between two rows of a tile: gather offsets of 16 are i32.
pub const MOST_ROW_BYTES: usize = (1 << 27) - 1;
/// How far ahead a stream of a row is asked for: across the end of a page, where
/// processors stop following it.
pub const STREAM_AHEAD: usize = 1024;

/// A thread's scratch, cut into its parts.
pub struct Scratch {
    /// Sums `[16 rows, n_tokens]`.
    acc: *mut f32,
    /// 16 rows' blocks of one chunk, where the rows themselves cannot be read
    /// as a whole tile.
    stage: *mut u8,
    /// Lanes.
    pub tile: Tile,
    /// f32 values `[16 rows, k]`.
    pub values: *mut f32,
}

/// Unpacks `k` values of 16 rows at `src`, `stride` bytes apart.
///
/// # Safety
/// The instruction set is available; the rows' bytes are readable (rounded up
/// to 16 for float formats); `k` is at most a chunk.
pub type UnpackFn = unsafe fn(src: *const u8, stride: usize, k: usize, scratch: &Scratch);

/// Adds to `acc [16 rows, tokens]` the unpacked chunk, values `k0..k0 + k`, times
/// rows `tx` of the activations.
///
/// # Safety
/// The instruction set is available; the chunk has been unpacked; `tx` and
/// `acc` have as many tokens as the kernel takes.
pub type KernelFn =
    unsafe fn(scratch: &Scratch, k0: usize, k: usize, acts: &Acts, tx: *const u32, acc: *mut f32);

/// Adds to `acc [16 rows]` values `k0..k0 + k` (the second argument) of 16 rows
/// times row `token` of the activations. The first argument is the rows'
/// address and stride; what follows in each row is asked for.
///
/// # Safety
/// As for [`UnpackFn`] and [`KernelFn`].
pub type DotFn =
    unsafe fn(rows: (*const u8, usize), k: (usize, usize), acts: &Acts, token: u32, acc: *mut f32);

/// The functions for one type, kind of activations and instruction set.
pub struct Ops {
    pub unpack: UnpackFn,
    /// Kernel `i` takes `i + 1` tokens.
    pub kernels: &'static [KernelFn],
    /// One token without a tile, where it pays.
    pub dot: Option<DotFn>,
    /// One token along the rows, where it pays more.
    pub along: Option<along::Ops>,
}

/// Values of a chunk for `n` tokens.
pub fn chunk_len(w: &Weights, n: usize) -> usize {
    match (w.acts, n <= DECODE_TOKENS) {
        (ActKind::F32, _) => K_CHUNK_F32,
        (ActKind::Q16, _) => K_CHUNK_16,
        (ActKind::Q8, true) if n > 1 => K_CHUNK_DECODE,
        (ActKind::Q8, _) => K_CHUNK,
    }
}

/// Bytes of `k` values, rounded up to 16.
fn chunk_bytes(dtype: DType, k: usize) -> usize {
    (k.div_ceil(dtype.block_len()) * dtype.block_bytes()).next_multiple_of(16)
}

/// Byte sizes of the scratch's parts: sums, stage, lanes, groups, f32 values.
fn parts(dtype: DType, n: usize) -> [usize; 5] {
    let k = match dtype {
        DType::F32 => K_CHUNK_F32,
        DType::F16 | DType::BF16 => K_CHUNK_16,
        _ => K_CHUNK,
    };
    [
        n * ROW_TILE * 4,
        ROW_TILE * chunk_bytes(dtype, k),
        K_CHUNK / 4 * Q_STEP,
        K_CHUNK / 16 * GROUP_STEP,
        VALUES_BYTES,
    ]
}

/// Scratch bytes for `n` tokens of `k` values.
pub fn scratch_bytes(dtype: DType, k: usize, n: usize) -> usize {
    let along = along::ops(dtype, ActKind::Q8, k).filter(|_| n == 1);
    let x_bytes = along.map_or(0, |along| along.x_bytes(k));
    parts(dtype, n).iter().sum::<usize>().max(x_bytes) + CACHE_LINE
}

impl Scratch {
    /// Where 16-bit lanes and their steps lie: in place of f32 values.
    #[inline(always)]
    pub fn tile16(&self) -> Tile {
        let q = self.values.cast::<u8>();
        Tile {
            q,
            groups: q.wrapping_add(K_CHUNK_16 * VALUE_STEP),
        }
    }

    /// Cuts `scratch` up; all parts begin on a cache line.
    fn cut(scratch: &mut [u8], dtype: DType, n: usize) -> Scratch {
        let bytes = parts(dtype, n).iter().sum::<usize>() + CACHE_LINE;
        assert!(scratch.len() >= bytes, "scratch of matmul");
        let mut p = scratch.as_mut_ptr();
        let mut take = |bytes: usize| {
            let part = p;
            // SAFETY: the parts add up to at most the length asserted above.
            p = unsafe { p.add(bytes) };
            part
        };
        take(scratch.as_ptr().align_offset(CACHE_LINE));
        let [acc, stage, q, groups, values] = parts(dtype, n).map(take);
        Scratch {
            acc: acc.cast(),
            stage,
            tile: Tile { q, groups },
            values: values.cast(),
        }
    }
}

/// Computes `y[ty[j] * y_stride + r]` for `r` in all `pieces` and every `j`.
///
/// # Safety
/// The instruction set of `ops` is available; `tx` are rows of `acts`; `y` is
/// writable at all those places, which no other thread touches meanwhile.
pub unsafe fn run(
    ops: &Ops,
    w: &Weights,
    acts: &Acts,
    pieces: &mut dyn Iterator<Item = Piece>,
    (tx, ty): (&[u32], &[u32]),
    (y, y_stride): (*mut f32, usize),
    scratch: &mut [u8],
) {
    let n = tx.len();
    assert!(ty.len() == n);
    assert!(w.row_bytes <= MOST_ROW_BYTES, "a row of W is below 128 MiB");
    let mut one = None;
    if let (Some(along), &[token], &[to]) = (ops.along, tx, ty) {
        // SAFETY: the caller's contract.
        one = unsafe {
            let y = y.add(to as usize * y_stride);
            along.run(w, acts.row(token, 0), pieces, y, scratch)
        };
    }
    let scratch = Scratch::cut(scratch, w.dtype, n);
    for piece in one.into_iter().chain(pieces) {
        assert!(piece.share.end * w.row_bytes <= w.bytes.len());
        // SAFETY: the range is checked above, the rest is the caller's contract.
        unsafe {
            let done = streams::run(ops, w, acts, &piece, (tx, ty), (y, y_stride));
            run_tiles(
                ops,
                w,
                acts,
                piece.rows(done),
                (tx, ty),
                (y, y_stride),
                &scratch,
            );
        }
    }
}

/// Multiplies rows in tiles of 16 that lie together.
///
/// # Safety
/// As for [`run`].
unsafe fn run_tiles(
    ops: &Ops,
    w: &Weights,
    acts: &Acts,
    rows: Range<usize>,
    (tx, ty): (&[u32], &[u32]),
    (y, y_stride): (*mut f32, usize),
    scratch: &Scratch,
) {
    let n = tx.len();
    for r0 in rows.clone().step_by(ROW_TILE) {
        let live = ROW_TILE.min(rows.end - r0);
        // SAFETY: the sums have room for `n` tokens; `ops` and `acts` by contract.
        unsafe {
            scratch.acc.write_bytes(0, n * ROW_TILE);
            multiply_tile(ops, w, acts, r0..r0 + live, tx, scratch);
            for (j, &row) in ty.iter().enumerate() {
                let to = y.add(row as usize * y_stride + r0);
                let sums = scratch.acc.add(j * ROW_TILE);
                if live == ROW_TILE {
                    // A copy of known size needs no call.
                    let sums = sums.cast::<[f32; ROW_TILE]>().read();
                    to.cast::<[f32; ROW_TILE]>().write(sums);
                } else {
                    to.copy_from_nonoverlapping(sums, live);
                }
            }
        }
    }
}

/// Adds the products of up to 16 rows to the sums.
///
/// # Safety
/// As for [`run`]; the rows are inside `w`.
unsafe fn multiply_tile(
    ops: &Ops,
    w: &Weights,
    acts: &Acts,
    rows: Range<usize>,
    tx: &[u32],
    scratch: &Scratch,
) {
    let (n, chunk) = (tx.len(), chunk_len(w, tx.len()));
    let block_at = |k: usize| k / w.dtype.block_len() * w.dtype.block_bytes();
    let tile = &w.bytes[rows.start * w.row_bytes..];
    for k0 in (0..w.k).step_by(chunk) {
        let k = chunk.min(w.k - k0);
        let bytes = block_at(k0)..block_at(k0 + k);
        let ahead = ROW_TILE * (w.row_bytes + bytes.start);
        // Float rows are read 16 bytes at a time.
        let even = w.dtype.is_quantized() || bytes.len() % 16 == 0;
        let dot = ops.dot.filter(|_| even && n == 1);
        if dot.is_none() && n <= DECODE_TOKENS {
            prefetch(tile, ahead, ROW_TILE * bytes.len());
        }
        let (src, stride) = if even && rows.len() == ROW_TILE {
            (tile[bytes.start..].as_ptr(), w.row_bytes)
        } else {
            // SAFETY: the stage has room for a chunk of 16 rows.
            unsafe { stage(tile, rows.len(), w.row_bytes, bytes, scratch.stage) }
        };
        // SAFETY: 16 rows of `k` values lie at `src`, and `acc` has `n` tokens.
        unsafe {
            match dot {
                Some(dot) => {
                    dot((src, stride), (k0, k), acts, tx[0], scratch.acc);
                }
                None => {
                    (ops.unpack)(src, stride, k, scratch);
                    multiply_chunk(ops, (k0, k), acts, tx, scratch);
                }
            }
        }
    }
}

/// Multiplies the unpacked chunk with all tokens, in blocks as equal as can be:
/// small ones are less efficient.
///
/// # Safety
/// As for [`KernelFn`].
unsafe fn multiply_chunk(
    ops: &Ops,
    (k0, k): (usize, usize),
    acts: &Acts,
    tx: &[u32],
    scratch: &Scratch,
) {
    let mut t = 0;
    for blocks_left in (1..=tx.len().div_ceil(ops.kernels.len())).rev() {
        let tokens = (tx.len() - t).div_ceil(blocks_left);
        let kernel = ops.kernels[tokens - 1];
        // SAFETY: the caller's contract; tokens `t..t + tokens` are left.
        unsafe {
            let acc = scratch.acc.add(t * ROW_TILE);
            kernel(scratch, k0, k, acts, tx[t..].as_ptr(), acc);
        }
        t += tokens;
    }
}

/// Copies bytes `bytes` of the first `live` rows to the stage; other rows and
/// what rounds a row up to 16 bytes are zero. Gives the address and row stride.
///
/// # Safety
/// `to` has room for 16 rows of the rounded size.
unsafe fn stage(
    tile: &[u8],
    live: usize,
    row_bytes: usize,
    bytes: Range<usize>,
    to: *mut u8,
) -> (*const u8, usize) {
    let stride = bytes.len().next_multiple_of(16);
    // SAFETY: inside the stage by contract; the source is bounds-checked.
    unsafe {
        to.write_bytes(0, ROW_TILE * stride);
        for r in 0..live {
            let row = &tile[r * row_bytes..][bytes.clone()];
            to.add(r * stride)
                .copy_from_nonoverlapping(row.as_ptr(), row.len());
        }
    }
    (to, stride)
}

/// Asks for bytes `at..at + len` of `w`, as far as they exist.
fn prefetch(w: &[u8], at: usize, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (at..w.len().min(at + len)).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: the address is inside `w`; a prefetch reads nothing anyway.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(w.as_ptr().add(line).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (w, at, len);
}
