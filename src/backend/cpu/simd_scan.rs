//! The inner loops of the scans: one row of a state takes one token.

use super::simd::Simd;
use super::simd_math::{LANES, add_lanes, exp, fma, multiversion};

/// `state = state * decay(i) + add * b`, gives the sum of `state * c`.
#[inline(always)]
fn step<const FMA: bool>(
    state: &mut [f32],
    decay: impl Fn(usize) -> f32,
    add: f32,
    b: &[f32],
    c: &[f32],
) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let n = state.len();
    let (b, c) = (&b[..n], &c[..n]);
    let whole = n / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            let i = first + l;
            state[i] = fma::<FMA>(state[i], decay(i), add * b[i]);
            *lane = fma::<FMA>(state[i], c[i], *lane);
        }
    }
    for i in whole..n {
        state[i] = fma::<FMA>(state[i], decay(i), add * b[i]);
        lanes[i - whole] = fma::<FMA>(state[i], c[i], lanes[i - whole]);
    }
    add_lanes(lanes)
}

#[inline(always)]
fn scan_heads_body<const FMA: bool>(
    state: &mut [f32],
    decay: f32,
    dt: f32,
    x: &[f32],
    [b, c]: [&[f32]; 2],
    y: &mut [f32],
) {
    let rows = state.chunks_exact_mut(b.len());
    for ((state, x), y) in rows.zip(x).zip(y) {
        *y = step::<FMA>(state, |_| decay, x * dt, b, c);
    }
}

multiversion! {
    /// One token of a head whose rows decay alike (Mamba-2): `state` holds a row of
    /// `d_state` values for each of `x`; `bc` are b and c; y becomes `state * c`.
    pub fn scan_head(state: &mut [f32], decay: f32, dt: f32, x: &[f32], bc: [&[f32]; 2],
        y: &mut [f32]) = scan_heads_body
}

#[inline(always)]
fn scan_channels_body<const FMA: bool>(
    state: &mut [f32],
    a: &[f32],
    dt: &[f32],
    x: &[f32],
    [b, c]: [&[f32]; 2],
    y: &mut [f32],
) {
    let n = b.len();
    let rows = state.chunks_exact_mut(n).zip(a.chunks_exact(n));
    for (((state, a), (x, dt)), y) in rows.zip(x.iter().zip(dt)).zip(y) {
        *y = step::<FMA>(state, |i| exp::<FMA>(dt * a[i]), x * dt, b, c);
    }
}

multiversion! {
    /// One token of channels whose states each have their own decay (Mamba): `state`
    /// and `a` hold a row of `b.len()` values for each of `x`; `bc` are b and c; y becomes `state * c`.
    pub fn scan_channels(state: &mut [f32], a: &[f32], dt: &[f32], x: &[f32],
        bc: [&[f32]; 2], y: &mut [f32]) = scan_channels_body
}

#[inline(always)]
fn delta_rows_body<const FMA: bool>(
    state: &mut [f32],
    [decay, beta]: [f32; 2],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    y: &mut [f32],
) {
    for ((state, v), y) in state.chunks_exact_mut(k.len()).zip(v).zip(y) {
        let known = step::<FMA>(state, |_| decay, 0.0, k, k);
        *y = step::<FMA>(state, |_| 1.0, beta * (v - known), k, q);
    }
}

multiversion! {
    /// One token of rows of the gated delta rule: `state` holds a row of `k.len()`
    /// values for each of `v`; `factors` are decay and beta; y becomes `state * q`.
    pub fn delta_rows(state: &mut [f32], factors: [f32; 2], q: &[f32], k: &[f32], v: &[f32],
        y: &mut [f32]) = delta_rows_body
}
