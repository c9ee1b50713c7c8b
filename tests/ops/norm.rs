//! RMS_NORM, NORM, L2_NORM, SOFT_MAX.

use super::harness::*;
use llama_rs::graph::Op;
use std::sync::Arc;

const COLUMNS: [usize; 7] = [1, 31, 33, 64, 257, 1025, 4096];
const EPS: f32 = 1e-5;

/// Rows of different size and offset, the last one dead.
fn rows(k: usize, offset: f32) -> Vec<f32> {
    let mut random = Random(61);
    let mut x = Vec::new();
    for scale in [1.0, 1e-4, 300.0] {
        x.extend(random.units(k).iter().map(|v| v * scale + offset));
    }
    x.extend(vec![0.0; k]);
    x.extend(vec![f32::NAN; k]);
    x
}

const N: usize = 5;
const N_LIVE: usize = 4;

#[test]
fn rms_norm_with_and_without_weight() {
    for k in COLUMNS {
        let x = rows(k, 0.0);
        let weight = Random(67).units(k);
        let mut store = Store::default();
        store.f32("x", &[k, N], &x);
        store.f32("weight", &[k], &weight);
        let store = Arc::new(store);
        let mut plain = Vec::new();
        for row in x.chunks(k).take(N_LIVE) {
            let mean = wide(row).iter().map(|v| v * v).sum::<f64>() / k as f64;
            let norm = (mean + f64::from(EPS)).sqrt();
            plain.extend(wide(row).iter().map(|v| v / norm));
        }
        // The sum of squares: k / 16 roundings a lane, 4 to add the lanes, and
        // those of the mean and the eps, halved by the root; then root,
        // reciprocal, product and the product with the weight.
        let roundings = (k as f64 / 16.0 + 8.0) / 2.0 + 4.0;
        for weighted in [false, true] {
            let got = run(&store, &Setup::tokens(N, N_LIVE), |b| {
                let x = operand(b, &store, "x");
                let mut src = vec![live(b, x, 1)];
                if weighted {
                    src.push(operand(b, &store, "weight"));
                }
                b.op(Op::RmsNorm { eps: EPS }, &src)
            });
            let factor = |i: usize| {
                if weighted {
                    f64::from(weight[i % k])
                } else {
                    1.0
                }
            };
            let want: Vec<f64> = (0..plain.len()).map(|i| plain[i] * factor(i)).collect();
            close(&format!("RMS_NORM [{k}], {weighted}"), &got, &want, |i| {
                roundings * ROUNDING * want[i].abs()
            });
        }
    }
}

#[test]
fn rms_norm_of_a_view_by_heads() {
    let (hd, n_head, n) = (24, 3, 4);
    let row = hd * n_head + 8;
    let x = Random(71).units(row * n);
    let mut store = Store::default();
    store.f32("x", &[row, n], &x);
    let store = Arc::new(store);
    let got = run(&store, &Setup::default(), |b| {
        let x = operand(b, &store, "x");
        let x = b.slice(x, 0, 5, hd)?;
        b.op(Op::RmsNorm { eps: EPS }, &[x])
    });
    let mut want = Vec::new();
    for row in x.chunks(row) {
        let head = wide(&row[5..5 + hd]);
        let mean = head.iter().map(|v| v * v).sum::<f64>() / hd as f64;
        want.extend(head.iter().map(|v| v / (mean + f64::from(EPS)).sqrt()));
    }
    // As above, with 24 values.
    close("RMS_NORM of a view", &got, &want, |i| {
        9.0 * ROUNDING * want[i].abs()
    });
}

#[test]
fn norm_of_rows_far_from_zero() {
    for k in COLUMNS {
        for offset in [0.0, 1000.0] {
            let x = rows(k, offset);
            let mut store = Store::default();
            store.f32("x", &[k, N], &x);
            let store = Arc::new(store);
            let got = run(&store, &Setup::tokens(N, N_LIVE), |b| {
                let x = operand(b, &store, "x");
                let x = live(b, x, 1);
                b.op(Op::Norm { eps: EPS }, &[x])
            });
            let (mut want, mut tolerance) = (Vec::new(), Vec::new());
            for row in x.chunks(k).take(N_LIVE) {
                let row = wide(row);
                let mean = row.iter().sum::<f64>() / k as f64;
                let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / k as f64;
                let scale = 1.0 / (var + f64::from(EPS)).sqrt();
                want.extend(row.iter().map(|v| (v - mean) * scale));
                // The mean's rounding shifts the row; then the variance and eps
                // (halved by the root), root, reciprocal, difference, product.
                tolerance.extend(
                    row.iter()
                        .map(|v| ROUNDING * scale * (mean.abs() + 6.0 * (v - mean).abs())),
                );
            }
            close(&format!("NORM [{k}] + {offset}"), &got, &want, |i| {
                tolerance[i]
            });
        }
    }
}

