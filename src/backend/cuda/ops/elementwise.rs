//! UNARY, GLU, ADD, MUL, DIV, SCALE.

use super::super::kernel::{Answer, Arg, Node};
use super::grids;
use crate::graph::{GluKind, Op, UnaryKind};

pub fn unary(node: &Node<'_>, kind: UnaryKind) -> Option<Answer> {
    let name = function(kind);
    Some(grids::map(format!("unary_{name}"), node.dst, [Arg::Dst, Arg::Src(0)]).into())
}

pub fn glu(node: &Node<'_>, kind: GluKind) -> Option<Answer> {
    let act = match kind {
        GluKind::Swiglu => UnaryKind::Silu,
        GluKind::Geglu => UnaryKind::Gelu,
        GluKind::GegluErf => UnaryKind::GeluErf,
        GluKind::GegluQuick => UnaryKind::GeluQuick,
        GluKind::Reglu => UnaryKind::Relu,
    };
    let up = match node.src.len() {
        1 => Arg::NoView,
        _ => Arg::Src(1),
    };
    let args = [Arg::Dst, Arg::Src(0), up];
    Some(grids::map(format!("glu_{}", function(act)), node.dst, args).into())
}

pub fn binary(node: &Node<'_>) -> Option<Answer> {
    let entry = match node.op {
        Op::Add => "binary_add",
        Op::Mul => "binary_mul",
        Op::Div => "binary_div",
        _ => return None,
    };
    Some(grids::map(entry, node.dst, [Arg::Dst, Arg::Src(0), Arg::Src(1)]).into())
}

pub fn scale(node: &Node<'_>, scale: f32, bias: f32) -> Option<Answer> {
    let args = [Arg::Dst, Arg::Src(0), Arg::F32(scale), Arg::F32(bias)];
    Some(grids::map("scale", node.dst, args).into())
}

/// The function's name in `math.cuh`'s kernels.
fn function(kind: UnaryKind) -> &'static str {
    match kind {
        UnaryKind::Silu => "silu",
        UnaryKind::Gelu => "gelu",
        UnaryKind::GeluQuick => "gelu_quick",
        UnaryKind::GeluErf => "gelu_erf",
        UnaryKind::Relu => "relu",
        UnaryKind::ReluSqr => "relu_sqr",
        UnaryKind::Softplus => "softplus",
        UnaryKind::Exp => "exp",
        UnaryKind::Sigmoid => "sigmoid",
        UnaryKind::Tanh => "tanh",
    }
}
