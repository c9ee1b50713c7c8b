//! GET_ROWS, SET_ROWS, CONT, CONCAT, CPY.

use super::harness::*;
use llama_rs::graph::{Builder, Op, TensorId};
use llama_rs::quant::DType;
use std::sync::Arc;

type Rounding = fn(f64) -> f64;

/// The types SET_ROWS and CPY write, with their rounding.
const FLOATS: [(DType, Rounding); 3] =
    [(DType::F32, |x| x), (DType::F16, f16), (DType::BF16, bf16)];

/// Values whose rounding to 16 bits is delicate: ties, overflow, subnormals.
fn delicate(n: usize) -> Vec<f32> {
    let mut x = Random(23).units(n);
    let ties = [
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
    x.iter_mut().zip(ties).for_each(|(x, tie)| *x = tie);
    x
}

#[test]
fn get_rows_from_every_type() {
    let (k, rows) = (512, 9);
    let ids = [3, 0, 8, 3, 9, -1, i32::MAX, i32::MIN, 7];
    for &dtype in DType::ALL.iter().filter(|&&d| d != DType::I32) {
        let row_bytes = dtype.row_bytes(k).expect("whole blocks");
        let mut random = Random(31);
        let table: Vec<u8> = (0..rows * row_bytes)
            .map(|_| (random.bits() >> 40) as u8)
            .collect();
        let mut store = Store::default();
        store.bytes("table", dtype, &[k, rows], &table);
        store.i32("ids", &[ids.len()], &ids);
        let store = Arc::new(store);
        let got = run(&store, &Setup::default(), |b| {
            let operands = [operand(b, &store, "table"), operand(b, &store, "ids")];
            b.op(Op::GetRows, &operands)
        });
        let mut want = Vec::new();
        for id in ids {
            let mut row = vec![0.0; k];
            if (0..rows as i32).contains(&id) {
                let bytes = &table[id as usize * row_bytes..][..row_bytes];
                dtype.dequantize_row(bytes, &mut row).expect("sizes match");
            }
            want.extend(wide(&row));
        }
        // Rows are copied or dequantized, bit-exact by `tests/quant.rs`.
        close(dtype.name(), &got, &want, |_| 0.0);
    }
}

#[test]
fn get_rows_reads_live_ids_only() {
    let (k, rows) = (33, 4);
    let table = Random(1).units(k * rows);
    let mut store = Store::default();
    store.f32("table", &[k, rows], &table);
    store.i32("ids", &[3], &[2, 1, 77]);
    let store = Arc::new(store);
    let got = run(&store, &Setup::tokens(3, 2), |b| {
        let (table, ids) = (operand(b, &store, "table"), operand(b, &store, "ids"));
        let ids = live(b, ids, 0);
        b.op(Op::GetRows, &[table, ids])
    });
    let mut want = wide(&table[2 * k..3 * k]);
    want.extend(wide(&table[k..2 * k]));
    close("GET_ROWS, two live ids", &got, &want, |_| 0.0);
}

/// The weights of the chosen experts: one table a token. The width of one
/// token must not take the token dimension for the row dimension.
#[test]
fn get_rows_of_a_table_a_token() {
    let (n_expert, n_used) = (8, 3);
    for (width, n_live) in [(1, 1), (2, 1), (4, 4), (5, 2)] {
        let probs = Random(2).units(n_expert * width);
        let ids: Vec<i32> = (0..n_used * width).map(|i| (i * 5 % 8) as i32).collect();
        let mut store = Store::default();
        store.f32("probs", &[1, n_expert, width], &probs);
        store.i32("ids", &[n_used, width], &ids);
        let store = Arc::new(store);
        let got = run(&store, &Setup::tokens(width, n_live), |b| {
            let (probs, ids) = (operand(b, &store, "probs"), operand(b, &store, "ids"));
            let (probs, ids) = (live(b, probs, 2), live(b, ids, 1));
            b.op(Op::GetRows, &[probs, ids])
        });
        let want: Vec<f64> = (0..n_used * n_live)
            .map(|i| f64::from(probs[i / n_used * n_expert + ids[i] as usize]))
            .collect();
        close(
            &format!("GET_ROWS, {n_live} of {width}"),
            &got,
            &want,
            |_| 0.0,
        );
    }
}

/// Reads all rows of a 16-bit or 32-bit tensor back as f32.
fn read_back(
    b: &mut llama_rs::graph::Builder<'_>,
    store: &Store,
    x: TensorId,
) -> llama_rs::Result<TensorId> {
    let all = operand(b, store, "all");
    b.op(Op::GetRows, &[x, all])
}

#[test]
fn set_rows_to_every_float_type() {
    let (k, n, cells) = (35, 6, 11);
    let slots = [5, 0, -1, 9, 3, 2];
    let n_live = 5;
    let x = delicate(k * n);
    for (dtype, round) in FLOATS {
        // Old content must stay where no slot points.
        let old: Vec<u8> = (0..k * cells * dtype.block_bytes())
            .map(|i| (i % 59) as u8)
            .collect();
        let mut old_values = vec![0.0; k * cells];
        dtype
            .dequantize_row(&old, &mut old_values)
            .expect("sizes match");
        let mut store = Store::default();
        store.f32("x", &[k, n], &x);
        store.i32("slots", &[n], &slots);
        store.i32(
            "all",
            &[cells],
            &std::array::from_fn::<i32, 11, _>(|i| i as i32),
        );
        let id = store.cache(&old);
        let store = Arc::new(store);
        let got = run(&store, &Setup::tokens(n, n_live), |b| {
            let cache = b.cache(id, dtype, k, cells);
            let (x, slots) = (operand(b, &store, "x"), operand(b, &store, "slots"));
            let (x, slots) = (live(b, x, 1), live(b, slots, 0));
            let set = b.op(Op::SetRows, &[cache, x, slots])?;
            read_back(b, &store, set)
        });
        let mut want = wide(&old_values);
        for (t, &slot) in slots[..n_live].iter().enumerate() {
            if let Ok(slot) = usize::try_from(slot) {
                for i in 0..k {
                    want[slot * k + i] = round(f64::from(x[t * k + i]));
                }
            }
        }
        // Rounding is defined to the bit: to nearest, ties to even.
        close(&format!("SET_ROWS {dtype:?}"), &got, &want, |_| 0.0);
    }
}

#[test]
fn cpy_of_a_view_to_every_float_type() {
    let (k, n) = (41, 4);
    let x = delicate(k * n);
    for (dtype, round) in FLOATS {
        let mut store = Store::default();
        store.f32("x", &[k, n], &x);
        store.i32("all", &[3], &[0, 1, 2]);
        let store = Arc::new(store);
        let got = run(&store, &Setup::default(), |b| {
            let x = operand(b, &store, "x");
            let x = b.slice(x, 0, 0, 39)?;
            let x = b.slice(x, 1, 0, 3)?;
            let copy = b.op(Op::Cpy { dtype }, &[x])?;
            read_back(b, &store, copy)
        });
        let want: Vec<f64> = (0..3 * 39)
            .map(|i| round(f64::from(x[i / 39 * k + i % 39])))
            .collect();
        // Rounding is defined to the bit: to nearest, ties to even.
        close(&format!("CPY {dtype:?}"), &got, &want, |_| 0.0);
    }
}

#[test]
fn concat_of_views_with_dead_rows() {
    let (widths, n, n_live) = ([3, 8, 1], 6, 4);
    let mut store = Store::default();
    let mut parts = Vec::new();
    for (i, k) in widths.into_iter().enumerate() {
        let mut part = Random(17 + i as u64).units(k * n);
        part[n_live * k..].fill(f32::NAN);
        store.f32(&i.to_string(), &[k, n], &part);
        parts.push(part);
    }
    let store = Arc::new(store);
    let got = run(&store, &Setup::tokens(n, n_live), |b| {
        let part = |b: &mut Builder<'_>, i: usize| {
            let x = operand(b, &store, &i.to_string());
            live(b, x, 1)
        };
        let (x, z) = (part(b, 0), part(b, 2));
        let y = part(b, 1);
        let y = b.slice(y, 0, 2, 5)?;
        b.op(Op::Concat, &[x, y, z])
    });
    let row = |t: usize| {
        let y = &parts[1][t * 8 + 2..t * 8 + 7];
        [&parts[0][t * 3..][..3], y, &parts[2][t..][..1]].concat()
    };
    let want: Vec<f32> = (0..n_live).flat_map(row).collect();
    close("CONCAT", &got, &wide(&want), |_| 0.0);
}

