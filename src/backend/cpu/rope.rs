//! ROPE. Sines and cosines are computed once a run for all layers that share
//! parameters, in f64: an f32 angle at position 2,700 is off by 1e-4 already.

use super::buffer::Buffer;
use super::pool::Worker;
use super::view::{Counts, View};
use super::{Ctx, Node};
use crate::error::Result;
use crate::graph::{Live, RopeMode, RopeParams};
use crate::quant::DType;

/// cos and sin of every pair and token: `[n_rot / 2 cos | n_rot / 2 sin, n]`.
pub struct RopeTable {
    params: RopeParams,
    pos: View,
    /// Angle of pair `i` at position 1.
    angles: Vec<f64>,
    magnitude: f64,
    values: Buffer,
}

impl RopeTable {
    /// A table for the positions in `pos`; `factors` divide the frequencies.
    pub fn new(params: RopeParams, pos: View, factors: Option<View>) -> Result<RopeTable> {
        let factors = factors.map(|f| f.row([0; 3]).to_vec());
        Ok(RopeTable {
            params,
            pos,
            angles: params.angles(factors.as_deref()),
            magnitude: params.magnitude(),
            values: Buffer::new(Self::bytes(&params, pos.ne[0]), "the RoPE table")?,
        })
    }

    /// Exact bytes of a table for `n` tokens.
    pub fn bytes(params: &RopeParams, n: usize) -> usize {
        params.n_rot * n * 4
    }

    /// Bytes that this table has.
    pub fn held_bytes(&self) -> usize {
        self.values.bytes()
    }

    /// `[n_rot, n]`, cut to the live tokens.
    fn view(&self, counts: &Counts) -> View {
        let (row, n) = (self.params.n_rot, self.pos.ne[0]);
        let view = View {
            ptr: self.values.at(0),
            dtype: DType::F32,
            ne: [row, n, 1, 1],
            nb: [4, row * 4, row * n * 4, row * n * 4],
            live: self.pos.live.map(|l| Live { dim: 1, ..l }),
        };
        view.cut(counts)
    }

    /// Computes this thread's tokens.
    pub fn fill(&self, counts: &Counts, worker: &Worker<'_>) {
        let pos = self.pos.cut(counts);
        for (at, row) in self.view(counts).my_rows(worker) {
            let p = f64::from(pos.ints([0; 3])[at[0]]);
            let (cos, sin) = row.split_at_mut(self.angles.len());
            for ((angle, cos), sin) in self.angles.iter().zip(cos).zip(sin) {
                let (s, c) = (p * angle).sin_cos();
                *cos = (c * self.magnitude) as f32;
                *sin = (s * self.magnitude) as f32;
            }
        }
    }
}

/// Turns the first `n_rot` values of each head; the rest pass through.
pub fn rope(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, params: &RopeParams) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    let table = ctx.rope_tables[node.rope_table].view(&ctx.counts);
    let half = params.n_rot / 2;
    for (at, out) in dst.my_rows(worker) {
        let x = x.row(at);
        let (cos, sin) = table.row([at[1], 0, 0]).split_at(half);
        let (a, b, step) = match params.mode {
            RopeMode::Norm => (0, 1, 2),
            RopeMode::Neox => (0, half, 1),
        };
        for i in 0..half {
            let (ia, ib) = (a + i * step, b + i * step);
            out[ia] = x[ia] * cos[i] - x[ib] * sin[i];
            out[ib] = x[ia] * sin[i] + x[ib] * cos[i];
        }
        out[params.n_rot..].copy_from_slice(&x[params.n_rot..]);
    }
}
