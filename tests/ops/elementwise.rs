//! UNARY, GLU, ADD, MUL, DIV, SCALE.

use super::harness::*;
use llama_rs::graph::{GluKind, Op, UnaryKind};
use std::sync::Arc;

/// erf by Simpson's rule; 1 beyond 6, where 1 - erf is below 3e-17.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return 1f64.copysign(x);
    }
    let steps = 1000;
    let h = x / f64::from(steps);
    let at = |i: i32| (-(h * f64::from(i)).powi(2)).exp();
    let inner: f64 = (1..steps)
        .map(|i| if i % 2 == 1 { 4.0 } else { 2.0 } * at(i))
        .sum();
    2.0 / std::f64::consts::PI.sqrt() * h / 3.0 * (1.0 + inner + at(steps))
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x f(x), where 0 * inf at the left end is the limit 0.
fn gated(x: f64, gate: f64) -> f64 {
    if gate == 0.0 { 0.0 } else { x * gate }
}

fn reference(kind: UnaryKind, x: f64) -> f64 {
    match kind {
        UnaryKind::Silu => gated(x, sigmoid(x)),
        UnaryKind::Gelu => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            gated(x, 0.5 * (1.0 + (root * (x + 0.044715 * x.powi(3))).tanh()))
        }
        UnaryKind::GeluQuick => gated(x, sigmoid(1.702 * x)),
        UnaryKind::GeluErf => gated(x, 0.5 * (1.0 + erf(x / 2f64.sqrt()))),
        UnaryKind::Relu => x.max(0.0),
        UnaryKind::ReluSqr => x.max(0.0).powi(2),
        UnaryKind::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        UnaryKind::Exp => x.exp(),
        UnaryKind::Sigmoid => sigmoid(x),
        UnaryKind::Tanh => x.tanh(),
    }
}

/// What the formulas may lose in f32. e^x has a relative error of 3 roundings
/// (the last two steps of the polynomial and the reduced argument) and is held
/// between e^-87.3 and e^88.7, so a sigmoid cannot fall below 3e-39: `FLOOR`.
fn tolerance(kind: UnaryKind, x: f64) -> f64 {
    const FLOOR: f64 = 4e-39;
    // Products below 1e-38 are rounded to whole steps of 2^-149.
    const STEP: f64 = 1.5e-45;
    let want = reference(kind, x).abs();
    let r = ROUNDING;
    let normal = match kind {
        // e^-x (3 roundings), sum, quotient, product.
        UnaryKind::Silu => 6.0 * r * want + FLOOR * x.abs(),
        UnaryKind::Sigmoid => 5.0 * r * want + FLOOR,
        // As Silu; the argument 1.702 x has the roundings of the constant and of
        // the product, which e^ turns into a relative error of twice its size.
        UnaryKind::GeluQuick => (6.0 + 2.0 * 1.702 * x.abs()) * r * want + FLOOR * x.abs(),
        // 1 - 2 / (e^2x + 1): the quotient is at most 2 and e^2x counts at most
        // half: 2 (3 / 2 + 2) + 1 roundings of 1, absolute.
        UnaryKind::Tanh => 8.0 * r,
        // Half x times (tanh, and its slope times 5 roundings of the argument:
        // y / cosh(y)^2 < 0.45), plus sum and products.
        UnaryKind::Gelu => 0.5 * x.abs() * (8.0 + 0.45 * 5.0 + 2.0) * r + 2.0 * r * want,
        // The formula's own 1.5e-7, then six coefficients of size 1.5 and e^.
        UnaryKind::GeluErf => 0.5 * x.abs() * (1.5e-7 + 12.0 * r) + 2.0 * r * want,
        UnaryKind::Relu => return 0.0,
        UnaryKind::ReluSqr => r * want,
        // e^x and ln(1 + .), each within a unit in the last place; above 20 what is
        // left out is below e^-20.
        UnaryKind::Softplus => 4.0 * r * want + if x > 20.0 { 2.1e-9 } else { 0.0 },
        // Above e^88.72 f32 ends.
        UnaryKind::Exp if want > f64::from(f32::MAX) => f64::INFINITY,
        UnaryKind::Exp => 2.0 * r * want,
    };
    normal + STEP
}