#[test]
fn cont_of_sliced_views() {
    let ne = [7, 6, 5, 2];
    let x = Random(4).units(ne.iter().product());
    let at = |i: [usize; 4]| f64::from(x[((i[3] * 5 + i[2]) * 6 + i[1]) * 7 + i[0]]);
    let mut store = Store::default();
    store.f32("x", &ne, &x);
    let store = Arc::new(store);
    let box_shaped = run(&store, &Setup::default(), |b| {
        let x = operand(b, &store, "x");
        let x = b.slice(x, 0, 2, 3)?;
        let x = b.slice(x, 1, 1, 4)?;
        let x = b.slice(x, 2, 3, 2)?;
        b.op(Op::Cont, &[x])
    });
    let want: Vec<f64> = (0..3 * 4 * 2 * 2)
        .map(|i| at([2 + i % 3, 1 + i / 3 % 4, 3 + i / 12 % 2, i / 24]))
        .collect();
    close("CONT of a box", &box_shaped, &want, |_| 0.0);
    let thin = run(&store, &Setup::default(), |b| {
        let x = operand(b, &store, "x");
        let x = b.slice(x, 1, 4, 1)?;
        let x = b.slice(x, 2, 1, 3)?;
        b.op(Op::Cont, &[x])
    });
    let want: Vec<f64> = (0..7 * 3 * 2)
        .map(|i| at([i % 7, 4, 1 + i / 7 % 3, i / 21]))
        .collect();
    close("CONT of a thin slice", &thin, &want, |_| 0.0);
}
