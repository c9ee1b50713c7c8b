//! One token's products along the rows of W, four rows side by side, on AVX-512.
//!
//! [`dot`](super::gemm::dot) works across 16 rows: it reads 16 bytes of each, so a
//! thread follows 16 places, more than processors read ahead in well (22 GB/s where
//! four give 31, two Zen 4 cores). Here 64 bytes of a row are multiplied with the
//! activations they meet, and what is added up is the sums, not the weights moved:
//!
//! ```text
//! vpdpbusd          16 lanes of partial sums, whole numbers, of one row
//! packs, adds       lane 4 * i + r: group i of row r (four groups, four rows)
//! scales            the same lanes: the four rows' bytes, transposed
//! y += d_x * (...)  group after group, a quarter of the vector at a time
//! ```
//!
//! Sums of a group are exact, and what follows takes the same roundings in the same
//! order as the tiles do: every row gets the same bits.

mod halves;
mod kquants;

use std::arch::x86_64::*;

use super::acts::{ACT_GROUP, RECORD};
use super::driver::CACHE_LINE;
use super::operands::Weights;
use super::{ActKind, Piece, ROW_TILE};
use crate::quant::DType;

/// Rows side by side in a block format.
const ROWS: usize = 4;
/// Most rows side by side.
const MOST_ROWS: usize = 8;
/// Values of a block of every format here, and records of activations they meet.
const BLOCK: usize = 256;
const RECORDS: usize = BLOCK / ACT_GROUP;
/// How far ahead a row is asked for: processors read ahead by themselves, but not across
/// the end of a page. Less comes late, more pushes out of the L1 cache what is in use.
const AHEAD: usize = 512;

/// A block format's way along its rows.
trait Along {
    const DTYPE: DType;
    /// A block's activations as `block` reads them.
    type X;

    fn arrange(records: &[[u8; RECORD]; RECORDS]) -> Self::X;

    /// Adds to lane `r` of `y` the products of a block of row `r`, which lies at
    /// `p + r * stride`.
    ///
    /// # Safety
    /// AVX-512 with VNNI is available, the four blocks are readable.
    unsafe fn block(p: *const u8, stride: usize, x: &Self::X, y: __m128) -> __m128;
}

/// The functions of one format.
#[derive(Clone, Copy)]
pub struct Ops {
    /// Rows side by side.
    rows: usize,
    arrange: Option<Arrange>,
    /// Products of `k` values of the rows, `stride` bytes apart, with `x`.
    ///
    /// # Safety
    /// AVX-512 with VNNI is available; the rows are readable, `x` is as [`Arrange`] leaves
    /// it or a row of f32 values.
    dot: unsafe fn(
        src: *const u8,
        stride: usize,
        k: usize,
        x: *const u8,
        sums: &mut [f32; MOST_ROWS],
    ),
}

/// Activations in the order of the products.
#[derive(Clone, Copy)]
struct Arrange {
    /// Bytes of 256 values.
    x_bytes: usize,
    /// Rewrites a row of records.
    ///
    /// # Safety
    /// The records of `k` values are readable, as many blocks of `x_bytes` writable and
    /// aligned to a cache line.
    write: unsafe fn(records: *const u8, k: usize, x: *mut u8),
}

impl Ops {
    /// Scratch bytes for activations of `k` values.
    pub fn x_bytes(&self, k: usize) -> usize {
        k / BLOCK * self.arrange.map_or(0, |arrange| arrange.x_bytes)
    }

