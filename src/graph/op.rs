//! Every op with its contract: operands, shape of the result, and which
//! dimension of the result carries the live count. Names follow ggml.

use super::tensor::{Live, Tensor};
use crate::error::{Error, Result};
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
    Sigmoid,
    Tanh,
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
    /// `w [k, m], x [k, n] (, x as 8-bit rows) -> [m, n]` in f32.
    MulMat,
    /// `w [k, m, n_expert], x [k, 1 | n_used, n], ids [n_used, n] (, x as 8-bit rows)
    /// -> [m, n_used, n]`.
    MulMatId,
    /// CPU: `x [k, ..] -> 8-bit rows` of `words * 4` bytes, shared by all readers of `x`.
    QuantizeQ8 {
        words: usize,
    },
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
    /// A contiguous copy.
    Cont,
    /// `x -> x` in another float type.
    Cpy {
        dtype: DType,
    },
    /// `[k, ..] -> [1, ..]`.
    SumRows,
    /// `[k, ..] -> [1, ..]`.
    Mean,
    /// Running sum over `ne[0]`.
    Cumsum,
}

/// Head counts that the flat cache rows do not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttnShape {
    pub head_dim_k: usize,
    pub head_dim_v: usize,
    pub n_head: usize,
    pub n_head_kv: usize,
}

/// Type, shape and live dimension of a result.
pub struct Shape {
    pub dtype: DType,
    pub ne: [usize; 4],
    pub live: Option<Live>,
}

