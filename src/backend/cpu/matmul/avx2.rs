//! Lanes of AVX2: 8 rows a vector, and the compiled kernels.

use std::arch::x86_64::*;
use std::ops::Mul;

use super::ActKind;
use super::driver::{KernelFn, Ops, Scratch};
use super::entry::compile_kernels;
use super::float;
use super::gemm;
use super::lanes::{FloatLanes, Lanes};
use super::operands::Acts;
use super::q16;
use super::tile::{Kind, Unpack};
use super::unpack;
use crate::quant::DType;

compile_kernels!(U32x8, "avx2,fma,f16c", [1 2 3 4]);

/// 8 u32 lanes.
#[derive(Clone, Copy)]
pub struct U32x8(__m256i);

/// 8 f32 lanes.
#[derive(Clone, Copy)]
pub struct F32x8(__m256);

/// Wraps an expression of AVX2 intrinsics.
macro_rules! avx2 {
    ($e:expr) => {
        // SAFETY: a value of these types exists only where AVX2, FMA and F16C
        // were detected (contract of their constructors).
        unsafe { $e }
    };
}

impl Lanes for U32x8 {
    const ROWS: usize = 8;
    type F = F32x8;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract, here and below.
        U32x8(unsafe { _mm256_loadu_si256(p.cast()) })
    }
    #[inline(always)]
    unsafe fn broadcast(p: *const u8) -> Self {
        // SAFETY: as in `load`.
        U32x8(unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) })
    }
    #[inline(always)]
    unsafe fn columns(p: *const u8, stride: usize) -> [Self; 4] {
        // Vector `i`: rows i and i + 4, 16 bytes of each; then a 4 x 4 transpose
        // inside each half.
        let half = |i: usize| {
            // SAFETY: as in `load`.
            unsafe {
                let at = |r: usize| _mm_loadu_si128(p.add(r * stride).cast());
                _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(at(i)), at(i + 4))
            }
        };
        let (r0, r1, r2, r3) = (half(0), half(1), half(2), half(3));
        avx2!({
            let low01 = _mm256_unpacklo_epi32(r0, r1);
            let high01 = _mm256_unpackhi_epi32(r0, r1);
            let low23 = _mm256_unpacklo_epi32(r2, r3);
            let high23 = _mm256_unpackhi_epi32(r2, r3);
            // Rows are now 0, 1, 2, 3 in the first half, 4, 5, 6, 7 in the other.
            [
                U32x8(_mm256_unpacklo_epi64(low01, low23)),
                U32x8(_mm256_unpackhi_epi64(low01, low23)),
                U32x8(_mm256_unpacklo_epi64(high01, high23)),
                U32x8(_mm256_unpackhi_epi64(high01, high23)),
            ]
        })
    }
    #[inline(always)]
    unsafe fn column(p: *const u8, stride: usize) -> Self {
        // SAFETY: as in `load`.
        unsafe {
            let at = |r: usize| p.add(r * stride).cast::<i32>().read_unaligned();
            U32x8(_mm256_setr_epi32(
                at(0),
                at(1),
                at(2),
                at(3),
                at(4),
                at(5),
                at(6),
                at(7),
            ))
        }
    }
    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { _mm256_storeu_si256(p.cast(), self.0) }
    }

    #[inline(always)]
    fn and(self, mask: u32) -> Self {
        avx2!(U32x8(_mm256_and_si256(
            self.0,
            _mm256_set1_epi32(mask as i32)
        )))
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        avx2!(U32x8(_mm256_or_si256(self.0, other.0)))
    }
    #[inline(always)]
    fn xor(self, mask: u32) -> Self {
        avx2!(U32x8(_mm256_xor_si256(
            self.0,
            _mm256_set1_epi32(mask as i32)
        )))
    }
    #[inline(always)]
    fn shl(self, bits: u32) -> Self {
        avx2!(U32x8(_mm256_sllv_epi32(
            self.0,
            _mm256_set1_epi32(bits as i32)
        )))
    }
    #[inline(always)]
    fn shr(self, bits: u32) -> Self {
        avx2!(U32x8(_mm256_srlv_epi32(
            self.0,
            _mm256_set1_epi32(bits as i32)
        )))
    }
    #[inline(always)]
    fn sar(self, bits: u32) -> Self {
        avx2!(U32x8(_mm256_srav_epi32(
            self.0,
            _mm256_set1_epi32(bits as i32)
        )))
    }
    #[inline(always)]
    fn sub(self, x: u32) -> Self {
        avx2!(U32x8(_mm256_sub_epi32(self.0, _mm256_set1_epi32(x as i32))))
    }
    #[inline(always)]
    fn sub_lanes(self, x: Self) -> Self {
        avx2!(U32x8(_mm256_sub_epi32(self.0, x.0)))
    }
    #[inline(always)]
    fn min(self, x: u32) -> Self {
        avx2!(U32x8(_mm256_min_epu32(self.0, _mm256_set1_epi32(x as i32))))
    }
    #[inline(always)]
    fn max(self, x: u32) -> Self {
        avx2!(U32x8(_mm256_max_epu32(self.0, _mm256_set1_epi32(x as i32))))
    }
    #[inline(always)]
    fn max16(self, x: Self) -> Self {
        avx2!(U32x8(_mm256_max_epu16(self.0, x.0)))
    }
    #[inline(always)]
    fn pair(self, high: Self) -> Self {
        avx2!(U32x8(_mm256_blend_epi16::<0b1010_1010>(
            self.0,
            _mm256_slli_epi32::<16>(high.0)
        )))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16]) -> Self {
        avx2!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            U32x8(_mm256_shuffle_epi8(
                _mm256_broadcastsi128_si256(table),
                self.0,
            ))
        })
    }
    #[inline(always)]
    fn spread_bits(self) -> Self {
        // Copies at bits 0, 7, 14 and 21 put bit `i` at bit 8 * i.
        avx2!({
            let bits = _mm256_and_si256(self.0, _mm256_set1_epi32(15));
            let copies = _mm256_mullo_epi32(bits, _mm256_set1_epi32(0x0020_4081));
            U32x8(copies).and(0x0101_0101).shl(4)
        })
    }
    #[inline(always)]
    fn zero(self) -> Self {
        avx2!(U32x8(_mm256_setzero_si256()))
    }

    #[inline(always)]
    fn f16_halves(self) -> [F32x8; 2] {
        avx2!([
            F32x8(_mm256_cvtph_ps(_mm256_castsi256_si128(self.0))),
            F32x8(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(self.0))),
        ])
    }
    #[inline(always)]
    fn twice(self) -> [Self; 2] {
        avx2!({
            let (low, high) = (
                _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3),
                _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7),
            );
            [
                U32x8(_mm256_permutevar8x32_epi32(self.0, low)),
                U32x8(_mm256_permutevar8x32_epi32(self.0, high)),
            ]
        })
    }
    #[inline(always)]
    fn halves([a, b]: [Self; 2]) -> Self {
        // Packing works within halves: 64-bit pieces come out of order.
        avx2!({
            let words = _mm256_packus_epi32(a.and(0xFFFF).0, b.and(0xFFFF).0);
            U32x8(_mm256_permute4x64_epi64::<0b11_01_10_00>(words))
        })
    }
    #[inline(always)]
    fn f16(self) -> F32x8 {
        avx2!({
            // The low halves to the front of each 128 bits, then together.
            let low = _mm256_setr_epi8(
                0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 4, 5, 8, 9, 12, 13,
                -1, -1, -1, -1, -1, -1, -1, -1,
            );
            let packed = _mm256_shuffle_epi8(self.0, low);
            let packed = _mm256_permute4x64_epi64::<0b1000>(packed);
            F32x8(_mm256_cvtph_ps(_mm256_castsi256_si128(packed)))
        })
    }
    #[inline(always)]
    fn to_f32(self) -> F32x8 {
        avx2!(F32x8(_mm256_cvtepi32_ps(self.0)))
    }
    #[inline(always)]
    fn as_f32(self) -> F32x8 {
        avx2!(F32x8(_mm256_castsi256_ps(self.0)))
    }

    #[inline(always)]
    fn dot<const WIDE: bool>(self, u: Self, s: Self) -> Self {
        avx2!({
            let product = |u: __m256i| {
                // Adds two products in 16 bits, which must not saturate.
                let pairs = _mm256_maddubs_epi16(u, s.0);
                _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
            };
            let sum = if WIDE {
                // Bit 7 apart: two products are at most 2 * 128 * 127.
                let low = _mm256_and_si256(u.0, _mm256_set1_epi8(0x7F));
                let top = _mm256_and_si256(u.0, _mm256_set1_epi8(-128));
                _mm256_add_epi32(product(low), product(top))
            } else {
                product(u.0)
            };
            U32x8(_mm256_add_epi32(self.0, sum))
        })
    }
    #[inline(always)]
    fn dot16(self, a: Self, b: Self) -> Self {
        avx2!(U32x8(_mm256_add_epi32(self.0, _mm256_madd_epi16(a.0, b.0))))
    }
}

impl Mul for F32x8 {
    type Output = Self;
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        avx2!(F32x8(_mm256_mul_ps(self.0, b.0)))
    }
}

impl FloatLanes for F32x8 {
    type Int = U32x8;
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract, here and below.
        F32x8(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn broadcast(p: *const f32) -> Self {
        // SAFETY: as above.
        F32x8(unsafe { _mm256_set1_ps(p.read_unaligned()) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        avx2!(F32x8(_mm256_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        avx2!(F32x8(_mm256_add_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn bits(self) -> U32x8 {
        avx2!(U32x8(_mm256_castps_si256(self.0)))
    }
    #[inline(always)]
    fn zero(self) -> Self {
        avx2!(F32x8(_mm256_setzero_ps()))
    }
}
