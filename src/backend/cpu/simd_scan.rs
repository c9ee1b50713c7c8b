//! The inner loops of the scans: one row of a state takes one token.
//!
//! Plain indices and whole arrays throughout: iterators and closures over blocks are not
//! inlined into functions with more target features, and then nothing becomes vectors.

use super::simd::Simd;
use super::simd_math::{LANES, add_lanes, exp, fma, multiversion};

type Block = [f32; LANES];

/// `state = state * decay + add * b` of one block; `lanes += state * c`.
#[inline(always)]
fn take<const FMA: bool>(
    state: &mut Block,
    decay: &Block,
    add: f32,
    b: &Block,
    c: &Block,
    lanes: &mut Block,
) {
    let (old, b, c, mut sums) = (*state, *b, *c, *lanes);
    let mut new = [0.0; LANES];
    for i in 0..LANES {
        new[i] = fma::<FMA>(old[i], decay[i], add * b[i]);
    }
    for i in 0..LANES {
        sums[i] = fma::<FMA>(new[i], c[i], sums[i]);
    }
    (*state, *lanes) = (new, sums);
}

/// Values behind the whole blocks, as a block that ends in zeros.
#[inline(always)]
fn padded(tail: &[f32]) -> Block {
    let mut block = [0.0; LANES];
    block[..tail.len()].copy_from_slice(tail);
    block
}

/// One row with the same decay for all values; gives the sum of `state * c`.
#[inline(always)]
fn row<const FMA: bool>(state: &mut [f32], decay: f32, add: f32, b: &[f32], c: &[f32]) -> f32 {
    let (mut lanes, decay) = ([0.0; LANES], [decay; LANES]);
    let (blocks, tail) = state.as_chunks_mut::<LANES>();
    let ((b, b_tail), (c, c_tail)) = (b.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    let (b, c) = (&b[..blocks.len()], &c[..blocks.len()]);
    for k in 0..blocks.len() {
        take::<FMA>(&mut blocks[k], &decay, add, &b[k], &c[k], &mut lanes);
    }
    if !tail.is_empty() {
        let (mut last, b, c) = (padded(tail), padded(b_tail), padded(c_tail));
        take::<FMA>(&mut last, &decay, add, &b, &c, &mut lanes);
        tail.copy_from_slice(&last[..tail.len()]);
    }
    add_lanes(lanes)
}

/// One row whose values decay by `exp(dt * a)`.
#[inline(always)]
fn channel<const FMA: bool>(
    state: &mut [f32],
    a: &[f32],
    [dt, x]: [f32; 2],
    b: &[f32],
    c: &[f32],
) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, tail) = state.as_chunks_mut::<LANES>();
    let ((b, b_tail), (c, c_tail)) = (b.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    let (a, a_tail) = a.as_chunks::<LANES>();
    let n = blocks.len();
    let (a, b, c) = (&a[..n], &b[..n], &c[..n]);
    for k in 0..n {
        let mut decay = a[k];
        for value in &mut decay {
            *value = exp::<FMA>(dt * *value);
        }
        take::<FMA>(&mut blocks[k], &decay, x * dt, &b[k], &c[k], &mut lanes);
    }
    if !tail.is_empty() {
        let (mut last, b, c) = (padded(tail), padded(b_tail), padded(c_tail));
        let mut decay = padded(a_tail);
        for value in &mut decay {
            *value = exp::<FMA>(dt * *value);
        }
        take::<FMA>(&mut last, &decay, x * dt, &b, &c, &mut lanes);
        tail.copy_from_slice(&last[..tail.len()]);
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
    let n = b.len();
    for r in 0..y.len() {
        let state = &mut state[r * n..(r + 1) * n];
        y[r] = row::<FMA>(state, decay, x[r] * dt, b, c);
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
    for r in 0..y.len() {
        let (state, a) = (&mut state[r * n..(r + 1) * n], &a[r * n..(r + 1) * n]);
        y[r] = channel::<FMA>(state, a, [dt[r], x[r]], b, c);
    }
}

multiversion! {
    /// One token of channels whose states each have their own decay (Mamba): `state`
    /// and `a` hold a row of `d_state` values for each of `x`; `bc` are b and c; y becomes
    /// `state * c`.
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
    let n = k.len();
    for r in 0..y.len() {
        let state = &mut state[r * n..(r + 1) * n];
        let known = row::<FMA>(state, decay, 0.0, k, k);
        y[r] = row::<FMA>(state, 1.0, beta * (v[r] - known), k, q);
    }
}

multiversion! {
    /// One token of rows of the gated delta rule: `state` holds a row of `k.len()`
    /// values for each of `v`; `factors` are decay and beta; y becomes `state * q`.
    pub fn delta_rows(state: &mut [f32], factors: [f32; 2], q: &[f32], k: &[f32], v: &[f32],
        y: &mut [f32]) = delta_rows_body
}
