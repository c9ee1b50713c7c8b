//! Every op with its operands; `shape.rs` has the shape rules. Names follow ggml.

use super::recurrent::{GatedDelta, SsmConv, SsmScan};
use crate::quant::DType;

/// How RoPE pairs the values of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeMode {
    /// Neighbours: (0,1), (2,3), ... (llama).
    Norm,
    /// Halves: (0, n_rot/2), (1, n_rot/2 + 1), ... (qwen, gemma, phi).
    Neox,
}

/// Rotary position embedding (RoFormer, arXiv 2104.09864) with linear and YaRN
/// (arXiv 2309.00071) scaling; names as llama.cpp's flags have them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeParams {
    pub mode: RopeMode,
    /// Values of a head that turn; the rest pass through.
    pub n_rot: usize,
    pub freq_base: f32,
    /// 1 / scaling factor.
    pub freq_scale: f32,
    /// 0 for linear scaling, 1 for YaRN.
    pub ext_factor: f32,
    /// Multiplies sine and cosine (with YaRN's own magnitude on top).
    pub attn_factor: f32,
    pub beta_fast: f32,
    pub beta_slow: f32,
    /// Context length the model was trained on before scaling.
    pub n_ctx_orig: u32,
}

/// Scaled dot-product attention over a KV cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttnParams {
    pub scale: f32,
    /// `cap * tanh(score / cap)` before the mask; `None` for no cap.
    pub softcap: Option<f32>,
    /// A token sees cells less than this many positions back; `None` for all.
    pub window: Option<u32>,
    /// Which cache's cells this layer reads.
    pub swa: bool,
    /// `(beta, n)`: queries at position p count `1 + beta * ln(1 + p / n)` times
    /// (integer division), as long-context Mistral models want.
    pub temperature: Option<(f32, u32)>,
}

/// Value-wise functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnaryKind {
    Silu,
    /// Tanh form.
    Gelu,
    /// `x * sigmoid(1.702 x)`.
    GeluQuick,
    /// Error-function form.
    GeluErf,
    Relu,
    /// `max(x, 0)^2`.
    ReluSqr,
    Sigmoid,
    Tanh,
    /// `ln(1 + e^x)`, and x itself above 20, as ggml has it.
    Softplus,
    Exp,
}

/// Gated units: `act(gate) * up`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GluKind {
    Swiglu,
    Geglu,
    GegluErf,
    GegluQuick,
    Reglu,
}

/// An op. `[..]` gives shapes in GGUF order; `n` is the token dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// `w [k, m], x [k, n] (, x quantized) -> [m, n]` in f32.
    MulMat,
    /// `w [k, m, n_expert], x [k, 1 | n_used, n], ids [n_used, n] (, x quantized)
    /// -> [m, n_used, n]`.
    MulMatId,
    /// A product with what stands around it, see [`FusedMulMat`].
    FusedMulMat(FusedMulMat),
    /// CPU: `x [k, ..] -> 8-bit rows` of `words * 4` bytes, shared by all readers of `x`.
    QuantizeQ8 {
        words: usize,
    },
    /// As [`Op::QuantizeQ8`], 16-bit rows.
    QuantizeQ16 {
        words: usize,
    },
    /// CUDA: `x [k, ..] -> [k rounded up to 32, ..]` in F16, times 1/16 so that values
    /// up to 2^20 keep their place; shared by all readers of `x`.
    PackF16,
    /// `table [k, r], ids [n] -> [k, n]`, or `table [k, r, n], ids [p, n] -> [k, p, n]`.
    GetRows,
    /// `cache [k, cells], x [k, n], slots [n] -> cache`, written in place.
    SetRows,
    /// `x [k, ..] (, weight [k]) -> x / sqrt(mean(x^2) + eps) (* weight)`.
    RmsNorm {
        eps: f32,
    },
    /// `x [k, ..] -> (x - mean) / sqrt(var + eps)`.
    Norm {
        eps: f32,
    },
    /// `x [head_dim, n_head, n], pos [n] (, factors [n_rot / 2]) -> same shape`.
    Rope(RopeParams),
    /// Fused per-head work on Q, K or V, see [`HeadRows`].
    HeadRows(HeadRows),
    /// `q [hd, n_head, n], k [hd * n_head_kv, cells], v [hd_v * n_head_kv, cells],
    /// pos [n], seq [n], cell_pos [cells], cell_seq [cells] -> [hd_v * n_head, n]`.
    Attn(AttnParams, AttnShape),
    Unary(UnaryKind),
    /// `gate [k, ..], up [k, ..] -> [k, ..]`, or one source `[2k, ..]`, gate first.
    Glu(GluKind),
    /// `a, b -> a + b`; b repeats over the dimensions where it has 1.
    Add,
    /// `a * b`, b repeating.
    Mul,
    /// `a / b`, b repeating.
    Div,
    /// `x * scale + bias`.
    Scale {
        scale: f32,
        bias: f32,
    },
    /// Over `ne[0]`, of `x * scale`; a row of -inf gives zeros.
    SoftMax {
        scale: f32,
    },
    /// `[k, r] -> [r]` (i32); ties go to the lowest index.
    Argmax,
    /// `[k, r] -> [count, r]` (i32), by falling value, ties by rising index.
    TopK {
        count: usize,
    },
    /// Routing of experts: `logits [n_expert, n] -> [2 n_used, n]` (i32): the ids
    /// of the best `n_used` by falling probability, then the bits of their weights,
    /// divided by their sum when `norm`.
    MoeRoute {
        n_used: usize,
        norm: bool,
    },
    /// Sum over experts: `y [m, n_used, n], weights [1, n_used, n] (, b [m, n])
    /// -> [m, n]`.
    MoeSum,
    /// A contiguous copy.
    Cont,
    /// `a [k, ..], b [l, ..], .. -> [k + l + .., ..]`: row by row, one behind the other.
    Concat,
    /// `x -> x` in another float type.
    Cpy {
        dtype: DType,
    },
    /// `[k, ..] -> [1, ..]`.
    SumRows,
    /// `[k, ..] -> [1, ..]`.
    Mean,
    /// `[..] -> [1]`: all live values.
    Sum,
    /// Running sum over `ne[0]`.
    Cumsum,
    /// `x [k, ..] -> x / max(sqrt(sum(x^2)), eps)`.
    L2Norm {
        eps: f32,
    },
    /// Convolution over time of each channel, see [`SsmConv`]: `-> [c, n]`.
    SsmConv(SsmConv),
    /// Selective state-space scan, see [`SsmScan`]: `-> [head_dim, n_head, n]`.
    SsmScan(SsmScan),
    /// Gated delta rule, see [`GatedDelta`]: `-> [d_v, n_v_head, n]`.
    GatedDeltaNet(GatedDelta),
}