const KINDS: [UnaryKind; 10] = [
    UnaryKind::Silu,
    UnaryKind::Gelu,
    UnaryKind::GeluQuick,
    UnaryKind::GeluErf,
    UnaryKind::Relu,
    UnaryKind::ReluSqr,
    UnaryKind::Sigmoid,
    UnaryKind::Tanh,
    UnaryKind::Softplus,
    UnaryKind::Exp,
];

/// [-100, 100] closely, zeros, subnormals, and infinities where the function
/// has a limit that its formula reaches.
fn sweep(kind: UnaryKind) -> Vec<f32> {
    let mut x: Vec<f32> = (-2703..=2703).map(|i| i as f32 * 0.037).collect();
    x.extend([0.0, -0.0, 1e-40, -1e-40, 1e-45, f32::MIN_POSITIVE, 1e-20]);
    x.extend([88.8, -88.8, 87.4, -87.4, f32::INFINITY]);
    if matches!(kind, UnaryKind::Relu | UnaryKind::Sigmoid | UnaryKind::Tanh) {
        x.push(f32::NEG_INFINITY);
    }
    x
}

#[test]
fn unary_functions_over_their_range() {
    for kind in KINDS {
        let x = sweep(kind);
        let mut store = Store::default();
        store.f32("x", &[x.len()], &x);
        let store = Arc::new(store);
        let got = run(&store, &Setup::default(), |b| {
            let x = operand(b, &store, "x");
            b.unary(kind, x)
        });
        let want: Vec<f64> = wide(&x).into_iter().map(|x| reference(kind, x)).collect();
        let what = format!("{kind:?}");
        close(&what, &got, &want, |i| tolerance(kind, f64::from(x[i])));
    }
}

#[test]
fn unary_of_a_view_with_dead_rows() {
    let (k, n, live_rows) = (37, 6, 4);
    let mut x = Random(3).units(k * n);
    x[live_rows * k..].fill(f32::NAN);
    let mut store = Store::default();
    store.f32("x", &[k, n], &x);
    let store = Arc::new(store);
    for kind in KINDS {
        let got = run(&store, &Setup::tokens(n, live_rows), |b| {
            let x = operand(b, &store, "x");
            let x = live(b, x, 1);
            let x = b.slice(x, 0, 5, 31)?;
            b.unary(kind, x)
        });
        let seen: Vec<f64> = (0..live_rows * 31)
            .map(|i| f64::from(x[i / 31 * k + 5 + i % 31]))
            .collect();
        let want: Vec<f64> = seen.iter().map(|&x| reference(kind, x)).collect();
        close(&format!("{kind:?}"), &got, &want, |i| {
            tolerance(kind, seen[i])
        });
    }
}

#[test]
fn glu_of_one_and_two_sources() {
    let kinds = [
        (GluKind::Swiglu, UnaryKind::Silu),
        (GluKind::Geglu, UnaryKind::Gelu),
        (GluKind::GegluErf, UnaryKind::GeluErf),
        (GluKind::GegluQuick, UnaryKind::GeluQuick),
        (GluKind::Reglu, UnaryKind::Relu),
    ];
    for (k, n) in [(1, 1), (33, 2), (64, 7), (257, 1)] {
        let both: Vec<f32> = Random(9).units(2 * k * n).iter().map(|v| v * 6.0).collect();
        let half = |first: usize| -> Vec<f32> {
            (0..k * n)
                .map(|i| both[i / k * 2 * k + first + i % k])
                .collect()
        };
        let (gate, up) = (half(0), half(k));
        let mut store = Store::default();
        store.f32("both", &[2 * k, n], &both);
        store.f32("gate", &[k, n], &gate);
        store.f32("up", &[k, n], &up);
        let store = Arc::new(store);
        for (glu, act) in kinds {
            let want: Vec<f64> = (0..k * n)
                .map(|i| reference(act, f64::from(gate[i])) * f64::from(up[i]))
                .collect();
            // The act's own error times `up`, and the rounding of the product.
            let tolerance = |i: usize| {
                tolerance(act, f64::from(gate[i])) * f64::from(up[i]).abs()
                    + ROUNDING * want[i].abs()
            };
            let two = run(&store, &Setup::default(), |b| {
                let gate = operand(b, &store, "gate");
                let up = operand(b, &store, "up");
                b.glu(glu, gate, up)
            });
            let one = run(&store, &Setup::default(), |b| {
                let both = operand(b, &store, "both");
                b.op(Op::Glu(glu), &[both])
            });
            close(&format!("{glu:?} [{k}, {n}]"), &two, &want, tolerance);
            assert!(one == two, "{glu:?}: one source, two sources");
        }
    }
}

