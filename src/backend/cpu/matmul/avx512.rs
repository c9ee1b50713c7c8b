//! Lanes of AVX-512 with VNNI: 16 rows a vector, and the compiled kernels.

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

compile_kernels!(
    U32x16,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    [1 2 3 4 5 6 7 8 9 10 11 12]
);

/// 16 u32 lanes.
#[derive(Clone, Copy)]
pub struct U32x16(__m512i);

/// 16 f32 lanes.
#[derive(Clone, Copy)]
pub struct F32x16(__m512);

/// Wraps an expression of AVX-512 intrinsics.
macro_rules! avx512 {
    ($e:expr) => {
        // SAFETY: a value of these types exists only where AVX-512 was detected
        // (contract of their constructors).
        unsafe { $e }
    };
}

impl Lanes for U32x16 {
    const ROWS: usize = 16;
    type F = F32x16;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's contract, here and below.
        U32x16(unsafe { _mm512_loadu_si512(p.cast()) })
    }
    #[inline(always)]
    unsafe fn broadcast(p: *const u8) -> Self {
        // SAFETY: as in `load`.
        U32x16(unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) })
    }
    #[inline(always)]
    unsafe fn columns(p: *const u8, stride: usize) -> [Self; 4] {
        // Vector `i`: rows i, i + 4, i + 8, i + 12, 16 bytes of each; then a
        // 4 x 4 transpose inside each 128-bit quarter.
        let quarter = |i: usize| {
            // SAFETY: as in `load`.
            unsafe {
                let at = |r: usize| _mm_loadu_si128(p.add(r * stride).cast());
                let v = _mm512_castsi128_si512(at(i));
                let v = _mm512_inserti32x4::<1>(v, at(i + 4));
                let v = _mm512_inserti32x4::<2>(v, at(i + 8));
                _mm512_inserti32x4::<3>(v, at(i + 12))
            }
        };
        let (r0, r1, r2, r3) = (quarter(0), quarter(1), quarter(2), quarter(3));
        avx512!({
            let low01 = _mm512_unpacklo_epi32(r0, r1);
            let high01 = _mm512_unpackhi_epi32(r0, r1);
            let low23 = _mm512_unpacklo_epi32(r2, r3);
            let high23 = _mm512_unpackhi_epi32(r2, r3);
            // Rows are now 0, 1, 2, 3 in the first quarter, 4, 5, 6, 7 in the next.
            [
                U32x16(_mm512_unpacklo_epi64(low01, low23)),
                U32x16(_mm512_unpackhi_epi64(low01, low23)),
                U32x16(_mm512_unpacklo_epi64(high01, high23)),
                U32x16(_mm512_unpackhi_epi64(high01, high23)),
            ]
        })
    }
    #[inline(always)]
    unsafe fn column(p: *const u8, stride: usize) -> Self {
        // SAFETY: as in `load`; 15 * stride fits an i32 (a row is below 128 MiB,
        // which the driver asserts).
        unsafe {
            let rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let at = _mm512_mullo_epi32(rows, _mm512_set1_epi32(stride as i32));
            U32x16(_mm512_i32gather_epi32::<1>(at, p.cast()))
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
        unsafe { _mm512_storeu_si512(p.cast(), self.0) }
    }

    #[inline(always)]
    fn and(self, mask: u32) -> Self {
        avx512!(U32x16(_mm512_and_si512(
            self.0,
            _mm512_set1_epi32(mask as i32)
        )))
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        avx512!(U32x16(_mm512_or_si512(self.0, other.0)))
    }
    #[inline(always)]
    fn xor(self, mask: u32) -> Self {
        avx512!(U32x16(_mm512_xor_si512(
            self.0,
            _mm512_set1_epi32(mask as i32)
        )))
    }
    #[inline(always)]
    fn shl(self, bits: u32) -> Self {
        avx512!(U32x16(_mm512_sllv_epi32(
            self.0,
            _mm512_set1_epi32(bits as i32)
        )))
    }
    #[inline(always)]
    fn shr(self, bits: u32) -> Self {
        avx512!(U32x16(_mm512_srlv_epi32(
            self.0,
            _mm512_set1_epi32(bits as i32)
        )))
    }
    #[inline(always)]
    fn sar(self, bits: u32) -> Self {
        avx512!(U32x16(_mm512_srav_epi32(
            self.0,
            _mm512_set1_epi32(bits as i32)
        )))
    }
    #[inline(always)]
    fn sub(self, x: u32) -> Self {
        avx512!(U32x16(_mm512_sub_epi32(
            self.0,
            _mm512_set1_epi32(x as i32)
        )))
    }
    #[inline(always)]
    fn sub_lanes(self, x: Self) -> Self {
        avx512!(U32x16(_mm512_sub_epi32(self.0, x.0)))
    }
    #[inline(always)]
    fn min(self, x: u32) -> Self {
        avx512!(U32x16(_mm512_min_epu32(
            self.0,
            _mm512_set1_epi32(x as i32)
        )))
    }
    #[inline(always)]
    fn max(self, x: u32) -> Self {
        avx512!(U32x16(_mm512_max_epu32(
            self.0,
            _mm512_set1_epi32(x as i32)
        )))
    }
    #[inline(always)]
    fn max16(self, x: Self) -> Self {
        avx512!(U32x16(_mm512_max_epu16(self.0, x.0)))
    }
    #[inline(always)]
    fn pair(self, high: Self) -> Self {
        avx512!(U32x16(_mm512_mask_blend_epi16(
            0xAAAA_AAAA,
            self.0,
            _mm512_slli_epi32::<16>(high.0)
        )))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16]) -> Self {
        avx512!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            U32x16(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), self.0))
        })
    }
    #[inline(always)]
    fn spread_bits(self) -> Self {
        /// Entry `i`: bit `j` of `i` moved to bit 4 of byte `j`.
        const SPREAD: [u32; 16] = {
            let mut table = [0; 16];
            let mut i = 0;
            while i < 16 {
                let bits = i as u32;
                table[i] =
                    ((bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21) << 4;
                i += 1;
            }
            table
        };
        // The permute reads the low four bits of each index only.
        avx512!({
            let table = _mm512_loadu_si512(SPREAD.as_ptr().cast());
            U32x16(_mm512_permutexvar_epi32(self.0, table))
        })
    }
    #[inline(always)]
    fn zero(self) -> Self {
        avx512!(U32x16(_mm512_setzero_si512()))
    }

    #[inline(always)]
    fn f16_halves(self) -> [F32x16; 2] {
        avx512!([
            F32x16(_mm512_cvtph_ps(_mm512_castsi512_si256(self.0))),
            F32x16(_mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(self.0))),
        ])
    }
    #[inline(always)]
    fn twice(self) -> [Self; 2] {
        avx512!({
            let low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            [
                U32x16(_mm512_permutexvar_epi32(low, self.0)),
                U32x16(_mm512_permutexvar_epi32(high, self.0)),
            ]
        })
    }
    #[inline(always)]
    fn halves([a, b]: [Self; 2]) -> Self {
        /// Every second word of two vectors.
        const EVEN: [u16; 32] = {
            let mut at = [0; 32];
            let mut i = 0;
            while i < 32 {
                at[i] = 2 * i as u16;
                i += 1;
            }
            at
        };
        avx512!({
            let even = _mm512_loadu_si512(EVEN.as_ptr().cast());
            U32x16(_mm512_permutex2var_epi16(a.0, even, b.0))
        })
    }
    #[inline(always)]
    fn f16(self) -> F32x16 {
        avx512!(F32x16(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(self.0))))
    }
    #[inline(always)]
    fn to_f32(self) -> F32x16 {
        avx512!(F32x16(_mm512_cvtepi32_ps(self.0)))
    }
    #[inline(always)]
    fn as_f32(self) -> F32x16 {
        avx512!(F32x16(_mm512_castsi512_ps(self.0)))
    }

    #[inline(always)]
    fn dot<const WIDE: bool>(self, u: Self, s: Self) -> Self {
        avx512!(U32x16(_mm512_dpbusd_epi32(self.0, u.0, s.0)))
    }
    #[inline(always)]
    fn dot16(self, a: Self, b: Self) -> Self {
        avx512!(U32x16(_mm512_dpwssd_epi32(self.0, a.0, b.0)))
    }
}

impl Mul for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        avx512!(F32x16(_mm512_mul_ps(self.0, b.0)))
    }
}

impl FloatLanes for F32x16 {
    type Int = U32x16;
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's contract, here and below.
        F32x16(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn broadcast(p: *const f32) -> Self {
        // SAFETY: as above.
        F32x16(unsafe { _mm512_set1_ps(p.read_unaligned()) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        avx512!(F32x16(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        avx512!(F32x16(_mm512_add_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn bits(self) -> U32x16 {
        avx512!(U32x16(_mm512_castps_si512(self.0)))
    }
    #[inline(always)]
    fn zero(self) -> Self {
        avx512!(F32x16(_mm512_setzero_ps()))
    }
}
