//! RMS_NORM, NORM and L2_NORM.

use super::pool::Worker;
use super::{Ctx, Node, simd_math};

/// `dst = x / sqrt(mean(x^2) + eps)`, times a weight row when there is one
/// (arXiv 1910.07467).
pub fn rms_norm(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, eps: f32) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    let weight = (node.src.len() > 1).then(|| node.src(ctx, 1));
    for (at, out) in dst.my_rows(worker) {
        let x = x.row(at);
        let mean = simd_math::dot(ctx.simd, x, x) / x.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        match &weight {
            Some(weight) => {
                let weight = weight.row([0; 3]);
                for ((y, x), w) in out.iter_mut().zip(x).zip(weight) {
                    *y = x * scale * w;
                }
            }
            None => out.iter_mut().zip(x).for_each(|(y, x)| *y = x * scale),
        }
    }
}

/// `dst = (x - mean) / sqrt(var + eps)` (arXiv 1607.06450).
pub fn norm(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, eps: f32) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_rows(worker) {
        let x = x.row(at);
        let n = x.len() as f64;
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let var = x
            .iter()
            .map(|&v| (f64::from(v) - mean).powi(2))
            .sum::<f64>()
            / n;
        let (mean, scale) = (mean as f32, 1.0 / (var as f32 + eps).sqrt());
        out.iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y = (x - mean) * scale);
    }
}

/// `dst = x / max(sqrt(sum(x^2)), eps)`.
pub fn l2_norm(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, eps: f32) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_rows(worker) {
        let x = x.row(at);
        let scale = 1.0 / simd_math::dot(ctx.simd, x, x).sqrt().max(eps);
        out.iter_mut().zip(x).for_each(|(y, x)| *y = x * scale);
    }
}