#[test]
fn l2_norm_of_long_and_tiny_rows() {
    for k in COLUMNS {
        // Rows of length near one, below eps and far above it, zeros, NaN.
        let mut x = rows(k, 0.0);
        x[k..2 * k].iter_mut().for_each(|v| *v *= 1e-6);
        let mut store = Store::default();
        store.f32("x", &[k, N], &x);
        let store = Arc::new(store);
        let got = run(&store, &Setup::tokens(N, N_LIVE), |b| {
            let x = operand(b, &store, "x");
            let x = live(b, x, 1);
            b.op(Op::L2Norm { eps: EPS }, &[x])
        });
        let normed = |row: &[f32]| {
            let row = wide(row);
            let norm = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            let norm = norm.max(f64::from(EPS));
            row.into_iter().map(move |v| v / norm)
        };
        let want: Vec<f64> = x.chunks(k).take(N_LIVE).flat_map(normed).collect();
        // As RMS_NORM's sum of squares, then root, reciprocal and product.
        let roundings = (k as f64 / 16.0 + 6.0) / 2.0 + 4.0;
        close(&format!("L2_NORM [{k}]"), &got, &want, |i| {
            roundings * ROUNDING * want[i].abs()
        });
    }
}

#[test]
fn l2_norm_of_a_view_by_heads() {
    let (hd, n_head, n) = (24, 3, 4);
    let row = hd * n_head + 8;
    let x = Random(83).units(row * n);
    let mut store = Store::default();
    store.f32("x", &[row, n], &x);
    let store = Arc::new(store);
    let got = run(&store, &Setup::default(), |b| {
        let x = operand(b, &store, "x");
        let x = b.slice(x, 0, 5, hd * n_head)?;
        let x = b.split_rows(x, [hd, n_head])?;
        b.op(Op::L2Norm { eps: EPS }, &[x])
    });
    let mut want = Vec::new();
    for row in x.chunks(row) {
        for head in row[5..5 + hd * n_head].chunks(hd) {
            let norm = wide(head).iter().map(|v| v * v).sum::<f64>().sqrt();
            want.extend(wide(head).iter().map(|v| v / norm));
        }
    }
    // As above, with 24 values.
    close("L2_NORM of a view", &got, &want, |i| {
        9.0 * ROUNDING * want[i].abs()
    });
}

/// Softmax in f64; a row that is masked everywhere gives zeros.
fn softmax(row: &[f64], scale: f64) -> Vec<f64> {
    let max = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(v * scale));
    if max == f64::NEG_INFINITY {
        return vec![0.0; row.len()];
    }
    let e: Vec<f64> = row.iter().map(|v| (v * scale - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|v| v / sum).collect()
}

#[test]
fn soft_max_with_masked_rows() {
    for k in COLUMNS {
        let mut random = Random(73);
        let n = 7;
        let mut x: Vec<f32> = random.units(k * n).iter().map(|v| v * 60.0).collect();
        // Masked rows lead and lie between; others are masked in part; the last
        // one is dead.
        for r in [0, 1, 3] {
            x[r * k..(r + 1) * k].fill(f32::NEG_INFINITY);
        }
        x[2 * k..]
            .iter_mut()
            .step_by(3)
            .for_each(|v| *v = f32::NEG_INFINITY);
        x[5 * k] = 1e30;
        x[6 * k..].fill(f32::NAN);
        let mut store = Store::default();
        store.f32("x", &[k, n], &x);
        let store = Arc::new(store);
        let scale = 0.7f32;
        let got = run(&store, &Setup::tokens(n, 6), |b| {
            let x = operand(b, &store, "x");
            let x = live(b, x, 1);
            b.op(Op::SoftMax { scale }, &[x])
        });
        let want: Vec<f64> = x
            .chunks(k)
            .take(6)
            .flat_map(|row| softmax(&wide(row), f64::from(scale)))
            .collect();
        // The scaled value and its difference to the maximum are rounded (sizes
        // up to 42 and 84: e^ makes that a relative error, in the value and in
        // the sum), 3 roundings of e^, k / 16 + 4 of the sum, one of the
        // quotient. Below e^-87.3 the result is 0: 2e-38.
        let roundings = 2.0 * (42.0 + 84.0 + 3.0) + k as f64 / 16.0 + 5.0;
        close(&format!("SOFT_MAX [{k}]"), &got, &want, |i| {
            roundings * ROUNDING * want[i] + 2e-38
        });
    }
}
