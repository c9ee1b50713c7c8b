//! The shape rule of every op: what its operands must be, and what the result
//! is. Also which dimension of the result carries the live count.

use super::op::{AttnShape, FusedMulMat, HeadRows, Op};
use super::recurrent;
use super::tensor::{Live, Tensor};
use crate::error::{Error, Result};
use crate::quant::DType;

/// Type, shape and live dimension of a result.
pub struct Shape {
    pub dtype: DType,
    pub ne: [usize; 4],
    pub live: Option<Live>,
}

/// A result in f32 with the live dimension of `like`.
pub(super) fn f32_like(like: &Tensor, ne: [usize; 4]) -> Shape {
    Shape {
        dtype: DType::F32,
        ne,
        live: like.live,
    }
}

pub(super) fn is_f32(t: &Tensor) -> bool {
    t.dtype == DType::F32
}

pub(super) fn is_i32(t: &Tensor) -> bool {
    t.dtype == DType::I32
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The same live count in another dimension.
fn moved(live: Option<Live>, dim: usize) -> Option<Live> {
    live.map(|l| Live { dim, ..l })
}

impl Op {
    /// The shape rule: checks the operands and gives the result's shape.
    pub fn shape(&self, src: &[&Tensor]) -> Result<Shape> {
        let arity = self.arity();
        let (count, op) = (src.len(), self.name());
        if !arity.contains(&count) {
            let detail = format!("takes {arity:?} operands, got {count}");
            return Err(Error::Shape { op, detail });
        }
        self.result(src).ok_or_else(|| {
            let shapes: Vec<String> = src
                .iter()
                .map(|t| format!("{} {:?} {:?}", t.name, t.dtype, t.ne))
                .collect();
            let detail = format!("operands do not match: {}", shapes.join(", "));
            Error::Shape { op, detail }
        })
    }

    /// The result for operands of the right number; `None` when they do not match.
    fn result(&self, src: &[&Tensor]) -> Option<Shape> {
        let a = src[0];
        match self {
            Op::MulMat => mul_mat(a, src[1]),
            Op::MulMatId => mul_mat_id(a, src[1], src[2]),
            Op::FusedMulMat(f) => fused_mul_mat(f, src),
            Op::GetRows => get_rows(a, src[1]),
            Op::Concat => concat(src),
            Op::SetRows => set_rows(a, src[1], src[2]),
            Op::Rope(p) => rope(a, src[1], src.get(2).copied(), p.n_rot),
            Op::HeadRows(h) => head_rows(h, src),
            Op::Attn(_, s) => attn(s, src),
            Op::SsmConv(p) => recurrent::ssm_conv(p, src),
            Op::SsmScan(p) => recurrent::ssm_scan(p, src),
            Op::GatedDeltaNet(_) => recurrent::gated_delta_net(src),
            Op::MoeRoute { n_used, .. } => (is_f32(a) && (1..=a.ne[0]).contains(n_used))
                .then(|| int_rows(a, [2 * n_used, a.ne[1], a.ne[2], a.ne[3]])),
            Op::MoeSum => moe_sum(src),
            Op::Add | Op::Mul | Op::Div => {
                let b = src[1];
                let fits = (0..4).all(|i| b.ne[i] == a.ne[i] || b.ne[i] == 1);
                (is_f32(a) && is_f32(b) && fits).then(|| f32_like(a, a.ne))
            }
            Op::RmsNorm { .. } => {
                let fits = |w: &Tensor| is_f32(w) && w.ne == [a.ne[0], 1, 1, 1];
                let fits = src.get(1).is_none_or(|w| fits(w));
                (is_f32(a) && fits).then(|| f32_like(a, a.ne))
            }
            Op::Glu(_) => glu(src),
            Op::Argmax => (is_f32(a) && a.ne[2..] == [1, 1]).then(|| Shape {
                dtype: DType::I32,
                ne: [a.ne[1], 1, 1, 1],
                live: moved(a.live.filter(|l| l.dim == 1), 0),
            }),
            Op::TopK { count } => (is_f32(a) && (1..=a.ne[0]).contains(count))
                .then(|| int_rows(a, [*count, a.ne[1], a.ne[2], a.ne[3]])),
            Op::QuantizeQ8 { words } | Op::QuantizeQ16 { words } => is_f32(a).then_some(Shape {
                dtype: DType::I32,
                ne: [*words, 1, 1, 1],
                live: None,
            }),
            Op::PackF16 => is_f32(a).then(|| Shape {
                dtype: DType::F16,
                ne: [a.ne[0].next_multiple_of(32), a.ne[1], a.ne[2], a.ne[3]],
                live: a.live,
            }),
            Op::Cpy { dtype } => (is_f32(a) && is_float(*dtype)).then_some(Shape {
                dtype: *dtype,
                ne: a.ne,
                live: a.live,
            }),
            Op::SumRows | Op::Mean => is_f32(a).then(|| Shape {
                dtype: DType::F32,
                ne: [1, a.ne[1], a.ne[2], a.ne[3]],
                live: a.live.filter(|l| l.dim > 0),
            }),
            Op::Sum => is_f32(a).then_some(Shape {
                dtype: DType::F32,
                ne: [1; 4],
                live: None,
            }),
            Op::Norm { .. }
            | Op::Unary(_)
            | Op::Scale { .. }
            | Op::SoftMax { .. }
            | Op::Cumsum
            | Op::L2Norm { .. }
            | Op::Cont => is_f32(a).then(|| f32_like(a, a.ne)),
        }
    }
}

fn concat(src: &[&Tensor]) -> Option<Shape> {
    let a = src[0];
    let fits = |t: &&Tensor| is_f32(t) && t.ne[1..] == a.ne[1..] && t.live == a.live;
    let rows_live = a.live.is_none_or(|l| l.dim > 0);
    let k = src.iter().map(|t| t.ne[0]).sum();
    let ne = [k, a.ne[1], a.ne[2], a.ne[3]];
    (src.iter().all(fits) && rows_live).then(|| f32_like(a, ne))
}

fn int_rows(like: &Tensor, ne: [usize; 4]) -> Shape {
    Shape {
        dtype: DType::I32,
        ne,
        live: like.live,
    }
}

/// A weight `[k, m]` that `x` can be multiplied with.
fn multiplies(w: &Tensor, x: &Tensor) -> bool {
    is_f32(x) && !is_i32(w) && w.ne[0] == x.ne[0]
}

fn mul_mat(w: &Tensor, x: &Tensor) -> Option<Shape> {
    let fits = multiplies(w, x) && w.ne[2..] == [1, 1];
    fits.then(|| f32_like(x, [w.ne[1], x.ne[1], x.ne[2], x.ne[3]]))
}

fn mul_mat_id(w: &Tensor, x: &Tensor, ids: &Tensor) -> Option<Shape> {
    let fits = multiplies(w, x)
        && is_i32(ids)
        && (x.ne[1] == 1 || x.ne[1] == ids.ne[0])
        && x.ne[2] == ids.ne[1];
    fits.then(|| f32_like(x, [w.ne[1], ids.ne[0], x.ne[2], 1]))
}

fn fused_mul_mat(f: &FusedMulMat, src: &[&Tensor]) -> Option<Shape> {
    let (w, x) = (src[0], src[f.x_at()]);
    let shape = match f.ids_at() {
        Some(ids) => mul_mat_id(w, x, src[ids])?,
        None => mul_mat(w, x)?,
    };
    let mut fits = f.glu.is_none() || (src[1].ne == w.ne && multiplies(src[1], x));
    if let Some(norm) = f.norm_at() {
        fits &= is_f32(src[norm]) && src[norm].ne == [w.ne[0], 1, 1, 1];
    }
    if let Some(b) = f.b_at().map(|b| src[b]) {
        let ne = shape.ne;
        fits &= is_f32(b) && b.ne[0] == ne[0] && (1..4).all(|i| b.ne[i] == ne[i] || b.ne[i] == 1);
    }
    fits.then_some(shape)
}

fn get_rows(table: &Tensor, ids: &Tensor) -> Option<Shape> {
    let n = table.ne[2];
    if !(is_i32(ids) && !is_i32(table) && table.ne[3] == 1 && ids.ne[1] == n) {
        return None;
    }
    // The rows' dimension follows the values'.
    let live = ids.live.map(|l| Live {
        dim: l.dim + 1,
        ..l
    });
    Some(Shape {
        dtype: DType::F32,
        ne: [table.ne[0], ids.ne[0], n, 1],
        live: live.or(table.live.filter(|l| l.dim == 2)),
    })
}

fn set_rows(cache: &Tensor, x: &Tensor, slots: &Tensor) -> Option<Shape> {
    let fits = is_f32(x)
        && is_i32(slots)
        && is_float(cache.dtype)
        && x.ne[0] == cache.ne[0]
        && x.ne[1] == slots.ne[0];
    fits.then_some(Shape {
        dtype: cache.dtype,
        ne: cache.ne,
        live: cache.live,
    })
}

fn rope(x: &Tensor, pos: &Tensor, factors: Option<&Tensor>, n_rot: usize) -> Option<Shape> {
    let fits = is_f32(x)
        && is_i32(pos)
        && pos.ne[0] == x.ne[2]
        && n_rot <= x.ne[0]
        && n_rot.is_multiple_of(2)
        && factors.is_none_or(|f| is_f32(f) && f.ne[0] == n_rot / 2);
    fits.then(|| f32_like(x, x.ne))
}

fn head_rows(h: &HeadRows, src: &[&Tensor]) -> Option<Shape> {
    let x = src[0];
    let mut rest = src[1..].iter().copied();
    if h.norm_eps.is_some() {
        let w = rest.next()?;
        (is_f32(w) && w.ne == [x.ne[0], 1, 1, 1]).then_some(())?;
    }
    if let Some(p) = h.rope {
        let pos = rest.next()?;
        let factors = if h.factors { rest.next() } else { None };
        rope(x, pos, factors, p.n_rot)?;
    }
    if !h.store {
        return is_f32(x).then(|| f32_like(x, x.ne));
    }
    let (cache, slots) = (rest.next()?, rest.next()?);
    let fits = is_f32(x)
        && is_i32(slots)
        && is_float(cache.dtype)
        && cache.ne[0] == x.ne[0] * x.ne[1]
        && x.ne[2] == slots.ne[0];
    fits.then_some(Shape {
        dtype: cache.dtype,
        ne: cache.ne,
        live: cache.live,
    })
}

fn attn(s: &AttnShape, src: &[&Tensor]) -> Option<Shape> {
    let (q, k, v) = (src[0], src[1], src[2]);
    let (pos, seq, cell_pos, cell_seq) = (src[3], src[4], src[5], src[6]);
    let cache = |t: &Tensor| matches!(t.dtype, DType::F32 | DType::F16);
    let fits = is_f32(q)
        && src[3..].iter().all(|t| is_i32(t))
        && cache(k)
        && cache(v)
        && q.ne[0] == s.head_dim_k
        && q.ne[1] == s.n_head
        && s.n_head_kv > 0
        && s.n_head.is_multiple_of(s.n_head_kv)
        && k.ne[0] == s.head_dim_k * s.n_head_kv
        && v.ne[0] == s.head_dim_v * s.n_head_kv
        && k.ne[1] == v.ne[1]
        && cell_pos.ne[0] == k.ne[1]
        && cell_seq.ne[0] == k.ne[1]
        && pos.ne[0] == q.ne[2]
        && seq.ne[0] == q.ne[2];
    fits.then(|| Shape {
        dtype: DType::F32,
        ne: [s.head_dim_v * s.n_head, q.ne[2], 1, 1],
        live: moved(q.live, 1),
    })
}

fn moe_sum(src: &[&Tensor]) -> Option<Shape> {
    let (y, weights) = (src[0], src[1]);
    let ne = [y.ne[0], y.ne[2], 1, 1];
    let fits = is_f32(y)
        && is_f32(weights)
        && y.ne[3] == 1
        && weights.ne == [1, y.ne[1], y.ne[2], 1]
        && src.get(2).is_none_or(|b| is_f32(b) && b.ne == ne);
    fits.then(|| Shape {
        dtype: DType::F32,
        ne,
        live: moved(y.live, 1),
    })
}

fn glu(src: &[&Tensor]) -> Option<Shape> {
    let a = src[0];
    match src.get(1) {
        Some(up) => (is_f32(a) && is_f32(up) && a.ne == up.ne).then(|| f32_like(a, a.ne)),
        None => (is_f32(a) && a.ne[0].is_multiple_of(2))
            .then(|| f32_like(a, [a.ne[0] / 2, a.ne[1], a.ne[2], a.ne[3]])),
    }
}
