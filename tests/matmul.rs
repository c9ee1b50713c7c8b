//! The CPU matmul: every type, path and odd size against f64 sums.

use llama_rs::backend::check::random::{Random, random_weights};
use llama_rs::backend::cpu::matmul::{
    ActKind, Acts, MatMul, Piece, ROW_TILE, act_kind, q8_bytes, q16_bytes, quantize_row,
    quantize_row16, scratch_bytes,
};
use llama_rs::backend::cpu::simd::Simd;
use llama_rs::quant::{DType, quantize_q8};

/// Half a unit in the last place of f32, relative: what one rounding may lose.
const ROUNDING: f64 = 1.0 / (1u64 << 24) as f64;

/// Types that hold weights.
fn weight_types() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&d| d != DType::I32)
}

fn paths() -> impl Iterator<Item = Simd> {
    Simd::ALL.into_iter().filter(|s| s.available())
}

/// One multiplication with its activations in both forms.
struct Case {
    dtype: DType,
    k: usize,
    m: usize,
    n: usize,
    w: Vec<u8>,
    x: Vec<f32>,
}

impl Case {
    fn new(dtype: DType, k: usize, m: usize, n: usize) -> Case {
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (k * 1000 + m * 10 + n) as u64);
        let w = random_weights(dtype, k * m, &mut random);
        let x = (0..k * n).map(|_| random.unit()).collect();
        Case {
            dtype,
            k,
            m,
            n,
            w,
            x,
        }
    }

    fn quantized(&self, simd: Simd) -> Vec<u8> {
        let mut buf = vec![0xFF; q8_bytes(self.k, self.n)];
        for (i, x) in self.x.chunks_exact(self.k).enumerate() {
            // SAFETY: the buffer is exactly of that size; one thread.
            unsafe { quantize_row(simd, x, buf.as_mut_ptr(), self.k, self.n, i) };
        }
        buf
    }

    fn quantized16(&self, simd: Simd) -> Vec<u8> {
        let mut buf = vec![0xFF; q16_bytes(self.k, self.n)];
        for (i, x) in self.x.chunks_exact(self.k).enumerate() {
            // SAFETY: the buffer is exactly of that size; one thread.
            unsafe { quantize_row16(simd, x, buf.as_mut_ptr(), self.k, self.n, i) };
        }
        buf
    }

    /// y `[m, n]`, rows done in pieces of `step`, everything unread poisoned.
    fn run(&self, simd: Simd, kind: ActKind, step: usize) -> Vec<f32> {
        let buf = match kind {
            ActKind::Q8 => self.quantized(simd),
            ActKind::Q16 => self.quantized16(simd),
            ActKind::F32 => Vec::new(),
        };
        let acts = match kind {
            ActKind::Q8 => Acts::Q8 {
                buf: &buf,
                n: self.n,
            },
            ActKind::Q16 => Acts::Q16 {
                buf: &buf,
                n: self.n,
            },
            ActKind::F32 => Acts::F32 {
                x: &self.x,
                stride: self.k,
            },
        };
        let (simd, dtype, k, m) = (simd, self.dtype, self.k, self.m);
        let mm = MatMul {
            simd,
            dtype,
            w: &self.w,
            k,
            m,
            acts,
        };
        let tokens: Vec<u32> = (0..self.n as u32).collect();
        let mut scratch = vec![0xFF; scratch_bytes(dtype, k, self.n)];
        let mut y = vec![f32::NAN; m * self.n];
        // Two pieces of each share, the second first.
        let shares = (0..m).step_by(step).map(|r| r..m.min(r + step));
        let mut pieces = shares.flat_map(|share| {
            let n = share.len().div_ceil(ROW_TILE);
            [n / 3..n, 0..n / 3].map(|tiles| Piece {
                share: share.clone(),
                tiles,
            })
        });
        // SAFETY: `y` has m * n values; one thread; the path is available.
        unsafe {
            mm.run(
                &mut pieces,
                &tokens,
                &tokens,
                y.as_mut_ptr(),
                m,
                &mut scratch,
            )
        };
        y
    }

    /// Row `r` of W dequantized.
    fn row(&self, r: usize) -> Vec<f64> {
        let bytes = self.dtype.row_bytes(self.k).unwrap();
        let mut values = vec![0.0; self.k];
        let row = &self.w[r * bytes..][..bytes];
        self.dtype.dequantize_row(row, &mut values).unwrap();
        values.into_iter().map(f64::from).collect()
    }

    /// Row `r` as the kernels add it up: |d * q| + |m| of the unsigned lanes,
    /// which bounds every term of every path.
    fn row_magnitude(&self, r: usize) -> Vec<f64> {
        let Some(group) = self.dtype.lane_group() else {
            return self.row(r).into_iter().map(f64::abs).collect();
        };
        let bytes = self.dtype.row_bytes(self.k).unwrap();
        let mut q = vec![0; self.k];
        let (mut d, mut m) = (vec![0.0; self.k / group], vec![0.0; self.k / group]);
        let row = &self.w[r * bytes..][..bytes];
        self.dtype.unpack_row(row, &mut q, &mut d, &mut m).unwrap();
        let lane = |i: usize| f64::from(d[i / group] * f32::from(q[i])).abs();
        (0..self.k)
            .map(|i| lane(i) + f64::from(m[i / group]).abs())
            .collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Lengths of a row to try: one block, several, and more than one chunk.
fn row_lengths(dtype: DType) -> Vec<usize> {
    match dtype.block_len() {
        1 => vec![1, 7, 32, 259, 600],
        32 => vec![32, 96, 1120],
        _ => vec![256, 512, 1280],
    }
}

const ROWS: [usize; 4] = [1, 16, 19, 50];
const TOKENS: [usize; 7] = [1, 2, 3, 5, 8, 17, 128];

/// Runs `check` for a selection of sizes that covers each of them.
fn for_each_case(dtype: DType, check: impl Fn(&Case)) {
    for k in row_lengths(dtype) {
        for (i, n) in TOKENS.into_iter().enumerate() {
            check(&Case::new(dtype, k, ROWS[i % 4], n));
            check(&Case::new(dtype, k, ROWS[(i + 1) % 4], n));
        }
    }
}

#[test]
fn q8_products_match_f64_sums_of_the_quantized_activations() {
    for dtype in weight_types().filter(|&d| act_kind(d, 256, false) == ActKind::Q8) {
        for_each_case(dtype, |case| {
            let results: Vec<_> = paths()
                .map(|s| (s, case.run(s, ActKind::Q8, 4096)))
                .collect();
            for j in 0..case.n {
                let x = &case.x[j * case.k..][..case.k];
                let (mut q, mut d) = (vec![0; case.k], vec![0.0; case.k / 32]);
                quantize_q8(x, &mut q, &mut d, &mut vec![0.0; case.k / 16]);
                let xq: Vec<f64> = (0..case.k)
                    .map(|i| f64::from(d[i / 32]) * q[i] as f64)
                    .collect();
                let x_abs: Vec<f64> = xq.iter().map(|v| v.abs()).collect();
                let x_step: Vec<f64> = (0..case.k).map(|i| 0.5001 * f64::from(d[i / 32])).collect();
                let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
                for r in 0..case.m {
                    let (w, magnitude) = (case.row(r), case.row_magnitude(r));
                    // Integer sums are exact. What rounds: 4 products and
                    // conversions a term, 2 additions a group of 16, the
                    // factors d * scale (2).
                    let roundings = (case.k / 8 + 6) as f64;
                    let bound = roundings * ROUNDING * dot(&magnitude, &x_abs);
                    // Against the activations as given: half a step each.
                    let w_abs: Vec<f64> = w.iter().map(|v| v.abs()).collect();
                    let step_bound = bound + dot(&w_abs, &x_step);
                    for (simd, y) in &results {
                        let y = f64::from(y[j * case.m + r]);
                        let name = format!("{dtype:?} {simd:?} k={} row {r} token {j}", case.k);
                        let expected = dot(&w, &xq);
                        assert!((y - expected).abs() <= bound, "{name}: {y} for {expected}");
                        assert!(
                            (y - dot(&w, &x)).abs() <= step_bound,
                            "{name}: too far from x"
                        );
                    }
                }
            }
        });
    }
}

#[test]
fn q16_products_match_f64_sums_within_half_a_step() {
    for dtype in [DType::F16, DType::BF16] {
        for (i, k) in [32, 96, 416, 1120].into_iter().enumerate() {
            for (j, n) in TOKENS.into_iter().enumerate() {
                let case = Case::new(dtype, k, ROWS[(i + j) % 4], n);
                let results: Vec<_> = paths()
                    .map(|s| (s, case.run(s, ActKind::Q16, 4096)))
                    .collect();
                check_q16(&case, &results);
            }
        }
    }
}

/// Half a step of each weight and value away: steps are 2^-12 of the power of two below
/// the greatest weight of a group, and the 8191st part of the greatest value.
fn check_q16(case: &Case, results: &[(Simd, Vec<f32>)]) {
    let greatest = |v: &[f64]| v.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    for r in 0..case.m {
        let w = case.row(r);
        for t in 0..case.n {
            let x = &case.x[t * case.k..][..case.k];
            let x: Vec<f64> = x.iter().map(|&v| v.into()).collect();
            let (mut bound, mut magnitude) = (0.0, 0.0);
            for (w, x) in w.chunks_exact(32).zip(x.chunks_exact(32)) {
                let w_step = greatest(w).log2().floor().exp2() / 4096.0;
                let x_step = greatest(x) / 8191.0;
                for (w, x) in w.iter().zip(x) {
                    bound += w.abs() * 0.501 * x_step + (x.abs() + x_step) * 0.5 * w_step;
                    magnitude += (w.abs() + w_step) * (x.abs() + x_step);
                }
            }
            // Integer sums are exact; a group takes a conversion, two products, a sum.
            let bound = bound + (case.k / 32 + 4) as f64 * ROUNDING * magnitude;
            let expected = dot(&w, &x);
            for (simd, y) in results {
                let y = f64::from(y[t * case.m + r]);
                let name = format!("{:?} {simd:?} k={} row {r} token {t}", case.dtype, case.k);
                assert!((y - expected).abs() <= bound, "{name}: {y} for {expected}");
            }
        }
    }
}

#[test]
fn f32_products_match_f64_sums() {
    for dtype in weight_types() {
        for_each_case(dtype, |case| {
            let results: Vec<_> = paths()
                .map(|s| (s, case.run(s, ActKind::F32, 4096)))
                .collect();
            for j in 0..case.n {
                let x: Vec<f64> = case.x[j * case.k..][..case.k]
                    .iter()
                    .map(|&v| v.into())
                    .collect();
                let x_abs: Vec<f64> = x.iter().map(|v| v.abs()).collect();
                for r in 0..case.m {
                    let expected = dot(&case.row(r), &x);
                    // Sums of up to 128 terms, then one for each 256 values; a
                    // weight itself takes up to 4 roundings.
                    let roundings = (case.k.min(128) + case.k / 256 + 6) as f64;
                    let bound = roundings * ROUNDING * dot(&case.row_magnitude(r), &x_abs);
                    for (simd, y) in &results {
                        let y = f64::from(y[j * case.m + r]);
                        assert!(
                            (y - expected).abs() <= bound,
                            "{dtype:?} {simd:?} k={} row {r} token {j}: {y} for {expected}",
                            case.k
                        );
                    }
                }
            }
        });
    }
}

#[test]
fn result_depends_neither_on_other_tokens_nor_on_the_split_of_rows() {
    for dtype in weight_types() {
        let k = row_lengths(dtype)[2];
        let k = k.next_multiple_of(32);
        for kind in [ActKind::Q8, ActKind::Q16, ActKind::F32] {
            if kind != ActKind::F32 && act_kind(dtype, k, false) != kind {
                continue;
            }
            for simd in paths() {
                let all = Case::new(dtype, k, 50, 17);
                let together = all.run(simd, kind, 4096);
                assert!(
                    all.run(simd, kind, ROW_TILE) == together,
                    "{dtype:?} {simd:?} rows"
                );
                for j in [0, 7, 16] {
                    let x = all.x[j * k..][..k].to_vec();
                    let alone = Case {
                        n: 1,
                        x,
                        w: all.w.clone(),
                        ..all
                    };
                    let y = alone.run(simd, kind, 2 * ROW_TILE);
                    assert!(
                        y == together[j * 50..][..50],
                        "{dtype:?} {simd:?} {kind:?} token {j}"
                    );
                }
            }
        }
    }
}

#[test]
fn token_lists_gather_and_scatter() {
    let case = Case::new(DType::Q4K, 512, 20, 6);
    for simd in paths() {
        let whole = case.run(simd, ActKind::Q8, 4096);
        let buf = case.quantized(simd);
        let acts = Acts::Q8 { buf: &buf, n: 6 };
        let mm = MatMul {
            simd,
            dtype: case.dtype,
            w: &case.w,
            k: 512,
            m: 20,
            acts,
        };
        let (tx, ty, y_stride) = ([5, 1, 1], [0, 3, 2], 23);
        let mut y = vec![-7.0; 4 * y_stride];
        let mut scratch = vec![0xFF; scratch_bytes(case.dtype, 512, 3)];
        // SAFETY: rows below 20 of tokens below 4 are inside `y`.
        unsafe {
            mm.run(
                &mut Piece::whole(3..20),
                &tx,
                &ty,
                y.as_mut_ptr(),
                y_stride,
                &mut scratch,
            )
        };
        for (at, value) in y.into_iter().enumerate() {
            let (token, r) = (at / y_stride, at % y_stride);
            let written = ty.iter().position(|&t| t as usize == token);
            let expected = match written {
                Some(j) if (3..20).contains(&r) => whole[tx[j] as usize * 20 + r],
                _ => -7.0,
            };
            assert_eq!(value, expected, "{simd:?} token {token} row {r}");
        }
    }
}

#[test]
fn activation_kind_follows_type_mode_and_length() {
    assert_eq!(act_kind(DType::Q4K, 256, false), ActKind::Q8);
    assert_eq!(act_kind(DType::Q4K, 256, true), ActKind::F32);
    assert_eq!(act_kind(DType::F32, 256, false), ActKind::F32);
    for dtype in [DType::F16, DType::BF16] {
        assert_eq!(act_kind(dtype, 256, false), ActKind::Q16);
        assert_eq!(act_kind(dtype, 256, true), ActKind::F32);
        assert_eq!(act_kind(dtype, 250, false), ActKind::F32);
    }
}
