//! Matrix products with what surrounds them: packed activations, additions,
//! gated units.

use super::super::op::{GluKind, Op};
use super::super::tensor::{Origin, Tensor, TensorId};
use super::{Rewriter, Rules};
use crate::quant::DType;

impl Rewriter<'_> {
    /// Gives a product the packed form of its activations as last operand.
    pub(super) fn pack(&mut self, tensor: &mut Tensor, rules: &dyn Rules) {
        let Origin::Op(Op::MulMat | Op::MulMatId | Op::MulMatAdd) = tensor.origin else {
            return;
        };
        let (w, x) = (tensor.src[0], tensor.src[1]);
        let (weight, values) = (self.new.get(w), self.new.get(x));
        let words = rules.q8_words(weight, values);
        if words.is_none() && !rules.packs_f16(weight, values) {
            return;
        }
        if let Some(&packed) = self.packed.get(&x) {
            return tensor.src.push(packed);
        }
        let (ne, live) = (values.ne, values.live);
        let packed = match words {
            Some(words) => {
                let name = format!("{}-q8", values.name);
                let op = Op::QuantizeQ8 { words };
                self.push_op(op, name, (DType::I32, [words, 1, 1, 1], None), &[x])
            }
            None => {
                let name = format!("{}-f16", values.name);
                let ne = [ne[0].next_multiple_of(32), ne[1], ne[2], ne[3]];
                self.push_op(Op::PackF16, name, (DType::F16, ne, live), &[x])
            }
        };
        self.packed.insert(x, packed);
        tensor.src.push(packed);
    }

    /// `ADD(MUL_MAT(w, x), b)` becomes `MUL_MAT_ADD`; `ADD(MOE_SUM(..), b)` likewise.
    pub(super) fn fuse_add(&mut self, tensor: &mut Tensor, id: TensorId) {
        let add = self.old.get(id);
        let (product, b) = (self.old.get(add.src[0]), self.old.get(add.src[1]));
        let same = b.ne == add.ne && b.live == add.live;
        let bias = b.ne == [add.ne[0], 1, 1, 1];
        let op = match self.sole(add.src[0]) {
            Some(Op::MulMat) if (same || bias) && add.ne[2..] == [1, 1] => Op::MulMatAdd,
            Some(Op::MoeSum) if same && product.src.len() == 2 => Op::MoeSum,
            _ => return,
        };
        tensor.origin = Origin::Op(op);
        tensor.src = [product.src[0], product.src[1], add.src[1]]
            .map(|s| self.mapped(s))
            .to_vec();
    }

    /// `GLU(MUL_MAT(gate, x), MUL_MAT(up, x))` becomes `MUL_MAT_GLU`, also for experts.
    pub(super) fn fuse_glu(
        &mut self,
        tensor: &mut Tensor,
        id: TensorId,
        kind: GluKind,
        rules: &dyn Rules,
    ) {
        let glu = self.old.get(id);
        let &[gate_id, up_id] = glu.src.as_slice() else {
            return;
        };
        let (gate, up) = (self.old.get(gate_id), self.old.get(up_id));
        let op = match (self.sole(gate_id), self.sole(up_id)) {
            (Some(Op::MulMat), Some(Op::MulMat)) => Op::MulMatGlu(kind),
            (Some(Op::MulMatId), Some(Op::MulMatId)) => Op::MulMatIdGlu(kind),
            _ => return,
        };
        let (w, w2) = (self.old.get(gate.src[0]), self.old.get(up.src[0]));
        let alike = gate.src[1..] == up.src[1..] && w.dtype == w2.dtype && w.ne == w2.ne;
        if !alike || !rules.mul_mat_glu(w, self.old.get(gate.src[1])) {
            return;
        }
        tensor.origin = Origin::Op(op);
        let operands = [gate.src[0], up.src[0]]
            .into_iter()
            .chain(gate.src[1..].iter().copied());
        tensor.src = operands.map(|s| self.mapped(s)).collect();
    }
}
