//! Vector mathematics for the ops outside the matrix products: one plain Rust
//! body a function, compiled for each instruction set, and dispatched at run
//! time. Rust does not reorder float sums, so sums run over 16 lanes that are
//! added in a fixed order; all paths add in the same order.

use super::simd::Simd;
use crate::graph::UnaryKind;

/// Lanes of a sum: one AVX-512 register, two of AVX2.
pub(super) const LANES: usize = 16;

/// Compiles `body` (an `#[inline(always)]` function whose first generic says
/// whether fused multiply-add is one instruction) for each instruction set.
macro_rules! multiversion {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        $vis fn $name(simd: Simd, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { $body::<true>($($arg),*) }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { $body::<true>($($arg),*) }
                match simd {
                    // SAFETY: a `Simd` exists only for what the machine has.
                    Simd::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    Simd::Avx2 => return unsafe { avx2($($arg),*) },
                    Simd::Scalar => {}
                }
            }
            let _ = simd;
            $body::<false>($($arg),*)
        }
    };
}
pub(super) use multiversion;

#[inline(always)]
pub(super) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
pub(super) fn add_lanes(lanes: [f32; LANES]) -> f32 {
    let mut lanes = lanes;
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn dot_body<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_blocks, a_tail) = a.as_chunks::<LANES>();
    let (b_blocks, b_tail) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for i in 0..LANES {
            lanes[i] = fma::<FMA>(a[i], b[i], lanes[i]);
        }
    }
    for (i, (a, b)) in a_tail.iter().zip(b_tail).enumerate() {
        lanes[i] = fma::<FMA>(*a, *b, lanes[i]);
    }
    add_lanes(lanes)
}

multiversion! {
    /// Sum of products of equally long rows.
    pub fn dot(a: &[f32], b: &[f32]) -> f32 = dot_body
}

#[inline(always)]
fn axpy_body<const FMA: bool>(p: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = fma::<FMA>(p, *x, *y);
    }
}

multiversion! {
    /// `y += p * x`.
    pub fn axpy(p: f32, x: &[f32], y: &mut [f32]) = axpy_body
}

/// e^x to about 1 ulp: `2^n * p(r)` with `r = x - n ln 2` in [-0.35, 0.35],
/// ln 2 in two parts (Cody and Waite), p the Taylor polynomial of degree 7,
/// whose remainder there is below 6e-9. Below -87.3 the result is 0.
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    let clamped = x.clamp(-87.3, 88.7);
    let n = (clamped * std::f32::consts::LOG2_E + 12_582_912.0) - 12_582_912.0;
    let r = fma::<FMA>(n, -0.693_359_4, clamped);
    let r = fma::<FMA>(n, 2.121_944_4e-4, r);
    let mut p = 1.0 / 5040.0;
    for c in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = fma::<FMA>(p, r, c);
    }
    // Two factors, since 2^128 is not a float.
    let half = n as i32 >> 1;
    let two = |e: i32| f32::from_bits(((e + 127) << 23) as u32);
    let y = p * two(half) * two(n as i32 - half);
    if x < -87.3 { 0.0 } else { y }
}

#[inline(always)]
fn exp_minus_body<const FMA: bool>(x: &mut [f32], max: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (blocks, tail) = x.as_chunks_mut::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            block[i] = exp::<FMA>(block[i] - max);
            lanes[i] += block[i];
        }
    }
    for (i, v) in tail.iter_mut().enumerate() {
        *v = exp::<FMA>(*v - max);
        lanes[i] += *v;
    }
    add_lanes(lanes)
}

multiversion! {
    /// `x = exp(x - max)`; gives the sum.
    pub fn exp_minus(x: &mut [f32], max: f32) -> f32 = exp_minus_body
}

