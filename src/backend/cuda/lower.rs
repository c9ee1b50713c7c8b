//! What CUDA makes of a graph before it has a device: fusion, which weights it
//! needs in which form, and how much memory.

use super::kernel::Node;
use super::{layout, ops};
use crate::graph::fuse::{self, Rules};
use crate::graph::plan::ALIGN_BYTES;
use crate::graph::{Graph, Op, Origin, Plan, Tensor, TensorId};
use crate::quant::DType;
use std::collections::HashSet;

pub use super::ops::VEC_TOKENS;

/// How the device holds a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// As in the file.
    Plain,
    /// In unit order, for matrix products and reading rows (`cuda-kernels/quant/unit.cuh`).
    Matrix,
}

/// The rewrites that CUDA wants.
struct CudaRules {
    exact: bool,
    /// `LLAMA_RS_FUSE=off` leaves the graph as it is, to hold fused runs against.
    fuse: bool,
}

impl Rules for CudaRules {
    fn norm_mul(&self) -> bool {
        self.fuse
    }

    fn quantized(&self, _: &Tensor, _: &Tensor) -> Option<Op> {
        None
    }

    fn packs_f16(&self, w: &Tensor, x: &Tensor) -> bool {
        // Experts see the same tokens in every slot.
        let n = if w.ne[2] > 1 {
            x.ne[2]
        } else {
            x.n_values() / x.ne[0]
        };
        let sorts = w.ne[2] <= ops::MOST_EXPERTS;
        !self.exact && w.dtype != DType::F32 && n > VEC_TOKENS && sorts
    }

    fn scans(&self) -> bool {
        self.fuse
    }

    fn mul_mat_add(&self) -> bool {
        self.fuse
    }

    fn mul_mat_glu(&self, w: &Tensor, x: &Tensor) -> bool {
        self.fuse && !self.packs_f16(w, x)
    }

    fn mul_mat_norm(&self, w: &Tensor, x: &Tensor) -> bool {
        self.fuse && !self.packs_f16(w, x)
    }

    fn head_rows(&self) -> bool {
        self.fuse
    }
}

/// The graph that CUDA runs for `graph`; `exact` keeps F32 activations.
pub fn lower(graph: &Graph, exact: bool) -> Graph {
    let fuse = std::env::var_os("LLAMA_RS_FUSE").is_none_or(|v| v != "off");
    rewrite(graph, exact, fuse)
}

/// The graph with all the rewrites that CUDA wants (`fuse`), or with only those that it
/// cannot do without.
pub fn rewrite(graph: &Graph, exact: bool, fuse: bool) -> Graph {
    fuse::rewrite(graph, &CudaRules { exact, fuse })
}

/// Whether CUDA has kernels for a node of a graph that is not lowered yet.
pub fn runs(graph: &Graph, id: TensorId) -> bool {
    Node::of(graph, id, false).is_none_or(|node| ops::kernels(&node).is_some())
}

/// The form in which an op reads operand `at` if that is a weight.
pub fn form(op: &Op, at: usize) -> Form {
    let matrices = match op {
        Op::MulMat | Op::MulMatId | Op::GetRows => 1,
        Op::FusedMulMat(f) => f.x_at(),
        _ => 0,
    };
    match at < matrices {
        true => Form::Matrix,
        false => Form::Plain,
    }
}

/// Every weight that a graph reads, once a form.
pub fn weights(graph: &Graph) -> Vec<(TensorId, Form)> {
    let mut seen = HashSet::new();
    let mut weights = Vec::new();
    for id in graph.ids() {
        let Origin::Op(op) = graph.get(id).origin else {
            continue;
        };
        for (at, &src) in graph.get(id).src.iter().enumerate() {
            let owner = graph.owner(src);
            let form = form(&op, at);
            if graph.get(owner).origin == Origin::Weight && seen.insert((owner, form)) {
                weights.push((owner, form));
            }
        }
    }
    weights
}

/// Device bytes of a weight.
pub fn bytes_of(weight: &Tensor, form: Form) -> usize {
    match form {
        Form::Plain => weight.bytes(),
        Form::Matrix => layout::device_bytes(weight.dtype, weight.ne),
    }
}

/// Scratch memory that the nodes of a lowered graph share.
pub fn scratch_bytes(graph: &Graph, exact: bool) -> usize {
    let answers = graph
        .ids()
        .filter_map(|id| ops::kernels(&Node::of(graph, id, exact)?));
    answers.map(|a| a.scratch_bytes).max().unwrap_or(0)
}

/// Compute buffer, then scratch.
pub fn arena_bytes(graph: &Graph, plan: &Plan, exact: bool) -> usize {
    plan.bytes.next_multiple_of(ALIGN_BYTES) + scratch_bytes(graph, exact)
}
