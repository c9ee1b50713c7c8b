//! Activations and F16 or BF16 weights in 14 bits, for products of the two.
//!
//! A buffer holds rows one after another; a row is a record of 68 bytes for each
//! 32 values:
//!
//! ```text
//! 0..64   q  i16  round(x / d), -8191..=8191
//! 64..68  d  f32  max|x| / 8191
//! ```
//!
//! 14 bits, because 32 products with weights of 14 bits just fit an i32. A step is
//! max / 8191: of normally distributed values that is half of what rounding them
//! to F16 changes.

use super::acts::ACT_GROUP;
use crate::backend::cpu::simd::Simd;

/// Largest magnitude of a value: `32 * MOST16 * MOST16` is below 2^31.
pub(super) const MOST16: f32 = 8191.0;
/// Bytes of a record.
pub(super) const RECORD16: usize = 68;
/// Where a record's `d` begins.
pub(super) const D16_AT: usize = 64;
/// 1.5 * 2^23: what a number below 2^22 is added to, so that the sum's lower bits are
/// that number, rounded to the nearest whole one (ties to even).
pub(super) const WHOLE: f32 = 12_582_912.0;
/// Bits of the exponent of an f32.
pub(super) const EXPONENT: u32 = 0x7F80_0000;
/// One in the exponent's place.
const BINADE: u32 = 1 << 23;
/// Groups below 2^-107 are scaled as if they reached it: scales stay normal numbers.
pub(super) const LEAST: u32 = 20 * BINADE;
/// 2^-12: a step, of the power of two below the greatest magnitude.
pub(super) const STEP: f32 = 1.0 / 4096.0;
/// Exponents of that power and of 4096 over it add up to this.
pub(super) const INVERSE: u32 = (2 * 127 + 12) * BINADE;

/// Exact bytes of the 16-bit form of `n` rows of `k` values, `k % 32 == 0`.
pub fn q16_bytes(k: usize, n: usize) -> usize {
    n * row_bytes(k)
}

/// Bytes of a row of `k` values.
pub(super) fn row_bytes(k: usize) -> usize {
    k / ACT_GROUP * RECORD16
}

/// Quantizes row `i` of a buffer of `n` rows of `k` values; every path of [`Simd`]
/// gives the same bits. A NaN or an infinity in `x` makes the scale of its group NaN.
///
/// # Safety
/// `buf` has [`q16_bytes`]`(k, n)` writable bytes, `i < n`, and no other thread
/// touches row `i` meanwhile.
///
/// # Panics
/// When `x` does not have `k` values or `k % 32 != 0`.
pub unsafe fn quantize_row16(simd: Simd, x: &[f32], buf: *mut u8, k: usize, n: usize, i: usize) {
    assert!(
        x.len() == k && k.is_multiple_of(ACT_GROUP),
        "a row of {k} values, whole groups"
    );
    debug_assert!(i < n);
    // SAFETY: row `i` lies in the buffer and is this thread's (caller's contract).
    let row = unsafe { buf.add(i * row_bytes(k)) }.cast::<[u8; RECORD16]>();
    // SAFETY: the row has a record for each 32 values; the caller vouches for the
    // instruction set.
    unsafe {
        match simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => avx2(x, row),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => avx512(x, row),
            _ => quantize(x, row),
        }
    }
}

/// [`quantize`], compiled for AVX-512.
///
/// # Safety
/// As there, and the instruction set is available.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn avx512(x: &[f32], row: *mut [u8; RECORD16]) {
    // SAFETY: the same contract.
    unsafe { quantize(x, row) }
}

/// [`quantize`], compiled for AVX2.
///
/// # Safety
/// As there, and the instruction set is available.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(x: &[f32], row: *mut [u8; RECORD16]) {
    // SAFETY: the same contract.
    unsafe { quantize(x, row) }
}

