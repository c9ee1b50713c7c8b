//! SSM_CONV and SSM_SCAN, token by token: the reference. Threads share channels.

use super::pool::Worker;
use super::view::{RowAt, View};
use super::{Ctx, Node, simd_math, simd_scan};
use crate::graph::{SsmConv, SsmScan, UnaryKind};
use std::ops::Range;

/// Channels that a thread takes at a time: their states stay in its cache.
const TILE: usize = 64;

/// A sequence of the batch.
pub struct Sequence {
    pub slot: usize,
    /// Its state starts from zeros.
    pub fresh: bool,
    pub tokens: Range<usize>,
}

/// The sequences of a batch that have tokens; `n` tokens are alive, `n_slots` states
/// there are. Slots and rows outside these are passed over.
pub fn sequences<'a>(
    ids: &'a View,
    rows: &'a View,
    n: usize,
    n_slots: usize,
) -> impl Iterator<Item = Sequence> + 'a {
    let (ids, rows) = (ids.ints([0; 3]), rows.ints([0; 3]));
    let bound = move |row: i32| usize::try_from(row).map_or(0, |r| r.min(n));
    ids.iter()
        .zip(rows.windows(2))
        .filter_map(move |(&id, row)| {
            let fresh = id < 0;
            let slot = if fresh { !id } else { id } as usize;
            let tokens = bound(row[0])..bound(row[1]);
            (slot < n_slots && !tokens.is_empty()).then_some(Sequence {
                slot,
                fresh,
                tokens,
            })
        })
}

/// Scratch bytes of a thread for SSM_CONV of `d_conv` rows over `channels`.
pub fn conv_scratch_bytes(d_conv: usize) -> usize {
    (2 * d_conv - 1) * TILE * 4
}

/// `y = act(bias + sum_j w[j] * in[t - (d_conv - 1) + j])` of each channel; the last
/// `d_conv - 1` inputs are kept.
pub fn conv(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, params: &SsmConv) {
    let dst = node.dst(ctx);
    let [x, w, state, ids, rows] = [0, 1, 2, 3, 4].map(|at| node.src(ctx, at));
    let bias = params.bias_at().map(|at| vector(node.src(ctx, at)));
    let (d_conv, scratch) = (w.ne[0], ctx.scratch.floats(worker));
    let mine = worker.share(x.ne[0], TILE);
    for first in mine.clone().step_by(TILE) {
        let columns = first..(first + TILE).min(mine.end);
        let len = columns.len();
        // Weights by tap, and behind them the inputs before the first token.
        let (taps, before) = scratch.split_at_mut(d_conv * TILE);
        for (i, channel) in columns.clone().enumerate() {
            for (j, w) in w.row([channel, 0, 0]).iter().enumerate() {
                taps[j * TILE + i] = *w;
            }
        }
        for seq in sequences(&ids, &rows, x.ne[1], state.ne[2]) {
            for j in 0..d_conv - 1 {
                let kept = state.own_columns([j, seq.slot, 0], columns.clone());
                let before = &mut before[j * TILE..][..len];
                match seq.fresh {
                    true => before.fill(0.0),
                    false => before.copy_from_slice(kept),
                }
            }
            // Input number `t - (d_conv - 1)` of the sequence.
            let input = |t: usize| match t.checked_sub(d_conv - 1) {
                Some(t) => &x.row([seq.tokens.start + t, 0, 0])[columns.clone()],
                None => &before[t * TILE..][..len],
            };
            for t in 0..seq.tokens.len() {
                let y = dst.own_columns([seq.tokens.start + t, 0, 0], columns.clone());
                y.fill(0.0);
                for j in 0..d_conv {
                    multiply_add(y, &taps[j * TILE..][..len], input(t + j));
                }
                // Last, as an ADD of its own would have it, to the bit.
                if let Some(bias) = &bias {
                    let bias = &bias.row([0; 3])[columns.clone()];
                    y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
                }
                if params.silu {
                    let mut sums = [0.0; TILE];
                    sums[..len].copy_from_slice(y);
                    simd_math::unary(ctx.simd, UnaryKind::Silu, &sums[..len], y);
                }
            }
            for j in 0..d_conv - 1 {
                let kept = state.own_columns([j, seq.slot, 0], columns.clone());
                kept.copy_from_slice(input(seq.tokens.len() + j));
            }
        }
    }
}

fn multiply_add(y: &mut [f32], a: &[f32], b: &[f32]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y += a * b;
    }
}

/// The view with dimension `dim` and the next one, which follow without gaps, as one.
fn merged(v: &View, dim: usize) -> View {
    assert!(v.ne[dim + 1] == 1 || v.nb[dim + 1] == v.ne[dim] * v.nb[dim]);
    let mut out = *v;
    out.ne[dim] *= v.ne[dim + 1];
    for d in dim + 1..4 {
        out.ne[d] = v.ne.get(d + 1).copied().unwrap_or(1);
        out.nb[d] = v.nb[(d + 1).min(3)];
    }
    out
}

/// A contiguous tensor as one row.
fn vector(v: View) -> View {
    View {
        ne: [v.ne.iter().product(), 1, 1, 1],
        ..v
    }
}

/// Operands of SSM_SCAN.
struct Scan {
    y: View,
    state: View,
    x: View,
    dt: View,
    a: View,
    b: View,
    c: View,
    dt_bias: Option<View>,
    d: Option<View>,
    z: Option<View>,
}

