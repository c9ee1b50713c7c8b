//! Activations quantized to 8 bits, once for every matmul that reads them.
//!
//! A buffer of `n` rows of `k` values holds four planes, row by row:
//!
//! ```text
//! qu   [k,      n] u8    q + 128, where q = round(x / d), -127..=127
//! qs   [k,      n] i8    q
//! d    [k / 32, n] f32   scale of 32 values, max|x| / 127
//! n32  [k / 32, n] f32   sum of q over 32 values: what a weight's offset multiplies
//! n16  [k / 16, n] f32   the same for 16 values
//! ```
//!
//! `vpdpbusd` multiplies unsigned by signed bytes; either side can be the
//! weights, hence both forms.

use crate::backend::cpu::simd::Simd;

/// Values that share a scale.
pub const ACT_GROUP: usize = 32;
/// What makes a signed lane unsigned: adding 128 flips the top bit.
const BIAS: u8 = 128;

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
    pub fn qs(self) -> usize {
        self.n * self.k
    }
    pub fn d(self) -> usize {
        2 * self.n * self.k
    }
    pub fn n32(self) -> usize {
        self.d() + self.n * (self.k / 32) * 4
    }
    pub fn n16(self) -> usize {
        self.n32() + self.n * (self.k / 32) * 4
    }
    fn end(self) -> usize {
        self.n16() + self.n * (self.k / 16) * 4
    }
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
    let (qu, qs, d, n32, n16) = unsafe {
        (
            buf.add(i * layout.k).cast::<[u8; ACT_GROUP]>(),
            buf.add(layout.qs() + i * layout.k)
                .cast::<[u8; ACT_GROUP]>(),
            buf.add(layout.d() + i * groups * 4).cast::<f32>(),
            buf.add(layout.n32() + i * groups * 4).cast::<f32>(),
            buf.add(layout.n16() + i * groups * 8).cast::<[f32; 2]>(),
        )
    };
    let (chunks, _) = x.as_chunks::<ACT_GROUP>();
    for (g, values) in chunks.iter().enumerate() {
        let (lanes, scale, sums) = quantize_group(values);
        let (low, high) = (sums[0] as f32, sums[1] as f32);
        // SAFETY: `g < groups`; the f32 planes may be unaligned.
        unsafe {
            qs.add(g).write(lanes);
            qu.add(g).write(lanes.map(|q| q ^ BIAS));
            d.add(g).write_unaligned(scale);
            n32.add(g).write_unaligned(low + high);
            n16.add(g).write_unaligned([low, high]);
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
    fn planes_hold_what_the_reference_quantizer_gives() {
        let x: Vec<f32> = (0..96)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37)
            .collect();
        let (mut q, mut d, mut s16) = ([0; 96], [0.0; 3], [0.0; 6]);
        quantize_q8(&x, &mut q, &mut d, &mut s16);
        let buf = quantized(Simd::Scalar, &x);
        let f32_at = |at: usize| f32::from_le_bytes(buf[at..at + 4].try_into().unwrap());
        let layout = Q8Layout { k: 96, n: 1 };
        for i in 0..96 {
            assert_eq!(buf[layout.qs() + i] as i8, q[i]);
            assert_eq!(i16::from(buf[i]), i16::from(q[i]) + 128);
        }
        let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>() as f32;
        for g in 0..3 {
            assert_eq!(f32_at(layout.d() + 4 * g), d[g]);
            assert_eq!(f32_at(layout.n32() + 4 * g), sum(&q[32 * g..][..32]));
        }
        for g in 0..6 {
            assert_eq!(f32_at(layout.n16() + 4 * g), sum(&q[16 * g..][..16]));
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
        assert!(d_of(&x).is_nan());
    }
}