#[inline(always)]
fn softmax_columns_body<const FMA: bool>(
    x: &mut [f32],
    max: &mut [f32],
    sum: &mut [f32],
    keep: &mut [f32],
) {
    let width = max.len();
    for at in (0..width).step_by(LANES) {
        let part = |x: &[f32]| -> [f32; LANES] { std::array::from_fn(|l| x[at + l]) };
        let (old, mut top) = (part(max), part(max));
        for row in x.chunks_exact(width) {
            for l in 0..LANES {
                let v = row[at + l];
                // A column of NaN alone must not look masked.
                top[l] = if v <= top[l] { top[l] } else { v };
            }
        }
        let shift = top.map(|t| if t == f32::NEG_INFINITY { 0.0 } else { t });
        let mut factor = [0.0; LANES];
        for l in 0..LANES {
            factor[l] = exp::<FMA>(old[l] - shift[l]);
        }
        let mut total = part(sum);
        for l in 0..LANES {
            total[l] *= factor[l];
        }
        for row in x.chunks_exact_mut(width) {
            let row = &mut row[at..at + LANES];
            for l in 0..LANES {
                row[l] = exp::<FMA>(row[l] - shift[l]);
                total[l] += row[l];
            }
        }
        max[at..at + LANES].copy_from_slice(&top);
        sum[at..at + LANES].copy_from_slice(&total);
        keep[at..at + LANES].copy_from_slice(&factor);
    }
}

multiversion! {
    /// One step of a running softmax down the columns of `x [n, width]`, which become
    /// `exp(x - max)`; `width` is a multiple of 16. `max` and `sum` go on from what they
    /// were; what was summed up with weights before is to be multiplied with `keep`.
    pub fn softmax_columns(
        x: &mut [f32], max: &mut [f32], sum: &mut [f32], keep: &mut [f32]
    ) = softmax_columns_body
}

/// `ln(1 + e^x)`; above 20 x itself, as ggml has it.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[inline(always)]
fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FMA>(-x))
}

#[inline(always)]
fn tanh<const FMA: bool>(x: f32) -> f32 {
    1.0 - 2.0 / (exp::<FMA>(2.0 * x) + 1.0)
}

/// erf by Abramowitz and Stegun 7.1.26: absolute error below 1.5e-7.
#[inline(always)]
fn erf<const FMA: bool>(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let mut p = 1.061_405_4;
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = fma::<FMA>(p, t, c);
    }
    (1.0 - p * t * exp::<FMA>(-x * x)).copysign(x)
}

#[inline(always)]
fn map<F: Fn(f32) -> f32>(x: &[f32], y: &mut [f32], f: F) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = f(*x);
    }
}

#[inline(always)]
fn unary_body<const FMA: bool>(kind: UnaryKind, x: &[f32], y: &mut [f32]) {
    // sqrt(2 / pi), for GELU's tanh form (arXiv 1606.08415).
    const ROOT: f32 = 0.797_884_6;
    match kind {
        UnaryKind::Silu => map(x, y, |v| v * sigmoid::<FMA>(v)),
        UnaryKind::Gelu => map(x, y, |v| {
            0.5 * v * (1.0 + tanh::<FMA>(ROOT * v * (1.0 + 0.044_715 * v * v)))
        }),
        UnaryKind::GeluQuick => map(x, y, |v| v * sigmoid::<FMA>(1.702 * v)),
        UnaryKind::GeluErf => map(x, y, |v| {
            0.5 * v * (1.0 + erf::<FMA>(v * std::f32::consts::FRAC_1_SQRT_2))
        }),
        UnaryKind::Relu => map(x, y, |v| v.max(0.0)),
        UnaryKind::ReluSqr => map(x, y, |v| v.max(0.0) * v.max(0.0)),
        UnaryKind::Softplus => map(x, y, softplus),
        UnaryKind::Exp => map(x, y, f32::exp),
        UnaryKind::Sigmoid => map(x, y, sigmoid::<FMA>),
        UnaryKind::Tanh => map(x, y, tanh::<FMA>),
    }
}

multiversion! {
    /// `y = f(x)`.
    pub fn unary(kind: UnaryKind, x: &[f32], y: &mut [f32]) = unary_body
}

