//! The plain path: every platform, and the reference of the others.
//!
//! Blocks of W are unpacked one at a time and used for all tokens.

use std::ops::Range;

use super::ActKind;
use super::acts::{ACT_GROUP, C16, C16_AT, D_AT, N32_AT, RECORD};
use super::acts16::{D16_AT, RECORD16, quantize_weights};
use super::operands::{Acts, Weights};
use crate::quant::{Block, DType, MAX_BLOCK_GROUPS, MAX_BLOCK_LEN, cast_blocks, with_block};

/// f32 sums kept side by side: what the compiler can put in vectors.
const SUMS: usize = 8;

/// Scratch bytes for `n` tokens: their sums, and room to align them.
pub fn scratch_bytes(n: usize) -> usize {
    (n + 1) * size_of::<f32>()
}

/// Computes `y[ty[j] * y_stride + r]` for `r` in `rows` and every `j`.
///
/// # Safety
/// `tx` are rows of `acts`; `y` is writable at all those places, which no other
/// thread touches meanwhile.
pub unsafe fn run(
    w: &Weights,
    acts: &Acts,
    rows: Range<usize>,
    (tx, ty): (&[u32], &[u32]),
    (y, y_stride): (*mut f32, usize),
    scratch: &mut [u8],
) {
    let acc = f32_scratch(scratch, tx.len());
    for r in rows {
        let row = &w.bytes[r * w.row_bytes..][..w.row_bytes];
        acc.fill(0.0);
        // SAFETY: the caller's contract.
        unsafe {
            match w.acts {
                ActKind::F32 => row_f32(w.dtype, row, w.k, acts, tx, acc),
                ActKind::Q16 => row_q16(w.dtype, row, w.k, acts, tx, acc),
                ActKind::Q8 => row_q8(w.dtype, row, acts, tx, acc),
            }
            for (&sum, &at) in acc.iter().zip(ty) {
                y.add(at as usize * y_stride + r).write(sum);
            }
        }
    }
}

/// Adds to `acc [tokens]` the products of row `w` with rows `tx` of 8-bit
/// activations. Nothing is added for a type without lanes.
///
/// # Safety
/// `tx` are rows of `acts`, which has 8-bit lanes for the `k` values of `w`
/// and, where the type's group is 16, sums of 16.
unsafe fn row_q8(dtype: DType, w: &[u8], acts: &Acts, tx: &[u32], acc: &mut [f32]) {
    with_block!(dtype, B => {
        for (b, block) in cast_blocks::<B>(w).iter().enumerate() {
            // SAFETY: block `b` of the row is inside the activations' rows.
            unsafe { block_q8(block, b * B::LEN, acts, tx, acc) }
        }
    },
    DType::F32 | DType::F16 | DType::BF16 | DType::I32 => ())
}

/// One block at value `k0` of the row.
///
/// # Safety
/// As for [`row_q8`].
unsafe fn block_q8<B: Block>(block: &B, k0: usize, acts: &Acts, tx: &[u32], acc: &mut [f32]) {
    let mut q = [0u8; MAX_BLOCK_LEN];
    let (mut d, mut m) = ([0.0; MAX_BLOCK_GROUPS], [0.0; MAX_BLOCK_GROUPS]);
    let groups = B::LEN / B::GROUP;
    block.unpack(&mut q[..B::LEN], &mut d[..groups], &mut m[..groups]);
    for (acc, &row) in acc.iter_mut().zip(tx) {
        for g in 0..groups {
            let k = k0 + g * B::GROUP;
            let at = k % ACT_GROUP;
            // SAFETY: the record of value `k` in row `row`, which holds the group.
            let (x, d_x, n_x) = unsafe {
                let record = acts.row(row, k / ACT_GROUP * RECORD);
                let x = std::slice::from_raw_parts(record.add(at).cast::<i8>(), B::GROUP);
                let f32_at = |at: usize| record.add(at).cast::<f32>().read_unaligned();
                let n = if B::GROUP == 16 {
                    let c16 = record.add(C16_AT + at / 4).cast::<i32>().read_unaligned();
                    (c16 / C16) as f32
                } else {
                    f32_at(N32_AT)
                };
                (x, f32_at(D_AT), n)
            };
            let q = &q[g * B::GROUP..][..B::GROUP];
            let products = q.iter().zip(x).map(|(&q, &x)| i32::from(q) * i32::from(x));
            let sum: i32 = products.sum();
            *acc += (d[g] * sum as f32 - m[g] * n_x) * d_x;
        }
    }
}

