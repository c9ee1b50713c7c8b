//! Scans and convolutions of state-space models with what surrounds them: `SSM_SCAN`
//! takes the bias of dt, the skip `d * x` and the gate `silu(z)`; `SSM_CONV` takes
//! bias and SiLU. The op without them stays behind unread and is pruned, so its state is
//! changed once.

use super::super::op::{GluKind, Op, UnaryKind};
use super::super::recurrent::{SsmConv, SsmScan};
use super::super::tensor::{Live, Origin, Tensor, TensorId};
use super::Rewriter;

impl Rewriter<'_> {
    /// `SSM_SCAN(.., dt + bias, ..)`.
    pub(super) fn fuse_dt_bias(&mut self, tensor: &mut Tensor, id: TensorId, p: SsmScan) {
        let dt = self.old.get(id).src[2];
        if self.sole(dt) != Some(Op::Add) {
            return;
        }
        let (x, bias) = (self.old.get(dt).src[0], self.old.get(dt).src[1]);
        let n_head = self.old.get(dt).ne[0];
        if self.is_vector(bias, 0, n_head) && p == SsmScan::default() {
            tensor.origin = Origin::Op(Op::SsmScan(SsmScan { dt_bias: true, ..p }));
            tensor.src[2] = self.mapped(x);
            tensor.src.push(self.mapped(bias));
        }
    }

    /// `y + x * d` of a scan's own x; false when it is none.
    pub(super) fn fuse_skip(&mut self, tensor: &mut Tensor, id: TensorId) -> bool {
        let add = self.old.get(id);
        let operands = [(add.src[0], add.src[1]), (add.src[1], add.src[0])];
        operands.into_iter().any(|(y, product)| {
            let Some((scan, p)) = self.scan_of(y).filter(|(_, p)| !p.skip && !p.gate) else {
                return false;
            };
            let Some(product) = self.alone(product) else {
                return false;
            };
            let product = self.old.get(product);
            let (n_head, x) = (self.new.get(scan).ne[1], self.new.get(scan).src[1]);
            // Rows of heads, or of Mamba's channels, which are heads of one value.
            let along = match product.ne == self.new.get(scan).ne {
                true => 1,
                false if self.new.get(scan).ne[0] == 1 => 0,
                false => return false,
            };
            let fits = product.origin == Origin::Op(Op::Mul)
                && self.same_values(self.mapped(product.src[0]), x)
                && self.is_vector(product.src[1], along, n_head);
            if fits {
                let d = self.mapped(product.src[1]);
                self.extend_scan(tensor, scan, SsmScan { skip: true, ..p }, d);
            }
            fits
        })
    }

    /// `y * silu(z)` of a scan's result; false when it is none.
    pub(super) fn fuse_gate(&mut self, tensor: &mut Tensor, id: TensorId, kind: GluKind) -> bool {
        let [z, y] = self.old.get(id).src[..] else {
            return false;
        };
        let Some((scan, p)) = self.scan_of(y).filter(|(_, p)| !p.gate) else {
            return false;
        };
        let ne = self.new.get(scan).ne;
        let Some(z) = self
            .as_shape(self.mapped(z), ne)
            .filter(|_| kind == GluKind::Swiglu)
        else {
            return false;
        };
        self.extend_scan(tensor, scan, SsmScan { gate: true, ..p }, z);
        true
    }

    /// `silu(conv)`, `silu(conv + bias)`.
    pub(super) fn fuse_conv(&mut self, tensor: &mut Tensor, id: TensorId, kind: UnaryKind) {
        if kind != UnaryKind::Silu {
            return;
        }
        let x = self.old.get(id).src[0];
        let (conv, bias) = match self.sole(x) {
            Some(Op::Add) => (self.old.get(x).src[0], Some(self.old.get(x).src[1])),
            _ => (x, None),
        };
        let channels = self.old.get(conv).ne[0];
        let plain = Op::SsmConv(SsmConv::default());
        if self.sole(conv) != Some(plain) || bias.is_some_and(|b| !self.is_vector(b, 0, channels)) {
            return;
        }
        let p = SsmConv {
            bias: bias.is_some(),
            silu: true,
        };
        tensor.origin = Origin::Op(Op::SsmConv(p));
        let src = self.old.get(conv).src.iter().chain(&bias);
        tensor.src = src.map(|&s| self.mapped(s)).collect();
    }

    /// A weight whose `n` values lie along dimension `dim`.
    fn is_vector(&self, id: TensorId, dim: usize, n: usize) -> bool {
        let owner = self.old.get(self.old.owner(id));
        let t = self.old.get(id);
        owner.origin == Origin::Weight && t.is_contiguous() && t.n_values() == n && t.ne[dim] == n
    }

    /// The node that `id` shows whole, when nothing else reads it or the views between.
    fn alone(&self, mut id: TensorId) -> Option<TensorId> {
        let n_values = self.old.get(id).n_values();
        loop {
            let t = self.old.get(id);
            if self.uses[id.at()] != 1 || t.n_values() != n_values {
                return None;
            }
            match t.origin {
                Origin::View { .. } => id = t.src[0],
                Origin::Op(_) => return Some(id),
                _ => return None,
            }
        }
    }

    /// The scan of the new graph that `id` of the old one shows, when it is `id` alone
    /// that reads it.
    fn scan_of(&self, id: TensorId) -> Option<(TensorId, SsmScan)> {
        let new = self.mapped(self.alone(id)?);
        let new = self.new.owner(new);
        match self.new.get(new).origin {
            Origin::Op(Op::SsmScan(p)) => Some((new, p)),
            _ => None,
        }
    }

    /// Whether two tensors of the new graph show the same values in the same order.
    fn same_values(&self, a: TensorId, b: TensorId) -> bool {
        let place = |id| (self.new.owner(id), self.new.offset_in_owner(id));
        let (x, y) = (self.new.get(a), self.new.get(b));
        let token = |t: &Tensor| t.live.map_or(1, |l| t.nb[l.dim]);
        place(a) == place(b) && x.n_values() == y.n_values() && token(x) == token(y)
    }

    /// `z [head_dim * n_head, n]` of the new graph as `ne [head_dim, n_head, n]`.
    fn as_shape(&mut self, z: TensorId, ne: [usize; 4]) -> Option<TensorId> {
        let t = self.new.get(z);
        if t.ne == ne {
            return (ne[0] > 1 || t.nb[1] == 4).then_some(z);
        }
        if t.ne != [ne[0] * ne[1], ne[2], 1, 1] || t.nb[0] != 4 {
            return None;
        }
        let view = Tensor {
            ne,
            nb: [4, 4 * ne[0], t.nb[1], t.nb[1] * ne[2]],
            live: t.live.map(|l| Live { dim: 2, ..l }),
            origin: Origin::View { offset_bytes: 0 },
            src: vec![z],
            ..t.clone()
        };
        Some(self.push(view))
    }

    /// Makes `tensor` show the result of `scan` with one more operand.
    fn extend_scan(&mut self, tensor: &mut Tensor, scan: TensorId, p: SsmScan, more: TensorId) {
        let mut extended = self.new.get(scan).clone();
        extended.origin = Origin::Op(Op::SsmScan(p));
        extended.src.push(more);
        tensor.src = vec![self.push(extended)];
        tensor.origin = Origin::View { offset_bytes: 0 };
    }
}
