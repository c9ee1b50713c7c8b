//! ATTN: softmax(Q K^T * scale + mask) V over the KV cache, in tiles with a
//! running softmax (FlashAttention, arXiv 2205.14135), so that no score matrix
//! and no mask tensor exists. The mask comes from positions and sequences.
//!
//! A tile is of cells that are seen, whatever lies between them, and of tokens of one
//! sequence: what a token gets does not depend on the other sequences.

use super::pool::Worker;
use super::view::View;
use super::{Ctx, Node, simd_f16, simd_math};
use crate::graph::{AttnParams, op::AttnShape};
use crate::quant::DType;
use std::ops::Range;

/// Cells of a tile.
const TILE: usize = 64;
/// Query rows of a tile (tokens times the heads that share a KV head): the scores of a
/// cell are two AVX-512 registers.
const ROWS: usize = 32;

/// Up to so many tokens of a sequence, heads go one by one: few tokens have no rows to
/// share a tile, and tokens that are drafted ahead have the bits that they have one
/// after another.
const DIRECT_TOKENS: usize = 8;

/// What one call works on.
struct Job<'a> {
    ctx: &'a Ctx<'a>,
    params: &'a AttnParams,
    shape: &'a AttnShape,
    q: View,
    k: View,
    v: View,
    pos: &'a [i32],
    seq: &'a [i32],
    cell_pos: &'a [i32],
    cell_seq: &'a [i32],
    dst: View,
}

/// Tokens of a query tile.
fn tile_tokens(shape: &AttnShape) -> usize {
    (ROWS / (shape.n_head / shape.n_head_kv)).max(1)
}

/// f32 values of a thread's scratch, by part: q (transposed), k, v, scores (of a cell one
/// after the other), output, running max, running sum, what is kept of the output.
fn parts(shape: &AttnShape) -> [usize; 8] {
    let m = tile_tokens(shape) * (shape.n_head / shape.n_head_kv);
    let hd_v = shape.head_dim_v.next_multiple_of(16);
    let width = m.next_multiple_of(16);
    [
        shape.head_dim_k * width,
        TILE * shape.head_dim_k,
        TILE * hd_v,
        TILE * width,
        m * hd_v,
        width,
        width,
        width,
    ]
}

/// Exact scratch bytes of a thread.
pub fn scratch_bytes(shape: &AttnShape) -> usize {
    let direct = TILE + shape.head_dim_k.max(shape.head_dim_v) + shape.head_dim_v;
    parts(shape).iter().sum::<usize>().max(direct) * 4
}

/// Every thread takes query tiles in turn, so that the longer rows of a causal
/// mask spread evenly. The result of a tile does not depend on who computes it.
pub fn attn(
    ctx: &Ctx<'_>,
    node: &Node,
    worker: &Worker<'_>,
    params: &AttnParams,
    shape: &AttnShape,
) {
    let src: [View; 7] = std::array::from_fn(|i| node.src(ctx, i));
    let job = Job {
        ctx,
        params,
        shape,
        q: src[0],
        k: src[1],
        v: src[2],
        pos: src[3].ints([0; 3]),
        seq: src[4].ints([0; 3]),
        cell_pos: src[5].ints([0; 3]),
        cell_seq: src[6].ints([0; 3]),
        dst: node.dst(ctx),
    };
    let scratch = ctx.scratch.floats(worker);
    let n_tokens = job.q.ne[2];
    let group = shape.n_head / shape.n_head_kv;
    let mut turn = 0;
    let mut mine = || {
        turn += 1;
        (turn - 1) % worker.nth == worker.ith
    };
    let mut end = 0;
    for run in job.seq[..n_tokens].chunk_by(|a, b| a == b) {
        let start = end;
        end += run.len();
        let direct = run.len() <= DIRECT_TOKENS;
        let (step, heads) = match direct {
            true => (1, 1),
            false => (tile_tokens(shape), group),
        };
        for first in (start..end).step_by(step) {
            let tokens = first..(first + step).min(end);
            for head in (0..shape.n_head).step_by(heads) {
                if !mine() {
                    continue;
                }
                match direct {
                    true => job.direct(first, head, scratch),
                    false => job.tile(tokens.clone(), head..head + heads, scratch),
                }
            }
        }
    }
}

