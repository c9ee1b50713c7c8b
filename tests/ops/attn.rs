//! ATTN: masks, heads and types, with garbage wherever nobody may look.

use super::harness::*;
use llama_rs::backend::cpu::Simd;
use llama_rs::graph::op::AttnShape;
use llama_rs::graph::{AttnParams, Count, Input};
use llama_rs::quant::DType;
use std::sync::Arc;

/// One call: shapes, types, who is where.
#[derive(Clone)]
struct Case {
    shape: AttnShape,
    types: [DType; 2],
    params: AttnParams,
    /// (sequence, position) of each live token.
    tokens: Vec<(i32, i32)>,
    width: usize,
    /// (sequence, position) of each cell; position -1 when empty.
    cells: Vec<(i32, i32)>,
    /// Cells of the cache beyond those in use.
    n_spare: usize,
    /// What empty and spare cells hold.
    poison: f32,
}

fn shape(head_dim: usize, n_head: usize, group: usize) -> AttnShape {
    AttnShape {
        head_dim_k: head_dim,
        head_dim_v: head_dim,
        n_head,
        n_head_kv: n_head / group,
    }
}

impl Case {
    /// One sequence: `n_past` tokens in cells, then `n` more.
    fn causal(shape: AttnShape, n_past: usize, n: usize) -> Case {
        let all = (n_past + n) as i32;
        Case {
            shape,
            types: [DType::F16; 2],
            params: AttnParams {
                scale: 1.0 / (shape.head_dim_k as f32).sqrt(),
                softcap: None,
                window: None,
                swa: false,
                temperature: None,
            },
            tokens: (n_past as i32..all).map(|p| (0, p)).collect(),
            width: n + 2,
            cells: (0..all).map(|p| (0, p)).collect(),
            n_spare: 70,
            poison: f32::NAN,
        }
    }

    /// Cells in random order, with empty ones between.
    fn scattered(mut self, random: &mut Random) -> Case {
        for _ in 0..self.cells.len() / 3 + 2 {
            self.cells.push((0, -1));
        }
        for i in (1..self.cells.len()).rev() {
            self.cells.swap(i, random.below(i + 1));
        }
        self
    }

    fn sees(&self, t: usize, c: usize) -> bool {
        let ((seq, pos), (cell_seq, cell_pos)) = (self.tokens[t], self.cells[c]);
        let back = i64::from(pos) - i64::from(cell_pos);
        cell_pos >= 0
            && seq == cell_seq
            && back >= 0
            && self.params.window.is_none_or(|w| back < i64::from(w))
    }

    /// Cell contents as f32; empty and spare cells hold poison.
    fn cache(&self, row: usize, random: &mut Random) -> Vec<f32> {
        let mut values = random.units(row * (self.cells.len() + self.n_spare));
        for (c, cell) in values.chunks_mut(row).enumerate() {
            if self.cells.get(c).is_none_or(|&(_, pos)| pos < 0) {
                cell.fill(self.poison);
            }
        }
        values
    }
}

/// The values as a cache of this type holds them, and their bytes.
fn stored(dtype: DType, values: &[f32]) -> (Vec<f64>, Vec<u8>) {
    match dtype {
        DType::F16 => {
            let held: Vec<_> = values.iter().map(|&v| half::f16::from_f32(v)).collect();
            let bytes = held.iter().flat_map(|h| h.to_le_bytes()).collect();
            (held.iter().map(|h| h.to_f64()).collect(), bytes)
        }
        _ => {
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            (wide(values), bytes)
        }
    }
}

