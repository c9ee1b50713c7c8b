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

mod kquants;

use std::arch::x86_64::*;
use std::ops::Range;

use super::ActKind;
use super::acts::{ACT_GROUP, RECORD};
use super::driver::CACHE_LINE;
use super::operands::Weights;
use crate::quant::DType;

/// Rows side by side.
pub const ROWS: usize = 4;
/// Values of a block of every format here, and records of activations they meet.
const BLOCK: usize = 256;
const RECORDS: usize = BLOCK / ACT_GROUP;
/// How far ahead a row is asked for: half a page, since processors do not read ahead
/// across its end. Less comes late, and to the L1 cache it pushes out what is in use.
const AHEAD: usize = 2048;

/// A format's way along its rows.
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
    x_bytes: usize,
    /// Writes a row of activations (records, values) as the products read it.
    ///
    /// # Safety
    /// The records of so many values are readable, [`x_bytes`](Ops::x_bytes) writable
    /// and aligned to a cache line.
    arrange: unsafe fn(records: *const u8, k: usize, x: *mut u8),
    /// Products of `k` values of four rows, `stride` bytes apart, with arranged `x`.
    ///
    /// # Safety
    /// AVX-512 with VNNI is available; the rows are readable, `x` is arranged.
    dot: unsafe fn(src: *const u8, stride: usize, k: usize, x: *const u8) -> [f32; ROWS],
}

impl Ops {
    /// Bytes of the arranged activations of `k` values.
    pub fn x_bytes(&self, k: usize) -> usize {
        k / BLOCK * self.x_bytes
    }

    /// Multiplies `rows` with the activations `x`, four at a time, each from a quarter of
    /// them, so that a thread reads four places from front to back. Gives the first row
    /// that is left.
    ///
    /// # Safety
    /// AVX-512 with VNNI is available; `rows` are inside `w`; `x` is a row of records,
    /// `y` one of results, where no other thread touches `rows` meanwhile.
    pub unsafe fn run(
        &self,
        w: &Weights,
        x: *const u8,
        rows: Range<usize>,
        y: *mut f32,
        scratch: &mut [u8],
    ) -> usize {
        let at = scratch.as_ptr().align_offset(CACHE_LINE);
        let arranged = &mut scratch[at..];
        assert!(arranged.len() >= self.x_bytes(w.k), "scratch of matmul");
        let (apart, arranged) = (rows.len() / ROWS, arranged.as_mut_ptr());
        // SAFETY: there is room for `x`; four rows `apart` are inside `rows`.
        unsafe {
            (self.arrange)(x, w.k, arranged);
            for r in rows.start..rows.start + apart {
                let src = w.bytes[r * w.row_bytes..].as_ptr();
                let sums = (self.dot)(src, apart * w.row_bytes, w.k, arranged);
                for (i, sum) in sums.into_iter().enumerate() {
                    y.add(r + i * apart).write(sum);
                }
            }
        }
        rows.start + ROWS * apart
    }
}

/// What multiplies a type along its rows, where there is something that does.
pub fn ops(dtype: DType, acts: ActKind) -> Option<Ops> {
    match dtype {
        _ if acts != ActKind::Q8 => None,
        DType::Q4K => Some(of::<kquants::Q4K>()),
        DType::Q6K => Some(of::<kquants::Q6K>()),
        _ => None,
    }
}

fn of<T: Along>() -> Ops {
    const { assert!(T::DTYPE.block_len() == BLOCK && align_of::<T::X>() <= CACHE_LINE) };
    Ops {
        x_bytes: size_of::<T::X>(),
        arrange: arrange::<T>,
        dot: dot::<T>,
    }
}

/// [`Ops::arrange`].
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

/// [`Ops::dot`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn dot<T: Along>(src: *const u8, stride: usize, k: usize, x: *const u8) -> [f32; ROWS] {
    let (x, bytes) = (x.cast::<T::X>(), T::DTYPE.block_bytes());
    let mut y = _mm_setzero_ps();
    for b in 0..k / BLOCK {
        // SAFETY: block `b` of the rows and the activations, by the caller's contract;
        // a prefetch of any address is harmless.
        unsafe {
            let p = src.add(b * bytes);
            for r in 0..ROWS {
                for line in (0..bytes).step_by(CACHE_LINE) {
                    let at = p.wrapping_add(r * stride + AHEAD + line);
                    _mm_prefetch::<_MM_HINT_T1>(at.cast());
                }
            }
            y = T::block(p, stride, &*x.add(b), y);
        }
    }
    let mut rows = [0.0; ROWS];
    // SAFETY: room for four values.
    unsafe { _mm_storeu_ps(rows.as_mut_ptr(), y) };
    rows
}
