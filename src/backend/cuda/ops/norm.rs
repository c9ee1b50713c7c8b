//! RMS_NORM, NORM, L2_NORM, SOFT_MAX.

use super::super::kernel::{Answer, Arg, Node};
use super::grids;

/// Values that a warp of `rms_norm` keeps in registers.
const RMS_NORM_WARP: usize = 512;

/// Up to here SOFT_MAX takes one warp: MOE_ROUTE adds in the same order.
const SOFT_MAX_WARP: usize = super::moe::MOST_EXPERTS;

pub fn rms_norm(node: &Node<'_>, eps: f32) -> Option<Answer> {
    let weight = match node.src.len() {
        1 => Arg::NoView,
        _ => Arg::Src(1),
    };
    let kernel = grids::warp_or_block("rms_norm", node.dst, RMS_NORM_WARP);
    let args = [Arg::Dst, Arg::Src(0), weight, Arg::F32(eps)];
    Some(kernel.args(args).into())
}

pub fn norm(node: &Node<'_>, eps: f32) -> Option<Answer> {
    let kernel = grids::warp_or_block("norm", node.dst, RMS_NORM_WARP);
    Some(kernel.args([Arg::Dst, Arg::Src(0), Arg::F32(eps)]).into())
}

pub fn l2_norm(node: &Node<'_>, eps: f32) -> Option<Answer> {
    let kernel = grids::warp_or_block("l2_norm", node.dst, RMS_NORM_WARP);
    Some(kernel.args([Arg::Dst, Arg::Src(0), Arg::F32(eps)]).into())
}

pub fn soft_max(node: &Node<'_>, scale: f32) -> Option<Answer> {
    let kernel = grids::warp_or_block("soft_max", node.dst, SOFT_MAX_WARP);
    Some(kernel.args([Arg::Dst, Arg::Src(0), Arg::F32(scale)]).into())
}