/// `act(w x) * (w2 x) + b` with RMS norm of x before; all but `w x` are optional.
/// Operands in order: `w [k, m] (, w2) , x [k, n] (, norm [k]) (, ids) (, b)`. With
/// experts as in `MUL_MAT_ID`, else `b` is `[m, n]` or `[m]` and x may follow packed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FusedMulMat {
    pub glu: Option<GluKind>,
    pub norm_eps: Option<f32>,
    pub ids: bool,
    pub add: bool,
}

impl FusedMulMat {
    fn name(&self) -> &'static str {
        match (self.ids, self.glu, self.add) {
            (true, Some(_), _) => "MUL_MAT_ID_GLU",
            (true, None, _) => "MUL_MAT_ID_NORM",
            (false, Some(_), _) => "MUL_MAT_GLU",
            (false, None, true) => "MUL_MAT_ADD",
            (false, None, false) => "MUL_MAT_NORM",
        }
    }

    /// Number of the operand `x`; the matrices come before it.
    pub fn x_at(&self) -> usize {
        1 + usize::from(self.glu.is_some())
    }

    /// Number of the norm's weight.
    pub fn norm_at(&self) -> Option<usize> {
        self.norm_eps.map(|_| self.x_at() + 1)
    }

    /// Number of the experts' ids.
    pub fn ids_at(&self) -> Option<usize> {
        let before = self.x_at() + usize::from(self.norm_eps.is_some());
        self.ids.then_some(before + 1)
    }

    /// Number of what is added.
    pub fn b_at(&self) -> Option<usize> {
        self.add.then(|| self.n_operands() - 1)
    }

    /// Operands without the packed form of x.
    pub fn n_operands(&self) -> usize {
        let optional = [self.norm_eps.is_some(), self.ids, self.add];
        self.x_at() + 1 + optional.iter().filter(|&&there| there).count()
    }
}

/// What happens to the heads `x [head_dim, n_head, n]` of a projection, in this order:
/// RMS norm over each head times a weight, RoPE, and storing. Operands follow `x` in
/// the order of the fields: `weight [head_dim]`, `pos [n]`, `factors [n_rot / 2]`,
/// then `cache [head_dim * n_head, cells], slots [n]`. Without `store` the result is
/// `[head_dim, n_head, n]`, else the cache, written in place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadRows {
    pub norm_eps: Option<f32>,
    pub rope: Option<RopeParams>,
    /// The operand that divides RoPE's frequencies is there.
    pub factors: bool,
    pub store: bool,
}