/// Output of one head of one token, and its error bound.
fn head(case: &Case, t: usize, h: usize, q: &[f32], k: &[f64], v: &[f64]) -> Vec<(f64, f64)> {
    let s = &case.shape;
    let h_kv = h / (s.n_head / s.n_head_kv);
    let q = wide(&q[(t * s.n_head + h) * s.head_dim_k..][..s.head_dim_k]);
    let boost = case.params.temperature.map_or(1.0, |(beta, n)| {
        let step = (case.tokens[t].1 / n as i32) as f64;
        1.0 + f64::from(beta) * (1.0 + step).ln()
    });
    let scale = f64::from(case.params.scale) * boost;
    let (mut scores, mut error) = (Vec::new(), 0.0f64);
    for c in (0..case.cells.len()).filter(|&c| case.sees(t, c)) {
        let k = &k[(c * s.n_head_kv + h_kv) * s.head_dim_k..][..s.head_dim_k];
        let mut score = scale * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>();
        // A sum of head_dim products rounds once a product; then the scale.
        let size = scale * q.iter().zip(k).map(|(q, k)| (q * k).abs()).sum::<f64>();
        error = error.max((s.head_dim_k as f64 + 4.0) * ROUNDING * size);
        if let Some(cap) = case.params.softcap {
            score = f64::from(cap) * (score / f64::from(cap)).tanh();
        }
        scores.push((c, score));
    }
    let max = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.1));
    let span = scores.iter().fold(0.0f64, |m, s| m.max(max - s.1));
    let sum: f64 = scores.iter().map(|s| (s.1 - max).exp()).sum();
    // An error of a score is a relative error of its weight, in the value and
    // in the sum; the difference to the maximum rounds; 8 for e^ and quotient;
    // one rounding a cell in either sum, and one where tiles are joined.
    let relative = 2.0 * (error + ROUNDING * (span + 8.0)) + 2.5 * ROUNDING * scores.len() as f64;
    (0..s.head_dim_v)
        .map(|d| {
            let terms = scores.iter().map(|&(c, score)| {
                (score - max).exp() / sum * v[(c * s.n_head_kv + h_kv) * s.head_dim_v + d]
            });
            let (out, size) = terms.fold((0.0, 0.0), |(o, z), t| (o + t, z + f64::abs(t)));
            (out, relative * size)
        })
        .collect()
}

/// Runs a case and compares all live tokens; gives the bits of each path.
fn check(what: &str, case: &Case, random: &mut Random) -> Vec<(Simd, Vec<u32>)> {
    let s = case.shape;
    let n_live = case.tokens.len();
    let mut q = random.units(s.head_dim_k * s.n_head * case.width);
    q.iter_mut().for_each(|v| *v *= 3.0);
    q[s.head_dim_k * s.n_head * n_live..].fill(f32::NAN);
    let rows = [s.head_dim_k * s.n_head_kv, s.head_dim_v * s.n_head_kv];
    let (k, k_bytes) = stored(case.types[0], &case.cache(rows[0], random));
    let (v, v_bytes) = stored(case.types[1], &case.cache(rows[1], random));
    let mut store = Store::default();
    store.f32("q", &[s.head_dim_k, s.n_head, case.width], &q);
    let caches = [store.cache(&k_bytes), store.cache(&v_bytes)];
    let store = Arc::new(store);
    let swa = case.params.swa;
    let n_cells = case.cells.len() + case.n_spare;
    // Spare cells claim to hold what every token would see.
    let part = |of: fn(&(i32, i32)) -> i32| {
        let spare = std::iter::repeat_n(0, case.n_spare);
        case.cells.iter().map(of).chain(spare).collect::<Vec<_>>()
    };
    let setup = Setup {
        inputs: vec![
            (Input::Pos, case.tokens.iter().map(|t| t.1).collect()),
            (Input::Seq, case.tokens.iter().map(|t| t.0).collect()),
            (Input::CellPos { swa }, part(|c| c.1)),
            (Input::CellSeq { swa }, part(|c| c.0)),
        ],
        counts: vec![
            (Count::Tokens, n_live),
            (Count::Cells { swa }, case.cells.len()),
        ],
        width: case.width,
        ..Setup::default()
    };
    let got = run(&store, &setup, |b| {
        let q = operand(b, &store, "q");
        let q = live(b, q, 2);
        let k = b.cache(caches[0], case.types[0], rows[0], n_cells);
        let v = b.cache(caches[1], case.types[1], rows[1], n_cells);
        b.attn(case.params, s, q, k, v)
    });
    let heads = (0..n_live).flat_map(|t| (0..s.n_head).map(move |h| (t, h)));
    let want: Vec<(f64, f64)> = heads
        .flat_map(|(t, h)| head(case, t, h, &q, &k, &v))
        .collect();
    let values: Vec<f64> = want.iter().map(|w| w.0).collect();
    close(what, &got, &values, |i| want[i].1);
    got
}