impl Job<'_> {
    /// True when token `t` sees cell `c`.
    fn sees(&self, t: usize, c: usize) -> bool {
        let (p, cell) = (self.pos[t], self.cell_pos[c]);
        cell >= 0
            && cell <= p
            && self.cell_seq[c] == self.seq[t]
            && self.params.window.is_none_or(|w| p.abs_diff(cell) < w)
    }

    /// The next cells from `from` on for which `seen` holds, at most a tile, and where to
    /// look on.
    fn next_cells<'c>(
        &self,
        from: &mut usize,
        cells: &'c mut [usize; TILE],
        seen: impl Fn(usize) -> bool,
    ) -> &'c [usize] {
        let mut n = 0;
        while *from < self.cell_pos.len() && n < TILE {
            if seen(*from) {
                cells[n] = *from;
                n += 1;
            }
            *from += 1;
        }
        &cells[..n]
    }

    fn tile(&self, tokens: Range<usize>, heads: Range<usize>, scratch: &mut [f32]) {
        let shape = self.shape;
        let (hd_k, hd_v) = (shape.head_dim_k, shape.head_dim_v);
        let ldv = hd_v.next_multiple_of(16);
        let m = tokens.len() * heads.len();
        let sizes = parts(shape);
        let mut rest = scratch;
        let [q, k, v, s, o, max, sum, keep] = sizes.map(|len| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            part
        });
        let width = m.next_multiple_of(16);
        self.load_q(&tokens, &heads, &mut q[..hd_k * width]);
        let [max, sum, keep] = [max, sum, keep].map(|x| &mut x[..width]);
        o[..m * ldv].fill(0.0);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        let head_kv = heads.start / (shape.n_head / shape.n_head_kv);
        let (mut from, mut cells) = (0, [0; TILE]);
        loop {
            let seen = |c: usize| tokens.clone().any(|t| self.sees(t, c));
            let cells = self.next_cells(&mut from, &mut cells, seen);
            if cells.is_empty() {
                break;
            }
            self.load(cells, head_kv, k, v);
            let n = cells.len();
            let s = &mut s[..n * width];
            s.fill(0.0);
            let simd = self.ctx.simd;
            simd_math::gemm(simd, [n, width, hd_k], (k, 1), q, s, [hd_k, width, width]);
            self.mask(&tokens, heads.len(), cells, s);
            simd_math::softmax_columns(simd, s, max, sum, keep);
            for (o, &keep) in o.chunks_exact_mut(ldv).zip(&*keep) {
                if keep != 1.0 {
                    o.iter_mut().for_each(|o| *o *= keep);
                }
            }
            simd_math::gemm(simd, [m, ldv, n], (s, width), v, o, [1, ldv, ldv]);
        }
        for (i, t) in tokens.enumerate() {
            for (j, h) in heads.clone().enumerate() {
                let r = i * heads.len() + j;
                // A token that sees nothing gets zeros, not NaN.
                let scale = if sum[r] == 0.0 { 0.0 } else { 1.0 / sum[r] };
                self.store(t, h, &o[r * ldv..r * ldv + hd_v], scale);
            }
        }
    }

    /// Heads of tokens, times the scale of their scores, side by side: `[head_dim, rows]`,
    /// zeros beyond.
    fn load_q(&self, tokens: &Range<usize>, heads: &Range<usize>, q: &mut [f32]) {
        let width = q.len() / self.shape.head_dim_k;
        q.fill(0.0);
        for (i, t) in tokens.clone().enumerate() {
            let scale = self.scale(t);
            for (j, h) in heads.clone().enumerate() {
                let to = q[i * heads.len() + j..].iter_mut().step_by(width);
                for (to, x) in to.zip(self.q.row([h, t, 0])) {
                    *to = x * scale;
                }
            }
        }
    }

    /// Caps scores `[cells, rows]`, and hides those of cells that a token does not see.
    fn mask(&self, tokens: &Range<usize>, n_heads: usize, cells: &[usize], s: &mut [f32]) {
        if let Some(cap) = self.params.softcap {
            s.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
        // What the first and the last position see, those between do.
        let by_pos = |t: &usize| self.pos[*t];
        let ends = [
            tokens.clone().min_by_key(by_pos),
            tokens.clone().max_by_key(by_pos),
        ];
        let width = s.len() / cells.len();
        for (&c, row) in cells.iter().zip(s.chunks_exact_mut(width)) {
            if ends.iter().flatten().all(|&t| self.sees(t, c)) {
                continue;
            }
            for (t, scores) in tokens.clone().zip(row.chunks_exact_mut(n_heads)) {
                if !self.sees(t, c) {
                    scores.fill(f32::NEG_INFINITY);
                }
            }
        }
    }

    /// What the scores of a token are multiplied with.
    fn scale(&self, t: usize) -> f32 {
        self.params
            .temperature
            .map_or(self.params.scale, |(beta, len)| {
                let step = (self.pos[t].max(0) as u32 / len.max(1)) as f32;
                self.params.scale * (1.0 + beta * step.ln_1p())
            })
    }

    /// One head of one token: rows of K and V are used as they are read.
    fn direct(&self, t: usize, head: usize, scratch: &mut [f32]) {
        let (hd_k, hd_v) = (self.shape.head_dim_k, self.shape.head_dim_v);
        let simd = self.ctx.simd;
        let head_kv = head / (self.shape.n_head / self.shape.n_head_kv);
        let (s, rest) = scratch.split_at_mut(TILE);
        let (row, rest) = rest.split_at_mut(hd_k.max(hd_v));
        let o = &mut rest[..hd_v];
        o.fill(0.0);
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
        let q = self.q.row([head, t, 0]);
        let (mut from, mut cells) = (0, [0; TILE]);
        loop {
            let cells = self.next_cells(&mut from, &mut cells, |c| self.sees(t, c));
            if cells.is_empty() {
                break;
            }
            for (s, &c) in s.iter_mut().zip(cells) {
                self.load_row(&self.k, c, head_kv * hd_k, &mut row[..hd_k]);
                *s = simd_math::dot(simd, q, &row[..hd_k]);
            }
            let keep = self.softmax_row(t, cells, s, &mut max, &mut sum);
            if keep != 1.0 {
                o.iter_mut().for_each(|o| *o *= keep);
            }
            for (p, &c) in s.iter().zip(cells) {
                if *p > 0.0 {
                    self.load_row(&self.v, c, head_kv * hd_v, &mut row[..hd_v]);
                    simd_math::axpy(simd, *p, &row[..hd_v], o);
                }
            }
        }
        let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
        self.store(t, head, o, scale);
    }

    /// Masks and exponentiates a row of scores; gives the factor that what was
    /// summed before must be multiplied with.
    fn softmax_row(
        &self,
        t: usize,
        cells: &[usize],
        row: &mut [f32],
        max: &mut f32,
        sum: &mut f32,
    ) -> f32 {
        let n = cells.len();
        let scale = self.scale(t);
        for (x, &c) in row.iter_mut().zip(cells) {
            *x *= scale;
            if let Some(cap) = self.params.softcap {
                *x = cap * (*x / cap).tanh();
            }
            if !self.sees(t, c) {
                *x = f32::NEG_INFINITY;
            }
        }
        row[n..].fill(0.0);
        let row = &mut row[..n];
        // `f32::max` passes over NaN, and a damaged row would look masked.
        let any_nan = row.iter().fold(false, |any, x| any | x.is_nan());
        let top = match any_nan {
            true => f32::NAN,
            false => row.iter().copied().fold(*max, f32::max),
        };
        if top == f32::NEG_INFINITY {
            row.fill(0.0);
            return 1.0;
        }
        let keep = (*max - top).exp();
        *sum = *sum * keep + simd_math::exp_minus(self.ctx.simd, row, top);
        *max = top;
        keep
    }

    /// Brings a tile of K and V to f32. There are no cells that no token sees: a weight of 0
    /// would not silence infinities in them.
    fn load(&self, cells: &[usize], head_kv: usize, k: &mut [f32], v: &mut [f32]) {
        let (hd_k, hd_v) = (self.shape.head_dim_k, self.shape.head_dim_v);
        let k = k.chunks_exact_mut(hd_k);
        let v = v.chunks_exact_mut(hd_v.next_multiple_of(16));
        for (&c, (k, v)) in cells.iter().zip(k.zip(v)) {
            self.load_row(&self.k, c, head_kv * hd_k, k);
            self.load_row(&self.v, c, head_kv * hd_v, &mut v[..hd_v]);
        }
    }

    /// Values `start ..` of one cell as f32.
    fn load_row(&self, cache: &View, cell: usize, start: usize, out: &mut [f32]) {
        match cache.dtype {
            DType::F16 => {
                let bytes = &cache.row_bytes([cell, 0, 0])[2 * start..];
                simd_f16::load_f16(self.ctx.simd, bytes, out);
            }
            _ => out.copy_from_slice(&cache.row([cell, 0, 0])[start..start + out.len()]),
        }
    }

    /// Writes one head of one token.
    fn store(&self, t: usize, head: usize, o: &[f32], scale: f32) {
        // A head of a token belongs to one tile, and so to one thread.
        self.dst
            .put([t, 0, 0], head * o.len(), o.iter().map(|x| x * scale));
    }
}

#[cfg(test)]
mod tests;
