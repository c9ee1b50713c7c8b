//! The 8-bit activation format: ours, not a file type.
//!
//! A row of `k` values (`k` a multiple of 32) becomes three arrays:
//! - `q`: `k` signed values, -127..=127;
//! - `d`: `k / 32` scales, value `i` is about `d[i / 32] * q[i]`;
//! - `s16`: `k / 16` sums `d * (q[16 j] + ... + q[16 j + 15])`, which multiply a
//!   weight group's `m` ([`Block::unpack`]).
//!
//! `|x - d * q| <= 0.5001 * d`: half a step from rounding, the rest from f32
//! rounding of `127 / max` and `x * (127 / max)`.

use super::block::lanes;
use super::{Block, DType, cast_blocks, with_block};

/// Values that share one activation scale.
pub const Q8_LEN: usize = 32;

/// Quantizes one row of activations: the reference for the SIMD versions, which
/// must give the same bits.
///
/// In each 32 values `d = max|x| / 127` and `q = x * (127 / max|x|)`, rounded to
/// nearest, ties to even. A block whose `127 / max|x|` overflows (all zeros, or
/// below 4e-37) becomes zeros. A block with an infinity or NaN gets a NaN scale
/// and zero values, so that the fault shows in the result.
///
/// # Panics
/// Lengths other than `k`, `k`, `k / 32`, `k / 16`, or `k` not a multiple of 32.
pub fn quantize_q8(x: &[f32], q: &mut [i8], d: &mut [f32], s16: &mut [f32]) {
    assert_lengths(x.len(), q, d, s16);
    let scales = d.iter_mut().zip(s16.chunks_exact_mut(2));
    for ((x, q), (d, s16)) in (x.chunks_exact(Q8_LEN))
        .zip(q.chunks_exact_mut(Q8_LEN))
        .zip(scales)
    {
        // As integers, magnitudes order like the numbers, and NaN is the largest.
        let max_bits = x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
        let max = f32::from_bits(max_bits);
        let inverse = 127.0 / max;
        if max.is_finite() && inverse.is_finite() {
            *d = max / 127.0;
            for (q, x) in q.iter_mut().zip(x) {
                *q = (x * inverse).round_ties_even() as i8;
            }
        } else {
            *d = if max.is_finite() { 0.0 } else { f32::NAN };
            q.fill(0);
        }
        for (s, q) in s16.iter_mut().zip(q.chunks_exact(16)) {
            let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
            *s = *d * sum as f32;
        }
    }
}

/// Dot product of one weight row with quantized activations: the plain reference
/// for the SIMD kernels. Integer sums a group, group terms summed in f64.
///
/// # Panics
/// `bytes` is not a row of `q.len()` values of a type with lanes
/// ([`DType::lane_group`]), or the activation arrays do not match: callers check
/// shapes when they place the weight.
pub fn dot_q8(dtype: DType, bytes: &[u8], q: &[i8], d: &[f32], s16: &[f32]) -> f32 {
    assert_lengths(q.len(), q, d, s16);
    assert_eq!(dtype.row_bytes(q.len()), Some(bytes.len()), "{dtype:?}");
    with_block!(dtype, B => dot_blocks::<B>(cast_blocks(bytes), q, d, s16),
        DType::F32 | DType::F16 | DType::BF16 | DType::I32 => panic!("{dtype:?} has no lanes"))
}

/// [`dot_q8`] for one format.
fn dot_blocks<B: Block>(blocks: &[B], x: &[i8], dx: &[f32], s16: &[f32]) -> f32 {
    let (mut q, mut d, mut m) = lanes();
    let groups = B::LEN / B::GROUP;
    let mut sum = 0.0;
    for (i, block) in blocks.iter().enumerate() {
        block.unpack(&mut q[..B::LEN], &mut d[..groups], &mut m[..groups]);
        for g in 0..groups {
            let (lane, value) = (g * B::GROUP, i * B::LEN + g * B::GROUP);
            let dot: i32 = (q[lane..lane + B::GROUP].iter())
                .zip(&x[value..value + B::GROUP])
                .map(|(&q, &x)| i32::from(q) * i32::from(x))
                .sum();
            let sums = &s16[value / 16..(value + B::GROUP) / 16];
            let s: f64 = sums.iter().map(|&s| f64::from(s)).sum();
            sum += f64::from(d[g]) * f64::from(dx[value / Q8_LEN]) * f64::from(dot);
            sum -= f64::from(m[g]) * s;
        }
    }
    sum as f32
}

/// Panics unless the arrays fit a row of `k` values.
fn assert_lengths(k: usize, q: &[i8], d: &[f32], s16: &[f32]) {
    assert!(
        k.is_multiple_of(Q8_LEN) && q.len() == k && d.len() == k / Q8_LEN && s16.len() == k / 16,
        "{k} activations with {} values, {} scales, {} sums",
        q.len(),
        d.len(),
        s16.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantize(x: &[f32; 32]) -> ([i8; 32], f32, [f32; 2]) {
        let (mut q, mut d, mut s) = ([99; 32], [99.0], [99.0; 2]);
        quantize_q8(x, &mut q, &mut d, &mut s);
        (q, d[0], s)
    }

    #[test]
    fn zeros_and_tiny_values_become_zeros() {
        for x in [0.0, -0.0, 1e-40, -3e-37] {
            assert_eq!(quantize(&[x; 32]), ([0; 32], 0.0, [0.0; 2]), "{x:e}");
        }
    }

    #[test]
    fn whole_range_is_finite() {
        for max in [4e-37, 1.0, f32::MAX] {
            let mut x = [max / 2.0; 32];
            (x[0], x[31]) = (max, -max);
            let (q, d, s) = quantize(&x);
            assert_eq!((q[0], q[31]), (127, -127), "{max:e}");
            // A sum of 16 values may exceed f32, but must not turn into NaN.
            assert!(
                d > 0.0 && d.is_finite() && s.iter().all(|s| !s.is_nan()),
                "{max:e}"
            );
            for (x, q) in x.iter().zip(q) {
                // 0.5001 steps: the bound in the module's comment.
                let error = f64::from(*x) - f64::from(d) * f64::from(q);
                assert!(error.abs() <= 0.5001 * f64::from(d), "{x:e}");
            }
        }
    }

    #[test]
    fn sums_and_ties() {
        let mut x = [0.0; 32];
        (x[0], x[1], x[2], x[16]) = (127.0, 0.5, 1.5, -3.0);
        let (q, d, s) = quantize(&x);
        assert_eq!((q[0], q[1], q[2], q[16]), (127, 0, 2, -3));
        assert_eq!((d, s), (1.0, [129.0, -3.0]));
    }

    #[test]
    fn faults_are_not_hidden() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 32];
            x[7] = bad;
            let (q, d, s) = quantize(&x);
            assert!(q == [0; 32] && d.is_nan() && s.iter().all(|s| s.is_nan()));
        }
    }
}