#[test]
fn every_head_dim_group_and_cache_type() {
    let mut random = Random(101);
    for head_dim in [64, 80, 96, 128, 256] {
        for group in [1, 3, 8] {
            for types in [[DType::F16; 2], [DType::F32; 2], [DType::F32, DType::F16]] {
                for (n_past, n) in [(0, 1), (150, 1), (3, 2), (0, 13), (61, 6)] {
                    let case = Case {
                        types,
                        ..Case::causal(shape(head_dim, 2 * group, group), n_past, n)
                    };
                    let what = format!("{head_dim} / {group}, {types:?}, {n_past} + {n}");
                    check(&what, &case, &mut random);
                }
            }
        }
    }
}

#[test]
fn key_and_value_heads_of_different_size() {
    let mut random = Random(103);
    for (head_dim_k, head_dim_v) in [(192, 128), (36, 20), (24, 40)] {
        let s = AttnShape {
            head_dim_k,
            head_dim_v,
            ..shape(1, 4, 2)
        };
        for n in [1, 9] {
            let what = format!("{head_dim_k} and {head_dim_v}, {n}");
            check(&what, &Case::causal(s, 70, n), &mut random);
        }
    }
}

#[test]
fn windows_caps_and_temperature() {
    let mut random = Random(107);
    for window in [None, Some(1), Some(7), Some(64), Some(1000), Some(u32::MAX)] {
        for softcap in [None, Some(2.5), Some(50.0)] {
            for temperature in [None, Some((0.1, 16))] {
                for n in [1, 3, 40] {
                    let mut case = Case::causal(shape(64, 6, 3), 100, n);
                    case.params = AttnParams {
                        window,
                        softcap,
                        temperature,
                        swa: window.is_some(),
                        ..case.params
                    };
                    check(&format!("{:?}, {n}", case.params), &case, &mut random);
                }
            }
        }
    }
}

/// Three sequences in one batch, cells in any order with holes between them, a
/// token of a sequence without cells first, between and last, and tokens whose
/// own sequence holds later positions only.
#[test]
fn sequences_slots_and_masked_rows() {
    let mut random = Random(109);
    for poison in [f32::NAN, 1e30, f32::NEG_INFINITY] {
        for window in [None, Some(5)] {
            for types in [[DType::F16; 2], [DType::F32; 2]] {
                for n in [3, 24] {
                    let mut case = Case::causal(shape(64, 6, 3), 0, 0);
                    case.cells = (0..120).map(|i| (i % 3, i / 3)).collect();
                    case = case.scattered(&mut random);
                    case.tokens = (0..n).map(|i| (i % 3, 20 + i)).collect();
                    case.tokens[0] = (7, 50);
                    case.tokens[n as usize / 2] = (8, 50);
                    case.tokens[n as usize - 1] = (9, 0);
                    case.width = n as usize + 3;
                    (case.poison, case.types) = (poison, types);
                    case.params.window = window;
                    let what = format!("{poison}, {window:?}, {types:?}, {n}");
                    let got = check(&what, &case, &mut random);
                    let row = 64 * 6;
                    for (simd, bits) in got {
                        for t in [0, n as usize / 2, n as usize - 1] {
                            let row = &bits[t * row..(t + 1) * row];
                            assert!(row.iter().all(|&b| b << 1 == 0), "{what}, {simd:?}: zeros");
                        }
                    }
                }
            }
        }
    }
}

/// All tokens of a tile masked, and whole tiles of cells masked before the
/// first visible one.
#[test]
fn leading_masked_cells() {
    let mut random = Random(113);
    for n in [2, 12] {
        let mut case = Case::causal(shape(80, 8, 8), 0, n);
        let own = case.cells.clone();
        case.cells = (0..130).map(|i| (4, i)).chain(own).collect();
        check(&format!("{n} tokens"), &case, &mut random);
    }
}
