//! How much memory graphs take on the CPU, before anything is allocated.

use super::rope::RopeTable;
use super::view::View;
use super::{attn, mul_mat, reduce, ssm};
use crate::graph::{Graph, Op, Origin, Plan};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Bytes that lowered graphs take together on the CPU, caches aside: every weight once,
/// one compute buffer and one scratch for all, inputs and tables for each.
#[derive(Debug, Default)]
pub struct Demand {
    weights: HashMap<Arc<str>, usize>,
    arena: usize,
    scratch: usize,
    own: usize,
}

impl Demand {
    /// Takes a lowered graph in that `n_threads` will run.
    pub fn add(&mut self, graph: &Graph, n_threads: usize) {
        self.widen(graph, n_threads);
        self.own += own_bytes(graph);
    }

    /// Takes a lowered graph in whose inputs take the place of another's.
    pub fn widen(&mut self, graph: &Graph, n_threads: usize) {
        self.weights.extend(weights(graph));
        self.arena = self.arena.max(Plan::new(graph).bytes);
        let scratch = scratch_bytes(graph, n_threads) * n_threads;
        self.scratch = self.scratch.max(scratch);
    }

    /// Takes in what other graphs take.
    pub fn merge(&mut self, more: Demand) {
        self.weights.extend(more.weights);
        self.arena = self.arena.max(more.arena);
        self.scratch = self.scratch.max(more.scratch);
        self.own += more.own;
    }

    /// Bytes of weights in the file.
    pub fn weights(&self) -> usize {
        self.weights.values().fold(0, |n, b| n.saturating_add(*b))
    }

    /// Bytes of the compute buffer, scratch, inputs and tables.
    pub fn compute(&self) -> usize {
        self.arena + self.scratch + self.own
    }
}

/// Name and bytes of every weight that a graph reads.
pub fn weights(graph: &Graph) -> impl Iterator<Item = (Arc<str>, usize)> {
    let read = graph.ids().flat_map(|id| &graph.get(id).src);
    let owners: HashSet<_> = read.map(|&src| graph.owner(src)).collect();
    let weights = owners.into_iter().map(|id| graph.get(id));
    let weights = weights.filter(|tensor| tensor.origin == Origin::Weight);
    weights.map(|tensor| (tensor.name.clone(), tensor.bytes()))
}

/// Rows of the widest result: as many numbers list all rows of a product.
pub fn most_rows(graph: &Graph) -> usize {
    let nodes = graph.ids().map(|id| graph.get(id));
    let results = nodes.filter(|tensor| matches!(tensor.origin, Origin::Op(_)));
    let rows = results.map(|tensor| View::unplaced(tensor).n_rows());
    rows.max().unwrap_or(0)
}

/// Bytes that a graph has to itself: inputs, RoPE tables, the list of all rows.
fn own_bytes(graph: &Graph) -> usize {
    let (mut inputs, mut tables) = (HashMap::new(), HashMap::new());
    for id in graph.ids() {
        let tensor = graph.get(id);
        let Origin::Op(op) = tensor.origin else {
            continue;
        };
        for &src in &tensor.src {
            let owner = graph.get(graph.owner(src));
            if let Origin::Input(input) = owner.origin {
                inputs.insert(input, 4 * owner.n_values());
            }
        }
        if let Op::Rope(params) = op {
            let n = graph.get(tensor.src[1]).ne[0];
            let factors = tensor.src.get(2).copied();
            let bytes = RopeTable::bytes(&params, n);
            tables.insert((format!("{params:?}"), factors), bytes);
        }
    }
    inputs.values().sum::<usize>() + tables.values().sum::<usize>() + 4 * most_rows(graph)
}

/// Scratch bytes that each of `n_threads` needs for any node of a graph.
pub fn scratch_bytes(graph: &Graph, n_threads: usize) -> usize {
    let of_node = |id| {
        let tensor = graph.get(id);
        let Origin::Op(op) = tensor.origin else {
            return 0;
        };
        let src = |at: usize| View::unplaced(graph.get(tensor.src[at]));
        match op {
            Op::MulMat => mul_mat::kernel_scratch_bytes(&src(0), &src(1)),
            Op::MulMatId => {
                let ids = src(2);
                mul_mat::kernel_scratch_bytes(&src(0), &View::unplaced(tensor))
                    + mul_mat::id_lists_bytes(ids.ne[0], ids.ne[1])
            }
            Op::Attn(_, shape) => attn::scratch_bytes(&shape),
            Op::SsmConv(_) => ssm::conv_scratch_bytes(src(1).ne[0]),
            Op::Argmax | Op::SumRows | Op::Mean | Op::Sum | Op::Cumsum => {
                reduce::scratch_bytes(&op, &src(0), n_threads)
            }
            _ => 0,
        }
    };
    let most = graph.ids().map(of_node).max().unwrap_or(0);
    most.next_multiple_of(64)
}
