//! All cases, and the few that launch every kernel.

mod attn;
mod delta;
mod elementwise;
mod heads;
mod moe;
mod mul_mat;
mod reduce;
mod rows;
mod sequences;
mod ssm_conv;
mod ssm_scan;
pub mod support;

use crate::backend::check::case::Case;
use crate::error::Result;
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
        delta::cases(),
        ssm_conv::cases(),
        ssm_scan::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Entries of kernels, each with the types of operands it is launched for.
pub type Launches = Vec<(String, String)>;

/// What a case launches on CUDA, and how many values it touches.
///
/// # Errors
/// It does not build, tests another op than its name says, or has no kernel.
pub fn launches(case: &Case) -> Result<(Launches, usize)> {
    let graph = (case.make)().graph()?;
    let values = graph.tensors.iter().map(|t| t.n_values()).sum();
    let graphs = case.lowered(&graph)?;
    let kernels = graphs.iter().map(|(_, graph)| case.kernels(graph));
    let kernels = kernels.collect::<Result<Vec<_>>>()?;
    Ok((kernels.concat(), values))
}

/// Cheap cases that together launch every kernel that `all` of them launch, for every
/// combination of operand types.
pub fn covering(all: Vec<Case>) -> Vec<Case> {
    let mut all: Vec<_> = all
        .into_par_iter()
        .map(|case| (launches(&case).unwrap_or_default(), case))
        .collect();
    all.sort_by_key(|((_, values), _)| *values);
    let mut seen = HashSet::new();
    let few = all.into_iter().filter_map(|((launches, _), case)| {
        let mut new = false;
        for launch in launches {
            new |= seen.insert(launch);
        }
        new.then_some(case)
    });
    few.collect()
}
