//! ADD, MUL, DIV, SCALE, UNARY, GLU, and the norms over rows.

use crate::backend::check::case::{Case, F32_NMSE, Operand, simple, x};
use crate::backend::check::store::Random;
use crate::graph::{GluKind, Op, UnaryKind};

const UNARY: [UnaryKind; 10] = [
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

const GLU: [GluKind; 5] = [
    GluKind::Swiglu,
    GluKind::Geglu,
    GluKind::GegluErf,
    GluKind::GegluQuick,
    GluKind::Reglu,
];

/// Odd sizes, rows beyond 65,535, windows of every dimension, dead tokens.
fn operands() -> Vec<Operand> {
    vec![
        x(&[1]),
        x(&[67, 5, 3]),
        x(&[64, 9, 2, 3]),
        x(&[4099, 2]),
        x(&[3, 70_001]),
        x(&[4, 300, 300]),
        x(&[96, 7, 5]).window(0, 3, 67),
        x(&[96, 7, 5]).window(0, 32, 64).window(1, 2, 4),
        x(&[33, 4, 7]).window(2, 1, 5),
        x(&[67, 9]).live(1),
        x(&[64, 3, 9]).live(2),
        x(&[130, 3, 9]).live(2).window(0, 2, 128).window(1, 1, 1),
    ]
}

/// Tokens alive where an operand has dead ones.
const LIVE: usize = 4;

/// Not near zero.
fn divisor(random: &mut Random, _: usize) -> f32 {
    let v = random.unit();
    v + 0.5f32.copysign(v)
}

fn wide(random: &mut Random, _: usize) -> f32 {
    6.0 * random.unit()
}

/// Where e^x overflows or vanishes.
fn extreme(random: &mut Random, _: usize) -> f32 {
    let all = [0.0, -0.0, 100.0, -100.0, 88.9, -88.9, 1e-30, 1e4, -1e4];
    all[random.below(all.len())]
}

fn binary(cases: &mut Vec<Case>, op: Op) {
    let shape = [67, 5, 4, 3];
    for bits in 0..16 {
        let b: Vec<usize> = (0..4)
            .map(|i| if bits >> i & 1 == 1 { 1 } else { shape[i] })
            .collect();
        let operands = vec![x(&shape), x(&b).values(divisor)];
        cases.push(simple("", op, F32_NMSE, operands, 0));
    }
    let pairs = [
        (x(&[4096, 9]).live(1), x(&[4096])),
        (x(&[64, 2, 9]).live(2), x(&[1, 2, 9]).live(2)),
        (x(&[96, 7, 5]).window(0, 3, 67), x(&[67, 7, 5])),
        (
            x(&[67, 7, 5]),
            x(&[96, 9, 5]).window(0, 9, 67).window(1, 2, 7),
        ),
        (x(&[5, 70_001]), x(&[5, 70_001])),
        (x(&[8, 300, 300]), x(&[8, 300])),
        (x(&[1, 1]), x(&[1, 1])),
        (x(&[152_064, 2]), x(&[152_064, 2])),
    ];
    for (a, b) in pairs {
        let operands = vec![a, b.values(divisor)];
        cases.push(simple("", op, F32_NMSE, operands, LIVE));
    }
}

fn rows(cases: &mut Vec<Case>) {
    let mut shapes = operands();
    let lengths = [2, 31, 32, 33, 127, 512, 513, 1000, 1024, 1025, 8192, 32_003];
    shapes.extend(lengths.map(|k| x(&[k, 3])));
    shapes.push(x(&[262_144, 1]));
    for shape in shapes {
        for eps in [1e-6, 1e-5] {
            let op = Op::RmsNorm { eps };
            let label = format!("eps={eps}");
            cases.push(simple(&label, op, F32_NMSE, vec![shape.clone()], LIVE));
        }
        // A row of one value is its own mean: nothing is left but rounding.
        if !shape.name().starts_with("[1]") {
            let off = shape.clone().values(|random, _| random.unit() + 0.3);
            let op = Op::Norm { eps: 1e-6 };
            cases.push(simple("", op, F32_NMSE, vec![off], LIVE));
        }
        let op = Op::L2Norm { eps: 1e-6 };
        cases.push(simple("", op, F32_NMSE, vec![shape.clone()], LIVE));
        for scale in [1.0, 0.125] {
            let op = Op::SoftMax { scale };
            let x = shape.clone().values(|random, _| 20.0 * random.unit());
            cases.push(simple(
                &format!("scale={scale}"),
                op,
                F32_NMSE,
                vec![x],
                LIVE,
            ));
        }
    }
    for (k, n) in [(64, 9), (513, 5), (4096, 9), (33, 70_001)] {
        let operands = vec![x(&[k, n]).live(1), x(&[k])];
        let op = Op::RmsNorm { eps: 1e-6 };
        cases.push(simple("weight", op, F32_NMSE, operands, LIVE));
    }
    masked(cases);
    small(cases);
}

/// Rows of zeros, and rows shorter than eps and hardly longer, for L2_NORM.
fn small(cases: &mut Vec<Case>) {
    for k in [5, 128, 1024, 1500] {
        let values = move |random: &mut Random, i: usize| {
            let size = [0.0, 1e-9, 1e-4, 1.0, 1e-12][i / k % 5];
            size * random.unit()
        };
        let op = Op::L2Norm { eps: 1e-6 };
        let operands = vec![x(&[k, 9]).values(values)];
        cases.push(simple("small", op, F32_NMSE, operands, 0));
    }
}

/// Masked values, and rows of nothing else: the first ones and some between.
fn masked(cases: &mut Vec<Case>) {
    for k in [5, 33, 1024, 1500] {
        let values = move |random: &mut Random, i: usize| {
            let row = i / k;
            match row < 2 || row == 5 || random.below(3) == 0 {
                true => f32::NEG_INFINITY,
                false => 3.0 * random.unit(),
            }
        };
        let op = Op::SoftMax { scale: 0.5 };
        let operands = vec![x(&[k, 9]).values(values)];
        cases.push(simple("masked", op, F32_NMSE, operands, 0));
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in [Op::Add, Op::Mul, Op::Div] {
        binary(&mut cases, op);
    }
    for shape in operands() {
        let scale = Op::Scale {
            scale: -1.7,
            bias: 0.3,
        };
        cases.push(simple("", scale, F32_NMSE, vec![shape.clone()], LIVE));
        for kind in UNARY {
            let x = shape.clone().values(wide);
            let label = format!("{kind:?}");
            cases.push(simple(&label, Op::Unary(kind), F32_NMSE, vec![x], LIVE));
        }
        for kind in GLU {
            let x = shape.clone().values(wide);
            let label = format!("{kind:?}");
            let op = Op::Glu(kind);
            cases.push(simple(&label, op, F32_NMSE, vec![x.clone(), x], LIVE));
        }
    }
    for kind in UNARY {
        let x = x(&[50]).values(extreme);
        let label = format!("{kind:?}/extreme");
        cases.push(simple(&label, Op::Unary(kind), F32_NMSE, vec![x], 0));
    }
    for kind in GLU {
        for shape in [
            x(&[134, 5]),
            x(&[2, 70_001]),
            x(&[28_672, 9]).live(1),
            x(&[96, 7]).window(0, 3, 70),
        ] {
            let x = shape.values(wide);
            let label = format!("{kind:?}/one");
            cases.push(simple(&label, Op::Glu(kind), F32_NMSE, vec![x], LIVE));
        }
    }
    rows(&mut cases);
    cases
}