/// `state = state * exp(dt * a) + b * (x * dt)`, `y = state * c`, with what
/// [`SsmScan`] adds.
pub fn scan(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, params: &SsmScan) {
    let optional = |at: Option<usize>| at.map(|at| node.src(ctx, at));
    let [state, x, dt, a, b, c] = [0, 1, 2, 3, 4, 5].map(|at| node.src(ctx, at));
    let scan = Scan {
        y: node.dst(ctx),
        state,
        x,
        dt,
        a,
        b,
        c,
        dt_bias: optional(params.dt_bias_at()).map(vector),
        d: optional(params.skip_at()).map(vector),
        z: optional(params.gate_at()),
    };
    let (ids, rows) = (node.src(ctx, 6), node.src(ctx, 7));
    for seq in sequences(&ids, &rows, x.ne[2], state.ne[3]) {
        match a.ne[0] == 1 {
            true => scan.heads(ctx, worker, &seq),
            false => scan.channels(ctx, worker, &seq),
        }
    }
}

impl Scan {
    /// `softplus(dt + dt_bias)` of a head.
    fn dt(&self, h: usize, t: usize) -> f32 {
        let bias = self.dt_bias.as_ref().map_or(0.0, |b| b.row([0; 3])[h]);
        simd_math::softplus(self.dt.row([t, 0, 0])[h] + bias)
    }

    /// What follows the scan, for `columns` of a row of y.
    fn finish(&self, ctx: &Ctx<'_>, at: RowAt, columns: Range<usize>, d: f32, y: &mut [f32]) {
        if self.d.is_some() {
            let x = &self.x.row(at)[columns.clone()];
            y.iter_mut().zip(x).for_each(|(y, x)| *y += d * x);
        }
        if let Some(z) = &self.z {
            self.gate(ctx, &z.row(at)[columns], y);
        }
    }

    fn gate(&self, ctx: &Ctx<'_>, z: &[f32], y: &mut [f32]) {
        let mut gates = [0.0; TILE];
        for (y, z) in y.chunks_mut(TILE).zip(z.chunks(TILE)) {
            simd_math::unary(ctx.simd, UnaryKind::Silu, z, &mut gates[..z.len()]);
            y.iter_mut().zip(gates).for_each(|(y, gate)| *y *= gate);
        }
    }

    /// Mamba-2: threads share the rows of all heads.
    fn heads(&self, ctx: &Ctx<'_>, worker: &Worker<'_>, seq: &Sequence) {
        let [_, head_dim, n_head, _] = self.state.ne;
        let per_group = n_head / self.b.ne[1];
        let mine = worker.share(head_dim * n_head, 1);
        for h in 0..n_head {
            let first = mine.start.max(h * head_dim);
            let end = mine.end.min((h + 1) * head_dim);
            if first >= end {
                continue;
            }
            let columns = first - h * head_dim..end - h * head_dim;
            let state = self.state.own_rows(columns.clone(), [h, seq.slot]);
            if seq.fresh {
                state.fill(0.0);
            }
            let a = self.a.row([h, 0, 0])[0];
            let d = self.d.as_ref().map_or(0.0, |d| d.row([0; 3])[h]);
            for t in seq.tokens.clone() {
                let dt = self.dt(h, t);
                let x = &self.x.row([h, t, 0])[columns.clone()];
                let bc = [&self.b, &self.c].map(|v| v.row([h / per_group, t, 0]));
                let y = self.y.own_columns([h, t, 0], columns.clone());
                simd_scan::scan_head(ctx.simd, state, (dt * a).exp(), dt, x, bc, y);
                self.finish(ctx, [h, t, 0], columns.clone(), d, y);
            }
        }
    }

    /// Mamba: a decay for each channel and state; threads share the channels.
    fn channels(&self, ctx: &Ctx<'_>, worker: &Worker<'_>, seq: &Sequence) {
        let n_head = self.state.ne[2];
        let (y, x) = (merged(&self.y, 0), merged(&self.x, 0));
        let states = merged(&self.state, 1);
        let z = self.z.as_ref().map(|z| merged(z, 0));
        let mine = worker.share(n_head, 16);
        for first in mine.clone().step_by(TILE) {
            let channels = first..(first + TILE).min(mine.end);
            let len = channels.len();
            let a = self.a.rows(channels.clone());
            let state = states.own_rows(channels.clone(), [seq.slot, 0]);
            if seq.fresh {
                state.fill(0.0);
            }
            let mut dts = [0.0; TILE];
            for t in seq.tokens.clone() {
                for (dt, h) in dts.iter_mut().zip(channels.clone()) {
                    *dt = self.dt(h, t);
                }
                let x = &x.row([t, 0, 0])[channels.clone()];
                let bc = [&self.b, &self.c].map(|v| v.row([0, t, 0]));
                let y = y.own_columns([t, 0, 0], channels.clone());
                simd_scan::scan_channels(ctx.simd, state, a, &dts[..len], x, bc, y);
                if let Some(d) = &self.d {
                    multiply_add(y, &d.row([0; 3])[channels.clone()], x);
                }
                if let Some(z) = &z {
                    self.gate(ctx, &z.row([t, 0, 0])[channels.clone()], y);
                }
            }
        }
    }
}
