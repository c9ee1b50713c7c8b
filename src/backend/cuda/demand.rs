//! How much device memory graphs take, before there is a device.

use super::lower::{self, Form};
use super::{memory, weights};
use crate::graph::plan::ALIGN_BYTES;
use crate::graph::{Graph, Input, Origin, Plan};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes that lowered graphs take together on one device, caches aside: every weight
/// once, one compute buffer for all, inputs for each.
#[derive(Debug, Default)]
pub struct Demand {
    weights: HashMap<(Arc<str>, Form), usize>,
    /// The lists of cells, which graphs share.
    cells: HashMap<Input, usize>,
    inputs: usize,
    arena: usize,
}

impl Demand {
    /// Takes a lowered graph in; `exact` as it was lowered with.
    pub fn add(&mut self, graph: &Graph, exact: bool) {
        self.widen(graph, exact);
        // Live counts come before the inputs.
        self.inputs += ALIGN_BYTES;
        for tensor in &graph.tensors {
            if let Origin::Input(input) = tensor.origin
                && !is_list_of_cells(input)
            {
                self.inputs += tensor.bytes().next_multiple_of(ALIGN_BYTES);
            }
        }
    }

    /// Takes a lowered graph in whose inputs take the place of another's.
    pub fn widen(&mut self, graph: &Graph, exact: bool) {
        for (id, form) in lower::weights(graph) {
            let weight = graph.get(id);
            let bytes = memory::padded(lower::bytes_of(weight, form));
            self.weights.insert((weight.name.clone(), form), bytes);
        }
        for tensor in &graph.tensors {
            if let Origin::Input(input) = tensor.origin
                && is_list_of_cells(input)
            {
                self.cells.insert(input, tensor.bytes());
            }
        }
        let arena = lower::arena_bytes(graph, &Plan::new(graph), exact);
        let staging = weights::staging_bytes(graph);
        self.arena = self.arena.max(arena).max(staging);
    }

    /// Takes in what other graphs take.
    pub fn merge(&mut self, more: Demand) {
        self.weights.extend(more.weights);
        self.cells.extend(more.cells);
        self.inputs += more.inputs;
        self.arena = self.arena.max(more.arena);
    }

    /// Bytes that a cache of `bytes` takes.
    pub fn cache(bytes: usize) -> usize {
        memory::padded(bytes)
    }

    /// Bytes of weights.
    pub fn weights(&self) -> usize {
        self.weights.values().fold(0, |n, b| n.saturating_add(*b))
    }

    /// Bytes of the compute buffer and all inputs.
    pub fn compute(&self) -> usize {
        self.arena + self.inputs + self.cells.values().sum::<usize>()
    }
}

/// Whether graphs share an input.
fn is_list_of_cells(input: Input) -> bool {
    matches!(input, Input::CellPos { .. } | Input::CellSeq { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Op, Tensor};
    use crate::quant::DType;

    /// `w * x` of 32 x 32 weights, x an input of one row.
    fn product(weight: &str, border: usize) -> Graph {
        let tensor = |name: &str, ne, origin, src: &[u32]| Tensor {
            name: name.into(),
            dtype: DType::F32,
            ne,
            nb: Tensor::packed(DType::F32, ne),
            live: None,
            origin,
            src: src.iter().map(|&s| crate::graph::TensorId(s)).collect(),
        };
        let x = Origin::Input(Input::Border(border));
        let row = [32, 1, 1, 1];
        Graph {
            tensors: vec![
                tensor(weight, [32, 32, 1, 1], Origin::Weight, &[]),
                tensor("x", row, x, &[]),
                tensor("y", row, Origin::Op(Op::MulMat), &[0, 1]),
            ],
            outputs: vec![crate::graph::TensorId(2)],
        }
    }

    #[test]
    fn weights_count_once_and_inputs_each_time() {
        let mut demand = Demand::default();
        demand.add(&product("a", 0), false);
        // The weight passes in four pieces at most, which takes more than the 32 values of
        // y; then come those of x behind the live counts.
        let arena = 4 * 4096;
        let held = (demand.weights(), demand.compute());
        assert_eq!(held, (4096, arena + 64 + 128));
        demand.add(&product("a", 1), false);
        assert_eq!(
            (demand.weights(), demand.compute()),
            (4096, arena + 2 * (64 + 128))
        );
        demand.add(&product("b", 0), false);
        assert_eq!(demand.weights(), 8192);
    }
}
