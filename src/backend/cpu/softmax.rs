//! SOFT_MAX over rows.

use super::pool::Worker;
use super::{Ctx, Node, Simd, simd_math};

/// `dst = softmax(x * scale)`; a row of -inf only gives zeros.
pub fn soft_max(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, scale: f32) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_rows(worker) {
        softmax_row(ctx.simd, x.row(at), scale, out);
    }
}

/// `out = softmax(x * scale)` of one row.
pub fn softmax_row(simd: Simd, x: &[f32], scale: f32, out: &mut [f32]) {
    out.iter_mut().zip(x).for_each(|(y, x)| *y = x * scale);
    let max = out.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return out.fill(0.0);
    }
    let sum = simd_math::exp_minus(simd, out, max);
    out.iter_mut().for_each(|y| *y /= sum);
}
