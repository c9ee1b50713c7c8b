//! ARGMAX, TOP_K, SUM_ROWS, MEAN, SUM, CUMSUM, with the shapes that failed elsewhere and
//! both sides of every length and count from which on CUDA goes about it differently.

use crate::backend::check::case::{Case, F32_NMSE, Operand, SAME, simple, x};
use crate::backend::check::store::Random;
use crate::graph::Op;

/// Tokens alive where an operand has dead ones.
const LIVE: usize = 4;

/// Few different values, so that many are equal.
fn tied(random: &mut Random, _: usize) -> f32 {
    random.below(5) as f32
}

/// Every third value a NaN, the first among them.
fn some_nan(random: &mut Random, i: usize) -> f32 {
    let value = random.unit() - 5.0;
    if i.is_multiple_of(3) { f32::NAN } else { value }
}

/// Nothing above -inf.
fn nan_or_lowest(random: &mut Random, _: usize) -> f32 {
    [f32::NAN, f32::NEG_INFINITY][random.below(2)]
}

fn argmax(cases: &mut Vec<Case>) {
    let shapes = [
        vec![32],
        vec![1],
        vec![5, 70_001],
        vec![100, 10],
        vec![1024, 10],
        vec![1025, 10],
        vec![2000, 10],
        vec![4096, 3],
        vec![4097, 3],
        vec![5000, 263],
        vec![5000, 264],
        vec![13_000, 264],
        vec![8193, 3],
        vec![32_000, 70],
        vec![151_936, 1],
        vec![151_936, 16],
        vec![1_215_488, 1],
    ];
    for shape in shapes {
        let k = shape[0];
        let last = move |random: &mut Random, i: usize| match i % k == k - 1 {
            true => 2.0,
            false => random.unit(),
        };
        let kinds = [
            ("random", x(&shape)),
            ("last", x(&shape).values(last)),
            (
                "negative",
                x(&shape).values(|random, _| random.unit() - 3.0),
            ),
            ("masked", x(&shape).values(|_, _| f32::NEG_INFINITY)),
            ("tied", x(&shape).values(tied)),
            ("nan", x(&shape).values(some_nan)),
            ("lowest", x(&shape).values(nan_or_lowest)),
        ];
        for (label, operand) in kinds {
            cases.push(simple(label, Op::Argmax, SAME, vec![operand], 0));
        }
    }
    let views = [
        x(&[100, 9]).live(1),
        x(&[151_936, 9]).live(1),
        x(&[130, 9]).window(0, 3, 101),
        x(&[3000, 9]).window(0, 3, 2001).live(1),
        x(&[20_000, 5]).window(0, 3, 19_001),
        x(&[9000, 5]).live(0),
    ];
    for x in views {
        cases.push(simple("", Op::Argmax, SAME, vec![x], LIVE));
    }
}

fn top_k(cases: &mut Vec<Case>) {
    let lengths = [
        1, 8, 31, 32, 33, 128, 256, 500, 1023, 1024, 1025, 2047, 2048, 8193, 32_000, 128_256,
    ];
    for k in lengths {
        for count in [1, 8, 40, 64, 65, 1000, 2048] {
            if count > k {
                continue;
            }
            let op = Op::TopK { count };
            let rows = if k > 10_000 { 2 } else { 5 };
            let label = format!("count={count}");
            cases.push(simple(&label, op, SAME, vec![x(&[k, rows])], 0));
            let tied = x(&[k, rows]).values(tied);
            cases.push(simple(&format!("{label}/tied"), op, SAME, vec![tied], 0));
        }
    }
    let views = [
        x(&[8, 70_001]),
        x(&[1030, 600]),
        x(&[130, 3, 9]).live(2),
        x(&[1300, 9]).live(1),
        x(&[130, 9]).window(0, 3, 101),
        x(&[130, 4, 3]).window(1, 1, 2).window(2, 1, 2),
        x(&[2300, 4, 3]).window(1, 1, 2),
    ];
    for x in views {
        cases.push(simple(
            "count=8",
            Op::TopK { count: 8 },
            SAME,
            vec![x],
            LIVE,
        ));
    }
    let all = x(&[2500, 3]);
    cases.push(simple("all", Op::TopK { count: 2500 }, SAME, vec![all], 0));
}

