//! SOFT_MAX over rows.

use super::pool::Worker;
use super::{Ctx, Node, simd_math};

/// `dst = softmax(x * scale)`; a row of -inf only gives zeros.
pub fn soft_max(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, scale: f32) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_rows(worker) {
        out.iter_mut()
            .zip(x.row(at))
            .for_each(|(y, x)| *y = x * scale);
        let max = out.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            out.fill(0.0);
            continue;
        }
        let sum = simd_math::exp_minus(ctx.simd, out, max);
        out.iter_mut().for_each(|y| *y /= sum);
    }
}
