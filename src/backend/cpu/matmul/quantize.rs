//! Vector forms of the activation quantizer; same bits as the plain one.
//!
//! Budget on AVX-512 for 32 values: 2 loads, 2 masks, a maximum over lanes (9),
//! 2 divisions, 2 products, 2 conversions, 2 narrowings, sums (4), stores: about
//! 30 instructions, 12 cycles.

use std::arch::x86_64::*;

use super::acts::{ACT_GROUP, RECORD, scale_of, write_factors};

const MAGNITUDE: i32 = 0x7FFF_FFFF;

/// Quantizes the groups of `x` to the records at `row`.
///
/// # Safety
/// AVX-512 (F, BW, DQ, VL) is available; `row` has a writable record for each
/// 32 values.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn avx512(x: &[f32], row: *mut [u8; RECORD]) {
    for (g, x) in x.as_chunks::<ACT_GROUP>().0.iter().enumerate() {
        // SAFETY: 32 values at `x`; record `g` of the row, which may be unaligned.
        unsafe {
            let (low, high) = (
                _mm512_loadu_ps(x.as_ptr()),
                _mm512_loadu_ps(x.as_ptr().add(16)),
            );
            let magnitude =
                |x| _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(MAGNITUDE));
            let max = _mm512_max_epu32(magnitude(low), magnitude(high));
            let (d, inverse) = scale_of(_mm512_reduce_max_epu32(max));
            let inverse = _mm512_set1_ps(inverse);
            let narrow = |x| {
                // The conversion rounds to nearest, ties to even.
                _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)))
            };
            let q = _mm256_set_m128i(narrow(high), narrow(low));
            let record = row.add(g).cast::<u8>();
            _mm256_storeu_si256(record.cast(), q);
            write_factors(record, d, sums(q));
        }
    }
}

/// As [`avx512`], for AVX2.
///
/// # Safety
/// AVX2 is available; `row` has a writable record for each 32 values.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn avx2(x: &[f32], row: *mut [u8; RECORD]) {
    for (g, x) in x.as_chunks::<ACT_GROUP>().0.iter().enumerate() {
        // SAFETY: 32 values at `x`; record `g` of the row, which may be unaligned.
        unsafe {
            let part = |i: usize| _mm256_loadu_ps(x.as_ptr().add(8 * i));
            let magnitude = |i: usize| {
                _mm256_and_si256(_mm256_castps_si256(part(i)), _mm256_set1_epi32(MAGNITUDE))
            };
            let max = _mm256_max_epu32(
                _mm256_max_epu32(magnitude(0), magnitude(1)),
                _mm256_max_epu32(magnitude(2), magnitude(3)),
            );
            let (d, inverse) = scale_of(max_lane(max));
            let inverse = _mm256_set1_ps(inverse);
            let whole = |i: usize| _mm256_cvtps_epi32(_mm256_mul_ps(part(i), inverse));
            // Packing works within halves: 32-bit pieces come out of order.
            let pairs = _mm256_packs_epi16(
                _mm256_packs_epi32(whole(0), whole(1)),
                _mm256_packs_epi32(whole(2), whole(3)),
            );
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let q = _mm256_permutevar8x32_epi32(pairs, order);
            let record = row.add(g).cast::<u8>();
            _mm256_storeu_si256(record.cast(), q);
            write_factors(record, d, sums(q));
        }
    }
}

/// Sums of the first and of the last 16 signed bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn sums(q: __m256i) -> [i32; 2] {
    /// What making 16 bytes unsigned adds.
    const BIAS: i32 = 16 * 128;
    let unsigned = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
    let eights = _mm256_sad_epu8(unsigned, _mm256_setzero_si256());
    let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(eights);
    let sixteens = _mm256_add_epi32(eights, swapped);
    [
        _mm256_extract_epi32::<0>(sixteens) - BIAS,
        _mm256_extract_epi32::<4>(sixteens) - BIAS,
    ]
}

/// The largest unsigned lane.
#[inline]
#[target_feature(enable = "avx2")]
fn max_lane(x: __m256i) -> u32 {
    let x = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let x = _mm_max_epu32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
    let x = _mm_max_epu32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x));
    _mm_cvtsi128_si32(x) as u32
}
