//! Which backends have a kernel for an op, as the cases tell.

use super::all;
use crate::backend::Backend;
use crate::backend::check::case::Case;
use crate::backend::check::store::Store;
use crate::backend::cpu::CpuBackend;
use crate::error::Result;
use crate::graph::{Graph, Origin};
use std::sync::Arc;

/// Cases of an op that are looked at: the first ones are small, and others differ from
/// them in shape and type alone.
const LOOKED_AT: usize = 24;

/// Cases whose graphs have the steps that lowering adds.
const LOWERED: &str = "MUL_MAT/Q4_K/";

/// Who runs an op.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Support {
    /// The CPU's graphs have the op itself, not what it is made of.
    pub cpu: bool,
    /// CUDA has kernels for one of the cases.
    pub cuda: bool,
    /// No case has the op, so that nothing is known.
    pub unknown: bool,
    pub n_cases: usize,
}

fn has(graph: &Graph, op: &str) -> bool {
    let mut tensors = graph.tensors.iter();
    tensors.any(|t| matches!(t.origin, Origin::Op(o) if o.name() == op))
}

/// Support for each of `ops`. One without cases of its own (a step of lowering) is
/// looked for in those of products.
///
/// # Errors
/// A case does not build.
pub fn of(ops: &[&str]) -> Result<Vec<Support>> {
    let cases = all();
    let cpu = CpuBackend::new(Arc::new(Store::default()), 1, false)?;
    ops.iter().map(|op| one(op, &cases, &cpu)).collect()
}

fn one(op: &str, cases: &[Case], cpu: &CpuBackend) -> Result<Support> {
    let own: Vec<&Case> = cases.iter().filter(|c| c.op() == op).collect();
    let mut support = Support {
        n_cases: own.len(),
        unknown: true,
        ..Support::default()
    };
    let looked_at: Vec<&Case> = match own.is_empty() {
        true => cases
            .iter()
            .filter(|c| c.name.starts_with(LOWERED))
            .collect(),
        false => own,
    };
    for case in looked_at.into_iter().take(LOOKED_AT) {
        let graph = (case.make)().graph()?;
        support.cpu |= has(&cpu.lower(&graph), op);
        for (_, lowered) in case.lowered(&graph)? {
            let there = has(&lowered, op);
            support.unknown &= !there;
            support.cuda |= there && case.has_kernels(&lowered);
        }
        support.unknown &= !support.cpu;
        if support.cpu && support.cuda {
            break;
        }
    }
    Ok(support)
}
