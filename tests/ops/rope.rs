//! ROPE, both pairings, against the formulas of the papers.

use super::harness::*;
use llama_rs::graph::{Input, Op, RopeMode, RopeParams};
use std::sync::Arc;

const PLAIN: RopeParams = RopeParams {
    mode: RopeMode::Norm,
    n_rot: 64,
    freq_base: 10_000.0,
    freq_scale: 1.0,
    ext_factor: 0.0,
    attn_factor: 1.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
    n_ctx_orig: 4096,
};

const POSITIONS: [i32; 8] = [0, 1, 2, 31, 2_700, 4_096, 32_768, 100_000];

/// Turns of pair `d` (a real number) within the training context: the context
/// over the wave length 2 pi base^(2 d / n_rot).
fn turns(p: &RopeParams, d: f64) -> f64 {
    let wave = std::f64::consts::TAU * f64::from(p.freq_base).powf(2.0 * d / p.n_rot as f64);
    f64::from(p.n_ctx_orig) / wave
}

/// The pair that turns `beta` times, by bisection: turns fall as pairs rise.
fn pair_of(p: &RopeParams, beta: f64) -> f64 {
    let (mut low, mut high) = (-1000.0, 1000.0);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        match turns(p, middle) > beta {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// Angle of pair `i` at position 1. YaRN: pairs that turn more than `beta_fast`
/// times keep their frequency, those below `beta_slow` are scaled, in between
/// it is mixed linearly over whole pairs.
fn angle(p: &RopeParams, factors: Option<&[f32]>, i: usize) -> f64 {
    let wave = f64::from(p.freq_base).powf(2.0 * i as f64 / p.n_rot as f64);
    let kept = 1.0 / (wave * factors.map_or(1.0, |f| f64::from(f[i])));
    let scaled = kept * f64::from(p.freq_scale);
    let first = pair_of(p, f64::from(p.beta_fast)).floor().max(0.0);
    let last = pair_of(p, f64::from(p.beta_slow))
        .ceil()
        .min(p.n_rot as f64 - 1.0);
    let share_scaled = match i as f64 {
        i if i <= first => 0.0,
        i if i >= last => 1.0,
        i => (i - first) / (last - first),
    };
    let ext = f64::from(p.ext_factor);
    let share_kept = (1.0 - share_scaled) * ext;
    kept * share_kept + scaled * (1.0 - share_kept)
}

/// YaRN's factor on sine and cosine: 0.1 ln s + 1 for a context s times as long.
fn magnitude(p: &RopeParams) -> f64 {
    let s = 1.0 / f64::from(p.freq_scale);
    let yarn = if p.ext_factor != 0.0 {
        0.1 * s.ln() + 1.0
    } else {
        1.0
    };
    f64::from(p.attn_factor) * yarn
}

fn check(p: RopeParams, head_dim: usize, factors: Option<&[f32]>) {
    let (n_head, n_live) = (3, POSITIONS.len());
    let n = n_live + 2;
    let mut x = Random(79).units(head_dim * n_head * n);
    x[head_dim * n_head * n_live..].fill(f32::NAN);
    let mut store = Store::default();
    store.f32("x", &[head_dim, n_head, n], &x);
    if let Some(factors) = factors {
        store.f32("factors", &[factors.len()], factors);
    }
    let store = Arc::new(store);
    let setup = Setup {
        inputs: vec![(Input::Pos, POSITIONS.to_vec())],
        ..Setup::tokens(n, n_live)
    };
    let got = run(&store, &setup, |b| {
        let x = operand(b, &store, "x");
        let x = live(b, x, 2);
        let factors = factors.map(|_| operand(b, &store, "factors"));
        b.rope(p, x, factors)
    });
    let mut want = wide(&x[..head_dim * n_head * n_live]);
    let mut tolerance = vec![0.0; want.len()];
    let m = magnitude(&p);
    for (r, row) in want.chunks_mut(head_dim).enumerate() {
        let pos = f64::from(POSITIONS[r / n_head]);
        for i in 0..p.n_rot / 2 {
            let (a, b) = match p.mode {
                RopeMode::Norm => (2 * i, 2 * i + 1),
                RopeMode::Neox => (i, i + p.n_rot / 2),
            };
            let (sin, cos) = (pos * angle(&p, factors, i)).sin_cos();
            let (xa, xb) = (row[a], row[b]);
            (row[a], row[b]) = (m * (xa * cos - xb * sin), m * (xa * sin + xb * cos));
            // Sine or cosine, product and sum are rounded to f32; angles are
            // f64 in both, off by at most 1e5 times some 1e-15.
            let t = (3.0 * ROUNDING + 1e-9) * m * (xa.abs() + xb.abs());
            (tolerance[r * head_dim + a], tolerance[r * head_dim + b]) = (t, t);
        }
    }
    let what = format!("{p:?}, head_dim {head_dim}, factors {}", factors.is_some());
    close(&what, &got, &want, |i| tolerance[i]);
}

#[test]
fn rope_of_every_kind() {
    let yarn = RopeParams {
        freq_scale: 0.25,
        ext_factor: 1.0,
        ..PLAIN
    };
    let kinds = [
        PLAIN,
        RopeParams {
            freq_scale: 0.125,
            ..PLAIN
        },
        RopeParams {
            freq_base: 1e6,
            ..PLAIN
        },
        RopeParams {
            attn_factor: 1.19,
            ..PLAIN
        },
        yarn,
        RopeParams {
            freq_base: 1e6,
            n_ctx_orig: 32_768,
            ..yarn
        },
        RopeParams {
            ext_factor: 0.5,
            attn_factor: 0.8,
            ..yarn
        },
        RopeParams {
            beta_fast: 4.0,
            beta_slow: 4.0,
            n_ctx_orig: 64,
            ..yarn
        },
    ];
    for kind in kinds {
        for mode in [RopeMode::Norm, RopeMode::Neox] {
            for (head_dim, n_rot) in [(64, 64), (80, 32), (128, 128), (96, 94), (2, 2)] {
                let p = RopeParams {
                    mode,
                    n_rot,
                    ..kind
                };
                let factors: Vec<f32> = (0..n_rot / 2).map(|i| 1.0 + i as f32 * 0.37).collect();
                check(p, head_dim, None);
                check(p, head_dim, Some(&factors));
            }
        }
    }
}

/// Q, K and V in one row, as phi3 has them: heads of a slice.
#[test]
fn rope_of_a_view() {
    let (hd, n_head, n) = (32, 2, 3);
    let row = hd * n_head * 3;
    let x = Random(83).units(row * n);
    let heads = |part: usize| -> Vec<f32> {
        x.chunks(row)
            .flat_map(|r| r[part * 64..(part + 1) * 64].to_vec())
            .collect()
    };
    let mut store = Store::default();
    store.f32("x", &[hd, n_head * 3, n], &x);
    store.f32("k", &[hd, n_head, n], &heads(1));
    let store = Arc::new(store);
    let setup = Setup {
        inputs: vec![(Input::Pos, vec![5, 6, 7])],
        ..Setup::tokens(n, n)
    };
    let p = RopeParams {
        n_rot: 32,
        mode: RopeMode::Neox,
        ..PLAIN
    };
    let view = run(&store, &setup, |b| {
        let x = operand(b, &store, "x");
        let x = b.slice(x, 1, n_head, n_head)?;
        b.rope(p, x, None)
    });
    let packed = run(&store, &setup, |b| {
        let pos = b.input(Input::Pos, 0);
        let k = operand(b, &store, "k");
        b.op(Op::Rope(p), &[k, pos])
    });
    assert!(view == packed, "a view and its packed copy");
}