/// Adds to `acc [tokens]` the products of row `w` with rows `tx` of f32 activations.
///
/// # Safety
/// `tx` are rows of `acts`, which has `k` f32 values a row.
unsafe fn row_f32(dtype: DType, w: &[u8], k: usize, acts: &Acts, tx: &[u32], acc: &mut [f32]) {
    let mut values = [0.0; MAX_BLOCK_LEN];
    for k0 in (0..k).step_by(MAX_BLOCK_LEN) {
        let len = MAX_BLOCK_LEN.min(k - k0);
        let values = &mut values[..len];
        let bytes = byte_range(dtype, k0..k0 + len);
        let done = dtype.dequantize_row(&w[bytes], values);
        assert!(done.is_ok(), "the planner checked shapes: {done:?}");
        for (acc, &row) in acc.iter_mut().zip(tx) {
            // SAFETY: values `k0..k0 + len` of row `row`.
            let x = unsafe {
                let x = acts.row(row, k0 * size_of::<f32>()).cast::<f32>();
                std::slice::from_raw_parts(x, len)
            };
            *acc += dot(values, x);
        }
    }
}

/// Adds to `acc [tokens]` the products of row `w` of floats with rows `tx` of 16-bit
/// activations, both in whole numbers.
///
/// # Safety
/// `tx` are rows of `acts`, which has 16-bit records for the `k` values of `w`.
unsafe fn row_q16(dtype: DType, w: &[u8], k: usize, acts: &Acts, tx: &[u32], acc: &mut [f32]) {
    let mut values = [0.0; ACT_GROUP];
    for g in 0..k / ACT_GROUP {
        let bytes = byte_range(dtype, g * ACT_GROUP..(g + 1) * ACT_GROUP);
        let done = dtype.dequantize_row(&w[bytes], &mut values);
        assert!(done.is_ok(), "the planner checked shapes: {done:?}");
        let (q, d) = quantize_weights(&values);
        for (acc, &row) in acc.iter_mut().zip(tx) {
            // SAFETY: record `g` of row `row`, which may be unaligned.
            let (x, d_x) = unsafe {
                let record = acts.row(row, g * RECORD16);
                let x = record.cast::<[i16; ACT_GROUP]>().read_unaligned();
                (x, record.add(D16_AT).cast::<f32>().read_unaligned())
            };
            let products = q.iter().zip(&x).map(|(&q, &x)| i32::from(q) * i32::from(x));
            *acc += d * (d_x * products.sum::<i32>() as f32);
        }
    }
}

/// Where values `k` of a row lie; both ends on block boundaries.
fn byte_range(dtype: DType, k: Range<usize>) -> Range<usize> {
    let at = |k: usize| k / dtype.block_len() * dtype.block_bytes();
    at(k.start)..at(k.end)
}

/// Dot product of two slices of equal length.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; SUMS];
    let (a_whole, a_rest) = a.as_chunks::<SUMS>();
    let (b_whole, b_rest) = b.as_chunks::<SUMS>();
    for (a, b) in a_whole.iter().zip(b_whole) {
        for i in 0..SUMS {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// The first `n` aligned f32 of a scratch.
///
/// # Panics
/// When it is shorter.
fn f32_scratch(scratch: &mut [u8], n: usize) -> &mut [f32] {
    // SAFETY: every byte pattern is an f32.
    let (_, values, _) = unsafe { scratch.align_to_mut::<f32>() };
    &mut values[..n]
}
