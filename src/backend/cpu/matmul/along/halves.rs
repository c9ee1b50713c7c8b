//! Floats of two bytes times f32 activations, eight rows side by side.
//!
//! A lane is a row's even or odd values, so that sums have the order of
//! [`float::dot`](super::super::float::dot); eight rows, because each product waits for
//! the one before: 32 bytes every four cycles.

use std::arch::x86_64::*;

use super::super::driver::K_CHUNK_F32;
use super::{MOST_ROWS, prefetch};
use crate::quant::DType;

pub const ROWS: usize = 8;
const _: () = assert!(ROWS <= MOST_ROWS);
/// Values in 16 bytes, and in a cache line.
const PIECE: usize = 8;
const LINE: usize = 32;

/// How values become f32.
pub trait Half {
    const DTYPE: DType;
    /// # Safety
    /// AVX-512 is available.
    unsafe fn widen(v: __m256i) -> __m512;
}

pub struct F16;
pub struct Bf16;

impl Half for F16 {
    const DTYPE: DType = DType::F16;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn widen(v: __m256i) -> __m512 {
        _mm512_cvtph_ps(v)
    }
}

impl Half for Bf16 {
    const DTYPE: DType = DType::BF16;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn widen(v: __m256i) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(v)))
    }
}

/// 16 bytes of each row as four vectors, in each a pair of neighbours of all rows.
///
/// # Safety
/// AVX-512 is available; the bytes are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn pairs(p: *const u8, stride: usize) -> [__m256i; 4] {
    // SAFETY: the caller's contract.
    let rows = |r: usize| unsafe {
        let at = |r: usize| _mm_loadu_si128(p.add(r * stride).cast());
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(at(r)), at(r + 4))
    };
    let (r0, r1, r2, r3) = (rows(0), rows(1), rows(2), rows(3));
    let (low01, high01) = (_mm256_unpacklo_epi32(r0, r1), _mm256_unpackhi_epi32(r0, r1));
    let (low23, high23) = (_mm256_unpacklo_epi32(r2, r3), _mm256_unpackhi_epi32(r2, r3));
    [
        _mm256_unpacklo_epi64(low01, low23),
        _mm256_unpackhi_epi64(low01, low23),
        _mm256_unpacklo_epi64(high01, high23),
        _mm256_unpackhi_epi64(high01, high23),
    ]
}

/// [`Ops::dot`](super::Ops::dot) of whole 16 bytes; `x` are f32 values.
///
/// Budget, for 128 bytes: 12 instructions transpose, 4 widen (two steps each), 4
/// multiply; loads: 8 of W, 4 of x: some 12 cycles, 11 bytes a cycle.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub unsafe fn dot<T: Half>(
    src: *const u8,
    stride: usize,
    k: usize,
    x: *const u8,
    sums: &mut [f32; MOST_ROWS],
) {
    let x = x.cast::<f32>();
    let mut y = _mm512_setzero_ps();
    for k0 in (0..k).step_by(K_CHUNK_F32) {
        let mut sum = _mm512_setzero_ps();
        let end = k.min(k0 + K_CHUNK_F32);
        for line in (k0..end).step_by(LINE) {
            for r in 0..ROWS {
                prefetch(src.wrapping_add(2 * line + r * stride));
            }
            for at in (line..end.min(line + LINE)).step_by(PIECE) {
                // SAFETY: values `at..at + 8` of the rows and of x.
                unsafe {
                    for (i, pair) in pairs(src.add(2 * at), stride).into_iter().enumerate() {
                        let x = _mm512_set1_pd(x.add(at + 2 * i).cast::<f64>().read_unaligned());
                        sum = _mm512_fmadd_ps(T::widen(pair), _mm512_castpd_ps(x), sum);
                    }
                }
            }
        }
        // Even and odd values.
        let swapped = _mm512_permute_ps::<0b10_11_00_01>(sum);
        y = _mm512_add_ps(y, _mm512_add_ps(sum, swapped));
    }
    // SAFETY: eight values of a mask of eight.
    unsafe { _mm512_mask_compressstoreu_ps(sums.as_mut_ptr(), 0x5555, y) };
}
