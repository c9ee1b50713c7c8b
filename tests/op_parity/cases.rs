//! All cases, and the few that launch every kernel.

use super::case::Case;
use super::{attn, chunk, elementwise, heads, kernel_sources, moe, mul_mat, reduce, rows};
use rayon::prelude::*;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;

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
        chunk::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Entries of kernels, each with the types of operands it is launched for.
type Launches = Vec<(String, String)>;

/// What a case launches, and how many values it touches.
fn launches(case: &Case) -> Result<(Launches, usize), String> {
    let graph = (case.make)().graph();
    let values = graph.tensors.iter().map(|t| t.n_values()).sum();
    let graphs = case.lowered(&graph)?;
    let kernels = graphs.iter().map(|(_, graph)| case.kernels(graph));
    let kernels: Result<Vec<_>, _> = kernels.collect();
    Ok((kernels?.concat(), values))
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

/// True for kernels that no node launches: uploads do, or nothing does, since F32
/// weights are multiplied with F32 activations, but every type has these.
fn launched_unseen(entry: &str) -> bool {
    let unused = ["mul_mat_F32", "mul_mat_id_F32", "mul_mat_vec_F32"];
    entry.starts_with("rearrange_") || unused.contains(&entry)
}

/// Needs no GPU: every case has kernels, and every kernel in `sources` has a case.
pub fn check_coverage(sources: &Path) -> Result<(), String> {
    let launched = all().into_par_iter().map(|case| {
        let launched = launches(&case).map_err(|e| format!("{}: {e}", case.name))?;
        Ok(launched.0.into_iter().map(|l| l.0).collect::<Vec<_>>())
    });
    let launched: Result<Vec<_>, String> = launched.collect();
    let launched: BTreeSet<String> = launched?.into_iter().flatten().collect();
    let entries = kernel_sources::entries(sources);
    let missing = |name: &&String| !launched_unseen(name) && !launched.contains(*name);
    let missing: Vec<_> = entries.iter().filter(missing).collect();
    let unknown: Vec<_> = launched.difference(&entries).collect();
    match missing.is_empty() && unknown.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "kernels without a case: {missing:?}; launched, but in no source: {unknown:?}"
        )),
    }
}