/// The quantizer, in loops that compilers turn into vectors.
///
/// # Safety
/// `row` has a writable record for each 32 values.
#[inline(always)]
unsafe fn quantize(x: &[f32], row: *mut [u8; RECORD16]) {
    for (g, values) in x.as_chunks::<ACT_GROUP>().0.iter().enumerate() {
        let mut max = 0;
        for v in values {
            max = max.max(v.to_bits() & 0x7FFF_FFFF);
        }
        let (d, inverse) = scale_of(max);
        let mut q = [0i16; ACT_GROUP];
        for (q, v) in q.iter_mut().zip(values) {
            *q = whole(v * inverse);
        }
        // SAFETY: record `g` of the row, which may be unaligned.
        unsafe {
            let record = row.add(g).cast::<u8>();
            record.cast::<[i16; ACT_GROUP]>().write_unaligned(q);
            record.add(D16_AT).cast::<f32>().write_unaligned(d);
        }
    }
}

/// The nearest whole number, ties to even, of one below 2^15.
#[inline(always)]
pub(super) fn whole(x: f32) -> i16 {
    (x + WHOLE).to_bits() as i16
}

/// Scale of a group and its inverse, from the bits of the largest magnitude. Where
/// the inverse overflows the group counts as zero.
#[inline(always)]
fn scale_of(max_bits: u32) -> (f32, f32) {
    let max = f32::from_bits(max_bits);
    match (max.is_finite(), (MOST16 / max).is_finite()) {
        (true, true) => (max / MOST16, MOST16 / max),
        (true, false) => (0.0, 0.0),
        (false, _) => (f32::NAN, 0.0),
    }
}

/// Turns 32 weights into whole numbers below 8192 and their step; the plain form of what
/// `q16.rs` does. Infinity and NaN make the step infinite.
pub(super) fn quantize_weights(values: &[f32; ACT_GROUP]) -> ([i16; ACT_GROUP], f32) {
    let bits = values.iter().map(|v| v.to_bits() & 0x7FFF_FFFF);
    let power = (bits.max().unwrap_or(0) & EXPONENT).max(LEAST);
    let inverse = f32::from_bits(INVERSE - power);
    let q = values.map(|v| whole(v * inverse));
    (q, f32::from_bits(power) * STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantized(simd: Simd, x: &[f32]) -> Vec<u8> {
        let mut buf = vec![0xAA; q16_bytes(x.len(), 1)];
        // SAFETY: the buffer is exactly the size of one row.
        unsafe { quantize_row16(simd, x, buf.as_mut_ptr(), x.len(), 1, 0) };
        buf
    }

    fn d_of(record: &[u8]) -> f32 {
        f32::from_le_bytes(record[D16_AT..D16_AT + 4].try_into().expect("four bytes"))
    }

    #[test]
    fn every_path_is_within_half_a_step_and_gives_the_same_bits() {
        let x: Vec<f32> = (0..320)
            .map(|i| (i as f32 * 0.77).sin() * (i % 9) as f32)
            .collect();
        let plain = quantized(Simd::Scalar, &x);
        for simd in Simd::ALL.into_iter().filter(|s| s.available()) {
            assert!(quantized(simd, &x) == plain, "{simd:?}");
        }
        for (record, x) in plain.chunks_exact(RECORD16).zip(x.chunks_exact(32)) {
            let d = d_of(record);
            for (q, x) in record.chunks_exact(2).zip(x) {
                let q = i16::from_le_bytes(q.try_into().expect("two bytes"));
                assert!(f32::from(q.unsigned_abs()) <= MOST16);
                // The product with the inverse and the sum round too.
                assert!(
                    (f32::from(q) * d - x).abs() <= 0.501 * d,
                    "{q} * {d} for {x}"
                );
            }
        }
    }

    #[test]
    fn zero_and_tiny_groups_are_zero_and_nan_stays() {
        let best = |x: &[f32]| d_of(&quantized(Simd::best(), x));
        assert_eq!(best(&[0.0; 32]), 0.0);
        assert_eq!(best(&[1e-40; 32]), 0.0);
        let mut x = [1.0; 32];
        x[7] = f32::NAN;
        assert!(best(&x).is_nan());
        x[7] = f32::NEG_INFINITY;
        assert!(best(&x).is_nan());
    }
}