#[test]
fn binary_ops_repeat_the_second_operand() {
    let ne = [33, 5, 4, 3];
    let mut random = Random(5);
    let a = random.units(ne.iter().product());
    type Arithmetic = fn(f32, f32) -> f32;
    let ops: [(Op, Arithmetic); 3] = [
        (Op::Add, |a, b| a + b),
        (Op::Mul, |a, b| a * b),
        (Op::Div, |a, b| a / b),
    ];
    let shapes = [
        [33, 5, 4, 3],
        [33, 1, 1, 1],
        [1, 5, 4, 3],
        [1, 1, 1, 1],
        [33, 1, 4, 1],
        [1, 5, 1, 3],
    ];
    for be in shapes {
        let b_values = random.units(be.iter().product());
        let mut store = Store::default();
        store.f32("a", &ne, &a);
        store.f32("b", &be, &b_values);
        let store = Arc::new(store);
        for (op, f) in ops {
            let got = run(&store, &Setup::default(), |b| {
                let operands = [operand(b, &store, "a"), operand(b, &store, "b")];
                b.op(op, &operands)
            });
            let want: Vec<f64> = (0..a.len())
                .map(|i| {
                    let at = [i % 33, i / 33 % 5, i / 165 % 4, i / 660];
                    let j = (0..4).rev().fold(0, |j, d| j * be[d] + at[d] % be[d]);
                    f64::from(f(a[i], b_values[j]))
                })
                .collect();
            // One IEEE operation on the same operands: the same bits.
            close(&format!("{op:?} {be:?}"), &got, &want, |_| 0.0);
        }
    }
}

#[test]
fn binary_ops_of_views_with_dead_rows() {
    let (k, n, live_rows) = (40, 5, 3);
    let mut random = Random(11);
    let mut a = random.units(k * n);
    a[live_rows * k..].fill(f32::NAN);
    let b_values = random.units(k);
    let mut store = Store::default();
    store.f32("a", &[k, n], &a);
    store.f32("b", &[k], &b_values);
    let store = Arc::new(store);
    let got = run(&store, &Setup::tokens(n, live_rows), |b| {
        let x = operand(b, &store, "a");
        let x = live(b, x, 1);
        let (x, y) = (b.slice(x, 0, 3, 35)?, operand(b, &store, "b"));
        let y = b.slice(y, 0, 1, 35)?;
        b.add(x, y)
    });
    let want: Vec<f64> = (0..live_rows * 35)
        .map(|i| f64::from(a[i / 35 * k + 3 + i % 35] + b_values[1 + i % 35]))
        .collect();
    // One addition of the same operands.
    close("ADD of views", &got, &want, |_| 0.0);
}

#[test]
fn scale_with_bias() {
    for n in [1, 31, 33, 1025] {
        let x = Random(7).units(n);
        let mut store = Store::default();
        store.f32("x", &[n], &x);
        let store = Arc::new(store);
        let (scale, bias) = (-3.7f32, 0.21f32);
        let got = run(&store, &Setup::default(), |b| {
            let x = operand(b, &store, "x");
            b.op(Op::Scale { scale, bias }, &[x])
        });
        let product = |i: usize| f64::from(x[i]) * f64::from(scale);
        let want: Vec<f64> = (0..n).map(|i| product(i) + f64::from(bias)).collect();
        // The roundings of the product and of the sum.
        close("SCALE", &got, &want, |i| {
            1.01 * ROUNDING * (product(i).abs() + want[i].abs())
        });
    }
}