    /// Multiplies the whole tiles of `pieces` with the activations `x`, four or eight rows
    /// at a time, each from its part of the share, so that a thread reads as many places
    /// from front to back. Gives the last piece of W where its last tile is not whole: that
    /// tile is left.
    ///
    /// # Safety
    /// AVX-512 with VNNI is available; the shares are inside `w`; `x` is a row of
    /// activations, `y` one of results, where no other thread touches these rows meanwhile.
    pub unsafe fn run(
        &self,
        w: &Weights,
        x: *const u8,
        pieces: &mut dyn Iterator<Item = Piece>,
        y: *mut f32,
        scratch: &mut [u8],
    ) -> Option<Piece> {
        let first = pieces.next()?;
        let at = scratch.as_ptr().align_offset(CACHE_LINE);
        assert!(scratch.len() >= at + self.x_bytes(w.k), "scratch of matmul");
        let (mut x, mut sums, mut left) = (x, [0.0; MOST_ROWS], None);
        if let Some(arrange) = self.arrange {
            // SAFETY: there is room for `x`.
            unsafe {
                let arranged = scratch.as_mut_ptr().add(at);
                (arrange.write)(x, w.k, arranged);
                x = arranged;
            }
        }
        for piece in std::iter::once(first).chain(pieces) {
            let whole = piece.share.len() / ROW_TILE;
            let (apart, a_tile) = (whole * ROW_TILE / self.rows, ROW_TILE / self.rows);
            let tiles = piece.spread(whole);
            for r in tiles.start * a_tile..tiles.end * a_tile {
                let r = piece.share.start + r;
                let src = w.bytes[r * w.row_bytes..].as_ptr();
                // SAFETY: rows `apart` from `r` on are inside the share.
                unsafe { (self.dot)(src, apart * w.row_bytes, w.k, x, &mut sums) };
                for (i, sum) in sums[..self.rows].iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { y.add(r + i * apart).write(*sum) };
                }
            }
            if piece.tiles.end > whole {
                assert!(left.is_none(), "one share ends W");
                let tiles = whole..piece.tiles.end;
                left = Some(Piece { tiles, ..piece });
            }
        }
        left
    }
}

/// What multiplies rows of `k` values of a type along their length, where there is
/// something that does.
pub fn ops(dtype: DType, acts: ActKind, k: usize) -> Option<Ops> {
    // Rows of floats are read 16 bytes at a time.
    let whole = k.is_multiple_of(8);
    match (dtype, acts) {
        (DType::Q4K, ActKind::Q8) => Some(blocks::<kquants::Q4K>()),
        (DType::Q6K, ActKind::Q8) => Some(blocks::<kquants::Q6K>()),
        (DType::F16, ActKind::F32) if whole => Some(floats::<halves::F16>()),
        (DType::BF16, ActKind::F32) if whole => Some(floats::<halves::Bf16>()),
        _ => None,
    }
}

fn blocks<T: Along>() -> Ops {
    const { assert!(T::DTYPE.block_len() == BLOCK && align_of::<T::X>() <= CACHE_LINE) };
    let arrange = Arrange {
        x_bytes: size_of::<T::X>(),
        write: arrange::<T>,
    };
    Ops {
        rows: ROWS,
        arrange: Some(arrange),
        dot: dot::<T>,
    }
}

fn floats<T: halves::Half>() -> Ops {
    const { assert!(T::DTYPE.block_bytes() == 2) };
    Ops {
        rows: halves::ROWS,
        arrange: None,
        dot: halves::dot::<T>,
    }
}

/// [`Arrange::write`].
///
/// # Safety
/// As there.
unsafe fn arrange<T: Along>(records: *const u8, k: usize, x: *mut u8) {
    let records = records.cast::<[[u8; RECORD]; RECORDS]>();
    for b in 0..k / BLOCK {
        // SAFETY: block `b` of both, by the caller's contract.
        unsafe { x.cast::<T::X>().add(b).write(T::arrange(&*records.add(b))) };
    }
}

/// Asks for what follows `p` in its row; any address will do.
#[inline(always)]
fn prefetch(p: *const u8) {
    // SAFETY: a prefetch of any address is harmless.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(AHEAD).cast()) }
}

/// [`Ops::dot`] of a block format.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn dot<T: Along>(
    src: *const u8,
    stride: usize,
    k: usize,
    x: *const u8,
    sums: &mut [f32; MOST_ROWS],
) {
    let (x, bytes) = (x.cast::<T::X>(), T::DTYPE.block_bytes());
    let mut y = _mm_setzero_ps();
    for b in 0..k / BLOCK {
        // SAFETY: block `b` of the rows and the activations, by the caller's contract.
        unsafe {
            let p = src.add(b * bytes);
            for r in 0..ROWS {
                for line in (0..bytes).step_by(CACHE_LINE) {
                    prefetch(p.wrapping_add(r * stride + line));
                }
            }
            y = T::block(p, stride, &*x.add(b), y);
        }
    }
    // SAFETY: room for four values.
    unsafe { _mm_storeu_ps(sums.as_mut_ptr(), y) };
}
