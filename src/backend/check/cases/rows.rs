//! GET_ROWS, SET_ROWS, CONT, CPY.

use crate::backend::check::case::{Build, Case, F32_NMSE, Operand, Problem, SAME, simple, x};
use crate::backend::check::store::{Random, Setup, Store, live, operand, random_weights};
use crate::graph::{Input, Op};
use crate::quant::DType;

/// Tokens alive where an operand has dead ones.
const LIVE: usize = 4;

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Ids that no table has are rows of zeros; dead ones must not be looked at.
const WILD: [i32; 5] = [-1, i32::MAX, i32::MIN, 1 << 20, 70_000];

fn ids(n: usize, n_live: usize, rows: usize, random: &mut Random) -> Vec<i32> {
    let live = (0..n_live).map(|i| match i % 7 {
        6 => WILD[i / 7 % WILD.len()],
        _ => random.below(rows) as i32,
    });
    let mut ids: Vec<i32> = live.collect();
    ids.extend((n_live..n).map(|i| WILD[i % WILD.len()]));
    ids
}

/// Rows of a weight.
fn get_rows(dtype: DType, k: usize, rows: usize, n: usize, n_live: usize) -> Case {
    // Unpacking multiplies and adds in F32; plain types are copied.
    let nmse = if dtype.is_quantized() { F32_NMSE } else { SAME };
    Case {
        name: format!(
            "GET_ROWS/{}/k={k},rows={rows},n={n_live}of{n}",
            dtype.name()
        ),
        exact: false,
        nmse,
        make: Box::new(move || {
            let mut random = Random(31);
            let mut store = Store::default();
            let table = random_weights(dtype, k * rows, &mut random);
            store.bytes("table", dtype, &[k, rows], &table);
            store.i32("ids", &[n], &ids(n, n_live, rows, &mut random));
            Problem {
                store,
                setup: Setup::tokens(n, n_live),
                build: Box::new(|b, store| {
                    let (table, ids) = (operand(b, store, "table"), operand(b, store, "ids"));
                    let ids = live(b, ids, 0);
                    Ok(vec![b.op(Op::GetRows, &[table, ids])?])
                }),
            }
        }),
    }
}

/// Rows of a computed table `[k, rows, n]`, one table a token when `n > 1`.
fn get_plain_rows(k: usize, rows: usize, n: usize, per_token: usize, n_live: usize) -> Case {
    Case {
        name: format!("GET_ROWS/computed/[{k},{rows},{n}],ids=[{per_token},{n}],n={n_live}"),
        exact: false,
        nmse: SAME,
        make: Box::new(move || {
            let mut random = Random(37);
            let mut store = Store::default();
            store.f32("table", &[k, rows, n], &random.units(k * rows * n));
            let live_ids = per_token * n_live;
            let ids = ids(per_token * n, live_ids, rows, &mut random);
            store.i32("ids", &[per_token, n], &ids);
            Problem {
                store,
                setup: Setup::tokens(n, n_live),
                build: Box::new(move |b, store| {
                    let (table, ids) = (operand(b, store, "table"), operand(b, store, "ids"));
                    if n > 1 {
                        live(b, table, 2);
                        live(b, ids, 1);
                    }
                    // Scaled by one: a table that is no weight.
                    let table = b.scale(table, 1.0)?;
                    Ok(vec![b.op(Op::GetRows, &[table, ids])?])
                }),
            }
        }),
    }
}

/// Values whose rounding to 16 bits is delicate: ties, overflow, subnormals.
fn delicate(random: &mut Random, i: usize) -> f32 {
    let special = [
        1.0 + 2f32.powi(-11),
        1.0 + 3.0 * 2f32.powi(-11),
        1.0 + 2f32.powi(-8),
        1.0 + 3.0 * 2f32.powi(-8),
        65519.9,
        65520.0,
        -1e30,
        6e-8,
        2.9e-8,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-30,
    ];
    match i % 3 {
        0 => special[i / 3 % special.len()],
        _ => random.unit(),
    }
}

/// CPY of `x` to a 16-bit type, read back by GET_ROWS.
fn cpy(dtype: DType, x: Operand, rows: usize) -> Case {
    Case {
        name: format!("CPY/{}/{}", dtype.name(), x.name()),
        exact: false,
        nmse: SAME,
        make: Box::new(move || {
            let mut random = Random(41);
            let mut store = Store::default();
            x.clone()
                .values(delicate)
                .put(&mut store, "x", rows, &mut random);
            let all: Vec<i32> = (0..rows as i32).collect();
            store.i32("all", &[rows], &all);
            let x = x.clone();
            let build: Build = Box::new(move |b, store| {
                let x = x.take(b, store, "x")?;
                let copy = b.op(Op::Cpy { dtype }, &[x])?;
                let k = b.graph.get(copy).ne[0];
                let copy = b.reshape(copy, &[k, b.graph.get(copy).n_values() / k])?;
                let all = operand(b, store, "all");
                Ok(vec![b.op(Op::GetRows, &[copy, all])?])
            });
            Problem {
                store,
                setup: Setup::tokens(rows, rows),
                build,
            }
        }),
    }
}

