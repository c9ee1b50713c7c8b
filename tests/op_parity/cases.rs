//! All cases, and the few that launch every kernel.

use super::case::Case;
use super::{attn, elementwise, heads, moe, mul_mat, reduce, rows};
use rayon::prelude::*;
use std::collections::HashSet;

/// Every case, by op.
pub fn all() -> Vec<Case> {
    [
        elementwise::cases(),
        reduce::cases(),
        rows::cases(),
        heads::cases(),
        moe::cases(),
        mul_mat::cases(),
        attn::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Kernels of a case with the values it touches; nothing for ops without kernels.
fn kernels(case: &Case) -> (Vec<String>, usize) {
    let graph = (case.make)().graph();
    let values = graph.tensors.iter().map(|t| t.n_values()).sum();
    let graphs = case.lowered(&graph).unwrap_or_default();
    let kernels = graphs.iter().flat_map(|(_, g)| case.kernels(g));
    (kernels.flatten().collect(), values)
}

/// Cheap cases that together launch every kernel that `all` of them launch, for every
/// combination of operand types.
pub fn covering(all: Vec<Case>) -> Vec<Case> {
    let mut all: Vec<_> = all
        .into_par_iter()
        .map(|case| (kernels(&case), case))
        .collect();
    all.sort_by_key(|((_, values), _)| *values);
    let mut seen = HashSet::new();
    let few = all.into_iter().filter_map(|((kernels, _), case)| {
        let mut new = false;
        for kernel in kernels {
            new |= seen.insert(kernel);
        }
        new.then_some(case)
    });
    few.collect()
}
