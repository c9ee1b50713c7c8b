//! Conversion between f16 bytes and f32.

use super::simd::Simd;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// f16 bytes to f32.
    ///
    /// # Safety
    /// `x` holds `2 * y.len()` bytes.
    #[target_feature(enable = "avx,f16c")]
    pub unsafe fn load_f16(x: &[u8], y: &mut [f32]) {
        let whole = y.len() / 8 * 8;
        for i in (0..whole).step_by(8) {
            // SAFETY: 8 values from i on lie inside both.
            unsafe {
                let v = _mm_loadu_si128(x.as_ptr().add(2 * i).cast());
                _mm256_storeu_ps(y.as_mut_ptr().add(i), _mm256_cvtph_ps(v));
            }
        }
        super::load_f16_plain(&x[2 * whole..], &mut y[whole..]);
    }

    /// f32 to f16 bytes, ties to even.
    ///
    /// # Safety
    /// `y` holds `2 * x.len()` bytes.
    #[target_feature(enable = "avx,f16c")]
    pub unsafe fn store_f16(x: &[f32], y: &mut [u8]) {
        let whole = x.len() / 8 * 8;
        for i in (0..whole).step_by(8) {
            // SAFETY: 8 values from i on lie inside both.
            unsafe {
                let v = _mm256_loadu_ps(x.as_ptr().add(i));
                let h = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
                _mm_storeu_si128(y.as_mut_ptr().add(2 * i).cast(), h);
            }
        }
        super::store_f16_plain(&x[whole..], &mut y[2 * whole..]);
    }
}

fn load_f16_plain(x: &[u8], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x.as_chunks::<2>().0) {
        *y = half::f16::from_le_bytes(*x).to_f32();
    }
}

fn store_f16_plain(x: &[f32], y: &mut [u8]) {
    for (y, x) in y.as_chunks_mut::<2>().0.iter_mut().zip(x) {
        *y = half::f16::from_f32(*x).to_le_bytes();
    }
}

/// f16 bytes to f32.
pub fn load_f16(simd: Simd, x: &[u8], y: &mut [f32]) {
    assert!(x.len() >= 2 * y.len());
    match simd {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: length checked; AVX2 machines have F16C (checked by `Simd::detect`).
        Simd::Avx512 | Simd::Avx2 => unsafe { x86::load_f16(x, y) },
        _ => load_f16_plain(x, y),
    }
}

/// f32 to f16 bytes, ties to even.
pub fn store_f16(simd: Simd, x: &[f32], y: &mut [u8]) {
    assert!(y.len() >= 2 * x.len());
    match simd {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `load_f16`.
        Simd::Avx512 | Simd::Avx2 => unsafe { x86::store_f16(x, y) },
        _ => store_f16_plain(x, y),
    }
}