/// `x [k, n]` into a cache; with CUDA's rewrites this is HEAD_ROWS.
fn set_rows(dtype: DType, k: usize, n: usize, n_live: usize) -> Case {
    let n_cells = n_live + 40;
    Case {
        name: format!("SET_ROWS/{}/k={k},n={n_live}of{n}", dtype.name()),
        exact: false,
        nmse: SAME,
        make: Box::new(move || {
            let mut random = Random(43);
            let mut store = Store::default();
            x(&[k, n])
                .values(|random, i| match delicate(random, i) {
                    v if v.is_finite() => v,
                    _ => 1.0,
                })
                .live(1)
                .put(&mut store, "x", n_live, &mut random);
            let cache = store.cache(&random_weights(dtype, k * n_cells, &mut random));
            // Every third cell from 5 on, backwards, round the end.
            let slot = |i: usize| (5 + 3 * (n_live - i)) % n_cells;
            let mut slots: Vec<i32> = (0..n_live).map(|i| slot(i) as i32).collect();
            if n_cells.is_multiple_of(3) {
                slots = (0..n_live as i32).rev().collect();
            }
            slots.extend((n_live..n).map(|i| WILD[i % WILD.len()]));
            Problem {
                store,
                setup: Setup {
                    inputs: vec![(Input::Slots { swa: false }, slots)],
                    ..Setup::tokens(n, n_live)
                },
                build: Box::new(move |b, store| {
                    let x = operand(b, store, "x");
                    let x = live(b, x, 1);
                    let cache = b.cache(cache, dtype, k, n_cells);
                    let slots = b.input(Input::Slots { swa: false }, 0);
                    b.op(Op::SetRows, &[cache, x, slots])?;
                    Ok(Vec::new())
                }),
            }
        }),
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &dtype in DType::ALL.iter().filter(|&&d| d != DType::I32) {
        let block = dtype.block_len();
        for (k, rows, n, n_live) in [
            (block, 1, 1, 1),
            (3 * block.max(11), 37, 9, 7),
            (block.max(32) * 16, 100, 8, 8),
            (block, 50, 70_001, 70_000),
        ] {
            cases.push(get_rows(dtype, k, rows, n, n_live));
        }
    }
    for (k, rows, n, per_token, n_live) in [
        (1, 8, 5, 3, 2),
        (1, 128, 300, 8, 290),
        (67, 9, 1, 20, 1),
        (4096, 9, 1, 1, 1),
        (4, 3, 70_001, 2, 70_000),
        (64, 300, 1, 70_001, 1),
    ] {
        cases.push(get_plain_rows(k, rows, n, per_token, n_live));
    }
    let views = [
        (x(&[67, 9]), 9),
        (x(&[5, 70_001]), 70_001),
        (x(&[96, 7]).window(0, 3, 67), 7),
        (x(&[96, 7, 5]).window(0, 32, 64).window(1, 2, 4), 20),
        (x(&[33, 4, 7]).window(2, 1, 5), 20),
        (x(&[4096, 2]), 2),
    ];
    for (x, rows) in views {
        for dtype in FLOATS {
            cases.push(cpy(dtype, x.clone(), rows));
        }
        cases.push(simple("", Op::Cont, SAME, vec![x.values(delicate)], 0));
    }
    let parts = [
        vec![x(&[1]), x(&[2])],
        vec![x(&[67, 9]).live(1), x(&[130, 9]).live(1).window(0, 3, 101)],
        vec![
            x(&[64, 3, 9]).live(2),
            x(&[128, 3, 9]).live(2),
            x(&[256, 3, 9]).live(2),
        ],
        vec![x(&[4, 70_001]), x(&[8, 70_001])],
    ];
    for parts in parts {
        cases.push(simple("", Op::Concat, SAME, parts, LIVE));
    }
    let live = x(&[130, 3, 9]).live(2).window(0, 2, 128);
    cases.push(simple("", Op::Cont, SAME, vec![live], LIVE));
    for dtype in FLOATS {
        for (k, n, n_live) in [
            (64, 1, 1),
            (1, 5, 5),
            (131, 9, 4),
            (1024, 8, 7),
            (514, 40, 33),
            (8, 70_001, 70_000),
        ] {
            cases.push(set_rows(dtype, k, n, n_live));
        }
    }
    cases
}
