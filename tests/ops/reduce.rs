//! ARGMAX, TOP_K, SUM_ROWS, MEAN, SUM, CUMSUM.

use super::harness::*;
use llama_rs::graph::Op;
use std::sync::Arc;

/// Odd sizes, both sides of 1,024 columns, a shape of four dimensions, and more
/// than 65,535 rows; one, few and many rows of several blocks of 8192 values.
const SHAPES: [[usize; 4]; 12] = [
    [1, 3, 1, 1],
    [31, 2, 1, 1],
    [33, 2, 1, 1],
    [257, 1, 1, 1],
    [1025, 3, 1, 1],
    [255, 5, 4, 3],
    [1023, 4, 1, 1],
    [3, 70_000, 1, 1],
    [8192, 2, 1, 1],
    [8193, 1, 1, 1],
    [100_003, 3, 1, 1],
    [20_000, 50, 1, 1],
];

fn of_x(
    op: Op,
    ne: &[usize],
    x: &[f32],
    setup: &Setup,
) -> Vec<(llama_rs::backend::cpu::Simd, Vec<u32>)> {
    let mut store = Store::default();
    store.f32("x", ne, x);
    let store = Arc::new(store);
    run(&store, setup, |b| {
        let x = operand(b, &store, "x");
        b.op(op, &[x])
    })
}

#[test]
fn row_sums() {
    for ne in SHAPES {
        let x = Random(41).units(ne.iter().product());
        let sums: Vec<f64> = x.chunks(ne[0]).map(|row| wide(row).iter().sum()).collect();
        let means: Vec<f64> = sums.iter().map(|s| s / ne[0] as f64).collect();
        let setup = Setup::default();
        // Summed in f64, so only the last rounding to f32 counts.
        let what = format!("{ne:?}");
        close(&what, &of_x(Op::SumRows, &ne, &x, &setup), &sums, |i| {
            1.001 * ROUNDING * sums[i].abs()
        });
        close(&what, &of_x(Op::Mean, &ne, &x, &setup), &means, |i| {
            1.001 * ROUNDING * means[i].abs()
        });
    }
}

#[test]
fn sums_of_everything() {
    for ne in SHAPES {
        // A mean apart from zero: else the sum is what its terms leave over.
        let x = Random(45).units(ne.iter().product());
        let x: Vec<f32> = x.iter().map(|v| v + 0.5).collect();
        let sum: f64 = wide(&x).iter().sum();
        // As above: one rounding.
        let what = format!("SUM {ne:?}");
        let got = of_x(Op::Sum, &ne, &x, &Setup::default());
        close(&what, &got, &[sum], |_| 1.001 * ROUNDING * sum.abs());
    }
}

#[test]
fn running_sums_a_hundred_times_over() {
    for ne in SHAPES {
        let x = Random(43).units(ne.iter().product());
        let mut want = Vec::new();
        for row in x.chunks(ne[0]) {
            let mut sum = 0.0;
            want.extend(wide(row).iter().map(|v| {
                sum += v;
                sum
            }));
        }
        let runs = if ne == [255, 5, 4, 3] { 100 } else { 1 };
        let setup = Setup {
            runs,
            ..Setup::default()
        };
        // Summed in f64, so only the last rounding to f32 counts.
        close(
            &format!("{ne:?}"),
            &of_x(Op::Cumsum, &ne, &x, &setup),
            &want,
            |i| 1.001 * ROUNDING * want[i].abs(),
        );
    }
}

#[test]
fn reductions_of_views_with_dead_rows() {
    let (k, n, n_live) = (50, 7, 5);
    let mut x = Random(47).units(k * n);
    x[n_live * k..].fill(f32::NAN);
    let mut store = Store::default();
    store.f32("x", &[k, n], &x);
    let store = Arc::new(store);
    let rows: Vec<&[f32]> = (0..n_live).map(|r| &x[r * k + 4..r * k + 41]).collect();
    let of = |op| {
        run(&store, &Setup::tokens(n, n_live), |b| {
            let x = operand(b, &store, "x");
            let x = live(b, x, 1);
            let x = b.slice(x, 0, 4, 37)?;
            b.op(op, &[x])
        })
    };
    let sums: Vec<f64> = rows.iter().map(|r| wide(r).iter().sum()).collect();
    // As above: one rounding.
    close("SUM_ROWS", &of(Op::SumRows), &sums, |i| {
        1.001 * ROUNDING * sums[i].abs()
    });
    let sum: f64 = sums.iter().sum();
    // Terms cancel, so that f64 too loses some; still far below a rounding to f32.
    close("SUM", &of(Op::Sum), &[sum], |_| {
        1.001 * ROUNDING * sum.abs()
    });
    let best: Vec<i32> = rows.iter().map(|r| ranked(r)[0]).collect();
    equal_ints("ARGMAX", &of(Op::Argmax), &best);
    let top: Vec<i32> = rows.iter().flat_map(|r| ranked(r)[..3].to_vec()).collect();
    equal_ints("TOP_K", &of(Op::TopK { count: 3 }), &top);
}

