//! UNARY, GLU, ADD, MUL, DIV, SCALE: one value in, one value out.

use super::pool::Worker;
use super::{Ctx, Node, simd_math};
use crate::graph::{GluKind, UnaryKind};

/// `dst = f(src)`.
pub fn unary(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, kind: UnaryKind) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, start, piece) in dst.my_pieces(worker) {
        let x = &x.row(at)[start..start + piece.len()];
        simd_math::unary(ctx.simd, kind, x, piece);
    }
}

/// `dst = act(gate) * up`; with one source its first half is the gate.
pub fn glu(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, kind: GluKind) {
    let (dst, gate) = (node.dst(ctx), node.src(ctx, 0));
    let act = match kind {
        GluKind::Swiglu => UnaryKind::Silu,
        GluKind::Geglu => UnaryKind::Gelu,
        GluKind::GegluErf => UnaryKind::GeluErf,
        GluKind::GegluQuick => UnaryKind::GeluQuick,
        GluKind::Reglu => UnaryKind::Relu,
    };
    let up = (node.src.len() > 1).then(|| node.src(ctx, 1));
    for (at, start, piece) in dst.my_pieces(worker) {
        let end = start + piece.len();
        let (gate, up) = match &up {
            Some(up) => (&gate.row(at)[start..end], &up.row(at)[start..end]),
            None => {
                let (gate, up) = gate.row(at).split_at(dst.ne[0]);
                (&gate[start..end], &up[start..end])
            }
        };
        simd_math::unary(ctx.simd, act, gate, piece);
        piece.iter_mut().zip(up).for_each(|(y, u)| *y *= u);
    }
}

/// `dst = f(a, b)`, b repeating over the dimensions where it has 1.
pub fn binary(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, f: impl Fn(f32, f32) -> f32) {
    let (dst, a, b) = (node.dst(ctx), node.src(ctx, 0), node.src(ctx, 1));
    for (at, start, piece) in dst.my_pieces(worker) {
        let a = &a.row(at)[start..start + piece.len()];
        let b = b.row(b.repeat(at));
        if let [b] = b {
            piece.iter_mut().zip(a).for_each(|(y, a)| *y = f(*a, *b));
        } else {
            let b = &b[start..start + piece.len()];
            for ((y, a), b) in piece.iter_mut().zip(a).zip(b) {
                *y = f(*a, *b);
            }
        }
    }
}

/// `dst = x * scale + bias`.
pub fn scale(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, scale: f32, bias: f32) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, start, piece) in dst.my_pieces(worker) {
        let x = &x.row(at)[start..start + piece.len()];
        piece
            .iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y = x * scale + bias);
    }
}
