//! Activations quantized to 8 bits, once for every matmul that reads them.
//!
//! A buffer holds rows one after another; a row is a record of 48 bytes for
//! each 32 values:
//!
//! ```text
//! 0..32   q    i8     round(x / d), -127..=127
//! 32..36  d    f32    max|x| / 127
//! 36..40  n32  f32    sum of q: what a weight's offset multiplies
//! 40..48  n16  f32 2  sum of the first and of the last 16
//! ```
//!
//! so that a kernel needs one address for each token.

use crate::backend::cpu::simd::Simd;

/// Values that share a scale.
pub const ACT_GROUP: usize = 32;
/// Bytes of a record.
pub(super) const RECORD: usize = 48;
/// Where a record's `d`, `n32` and `n16` begin.
pub(super) const D_AT: usize = 32;
pub(super) const N32_AT: usize = 36;
pub(super) const N16_AT: usize = 40;

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
        Simd::Avx2 => unsafe { quantize_avx2(x, row) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Simd::Avx512 => unsafe { quantize_avx512(x, row) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        Simd::Avx2 | Simd::Avx512 => unsafe { quantize(x, row) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize_avx2(x: &[f32], row: *mut [u8; RECORD]) {
    // SAFETY: the caller's contract.
    unsafe { quantize(x, row) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn quantize_avx512(x: &[f32], row: *mut [u8; RECORD]) {
    // SAFETY: the caller's contract.
    unsafe { quantize(x, row) }
}

/// The body, compiled once for each instruction set.
///
/// # Safety
/// `row` has a writable record for each 32 values.
#[inline(always)]
unsafe fn quantize(x: &[f32], row: *mut [u8; RECORD]) {
    let (groups, _) = x.as_chunks::<ACT_GROUP>();
    for (g, values) in groups.iter().enumerate() {
        let (q, d, sums) = quantize_group(values);
        let (low, high) = (sums[0] as f32, sums[1] as f32);
        let factors = [d, low + high, low, high];
        // SAFETY: record `g` of the row, which may be unaligned.
        unsafe {
            let record = row.add(g).cast::<u8>();
            record.cast::<[u8; ACT_GROUP]>().write(q);
            record.add(D_AT).cast::<[f32; 4]>().write_unaligned(factors);
        }
    }
}

/// 32 values to signed lanes, their scale and the sums of both halves.
#[inline(always)]
fn quantize_group(x: &[f32; ACT_GROUP]) -> ([u8; ACT_GROUP], f32, [i32; 2]) {
    /// 1.5 * 2^23: added to |v| < 2^22 it leaves round-to-nearest-even(v) in the low bits.
    const ROUND: f32 = 12_582_912.0;

    // Magnitudes compare as integers, with NaN above infinity above the rest.
    let mut max_bits = 0;
    for v in x {
        max_bits = max_bits.max(v.to_bits() & 0x7FFF_FFFF);
    }
    let max = f32::from_bits(max_bits);
    // Where 127 / max overflows the group counts as zero.
    let (d, inverse) = match (max.is_finite(), (127.0 / max).is_finite()) {
        (true, true) => (max / 127.0, 127.0 / max),
        (true, false) => (0.0, 0.0),
        (false, _) => (f32::NAN, 0.0),
    };
    let mut lanes = [0u8; ACT_GROUP];
    let mut sums = [0i32; 2];
    for (half, sum) in sums.iter_mut().enumerate() {
        for i in half * 16..half * 16 + 16 {
            let bits = (x[i] * inverse + ROUND).to_bits() as i32;
            // Wraps only where a value is no number; then `d` is NaN.
            *sum = sum.wrapping_add(bits.wrapping_sub(ROUND.to_bits() as i32));
            lanes[i] = bits as u8;
        }
    }
    (lanes, d, sums)
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
            assert_eq!(f32_at(N16_AT), sum(&q[..16]));
            assert_eq!(f32_at(N16_AT + 4), sum(&q[16..]));
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
