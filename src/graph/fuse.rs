//! Graph rewrites. The unfused graph is the reference; a backend says which
//! rewrites it wants through [`Rules`].

use super::op::Op;
use super::tensor::{Graph, Origin, Tensor, TensorId};
use crate::quant::DType;
use std::collections::HashMap;

/// What a backend asks for.
pub trait Rules {
    /// Whether `RMS_NORM` takes the weight multiplication that follows it.
    fn norm_mul(&self) -> bool;
    /// Words (4 bytes) of the 8-bit form of `x` that a product with `w` reads;
    /// `None` when it reads `x` as f32.
    fn q8_words(&self, w: &Tensor, x: &Tensor) -> Option<usize>;
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
        q8: HashMap::new(),
    };
    for id in graph.ids() {
        out.tensor(id, rules, &uses);
    }
    out.new.outputs = graph.outputs.iter().map(|&id| out.mapped(id)).collect();
    out.new.prune();
    out.new
}

struct Rewriter<'a> {
    old: &'a Graph,
    new: Graph,
    map: Vec<Option<TensorId>>,
    /// 8-bit form of an activation, made once for all its readers.
    q8: HashMap<TensorId, TensorId>,
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

    fn tensor(&mut self, id: TensorId, rules: &dyn Rules, uses: &[usize]) {
        let mut tensor = self.old.get(id).clone();
        tensor.src = tensor.src.iter().map(|&s| self.mapped(s)).collect();
        if let Origin::Op(op) = tensor.origin {
            match op {
                Op::Mul if rules.norm_mul() => self.fuse_norm(&mut tensor, id, uses),
                Op::MulMat | Op::MulMatId => self.add_q8(&mut tensor, rules),
                _ => {}
            }
        }
        let new = self.push(tensor);
        self.map[id.at()] = Some(new);
    }

    /// `MUL(RMS_NORM(x), weight)` becomes `RMS_NORM(x, weight)`. The lone
    /// `RMS_NORM` stays behind unread and is pruned at the end.
    fn fuse_norm(&mut self, tensor: &mut Tensor, id: TensorId, uses: &[usize]) {
        let norm_id = self.old.get(id).src[0];
        let norm = self.old.get(norm_id);
        let weight = self.new.get(tensor.src[1]);
        let fits = weight.origin == Origin::Weight
            && weight.dtype == DType::F32
            && weight.ne == [norm.ne[0], 1, 1, 1];
        if let Origin::Op(op @ Op::RmsNorm { .. }) = norm.origin
            && norm.src.len() == 1
            && uses[norm_id.at()] == 1
            && fits
        {
            tensor.origin = Origin::Op(op);
            tensor.src = vec![self.mapped(norm.src[0]), tensor.src[1]];
        }
    }

    fn add_q8(&mut self, tensor: &mut Tensor, rules: &dyn Rules) {
        let (w, x) = (tensor.src[0], tensor.src[1]);
        let Some(words) = rules.q8_words(self.new.get(w), self.new.get(x)) else {
            return;
        };
        let q8 = match self.q8.get(&x) {
            Some(&q8) => q8,
            None => {
                let ne = [words, 1, 1, 1];
                let name = format!("{}-q8", self.new.get(x).name);
                let q8 = self.push(Tensor {
                    name,
                    dtype: DType::I32,
                    ne,
                    nb: Tensor::packed(DType::I32, ne),
                    live: None,
                    origin: Origin::Op(Op::QuantizeQ8 { words }),
                    src: vec![x],
                });
                self.q8.insert(x, q8);
                q8
            }
        };
        tensor.src.push(q8);
    }
}
