//! Ops that carry a state from token to token: parameters and shape rules.
//!
//! Common to them: `rows [s + 1]` (i32), where tokens `rows[i] .. rows[i + 1]` of the
//! batch belong to sequence `i`, and `ids [s]` (i32), the state slot of each, or
//! `-1 - slot` of a fresh sequence, whose state starts from zeros. A sequence without
//! tokens keeps its state; tokens from `rows[s]` on are dead. States are cache tensors,
//! written in place beside the result. `a` and the vectors of SSM_SCAN, and weights and
//! bias of SSM_CONV, are weights: CUDA reads them before the kernels in front are done.

use super::shape::{Shape, f32_like, is_f32, is_i32};
use super::tensor::Tensor;

/// Largest state of a head; no model comes near.
pub const MOST_STATE: usize = 1024;

/// What `SSM_CONV` does besides the convolution, in this order. Operands:
/// `x [c, n], w [d_conv, c], state [c, d_conv - 1, slots], ids, rows (, bias [c])`;
/// the state holds the last inputs, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SsmConv {
    pub bias: bool,
    pub silu: bool,
}

/// What `SSM_SCAN` does besides the scan. Operands: `state [d_state, head_dim, n_head,
/// slots], x [head_dim, n_head, n], dt [n_head, n], a [1 | d_state, n_head],
/// b [d_state, n_group, n], c [d_state, n_group, n], ids, rows`, then in the order of
/// the fields `dt_bias [n_head], d [n_head], z [head_dim, n_head, n]`.
///
/// Of head h, which reads group `h / (n_head / n_group)`, with
/// `dt = softplus(dt + dt_bias)`: `state = state * exp(dt * a) + b * (x * dt)`,
/// `y = (state * c + d * x) * silu(z)`. Mamba (arXiv 2312.00752) has an `a` for each
/// channel and state and heads of one channel, Mamba-2 (arXiv 2405.21060) one a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SsmScan {
    pub dt_bias: bool,
    pub skip: bool,
    pub gate: bool,
}

/// `GATED_DELTA_NET` (arXiv 2412.06464). Operands: `state [d_k, d_v, n_v_head, slots],
/// q [d_k, n_k_head, n], k [d_k, n_k_head, n], v [d_v, n_v_head, n], g [n_v_head, n],
/// beta [n_v_head, n], ids, rows`. Per token: `state *= exp(g)`, then
/// `state += k * (beta * (v - state k))`, result `state q / sqrt(d_k)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDelta {
    /// V head h reads K head `h % n_k_head`; else `h / (n_v_head / n_k_head)`.
    pub tiled: bool,
}

impl SsmConv {
    pub(super) fn n_operands(&self) -> usize {
        5 + usize::from(self.bias)
    }

    /// Number of the operand `bias`.
    pub fn bias_at(&self) -> Option<usize> {
        self.bias.then_some(5)
    }
}

impl SsmScan {
    pub(super) fn n_operands(&self) -> usize {
        8 + [self.dt_bias, self.skip, self.gate]
            .map(usize::from)
            .iter()
            .sum::<usize>()
    }

    /// Number of the operand `dt_bias`.
    pub fn dt_bias_at(&self) -> Option<usize> {
        self.dt_bias.then_some(8)
    }

    /// Number of the operand `d`.
    pub fn skip_at(&self) -> Option<usize> {
        self.skip.then_some(8 + usize::from(self.dt_bias))
    }

    /// Number of the operand `z`.
    pub fn gate_at(&self) -> Option<usize> {
        self.gate.then(|| self.n_operands() - 1)
    }
}

/// Slots and row offsets of a batch of sequences.
fn sequences(ids: &Tensor, rows: &Tensor) -> bool {
    let vector = |t: &Tensor, n: usize| is_i32(t) && t.ne == [n, 1, 1, 1] && t.live.is_none();
    vector(ids, ids.ne[0]) && vector(rows, ids.ne[0] + 1)
}

fn is_vector(t: &Tensor, n: usize) -> bool {
    is_f32(t) && t.is_contiguous() && t.n_values() == n
}

pub(super) fn ssm_conv(p: &SsmConv, src: &[&Tensor]) -> Option<Shape> {
    let [x, w, state, ids, rows] = [0, 1, 2, 3, 4].map(|at| src[at]);
    let (channels, d_conv) = (x.ne[0], w.ne[0]);
    let fits = is_f32(x)
        && is_f32(w)
        && is_f32(state)
        && state.is_contiguous()
        && sequences(ids, rows)
        && x.ne[2..] == [1, 1]
        && w.ne == [d_conv, channels, 1, 1]
        && d_conv >= 2
        && state.ne == [channels, d_conv - 1, state.ne[2], 1]
        && p.bias_at().is_none_or(|at| is_vector(src[at], channels));
    fits.then(|| f32_like(x, x.ne))
}

pub(super) fn ssm_scan(p: &SsmScan, src: &[&Tensor]) -> Option<Shape> {
    let [state, x, dt, a, b, c, ids, rows] = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| src[at]);
    let [head_dim, n_head, n, _] = x.ne;
    let d_state = state.ne[0];
    let n_group = b.ne[1];
    // Heads of one value are read as one row.
    let packed = |t: &Tensor| head_dim > 1 || t.nb[1] == 4;
    let fits = src
        .iter()
        .enumerate()
        .all(|(at, t)| is_f32(t) || at == 6 || at == 7)
        && sequences(ids, rows)
        && (1..=MOST_STATE).contains(&d_state)
        && state.is_contiguous()
        && state.ne[1..3] == [head_dim, n_head]
        && x.ne[3] == 1
        && dt.ne == [n_head, n, 1, 1]
        && (a.ne == [1, n_head, 1, 1] || (a.ne == [d_state, n_head, 1, 1] && head_dim == 1))
        && a.is_contiguous()
        && b.ne == [d_state, n_group, n, 1]
        && c.ne == b.ne
        && n_head.is_multiple_of(n_group)
        // Mamba has no groups.
        && (a.ne[0] == 1 || n_group == 1)
        && p.dt_bias_at().is_none_or(|at| is_vector(src[at], n_head))
        && p.skip_at().is_none_or(|at| is_vector(src[at], n_head))
        && p.gate_at()
            .is_none_or(|at| src[at].ne == x.ne && packed(src[at]))
        && packed(x);
    fits.then(|| f32_like(x, x.ne))
}

pub(super) fn gated_delta_net(src: &[&Tensor]) -> Option<Shape> {
    let [state, q, k, v, g, beta, ids, rows] = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| src[at]);
    let [d_v, n_v_head, n, _] = v.ne;
    let [d_k, n_k_head, ..] = k.ne;
    let fits = src[..6].iter().all(|t| is_f32(t))
        && sequences(ids, rows)
        && state.is_contiguous()
        && state.ne[..3] == [d_k, d_v, n_v_head]
        && (1..=MOST_STATE).contains(&d_k)
        && v.ne[3] == 1
        && q.ne == [d_k, n_k_head, n, 1]
        && k.ne == q.ne
        && n_v_head.is_multiple_of(n_k_head)
        && g.ne == [n_v_head, n, 1, 1]
        && beta.ne == g.ne;
    fits.then(|| f32_like(v, v.ne))
}
