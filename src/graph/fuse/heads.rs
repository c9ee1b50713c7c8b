//! What follows the projections of attention: norm over heads, RoPE, storing in
//! the cache, as one `HEAD_ROWS` for each of Q, K and V.

use super::super::op::{HeadRows, Op};
use super::super::tensor::{Live, Origin, Tensor, TensorId};
use super::Rewriter;

/// Longest row that is stored as one head.
const MOST_HEAD: usize = 256;

impl Rewriter<'_> {
    /// `ROPE(x)`, `ROPE(norm(x) * weight)` become `HEAD_ROWS`.
    pub(super) fn fuse_rope(&mut self, tensor: &mut Tensor, id: TensorId) {
        if let Some((op, src)) = self.rotated(id) {
            tensor.origin = Origin::Op(Op::HeadRows(op));
            tensor.src = src.iter().map(|&s| self.mapped(s)).collect();
        }
    }

    /// The fused form of an old ROPE node, operands in the old graph.
    fn rotated(&self, id: TensorId) -> Option<(HeadRows, Vec<TensorId>)> {
        let rope = self.old.get(id);
        let Origin::Op(Op::Rope(params)) = rope.origin else {
            return None;
        };
        let normed = (self.uses[rope.src[0].at()] == 1)
            .then(|| self.norm_of(rope.src[0]))
            .flatten();
        let (norm_eps, mut src) = match normed {
            Some((Op::RmsNorm { eps }, x, weight)) => (Some(eps), vec![x, weight]),
            _ => (None, vec![rope.src[0]]),
        };
        src.extend(&rope.src[1..]);
        let op = HeadRows {
            norm_eps,
            rope: Some(params),
            factors: rope.src.len() > 2,
            store: false,
        };
        Some((op, src))
    }

    /// `SET_ROWS(cache, x, slots)` becomes `HEAD_ROWS`, with the `ROPE` that made x.
    pub(super) fn fuse_store(&mut self, tensor: &mut Tensor, id: TensorId) {
        let store = self.old.get(id);
        let (cache, x, slots) = (store.src[0], store.src[1], store.src[2]);
        let (mut op, src) = match self.behind_views(x).and_then(|x| self.rotated(x)) {
            Some((op, src)) => (op, src.iter().map(|&s| self.mapped(s)).collect()),
            None => {
                let Some(heads) = self.as_heads(x) else {
                    return;
                };
                let op = HeadRows {
                    norm_eps: None,
                    rope: None,
                    factors: false,
                    store: false,
                };
                (op, vec![heads])
            }
        };
        op.store = true;
        tensor.origin = Origin::Op(Op::HeadRows(op));
        tensor.src = src;
        tensor.src.extend([self.mapped(cache), self.mapped(slots)]);
    }

    /// The computed tensor that `id` shows whole, when nothing else reads it.
    fn behind_views(&self, mut id: TensorId) -> Option<TensorId> {
        let n_values = self.old.get(id).n_values();
        loop {
            let t = self.old.get(id);
            let whole = t.n_values() == n_values && t.is_contiguous();
            if self.uses[id.at()] != 1 || !whole {
                return None;
            }
            match t.origin {
                Origin::View { .. } => id = t.src[0],
                _ => return Some(id),
            }
        }
    }

    /// Rows `[k, n]` seen as heads `[head, k / head, n]`.
    fn as_heads(&mut self, x: TensorId) -> Option<TensorId> {
        let t = self.old.get(x);
        let (k, n) = (t.ne[0], t.ne[1]);
        let head = (1..=MOST_HEAD.min(k))
            .rev()
            .find(|&h| k.is_multiple_of(h))?;
        let ne = [head, k / head, n, 1];
        let nb = [t.nb[0], t.nb[0] * head, t.nb[1], t.nb[1] * n];
        let view = Tensor {
            name: t.name.clone(),
            dtype: t.dtype,
            ne,
            nb,
            live: t.live.map(|l| Live { dim: 2, ..l }),
            origin: Origin::View { offset_bytes: 0 },
            src: vec![self.mapped(x)],
        };
        Some(self.push(view))
    }
}
