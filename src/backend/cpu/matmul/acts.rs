//! Activations quantized to 8 bits, once for every matmul that reads them.
//!
//! A buffer of `n` rows of `k` values holds four planes, row by row:
//!
//! ```text
//! q    [k,      n] u8    value + 128, value = round(x / d), -127..=127
//! d    [k / 32, n] f32   scale of 32 values, max|x| / 127
//! s32  [k / 32, n] f32   d * sum of 32 values: what a weight's offset multiplies
//! s16  [k / 16, n] f32   the same for 16 values
//! ```
//!
//! The values are biased to unsigned because the weights are the signed side of
//! `vpdpbusd`; the bias is taken out through each weight group's own sum.

use crate::backend::cpu::simd::Simd;

/// Values that share a scale.
pub const ACT_GROUP: usize = 32;
/// What is added to a value to make it unsigned.
pub const BIAS: i32 = 128;

/// Exact bytes of the quantized form of `n` rows of `k` values, `k % 32 == 0`.
pub fn q8_bytes(k: usize, n: usize) -> usize {
    Q8Layout { k, n }.end()
}

/// Byte offsets of the planes.
#[derive(Clone, Copy)]
pub(super) struct Q8Layout {
    pub k: usize,
    pub n: usize,
}

impl Q8Layout {
    pub fn d(self) -> usize {
        self.n * self.k
    }
    pub fn s32(self) -> usize {
        self.d() + self.n * (self.k / 32) * 4
    }
    pub fn s16(self) -> usize {
        self.s32() + self.n * (self.k / 32) * 4
    }
    fn end(self) -> usize {
        self.s16() + self.n * (self.k / 16) * 4
    }
}

/// Quantizes row `i` of a buffer of `n` rows of `k` values; every path of
/// [`Simd`] gives the same bits. A NaN or an infinity in `x` makes the scale of
/// its group NaN or infinite, so it is not lost.
///
/// # Safety
/// `buf` has [`q8_bytes`]`(k, n)` writable bytes, `i < n`, and no other thread
/// touches row `i` meanwhile.
///
/// # Panics
/// When `x` does not have `k` values or `k % 32 != 0`.
pub unsafe fn quantize_row(simd: Simd, x: &[f32], buf: *mut u8, k: usize, n: usize, i: usize) {
    assert!(
        x.len() == k && k % ACT_GROUP == 0,
        "a row of {k} values, whole groups"
    );
    match simd {
        Simd::Scalar => {
            // SAFETY: the caller's contract is this function's.
            unsafe { quantize(x, buf, Q8Layout { k, n }, i) }
        }
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => {
            // SAFETY: as above; a `Simd` other than Scalar comes from detection.
            unsafe { quantize_avx2(x, buf, Q8Layout { k, n }, i) }
        }
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => {
            // SAFETY: as above.
            unsafe { quantize_avx512(x, buf, Q8Layout { k, n }, i) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Simd::Avx2 | Simd::Avx512 => {
            // SAFETY: as above; these are never detected here.
            unsafe { quantize(x, buf, Q8Layout { k, n }, i) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize_avx2(x: &[f32], buf: *mut u8, layout: Q8Layout, i: usize) {
    // SAFETY: the caller's contract.
    unsafe { quantize(x, buf, layout, i) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn quantize_avx512(x: &[f32], buf: *mut u8, layout: Q8Layout, i: usize) {
    // SAFETY: the caller's contract.
    unsafe { quantize(x, buf, layout, i) }
}

/// The body, compiled once for each instruction set.
///
/// # Safety
/// As for [`quantize_row`].
#[inline(always)]
unsafe fn quantize(x: &[f32], buf: *mut u8, layout: Q8Layout, i: usize) {
    let groups = layout.k / ACT_GROUP;
    // SAFETY: row `i` of each plane lies in the buffer (caller's contract).
    let (q, d, s32, s16) = unsafe {
        (
            buf.add(i * layout.k).cast::<[u8; ACT_GROUP]>(),
            buf.add(layout.d() + i * groups * 4).cast::<f32>(),
            buf.add(layout.s32() + i * groups * 4).cast::<f32>(),
            buf.add(layout.s16() + i * groups * 8).cast::<[f32; 2]>(),
        )
    };
    let (chunks, _) = x.as_chunks::<ACT_GROUP>();
    for (g, values) in chunks.iter().enumerate() {
        let (lanes, scale, sums) = quantize_group(values);
        let (lo, hi) = (scale * sums[0] as f32, scale * sums[1] as f32);
        let both = scale * (sums[0] + sums[1]) as f32;
        // SAFETY: `g < groups`; the f32 planes may be unaligned.
        unsafe {
            q.add(g).write(lanes);
            d.add(g).write_unaligned(scale);
            s32.add(g).write_unaligned(both);
            s16.add(g).write_unaligned([lo, hi]);
        }
    }
}

/// 32 values to biased lanes, their scale and the sums of both halves.
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
    let (d, inv) = match (max.is_finite(), (127.0 / max).is_finite()) {
        (true, true) => (max / 127.0, 127.0 / max),
        (true, false) => (0.0, 0.0),
        (false, _) => (f32::NAN, 0.0),
    };

    let mut lanes = [0u8; ACT_GROUP];
    let mut sums = [0i32; 2];
    for (half, sum) in sums.iter_mut().enumerate() {
        for i in half * 16..half * 16 + 16 {
            let bits = (x[i] * inv + ROUND).to_bits() as i32;
            *sum += bits.wrapping_sub(ROUND.to_bits() as i32);
            lanes[i] = (bits as u8).wrapping_add(BIAS as u8);
        }
    }
    (lanes, d, sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row quantized alone: lanes without bias, d, s32, s16.
    fn quantized(simd: Simd, x: &[f32]) -> Vec<u8> {
        let mut buf = vec![0xAA; q8_bytes(x.len(), 1)];
        // SAFETY: the buffer is exactly the size of one row.
        unsafe { quantize_row(simd, x, buf.as_mut_ptr(), x.len(), 1, 0) };
        buf
    }

    #[test]
    fn values_are_within_half_a_step_and_sums_agree() {
        let x: Vec<f32> = (0..96)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37)
            .collect();
        let buf = quantized(Simd::Scalar, &x);
        let f32_at = |at: usize| f32::from_le_bytes(buf[at..at + 4].try_into().unwrap());
        let layout = Q8Layout { k: 96, n: 1 };
        for g in 0..3 {
            let d = f32_at(layout.d() + 4 * g);
            let q: Vec<f32> = (0..32).map(|i| buf[32 * g + i] as f32 - 128.0).collect();
            for (i, q) in q.iter().enumerate() {
                // Half a step, plus the rounding of d and 1/d.
                assert!((q * d - x[32 * g + i]).abs() <= d * 0.50001);
            }
            assert_eq!(f32_at(layout.s32() + 4 * g), d * q.iter().sum::<f32>());
            let low = d * q[..16].iter().sum::<f32>();
            assert_eq!(f32_at(layout.s16() + 8 * g), low);
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
        let layout = Q8Layout { k: 32, n: 1 };
        let d_of = |x: &[f32]| {
            let buf = quantized(Simd::best(), x);
            f32::from_le_bytes(buf[layout.d()..layout.d() + 4].try_into().unwrap())
        };
        assert_eq!(d_of(&[0.0; 32]), 0.0);
        assert_eq!(d_of(&[1e-40; 32]), 0.0);
        let mut x = [1.0; 32];
        x[7] = f32::NAN;
        assert!(d_of(&x).is_nan());
        x[7] = f32::NEG_INFINITY;
        assert!(d_of(&x).is_infinite());
    }
}
