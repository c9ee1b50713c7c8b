//! Graph rewrites. The unfused graph is the reference; a backend says which
//! rewrites it wants through [`Rules`].

mod heads;
mod products;
mod scan;

use super::op::Op;
use super::tensor::{Graph, Live, Origin, Tensor, TensorId};
use crate::quant::DType;
use std::collections::{HashMap, HashSet};

/// What a backend asks for.
pub trait Rules {
    /// Whether `RMS_NORM` takes the weight multiplication that follows it.
    fn norm_mul(&self) -> bool;
    /// The op that makes the quantized form of `x` that a product with `w` reads;
    /// `None` when it reads `x` as f32.
    fn quantized(&self, w: &Tensor, x: &Tensor) -> Option<Op>;
    /// Whether a product with `w` reads `x` as `PACK_F16` leaves it.
    fn packs_f16(&self, _w: &Tensor, _x: &Tensor) -> bool {
        false
    }
    /// Whether products take the `ADD` that follows them.
    fn mul_mat_add(&self) -> bool {
        false
    }
    /// Whether a product with `w` takes the RMS norm that `x` is.
    fn mul_mat_norm(&self, _w: &Tensor, _x: &Tensor) -> bool {
        false
    }
    /// Whether two products with `w`-like matrices take the `GLU` that joins them.
    fn mul_mat_glu(&self, _w: &Tensor, _x: &Tensor) -> bool {
        false
    }
    /// Whether `SSM_SCAN` and `SSM_CONV` take what surrounds them.
    fn scans(&self) -> bool {
        false
    }
    /// Whether `ROPE` and `SET_ROWS` become `HEAD_ROWS`.
    fn head_rows(&self) -> bool {
        false
    }
}

/// Rewrites `graph`; results stay the same up to rounding.
pub fn rewrite(graph: &Graph, rules: &dyn Rules) -> Graph {
    let mut uses = vec![0usize; graph.tensors.len()];
    for t in &graph.tensors {
        for s in &t.src {
            uses[s.at()] += 1;
        }
    }
    for id in &graph.outputs {
        uses[id.at()] += 1;
    }
    let mut out = Rewriter {
        old: graph,
        new: Graph::default(),
        map: vec![None; graph.tensors.len()],
        packed: HashMap::new(),
        norms: HashSet::new(),
        uses,
    };
    out.find_norms(rules);
    for id in graph.ids() {
        out.tensor(id, rules);
    }
    out.new.outputs = graph.outputs.iter().map(|&id| out.mapped(id)).collect();
    out.new.prune();
    out.new
}

struct Rewriter<'a> {
    old: &'a Graph,
    new: Graph,
    map: Vec<Option<TensorId>>,
    /// Packed forms of an activation, by op: each is made once for all its readers.
    packed: HashMap<(TensorId, &'static str), TensorId>,
    /// RMS norms of the old graph that the products behind them take along.
    norms: HashSet<TensorId>,
    /// Readers of each tensor of the old graph.
    uses: Vec<usize>,
}

impl Rewriter<'_> {
    fn mapped(&self, id: TensorId) -> TensorId {
        // Sources precede their readers, so they are mapped already.
        self.map[id.at()].unwrap_or(TensorId(0))
    }

    fn push(&mut self, tensor: Tensor) -> TensorId {
        self.new.tensors.push(tensor);
        TensorId(self.new.tensors.len() as u32 - 1)
    }

    fn tensor(&mut self, id: TensorId, rules: &dyn Rules) {
        let mut tensor = self.old.get(id).clone();
        tensor.src = tensor.src.iter().map(|&s| self.mapped(s)).collect();
        if let Origin::Op(op) = tensor.origin {
            match op {
                Op::Mul if rules.norm_mul() => self.fuse_norm(&mut tensor, id),
                Op::MulMat | Op::MulMatId => self.fuse_norm_before(&mut tensor, id),
                Op::Add if rules.scans() && self.fuse_skip(&mut tensor, id) => {}
                Op::Add if rules.mul_mat_add() => self.fuse_add(&mut tensor, id),
                Op::Glu(kind) if rules.scans() && self.fuse_gate(&mut tensor, id, kind) => {}
                Op::Glu(kind) => self.fuse_glu(&mut tensor, id, kind, rules),
                Op::Unary(kind) if rules.scans() => self.fuse_conv(&mut tensor, id, kind),
                Op::SsmScan(p) if rules.scans() => self.fuse_dt_bias(&mut tensor, id, p),
                Op::Rope(_) if rules.head_rows() => self.fuse_rope(&mut tensor, id),
                Op::SetRows if rules.head_rows() => self.fuse_store(&mut tensor, id),
                _ => {}
            }
        }
        self.pack(&mut tensor, rules);
        let new = self.push(tensor);
        self.map[id.at()] = Some(new);
    }

    /// The op of an old tensor that nobody else reads.
    fn sole(&self, id: TensorId) -> Option<Op> {
        match self.old.get(id).origin {
            Origin::Op(op) if self.uses[id.at()] == 1 => Some(op),
            _ => None,
        }
    }

    /// `MUL(RMS_NORM(x), weight)` becomes `RMS_NORM(x, weight)`. The lone
    /// `RMS_NORM` stays behind unread and is pruned at the end.
    fn fuse_norm(&mut self, tensor: &mut Tensor, id: TensorId) {
        if let Some((op, x, weight)) = self.norm_of(id) {
            tensor.origin = Origin::Op(op);
            tensor.src = vec![self.mapped(x), self.mapped(weight)];
        }
    }

    /// `x` and weight of a `MUL(RMS_NORM(x), weight)` whose norm has no other reader.
    fn norm_of(&self, id: TensorId) -> Option<(Op, TensorId, TensorId)> {
        let mul = self.old.get(id);
        if mul.origin != Origin::Op(Op::Mul) {
            return None;
        }
        let (norm_id, weight_id) = (mul.src[0], mul.src[1]);
        let (norm, weight) = (self.old.get(norm_id), self.old.get(weight_id));
        let fits = weight.origin == Origin::Weight
            && weight.dtype == DType::F32
            && weight.ne == [norm.ne[0], 1, 1, 1]
            && norm.src.len() == 1;
        match self.sole(norm_id) {
            Some(op @ Op::RmsNorm { .. }) if fits => Some((op, norm.src[0], weight_id)),
            _ => None,
        }
    }

    /// A computed tensor that the old graph does not have.
    fn push_op(
        &mut self,
        op: Op,
        name: String,
        like: (DType, [usize; 4], Option<Live>),
        src: &[TensorId],
    ) -> TensorId {
        let (dtype, ne, live) = like;
        self.push(Tensor {
            name: name.into(),
            dtype,
            ne,
            nb: Tensor::packed(dtype, ne),
            live,
            origin: Origin::Op(op),
            src: src.to_vec(),
        })
    }
}