impl Op {
    /// ggml's name of the op.
    pub fn name(&self) -> &'static str {
        match self {
            Op::MulMat => "MUL_MAT",
            Op::MulMatId => "MUL_MAT_ID",
            Op::QuantizeQ8 { .. } => "QUANTIZE_Q8",
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
            Op::Cpy { .. } => "CPY",
            Op::SumRows => "SUM_ROWS",
            Op::Mean => "MEAN",
            Op::Cumsum => "CUMSUM",
        }
    }

    /// True when the result is `src[0]` itself, changed.
    pub fn writes_in_place(&self) -> bool {
        matches!(self, Op::SetRows)
    }

    fn arity(&self) -> std::ops::RangeInclusive<usize> {
        match self {
            Op::MulMat => 2..=3,
            Op::MulMatId => 3..=4,
            Op::GetRows | Op::Add | Op::Mul | Op::Div => 2..=2,
            Op::SetRows => 3..=3,
            Op::RmsNorm { .. } | Op::Glu(_) => 1..=2,
            Op::Rope(_) => 2..=3,
            Op::Attn(..) => 7..=7,
            Op::QuantizeQ8 { .. }
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
            | Op::Cumsum => 1..=1,
        }
    }

    /// The shape rule: checks the operands and gives the result's shape.
    pub fn shape(&self, src: &[&Tensor]) -> Result<Shape> {
        let fail = |detail: String| Error::Shape {
            op: self.name(),
            detail,
        };
        if !self.arity().contains(&src.len()) {
            return Err(fail(format!(
                "takes {:?} operands, got {}",
                self.arity(),
                src.len()
            )));
        }
        let shapes = || {
            src.iter()
                .map(|t| format!("{} {:?} {:?}", t.name, t.dtype, t.ne))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let ensure = |ok: bool| match ok {
            true => Ok(()),
            false => Err(fail(format!("operands do not match: {}", shapes()))),
        };
        let a = src[0];
        let f32_like = |t: &Tensor, ne| Shape {
            dtype: DType::F32,
            ne,
            live: t.live,
        };
        let is_f32 = |t: &Tensor| t.dtype == DType::F32;
        Ok(match self {
            Op::MulMat => {
                let x = src[1];
                ensure(is_f32(x) && a.ne[0] == x.ne[0] && a.ne[2] == 1 && a.ne[3] == 1)?;
                f32_like(x, [a.ne[1], x.ne[1], x.ne[2], x.ne[3]])
            }
            Op::MulMatId => {
                let (x, ids) = (src[1], src[2]);
                ensure(
                    is_f32(x)
                        && ids.dtype == DType::I32
                        && a.ne[0] == x.ne[0]
                        && (x.ne[1] == 1 || x.ne[1] == ids.ne[0])
                        && x.ne[2] == ids.ne[1],
                )?;
                f32_like(x, [a.ne[1], ids.ne[0], x.ne[2], 1])
            }
            Op::QuantizeQ8 { words } => Shape {
                dtype: DType::I32,
                ne: [*words, 1, 1, 1],
                live: None,
            },
            Op::GetRows => {
                let ids = src[1];
                ensure(ids.dtype == DType::I32)?;
                match a.ne[2] {
                    // A batch of width 1 looks like no batch but for its live dimension.
                    1 if ids.ne[1] == 1 && a.live.is_none_or(|l| l.dim != 2) => Shape {
                        dtype: DType::F32,
                        ne: [a.ne[0], ids.ne[0], 1, 1],
                        live: ids.live.map(|l| Live { dim: 1, ..l }),
                    },
                    n => {
                        ensure(n == ids.ne[1])?;
                        f32_like(a, [a.ne[0], ids.ne[0], n, 1])
                    }
                }
            }
            Op::SetRows => {
                let (x, slots) = (src[1], src[2]);
                ensure(
                    is_f32(x)
                        && slots.dtype == DType::I32
                        && x.ne[0] == a.ne[0]
                        && x.ne[1] == slots.ne[0],
                )?;
                Shape {
                    dtype: a.dtype,
                    ne: a.ne,
                    live: a.live,
                }
            }
            Op::RmsNorm { .. } => {
                ensure(is_f32(a) && src.get(1).is_none_or(|w| w.n_values() == a.ne[0]))?;
                f32_like(a, a.ne)
            }
            Op::Rope(p) => {
                let n_factors = src.get(2).map_or(p.n_rot / 2, |f| f.ne[0]);
                ensure(
                    is_f32(a)
                        && src[1].ne[0] == a.ne[2]
                        && p.n_rot <= a.ne[0]
                        && p.n_rot % 2 == 0
                        && n_factors == p.n_rot / 2,
                )?;
                f32_like(a, a.ne)
            }
            Op::Attn(_, s) => {
                let (k, v, cell_pos) = (src[1], src[2], src[5]);
                ensure(
                    is_f32(a)
                        && a.ne[0] == s.head_dim_k
                        && a.ne[1] == s.n_head
                        && s.n_head_kv > 0
                        && s.n_head % s.n_head_kv == 0
                        && k.ne[0] == s.head_dim_k * s.n_head_kv
                        && v.ne[0] == s.head_dim_v * s.n_head_kv
                        && k.ne[1] == v.ne[1]
                        && cell_pos.ne[0] == k.ne[1]
                        && src[6].ne[0] == k.ne[1]
                        && src[3].ne[0] == a.ne[2]
                        && src[4].ne[0] == a.ne[2],
                )?;
                Shape {
                    dtype: DType::F32,
                    ne: [s.head_dim_v * s.n_head, a.ne[2], 1, 1],
                    live: a.live.map(|l| Live { dim: 1, ..l }),
                }
            }
            Op::Glu(_) => match src.get(1) {
                Some(up) => {
                    ensure(is_f32(a) && a.ne == up.ne)?;
                    f32_like(a, a.ne)
                }
                None => {
                    ensure(is_f32(a) && a.ne[0] % 2 == 0)?;
                    f32_like(a, [a.ne[0] / 2, a.ne[1], a.ne[2], a.ne[3]])
                }
            },
            Op::Add | Op::Mul | Op::Div => {
                let b = src[1];
                ensure(
                    is_f32(a) && is_f32(b) && (0..4).all(|i| b.ne[i] == a.ne[i] || b.ne[i] == 1),
                )?;
                f32_like(a, a.ne)
            }
            Op::Norm { .. }
            | Op::Unary(_)
            | Op::Scale { .. }
            | Op::SoftMax { .. }
            | Op::Cumsum
            | Op::Cont => {
                ensure(is_f32(a))?;
                f32_like(a, a.ne)
            }
            Op::Cpy { dtype } => {
                ensure(is_f32(a) && matches!(dtype, DType::F32 | DType::F16 | DType::BF16))?;
                Shape {
                    dtype: *dtype,
                    ..f32_like(a, a.ne)
                }
            }
            Op::Argmax => {
                ensure(is_f32(a) && a.ne[2] == 1 && a.ne[3] == 1)?;
                Shape {
                    dtype: DType::I32,
                    ne: [a.ne[1], 1, 1, 1],
                    live: a.live.map(|l| Live { dim: 0, ..l }),
                }
            }
            Op::TopK { count } => {
                ensure(is_f32(a) && *count >= 1 && *count <= a.ne[0])?;
                Shape {
                    dtype: DType::I32,
                    ne: [*count, a.ne[1], a.ne[2], a.ne[3]],
                    live: a.live,
                }
            }
            Op::SumRows | Op::Mean => {
                ensure(is_f32(a))?;
                f32_like(a, [1, a.ne[1], a.ne[2], a.ne[3]])
            }
        })
    }
}
