//! Matrix products with what surrounds them: packed activations, the norm before,
//! additions, gated units.

use super::super::op::{FusedMulMat, GluKind, Op};
use super::super::tensor::{Origin, Tensor, TensorId};
use super::{Rewriter, Rules};
use crate::quant::DType;

impl Rewriter<'_> {
    /// Gives a product the packed form of its activations as last operand.
    pub(super) fn pack(&mut self, tensor: &mut Tensor, rules: &dyn Rules) {
        let x = match tensor.origin {
            Origin::Op(Op::MulMat | Op::MulMatId) => tensor.src[1],
            Origin::Op(Op::FusedMulMat(f)) if f.glu.is_none() && f.norm_eps.is_none() => {
                tensor.src[f.x_at()]
            }
            _ => return,
        };
        let (weight, values) = (self.new.get(tensor.src[0]), self.new.get(x));
        let op = match rules.quantized(weight, values) {
            Some(op) => op,
            None if rules.packs_f16(weight, values) => Op::PackF16,
            None => return,
        };
        if let Some(&packed) = self.packed.get(&(x, op.name())) {
            return tensor.src.push(packed);
        }
        let (ne, live) = (values.ne, values.live);
        let (form, shape) = match op {
            Op::QuantizeQ8 { words } => ("q8", (DType::I32, [words, 1, 1, 1], None)),
            Op::QuantizeQ16 { words } => ("q16", (DType::I32, [words, 1, 1, 1], None)),
            _ => {
                let ne = [ne[0].next_multiple_of(32), ne[1], ne[2], ne[3]];
                ("f16", (DType::F16, ne, live))
            }
        };
        let name = format!("{}-{form}", values.name);
        let packed = self.push_op(op, name, shape, &[x]);
        self.packed.insert((x, op.name()), packed);
        tensor.src.push(packed);
    }

    /// A product whose x is an RMS norm that only products read takes the norm.
    pub(super) fn fuse_norm_before(&mut self, tensor: &mut Tensor, id: TensorId) {
        let f = FusedMulMat {
            ids: tensor.origin == Origin::Op(Op::MulMatId),
            ..FusedMulMat::default()
        };
        let product = self.old.get(id);
        let (f, src) = self.operands(f, &product.src[..1], &product.src[1..], None);
        if f.norm_eps.is_some() {
            tensor.origin = Origin::Op(Op::FusedMulMat(f));
            tensor.src = src;
        }
    }

    /// Operands of a fused product in the new graph; `rest` is x, then ids. Takes the
    /// norm before x along where there is one.
    fn operands(
        &mut self,
        mut f: FusedMulMat,
        matrices: &[TensorId],
        rest: &[TensorId],
        b: Option<TensorId>,
    ) -> (FusedMulMat, Vec<TensorId>) {
        let mut src: Vec<TensorId> = matrices.iter().map(|&w| self.mapped(w)).collect();
        match self.before_norm(rest[0]) {
            Some((eps, x, weight)) => {
                f.norm_eps = Some(eps);
                src.extend([x, weight]);
            }
            None => src.push(self.mapped(rest[0])),
        }
        src.extend(rest[1..].iter().chain(&b).map(|&s| self.mapped(s)));
        (f, src)
    }

    /// What a norm that products take along reads, in x's shape: eps, values, weight.
    fn before_norm(&mut self, x: TensorId) -> Option<(f32, TensorId, TensorId)> {
        let normed = self.shown_whole(x);
        if !self.norms.contains(&normed) {
            return None;
        }
        let (Op::RmsNorm { eps }, values, weight) = self.norm_of(normed)? else {
            return None;
        };
        let (mut values, weight) = (self.mapped(values), self.mapped(weight));
        if normed != x {
            let shape = self.old.get(x);
            let view = Tensor {
                origin: Origin::View { offset_bytes: 0 },
                src: vec![values],
                ..shape.clone()
            };
            values = self.push(view);
        }
        Some((eps, values, weight))
    }

    /// The tensor whose values `x` shows, all of them in order and in rows as long.
    fn shown_whole(&self, mut x: TensorId) -> TensorId {
        loop {
            let t = self.old.get(x);
            let whole = |of: &Tensor| t.n_values() == of.n_values() && t.ne[0] == of.ne[0];
            match t.origin {
                Origin::View { .. } if t.is_contiguous() && whole(self.old.get(t.src[0])) => {
                    x = t.src[0];
                }
                _ => return x,
            }
        }
    }

    /// Finds the norms whose readers are all products that take them along.
    pub(super) fn find_norms(&mut self, rules: &dyn Rules) {
        let candidates = self.old.ids().filter(|&id| {
            let contiguous = |x: TensorId| self.old.get(x).is_contiguous();
            self.norm_of(id).is_some_and(|(_, x, _)| contiguous(x)) && contiguous(id)
        });
        self.norms = candidates.collect();
        for id in self.old.ids() {
            let t = self.old.get(id);
            for (at, &s) in t.src.iter().enumerate() {
                let normed = self.shown_whole(s);
                let takes = match t.origin {
                    Origin::View { .. } => self.shown_whole(id) == normed,
                    Origin::Op(Op::MulMat | Op::MulMatId) => {
                        at == 1 && rules.mul_mat_norm(self.old.get(t.src[0]), self.old.get(s))
                    }
                    _ => false,
                };
                if !takes {
                    self.norms.remove(&normed);
                }
            }
        }
        for &id in &self.old.outputs {
            let shown = self.shown_whole(id);
            self.norms.remove(&shown);
        }
    }

    /// `ADD(MUL_MAT(w, x), b)` becomes `MUL_MAT_ADD`; `ADD(MOE_SUM(..), b)` likewise.
    pub(super) fn fuse_add(&mut self, tensor: &mut Tensor, id: TensorId) {
        let add = self.old.get(id);
        let (product, b) = (self.old.get(add.src[0]), self.old.get(add.src[1]));
        let same = b.ne == add.ne && b.live == add.live;
        let bias = b.ne == [add.ne[0], 1, 1, 1];
        match self.sole(add.src[0]) {
            Some(Op::MulMat) if (same || bias) && add.ne[2..] == [1, 1] => {
                let f = FusedMulMat {
                    add: true,
                    ..FusedMulMat::default()
                };
                let (f, src) =
                    self.operands(f, &product.src[..1], &product.src[1..], Some(add.src[1]));
                tensor.origin = Origin::Op(Op::FusedMulMat(f));
                tensor.src = src;
            }
            Some(Op::MoeSum) if same && product.src.len() == 2 => {
                tensor.origin = Origin::Op(Op::MoeSum);
                let operands = [product.src[0], product.src[1], add.src[1]];
                tensor.src = operands.map(|s| self.mapped(s)).to_vec();
            }
            _ => {}
        }
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
        let ids = match (self.sole(gate_id), self.sole(up_id)) {
            (Some(Op::MulMat), Some(Op::MulMat)) => false,
            (Some(Op::MulMatId), Some(Op::MulMatId)) => true,
            _ => return,
        };
        let (w, w2) = (self.old.get(gate.src[0]), self.old.get(up.src[0]));
        let alike = gate.src[1..] == up.src[1..] && w.dtype == w2.dtype && w.ne == w2.ne;
        if !alike || !rules.mul_mat_glu(w, self.old.get(gate.src[1])) {
            return;
        }
        let f = FusedMulMat {
            glu: Some(kind),
            ids,
            ..FusedMulMat::default()
        };
        let (f, src) = self.operands(f, &[gate.src[0], up.src[0]], &gate.src[1..], None);
        tensor.origin = Origin::Op(Op::FusedMulMat(f));
        tensor.src = src;
    }
}
