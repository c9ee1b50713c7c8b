//! MOE_ROUTE, MOE_SUM.

use super::super::kernel::{Answer, Arg, Node};
use super::grids;
use crate::graph::Op;

/// Most experts that a warp ranks.
pub const MOST_EXPERTS: usize = 1024;

/// Most experts of one token: two for each thread of the warp.
const MOST_USED: usize = 2 * grids::WARP;

pub fn route(node: &Node<'_>) -> Option<Answer> {
    let Op::MoeRoute { n_used, norm } = node.op else {
        return None;
    };
    let logits = node.src[0];
    if logits.ne[0] > MOST_EXPERTS || n_used > MOST_USED {
        return None;
    }
    let each = grids::values_per_thread(logits.ne[0]);
    let args = [
        Arg::Dst,
        Arg::Src(0),
        Arg::I32(n_used as i32),
        Arg::I32(i32::from(norm)),
    ];
    Some(
        grids::warps(format!("moe_route_{each}"), logits)
            .args(args)
            .into(),
    )
}

pub fn sum(node: &Node<'_>) -> Option<Answer> {
    let b = match node.src.len() {
        2 => Arg::NoView,
        _ => Arg::Src(2),
    };
    let args = [Arg::Dst, Arg::Src(0), Arg::Src(1), b];
    Some(grids::map("moe_sum", node.dst, args).into())
}