#[inline(always)]
fn gemm_body<const FMA: bool>(
    dims: [usize; 3],
    (a, step): (&[f32], usize),
    b: &[f32],
    c: &mut [f32],
    strides: [usize; 3],
) {
    let [m, n, k] = dims;
    let [lda, ldb, ldc] = strides;
    // 4 rows by 32 columns of C: 8 AVX-512 registers, and 16 of AVX2.
    for j in (0..n).step_by(LANES) {
        let width = LANES.min(n - j);
        let mut i = 0;
        while i < m {
            let rows = 4.min(m - i);
            let mut acc = [[0.0f32; LANES]; 4];
            for p in 0..k {
                let mut line = [0.0f32; LANES];
                let b = &b[p * ldb + j..p * ldb + j + width];
                line[..width].copy_from_slice(b);
                for r in 0..rows {
                    let a = a[(i + r) * lda + p * step];
                    for l in 0..LANES {
                        acc[r][l] = fma::<FMA>(a, line[l], acc[r][l]);
                    }
                }
            }
            for r in 0..rows {
                let c = &mut c[(i + r) * ldc + j..(i + r) * ldc + j + width];
                c.iter_mut().zip(acc[r]).for_each(|(c, v)| *c += v);
            }
            i += rows;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// As `gemm_body`, 8 rows by 32 columns in registers. `n % 16 == 0`.
    ///
    /// # Safety
    /// The slices hold what `dims` and `strides` say (checked by the caller).
    #[target_feature(enable = "avx512f")]
    pub unsafe fn gemm_avx512(
        [m, n, k]: [usize; 3],
        (a, step): (*const f32, usize),
        b: *const f32,
        c: *mut f32,
        [lda, ldb, ldc]: [usize; 3],
    ) {
        let mut j = 0;
        while j < n {
            // SAFETY: rows i..i+R and columns j..j+16*W stay inside m and n.
            unsafe {
                let wide = n - j >= 32;
                let mut i = 0;
                while i < m {
                    let (a, c) = (a.add(i * lda), c.add(i * ldc + j));
                    let b = b.add(j);
                    i += match (m - i, wide) {
                        (8.., true) => tile::<8, 2>(k, (a, lda, step), (b, ldb), (c, ldc)),
                        (8.., false) => tile::<8, 1>(k, (a, lda, step), (b, ldb), (c, ldc)),
                        (_, true) => tile::<1, 2>(k, (a, lda, step), (b, ldb), (c, ldc)),
                        (_, false) => tile::<1, 1>(k, (a, lda, step), (b, ldb), (c, ldc)),
                    };
                }
                j += if wide { 32 } else { 16 };
            }
        }
    }

    /// C[R, 16 W] += A[R, k] B[k, 16 W]; gives R.
    #[target_feature(enable = "avx512f")]
    unsafe fn tile<const R: usize, const W: usize>(
        k: usize,
        (a, lda, step): (*const f32, usize, usize),
        (b, ldb): (*const f32, usize),
        (c, ldc): (*mut f32, usize),
    ) -> usize {
        let mut acc = [[_mm512_setzero_ps(); W]; R];
        // SAFETY: the caller's promise.
        unsafe {
            for p in 0..k {
                // A closure here is not always inlined, and then goes through memory.
                let mut line = [_mm512_setzero_ps(); W];
                for (w, line) in line.iter_mut().enumerate() {
                    *line = _mm512_loadu_ps(b.add(p * ldb + 16 * w));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let v = _mm512_set1_ps(*a.add(r * lda + p * step));
                    for w in 0..W {
                        acc[w] = _mm512_fmadd_ps(v, line[w], acc[w]);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (w, v) in acc.iter().enumerate() {
                    let at = c.add(r * ldc + 16 * w);
                    _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), *v));
                }
            }
        }
        R
    }
}

/// `C[m, n] += A[m, k] * B[k, n]`, rows `lda`, `ldb`, `ldc` apart, and the values of a row
/// of A `step`; `dims` is `[m, n, k]`, and n a multiple of 16.
pub fn gemm(
    simd: Simd,
    dims: [usize; 3],
    a: (&[f32], usize),
    b: &[f32],
    c: &mut [f32],
    strides: [usize; 3],
) {
    let [m, n, k] = dims;
    let [lda, ldb, ldc] = strides;
    let (a, step) = a;
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    assert!(n.is_multiple_of(LANES));
    assert!(a.len() > (m - 1) * lda + (k - 1) * step);
    assert!(b.len() >= (k - 1) * ldb + n && c.len() >= (m - 1) * ldc + n);
    #[cfg(target_arch = "x86_64")]
    match simd {
        Simd::Avx512 => {
            // SAFETY: lengths just checked; the machine has AVX-512.
            unsafe {
                x86::gemm_avx512(
                    dims,
                    (a.as_ptr(), step),
                    b.as_ptr(),
                    c.as_mut_ptr(),
                    strides,
                )
            };
            return;
        }
        Simd::Avx2 | Simd::Scalar => {}
    }
    gemm_other(simd, dims, (a, step), b, c, strides);
}

multiversion! {
    fn gemm_other(dims: [usize; 3], a: (&[f32], usize), b: &[f32], c: &mut [f32], strides: [usize; 3]) = gemm_body
}