/// Indices by falling value, ties by rising index, NaN last.
fn ranked(row: &[f32]) -> Vec<i32> {
    let mut ids: Vec<i32> = (0..row.len() as i32).collect();
    // A stable sort keeps ties in order; the key puts NaN below -inf.
    let key = |i: i32| match row[i as usize] {
        v if v.is_nan() => (0, 0.0),
        v => (1, v),
    };
    ids.sort_by(|&a, &b| key(b).partial_cmp(&key(a)).expect("no NaN in keys"));
    ids
}

/// Rows that went wrong elsewhere: maximum last or first, all negative, -inf,
/// ties, NaN, zeros of both signs.
fn hard_rows(k: usize) -> Vec<(&'static str, Vec<f32>)> {
    let random = Random(53).units(k);
    let with = |changes: &[(usize, f32)]| {
        let mut row = random.clone();
        for &(at, v) in changes {
            row[at.min(k - 1)] = v;
        }
        row
    };
    let mut zeros = vec![-0.0; k];
    zeros[k / 2] = 0.0;
    vec![
        ("random", random.clone()),
        ("maximum last", with(&[(k - 1, 2.0)])),
        ("maximum first", with(&[(0, 2.0)])),
        (
            "all negative",
            random.iter().map(|v| -1.0 - v.abs()).collect(),
        ),
        ("all -inf", vec![f32::NEG_INFINITY; k]),
        ("all equal", vec![-3.5; k]),
        ("a tie", with(&[(k / 3, 2.0), (k / 2, 2.0), (k - 1, 2.0)])),
        (
            "NaN first and last",
            with(&[(0, f32::NAN), (k - 1, -f32::NAN)]),
        ),
        ("all NaN but one", {
            let mut row = vec![f32::NAN; k];
            row[k / 2] = f32::NEG_INFINITY;
            row
        }),
        ("zeros", zeros),
        (
            "infinities",
            with(&[(k / 4, f32::INFINITY), (k / 5, f32::INFINITY)]),
        ),
        (
            "few values",
            random.iter().map(|v| (v * 3.0).round()).collect(),
        ),
    ]
}

#[test]
fn argmax_of_hard_rows() {
    for k in [1, 32, 100, 1024, 2000, 8192, 8193, 151_936] {
        let rows = hard_rows(k);
        let x: Vec<f32> = rows.iter().flat_map(|(_, row)| row.clone()).collect();
        let want: Vec<i32> = rows.iter().map(|(_, row)| ranked(row)[0]).collect();
        let got = of_x(Op::Argmax, &[k, rows.len()], &x, &Setup::default());
        equal_ints(&format!("ARGMAX [{k}]"), &got, &want);
    }
}

#[test]
fn argmax_of_a_very_long_row() {
    let k = 1_215_488;
    for (at, tie) in [(k - 1, k - 1), (8191, 8192), (8192, k / 2), (0, 1)] {
        let mut x = Random(59).units(k);
        (x[at], x[tie]) = (1.5, 1.5);
        let got = of_x(Op::Argmax, &[k, 1], &x, &Setup::default());
        equal_ints("ARGMAX of one row", &got, &[at as i32]);
    }
}

#[test]
fn top_k_of_hard_rows() {
    for k in [1, 33, 1025, 2047, 2048, 8193, 32_000, 128_256] {
        let rows = hard_rows(k);
        let x: Vec<f32> = rows.iter().flat_map(|(_, row)| row.clone()).collect();
        let ranks: Vec<Vec<i32>> = rows.iter().map(|(_, row)| ranked(row)).collect();
        for count in [1, 8, 40, 1025].into_iter().filter(|&c| c <= k) {
            let want: Vec<i32> = ranks.iter().flat_map(|r| r[..count].to_vec()).collect();
            let op = Op::TopK { count };
            let got = of_x(op, &[k, rows.len()], &x, &Setup::default());
            equal_ints(&format!("TOP_K {count} of [{k}]"), &got, &want);
        }
    }
}
