//! MOE_ROUTE and MOE_SUM.

use super::harness::*;
use llama_rs::backend::cpu::Simd;
use llama_rs::graph::Op;
use std::sync::Arc;

/// Softmax in f64.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let all = logits.iter().map(|&v| f64::from(v - max).exp());
    let all: Vec<f64> = all.collect();
    let sum: f64 = all.iter().sum();
    all.into_iter().map(|v| v / sum).collect()
}

/// Routes `logits [n_expert, n]`; the first `n_live` tokens are alive.
fn route(
    logits: &[f32],
    n_expert: usize,
    n_used: usize,
    norm: bool,
    n_live: usize,
) -> Vec<(Simd, Vec<u32>)> {
    let n = logits.len() / n_expert;
    let mut store = Store::default();
    store.f32("logits", &[n_expert, n], logits);
    let store = Arc::new(store);
    run(&store, &Setup::tokens(n, n_live), |b| {
        let logits = operand(b, &store, "logits");
        let logits = live(b, logits, 1);
        b.op(Op::MoeRoute { n_used, norm }, &[logits])
    })
}

#[test]
fn routes_to_the_most_probable_experts() {
    for (n_expert, n_used) in [(1, 1), (4, 4), (8, 2), (33, 5), (128, 8)] {
        for norm in [false, true] {
            let (n, n_live) = (7, 5);
            let mut logits = Random(5).units(n_expert * n);
            logits.iter_mut().for_each(|v| *v *= 4.0);
            logits[n_expert * n_live..].fill(f32::NAN);
            let got = route(&logits, n_expert, n_used, norm, n_live);
            let (mut ids, mut weights) = (Vec::new(), Vec::new());
            for row in logits.chunks(n_expert).take(n_live) {
                let probs = softmax(row);
                let mut order: Vec<usize> = (0..n_expert).collect();
                order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
                let sum: f64 = order[..n_used].iter().map(|&e| probs[e]).sum();
                ids.extend(order[..n_used].iter().map(|&e| e as i32));
                let scale = if norm { 1.0 / sum } else { 1.0 };
                weights.extend(order[..n_used].iter().map(|&e| probs[e] * scale));
            }
            let half = |first: bool| {
                let rows = |bits: &Vec<u32>| -> Vec<u32> {
                    let at = if first { 0 } else { n_used };
                    let rows = bits.chunks(2 * n_used).take(n_live);
                    rows.flat_map(|r| r[at..at + n_used].to_vec()).collect()
                };
                let all = got.iter().map(|(simd, bits)| (*simd, rows(bits)));
                all.collect::<Vec<_>>()
            };
            let what = format!("{n_used} of {n_expert}, norm {norm}");
            equal_ints(&what, &half(true), &ids);
            // e^x, a sum over the experts and a quotient, each rounded to f32, in
            // the probability and in what it is divided by.
            close(&what, &half(false), &weights, |i| {
                (n_expert as f64 + 16.0) * ROUNDING * weights[i]
            });
        }
    }
}

#[test]
fn equal_logits_go_to_the_lowest_experts() {
    let got = route(&[0.5; 12], 6, 3, true, 2);
    for (simd, bits) in got {
        let third = (1.0f32 / 3.0).to_bits();
        let row = [0, 1, 2, third, third, third];
        assert_eq!(bits, [row, row].concat(), "{simd:?}");
    }
}

/// `routed`: weights as MOE_ROUTE leaves them, a view with gaps.
fn check_sum(m: usize, n_used: usize, residual: bool, routed: bool) {
    let (n, n_live) = (5, 4);
    let mut random = Random(7);
    let mut y = random.units(m * n_used * n);
    y[m * n_used * n_live..].fill(f32::NAN);
    let weights = random.units(n_used * n);
    let b = random.units(m * n);
    let mut store = Store::default();
    store.f32("y", &[m, n_used, n], &y);
    store.f32("weights", &[1, n_used, n], &weights);
    // All experts alike: every weight is 1 / n_used.
    store.f32("logits", &[n_used, n], &vec![1.0; n_used * n]);
    store.f32("b", &[m, n], &b);
    let store = Arc::new(store);
    let got = run(&store, &Setup::tokens(n, n_live), |g| {
        let y = operand(g, &store, "y");
        let mut src = vec![live(g, y, 2)];
        src.push(match routed {
            true => {
                let logits = operand(g, &store, "logits");
                let logits = live(g, logits, 1);
                g.moe_route(logits, n_used, true)?[1]
            }
            false => {
                let weights = operand(g, &store, "weights");
                live(g, weights, 2)
            }
        });
        if residual {
            let b = operand(g, &store, "b");
            src.push(live(g, b, 1));
        }
        g.op(Op::MoeSum, &src)
    });
    let (mut want, mut size) = (Vec::new(), Vec::new());
    for i in 0..m * n_live {
        let (row, t) = (i % m, i / m);
        let terms = (0..n_used).map(|u| {
            let w = match routed {
                true => 1.0 / n_used as f64,
                false => f64::from(weights[t * n_used + u]),
            };
            w * f64::from(y[(t * n_used + u) * m + row])
        });
        let b = if residual { f64::from(b[i]) } else { 0.0 };
        let terms: Vec<f64> = terms.chain([b]).collect();
        want.push(terms.iter().sum());
        size.push(terms.iter().map(|t| t.abs()).sum::<f64>());
    }
    let what = format!("MOE_SUM of {n_used} [{m}], residual {residual}, routed {routed}");
    // A product and an addition round for each expert, and so does its weight.
    close(&what, &got, &want, |i| {
        (2.0 * n_used as f64 + 4.0) * ROUNDING * size[i]
    });
}

#[test]
fn sums_what_the_experts_say() {
    for (m, n_used) in [(1, 1), (67, 2), (1030, 8)] {
        for residual in [false, true] {
            for routed in [false, true] {
                check_sum(m, n_used, residual, routed);
            }
        }
    }
}
