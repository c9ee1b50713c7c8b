//! MUL_MAT and MUL_MAT_ID as ops; the kernels have `tests/matmul.rs`.

use super::harness::*;
use llama_rs::graph::Op;
use llama_rs::quant::DType;
use std::sync::Arc;

const TYPES: [DType; 5] = [DType::F32, DType::F16, DType::Q8_0, DType::Q4_0, DType::Q6K];

fn values(dtype: DType, bytes: &[u8], n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n];
    dtype.dequantize_row(bytes, &mut out).expect("sizes match");
    wide(&out)
}

/// A product in f64 and what f32 (and 8-bit activations) may lose of it.
fn product(w: &[f64], x: &[f64], exact: bool) -> (f64, f64) {
    let sum: f64 = w.iter().zip(x).map(|(w, x)| w * x).sum();
    let size: f64 = w.iter().zip(x).map(|(w, x)| (w * x).abs()).sum();
    let max = x.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let weights: f64 = w.iter().map(|w| w.abs()).sum();
    // Every addition rounds at most once. 8-bit values are off by half a step
    // of max / 127, with 1 % for the rounding of the step itself; offsets in
    // blocks cancel terms up to 32 times as large as their result.
    let rounded = w.len() as f64 * ROUNDING * size;
    let q8 = if exact {
        0.0
    } else {
        1.01 * weights * max / 254.0 + 32.0 * rounded
    };
    (sum, rounded + q8)
}

#[test]
fn mul_mat_with_dead_tokens() {
    let k = 512;
    for dtype in TYPES {
        for (m, n, n_live) in [(1, 1, 1), (5, 3, 2), (33, 9, 8), (17, 40, 33)] {
            let mut random = Random(89);
            let w = random_weights(dtype, k * m, &mut random);
            let mut x = random.units(k * n);
            x[k * n_live..].fill(f32::NAN);
            let mut store = Store::default();
            store.bytes("w", dtype, &[k, m], &w);
            store.f32("x", &[k, n], &x);
            let store = Arc::new(store);
            let w = values(dtype, &w, k * m);
            for exact in [true, false] {
                let setup = Setup {
                    exact,
                    ..Setup::tokens(n, n_live)
                };
                let got = run(&store, &setup, |b| {
                    let (w, x) = (operand(b, &store, "w"), operand(b, &store, "x"));
                    let x = live(b, x, 1);
                    b.mul_mat(w, x)
                });
                let (mut want, mut tolerance) = (Vec::new(), Vec::new());
                for i in 0..m * n_live {
                    let x = wide(&x[i / m * k..][..k]);
                    let (sum, t) = product(&w[i % m * k..][..k], &x, exact);
                    want.push(sum);
                    tolerance.push(t);
                }
                let what = format!("{dtype:?} [{m}, {n_live} of {n}], exact {exact}");
                close(&what, &got, &want, |i| tolerance[i]);
            }
        }
    }
}

#[test]
fn mul_mat_id_with_shared_and_own_activations() {
    let (k, m, n_expert, n_used, n, n_live) = (256, 19, 5, 2, 6, 4);
    for dtype in TYPES {
        for own in [1, n_used] {
            let mut random = Random(97);
            let w = random_weights(dtype, k * m * n_expert, &mut random);
            let mut x = random.units(k * own * n);
            x[k * own * n_live..].fill(f32::NAN);
            let ids: Vec<i32> = (0..n_used * n)
                .map(|i| {
                    if i < n_used * n_live {
                        (i * 3 % 5) as i32
                    } else {
                        i32::MIN
                    }
                })
                .collect();
            let mut store = Store::default();
            store.bytes("w", dtype, &[k, m, n_expert], &w);
            store.f32("x", &[k, own, n], &x);
            store.i32("ids", &[n_used, n], &ids);
            let store = Arc::new(store);
            let w = values(dtype, &w, k * m * n_expert);
            for exact in [true, false] {
                let setup = Setup {
                    exact,
                    ..Setup::tokens(n, n_live)
                };
                let got = run(&store, &setup, |b| {
                    let (w, x) = (operand(b, &store, "w"), operand(b, &store, "x"));
                    let (x, ids) = (live(b, x, 2), operand(b, &store, "ids"));
                    let ids = live(b, ids, 1);
                    b.op(Op::MulMatId, &[w, x, ids])
                });
                let (mut want, mut tolerance) = (Vec::new(), Vec::new());
                for i in 0..m * n_used * n_live {
                    let (row, u, t) = (i % m, i / m % n_used, i / (m * n_used));
                    let expert = ids[t * n_used + u] as usize;
                    let x = wide(&x[(t * own + u % own) * k..][..k]);
                    let (sum, t) = product(&w[(expert * m + row) * k..][..k], &x, exact);
                    want.push(sum);
                    tolerance.push(t);
                }
                let what = format!("{dtype:?}, {own} activations, exact {exact}");
                close(&what, &got, &want, |i| tolerance[i]);
            }
        }
    }
}