impl HeadRows {
    /// Index of the operand `cache`.
    pub fn cache_at(&self) -> usize {
        1 + usize::from(self.norm_eps.is_some())
            + usize::from(self.rope.is_some())
            + usize::from(self.factors)
    }

    fn n_operands(&self) -> usize {
        self.cache_at() + if self.store { 2 } else { 0 }
    }
}

/// Head counts that the flat cache rows do not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttnShape {
    pub head_dim_k: usize,
    pub head_dim_v: usize,
    pub n_head: usize,
    pub n_head_kv: usize,
}

impl Op {
    /// ggml's name of the op.
    pub fn name(&self) -> &'static str {
        match self {
            Op::MulMat => "MUL_MAT",
            Op::MulMatId => "MUL_MAT_ID",
            Op::FusedMulMat(f) => f.name(),
            Op::PackF16 => "PACK_F16",
            Op::HeadRows(_) => "HEAD_ROWS",
            Op::MoeRoute { .. } => "MOE_ROUTE",
            Op::MoeSum => "MOE_SUM",
            Op::QuantizeQ8 { .. } => "QUANTIZE_Q8",
            Op::QuantizeQ16 { .. } => "QUANTIZE_Q16",
            Op::GetRows => "GET_ROWS",
            Op::SetRows => "SET_ROWS",
            Op::RmsNorm { .. } => "RMS_NORM",
            Op::Norm { .. } => "NORM",
            Op::Rope(_) => "ROPE",
            Op::Attn(..) => "ATTN",
            Op::Unary(_) => "UNARY",
            Op::Glu(_) => "GLU",
            Op::Add => "ADD",
            Op::Mul => "MUL",
            Op::Div => "DIV",
            Op::Scale { .. } => "SCALE",
            Op::SoftMax { .. } => "SOFT_MAX",
            Op::Argmax => "ARGMAX",
            Op::TopK { .. } => "TOP_K",
            Op::Cont => "CONT",
            Op::Concat => "CONCAT",
            Op::Cpy { .. } => "CPY",
            Op::SumRows => "SUM_ROWS",
            Op::Mean => "MEAN",
            Op::Sum => "SUM",
            Op::Cumsum => "CUMSUM",
            Op::L2Norm { .. } => "L2_NORM",
            Op::SsmConv(_) => "SSM_CONV",
            Op::SsmScan(_) => "SSM_SCAN",
            Op::GatedDeltaNet(_) => "GATED_DELTA_NET",
        }
    }

    /// The operand that is the result itself, changed; `None` for fresh results.
    pub fn writes_in_place(&self) -> Option<usize> {
        match self {
            Op::SetRows => Some(0),
            Op::HeadRows(h) if h.store => Some(h.cache_at()),
            _ => None,
        }
    }

    /// The operand, a cache tensor, that is changed besides what the result says.
    pub fn also_writes(&self) -> Option<usize> {
        match self {
            Op::SsmConv(_) => Some(2),
            Op::SsmScan(_) | Op::GatedDeltaNet(_) => Some(0),
            _ => None,
        }
    }

    pub(super) fn arity(&self) -> std::ops::RangeInclusive<usize> {
        match self {
            Op::MulMat => 2..=3,
            Op::MulMatId => 3..=4,
            // The packed form of x may come last.
            Op::FusedMulMat(f) => f.n_operands()..=f.n_operands() + 1,
            Op::MoeSum => 2..=3,
            Op::HeadRows(h) => h.n_operands()..=h.n_operands(),
            Op::GetRows | Op::Add | Op::Mul | Op::Div => 2..=2,
            Op::SetRows => 3..=3,
            Op::Concat => 2..=8,
            Op::RmsNorm { .. } | Op::Glu(_) => 1..=2,
            Op::Rope(_) => 2..=3,
            Op::Attn(..) => 7..=7,
            Op::SsmConv(p) => p.n_operands()..=p.n_operands(),
            Op::SsmScan(p) => p.n_operands()..=p.n_operands(),
            Op::GatedDeltaNet(_) => 8..=8,
            Op::QuantizeQ8 { .. }
            | Op::QuantizeQ16 { .. }
            | Op::PackF16
            | Op::MoeRoute { .. }
            | Op::Norm { .. }
            | Op::Unary(_)
            | Op::Scale { .. }
            | Op::SoftMax { .. }
            | Op::Argmax
            | Op::TopK { .. }
            | Op::Cont
            | Op::Cpy { .. }
            | Op::SumRows
            | Op::Mean
            | Op::Sum
            | Op::Cumsum
            | Op::L2Norm { .. } => 1..=1,
        }
    }
}
