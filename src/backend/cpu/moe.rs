//! MOE_ROUTE and MOE_SUM: choosing experts and adding up what they say.

use super::pool::Worker;
use super::reduce::best;
use super::softmax::softmax_row;
use super::{Ctx, Node};

/// Ids of the best experts of each token, then the bits of their weights.
pub fn route(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, n_used: usize, norm: bool) {
    let (dst, logits) = (node.dst(ctx), node.src(ctx, 0));
    let mut probs = vec![0.0; logits.ne[0]];
    for (at, out) in dst.my_int_rows(worker) {
        softmax_row(ctx.simd, logits.row(at), 1.0, &mut probs);
        let (ids, weights) = out.split_at_mut(n_used);
        best(&probs, ids);
        let sum: f64 = ids.iter().map(|&e| f64::from(probs[e as usize])).sum();
        let sum = if norm { sum as f32 } else { 1.0 };
        for (weight, &e) in weights.iter_mut().zip(&*ids) {
            *weight = (probs[e as usize] / sum).to_bits() as i32;
        }
    }
}

/// `dst = sum over u of y[.., u, ..] * weights[u] (+ b)`, in rising u.
pub fn sum(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, y, weights) = (node.dst(ctx), node.src(ctx, 0), node.src(ctx, 1));
    let b = (node.src.len() > 2).then(|| node.src(ctx, 2));
    for (at, start, piece) in dst.my_pieces(worker) {
        let t = at[0];
        let end = start + piece.len();
        for u in 0..y.ne[1] {
            let w = weights.row([u, t, 0])[0];
            let y = &y.row([u, t, 0])[start..end];
            match u {
                0 => piece.iter_mut().zip(y).for_each(|(out, y)| *out = y * w),
                _ => piece.iter_mut().zip(y).for_each(|(out, y)| *out += y * w),
            }
        }
        if let Some(b) = &b {
            let b = &b.row([t, 0, 0])[start..end];
            piece.iter_mut().zip(b).for_each(|(out, b)| *out += b);
        }
    }
}