/// Rows on both sides of two for each of an H200's 132 SMs, lengths on both sides of
/// 1,024, more than 65,535 rows, windows and dead tokens.
fn sums() -> Vec<Operand> {
    let mut all = Vec::new();
    for rows in [1, 9, 131, 132, 263, 264, 265] {
        for k in [1, 31, 33, 1023, 1024, 1025, 4100] {
            all.push(x(&[k, rows]));
        }
    }
    for k in [2, 5, 16, 17, 32, 63, 64, 65, 128, 129, 500] {
        all.push(x(&[k, 77]));
    }
    for k in [16_384, 16_385, 20_480, 65_537] {
        all.push(x(&[k, 3]));
    }
    all.extend([
        x(&[128, 8192]),
        x(&[8192, 300]),
        x(&[151_936, 1]),
        x(&[1_000_003, 1]),
        x(&[5, 70_001]),
        x(&[3, 300, 300]),
        x(&[67, 3, 9]).live(2),
        x(&[67, 9, 3]).live(1),
        x(&[1500, 9]).live(1),
        x(&[20_000, 9]).live(1),
        x(&[1500, 9]).live(0),
        x(&[20_000, 3]).live(0),
        x(&[96, 7, 5]).window(0, 3, 67),
        x(&[1200, 7, 5]).window(0, 3, 1100).window(1, 2, 4),
        x(&[20_000, 5, 2]).window(0, 3, 19_001).window(1, 1, 3),
        x(&[33, 4, 7]).window(2, 1, 5),
    ]);
    all
}

fn cumsum(cases: &mut Vec<Case>) {
    let lengths = [
        1, 2, 31, 32, 33, 127, 128, 129, 257, 511, 512, 513, 1024, 1025, 4096, 5000, 8192, 8193,
        12_288, 100_003,
    ];
    let mut all: Vec<Operand> = lengths.map(|k| x(&[k, 3])).into();
    // Both sides of the length from which on parts are larger, of groups of 32 parts (of
    // 2,048 and 10,240 values), of the eight groups that a block sees in its first round,
    // and of the fifteen of both.
    let groups = [
        65_536, 65_537, 131_072, 131_073, 163_840, 163_841, 327_680, 327_681, 2_000_000, 2_621_440,
        2_621_441, 4_915_200, 4_915_201, 5_242_881,
    ];
    all.extend(groups.map(|k| x(&[k, 1])));
    all.extend([
        x(&[15_200_000, 1]),
        x(&[200_000, 16]),
        x(&[65_536, 8]),
        x(&[152_000, 1]),
        x(&[255, 5, 4, 3]),
        x(&[5, 70_001]),
        x(&[67, 3, 9]).live(2),
        x(&[1500, 9]).live(1),
        x(&[20_000, 9]).live(1),
        x(&[9000, 3]).live(0),
        x(&[200_000, 6]).live(1),
        x(&[200_000, 3]).live(0),
        x(&[200_000, 3]).window(0, 3, 190_001),
        x(&[96, 7, 5]).window(0, 3, 67).window(1, 2, 4),
        x(&[700, 7, 5]).window(0, 3, 601).window(1, 2, 4),
        x(&[20_000, 4, 3]).window(0, 3, 19_001).window(1, 1, 2),
        x(&[33, 4, 7]).window(2, 1, 5),
    ]);
    for x in all {
        cases.push(simple("", Op::Cumsum, F32_NMSE, vec![x], LIVE));
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    argmax(&mut cases);
    top_k(&mut cases);
    for x in sums() {
        // A mean apart from zero: else the sum is what its terms leave over.
        let x = x.values(|random, _| random.unit() + 0.3);
        cases.push(simple("", Op::SumRows, F32_NMSE, vec![x.clone()], LIVE));
        cases.push(simple("", Op::Mean, F32_NMSE, vec![x.clone()], LIVE));
        cases.push(simple("", Op::Sum, F32_NMSE, vec![x], LIVE));
    }
    cumsum(&mut cases);
    cases
}
