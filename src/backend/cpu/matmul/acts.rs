//! Activations quantized to 8 bits, once for every matmul that reads them.
//!
//! A buffer holds rows one after another; a row is a record of 48 bytes for
//! each 32 values:
//!
//! ```text
//! 0..32   q    i8     round(x / d), -127..=127
//! 32..36  d    f32    max|x| / 127
//! 36..40  n32  f32    sum of q: what a weight's offset multiplies
//! 40..48  c16  i32 2  sum of the first and of the last 16, times -32
//! ```
//!
//! so that a kernel needs one address for each token. An integer sum that starts at c16
//! is that of weights 32 less: lanes of Q6_K are 32 more than its values.

use crate::backend::cpu::simd::Simd;

/// Values that share a scale.
pub const ACT_GROUP: usize = 32;
/// Bytes of a record.
pub(super) const RECORD: usize = 48;
/// Where a record's `d`, `n32` and `c16` begin.
pub(super) const D_AT: usize = 32;
pub(super) const N32_AT: usize = 36;
pub(super) const C16_AT: usize = 40;
/// What sums of 16 are multiplied by in `c16`.
pub(super) const C16: i32 = -32;

/// Exact bytes of the quantized form of `n` rows of `k` values, `k % 32 == 0`.
pub fn q8_bytes(k: usize, n: usize) -> usize {
    n * row_bytes(k)
}

/// Bytes of a row of `k` values.
pub(super) fn row_bytes(k: usize) -> usize {
    k / ACT_GROUP * RECORD
}

/// Quantizes row `i` of a buffer of `n` rows of `k` values; every path of
/// [`Simd`] gives the same bits. A NaN or an infinity in `x` makes the scale of
/// its group NaN, so it is not lost.
///
/// # Safety
/// `buf` has [`q8_bytes`]`(k, n)` writable bytes, `i < n`, and no other thread
/// touches row `i` meanwhile.
///
/// # Panics
/// When `x` does not have `k` values or `k % 32 != 0`.
pub unsafe fn quantize_row(simd: Simd, x: &[f32], buf: *mut u8, k: usize, n: usize, i: usize) {
    assert!(
        x.len() == k && k.is_multiple_of(ACT_GROUP),
        "a row of {k} values, whole groups"
    );
    debug_assert!(i < n);
    // SAFETY: row `i` lies in the buffer and is this thread's (caller's contract).
    let row = unsafe { buf.add(i * row_bytes(k)) }.cast::<[u8; RECORD]>();
    match simd {
        // SAFETY: the row has a record for each 32 values.
        Simd::Scalar => unsafe { quantize(x, row) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above; the caller vouches for the instruction set.
        Simd::Avx2 => unsafe { super::quantize::avx2(x, row) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Simd::Avx512 => unsafe { super::quantize::avx512(x, row) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        Simd::Avx2 | Simd::Avx512 => unsafe { quantize(x, row) },
    }
}

/// The plain quantizer.
///
/// # Safety
/// `row` has a writable record for each 32 values.
unsafe fn quantize(x: &[f32], row: *mut [u8; RECORD]) {
    for (g, values) in x.as_chunks::<ACT_GROUP>().0.iter().enumerate() {
        let magnitudes = values.iter().map(|v| v.to_bits() & 0x7FFF_FFFF);
        let (d, inverse) = scale_of(magnitudes.max().unwrap_or(0));
        let q = values.map(|v| (v * inverse).round_ties_even() as i8);
        let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum();
        // SAFETY: record `g` of the row.
        unsafe {
            let record = row.add(g).cast::<u8>();
            record.cast::<[i8; ACT_GROUP]>().write(q);
            write_factors(record, d, [sum(&q[..16]), sum(&q[16..])]);
        }
    }
}

/// Scale of a group and its inverse, from the bits of the largest magnitude: as
/// integers magnitudes order like the numbers, with infinity and NaN on top.
/// Where 127 / max overflows the group counts as zero.
#[inline(always)]
pub(super) fn scale_of(max_bits: u32) -> (f32, f32) {
    let max = f32::from_bits(max_bits);
    match (max.is_finite(), (127.0 / max).is_finite()) {
        (true, true) => (max / 127.0, 127.0 / max),
        (true, false) => (0.0, 0.0),
        (false, _) => (f32::NAN, 0.0),
    }
}

/// Writes what follows the values of a record.
///
/// # Safety
/// `record` has [`RECORD`] writable bytes.
#[inline(always)]
pub(super) unsafe fn write_factors(record: *mut u8, d: f32, sums: [i32; 2]) {
    let [low, high] = sums;
    let factors = [d, (low + high) as f32];
    // SAFETY: inside the record, which may be unaligned.
    unsafe {
        let at = record.add(D_AT);
        at.cast::<[f32; 2]>().write_unaligned(factors);
        let at = record.add(C16_AT);
        at.cast::<[i32; 2]>()
            .write_unaligned([C16 * low, C16 * high]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::quantize_q8;

    /// A row quantized alone.
    fn quantized(simd: Simd, x: &[f32]) -> Vec<u8> {
        let mut buf = vec![0xAA; q8_bytes(x.len(), 1)];
        // SAFETY: the buffer is exactly the size of one row.
        unsafe { quantize_row(simd, x, buf.as_mut_ptr(), x.len(), 1, 0) };
        buf
    }

    #[test]
    fn records_hold_what_the_reference_quantizer_gives() {
        let x: Vec<f32> = (0..96)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37)
            .collect();
        let (mut q, mut d, mut s16) = ([0; 96], [0.0; 3], [0.0; 6]);
        quantize_q8(&x, &mut q, &mut d, &mut s16);
        let buf = quantized(Simd::Scalar, &x);
        let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>() as f32;
        for (g, record) in buf.chunks_exact(RECORD).enumerate() {
            let f32_at = |at: usize| f32::from_le_bytes(record[at..at + 4].try_into().unwrap());
            let q = &q[32 * g..][..32];
            assert!(record.iter().zip(q).all(|(&a, &b)| a as i8 == b));
            assert_eq!(f32_at(D_AT), d[g]);
            assert_eq!(f32_at(N32_AT), sum(q));
            let i32_at = |at: usize| i32::from_le_bytes(record[at..at + 4].try_into().unwrap());
            assert_eq!(i32_at(C16_AT) as f32, -32.0 * sum(&q[..16]));
            assert_eq!(i32_at(C16_AT + 4) as f32, -32.0 * sum(&q[16..]));
        }
    }

    #[test]
    fn every_path_gives_the_same_bits() {
        let x: Vec<f32> = (0..320)
            .map(|i| (i as f32 * 0.77).sin() * (i % 9) as f32)
            .collect();
        for simd in Simd::ALL.into_iter().filter(|s| s.available()) {
            assert!(
                quantized(simd, &x) == quantized(Simd::Scalar, &x),
                "{simd:?}"
            );
        }
    }

    #[test]
    fn zero_and_tiny_groups_are_zero_and_nan_stays() {
        let d_of = |x: &[f32]| {
            let buf = quantized(Simd::best(), x);
            f32::from_le_bytes(buf[D_AT..D_AT + 4].try_into().unwrap())
        };
        assert_eq!(d_of(&[0.0; 32]), 0.0);
        assert_eq!(d_of(&[1e-40; 32]), 0.0);
        let mut x = [1.0; 32];
        x[7] = f32::NAN;
        assert!(d_of(&x).is_nan());
        x[7] = f32::NEG_INFINITY;
        assert!(d_of(&x).is_nan());
    }
}
