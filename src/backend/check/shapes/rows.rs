//! Samples of ops over values and rows.

use crate::backend::check::sample::{Operand, Sample};
use crate::backend::check::shape::ShapeText;
use crate::error::Result;
use crate::graph::{GluKind, Op, RopeMode, RopeParams, UnaryKind};
use crate::quant::DType;

pub const FORM: &str = "k,rows (one to four numbers)";
pub const UNARY_FORM: &str = "[silu:|gelu:|softplus:|...]k,n=1";
pub const TOP_K_FORM: &str = "k,rows,count";
pub const GET_FORM: &str = "[type:]k,rows,n";
pub const SET_FORM: &str = "[f16:|f32:|bf16:]k,n";
pub const ROPE_FORM: &str = "[neox:|norm:]head_dim,n_head,n";

/// An op over one operand, or over `n` of the same shape.
fn same(op: Op, n: usize, shape: &ShapeText, most: usize) -> Result<Sample> {
    let ne = shape.tensor(op.name(), FORM)?;
    Sample::new(op, shape.text(), vec![Operand::f32(&ne); n], most)
}

pub fn add(shape: &ShapeText, most: usize) -> Result<Sample> {
    same(Op::Add, 2, shape, most)
}

pub fn mul(shape: &ShapeText, most: usize) -> Result<Sample> {
    same(Op::Mul, 2, shape, most)
}

pub fn div(shape: &ShapeText, most: usize) -> Result<Sample> {
    let ne = shape.tensor("DIV", FORM)?;
    // A divisor near zero makes one quotient outweigh all others.
    let operands = vec![Operand::f32(&ne), Operand::between(&ne, 0.5, 1.5)];
    Sample::new(Op::Div, shape.text(), operands, most)
}

pub fn scale(shape: &ShapeText, most: usize) -> Result<Sample> {
    let op = Op::Scale {
        scale: -1.7,
        bias: 0.3,
    };
    same(op, 1, shape, most)
}

pub fn unary(shape: &ShapeText, most: usize) -> Result<Sample> {
    let kinds = [
        UnaryKind::Silu,
        UnaryKind::Gelu,
        UnaryKind::GeluQuick,
        UnaryKind::GeluErf,
        UnaryKind::Relu,
        UnaryKind::ReluSqr,
        UnaryKind::Sigmoid,
        UnaryKind::Tanh,
        UnaryKind::Softplus,
        UnaryKind::Exp,
    ];
    let kind = shape.kind("UNARY", &kinds.map(|k| (format!("{k:?}"), k)))?;
    let [k, n] = shape.numbers("UNARY", UNARY_FORM, [("k", None), ("n", Some(1))])?;
    Sample::new(
        Op::Unary(kind),
        shape.text(),
        vec![Operand::f32(&[k, n])],
        most,
    )
}

pub fn concat(shape: &ShapeText, most: usize) -> Result<Sample> {
    same(Op::Concat, 2, shape, most)
}

pub fn glu(shape: &ShapeText, most: usize) -> Result<Sample> {
    same(Op::Glu(GluKind::Swiglu), 2, shape, most)
}

pub fn rms_norm(shape: &ShapeText, most: usize) -> Result<Sample> {
    let ne = shape.tensor("RMS_NORM", FORM)?;
    let operands = vec![Operand::f32(&ne), Operand::f32(&ne[..1])];
    Sample::new(Op::RmsNorm { eps: 1e-6 }, shape.text(), operands, most)
}

pub fn norm(shape: &ShapeText, most: usize) -> Result<Sample> {
    same(Op::Norm { eps: 1e-6 }, 1, shape, most)
}

pub fn l2_norm(shape: &ShapeText, most: usize) -> Result<Sample> {
    same(Op::L2Norm { eps: 1e-6 }, 1, shape, most)
}

pub fn soft_max(shape: &ShapeText, most: usize) -> Result<Sample> {
    same(Op::SoftMax { scale: 0.125 }, 1, shape, most)
}

pub fn argmax(shape: &ShapeText, most: usize) -> Result<Sample> {
    same(Op::Argmax, 1, shape, most)
}

pub fn top_k(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [("k", None), ("rows", Some(1)), ("count", Some(1))];
    let [k, rows, count] = shape.numbers("TOP_K", TOP_K_FORM, names)?;
    Sample::new(
        Op::TopK { count },
        shape.text(),
        vec![Operand::f32(&[k, rows])],
        most,
    )
}

/// Sums of values apart from zero: else the sum is what its terms leave over.
fn summed(op: Op, shape: &ShapeText, most: usize) -> Result<Sample> {
    let ne = shape.tensor(op.name(), FORM)?;
    Sample::new(
        op,
        shape.text(),
        vec![Operand::between(&ne, -0.7, 1.3)],
        most,
    )
}

pub fn sum_rows(shape: &ShapeText, most: usize) -> Result<Sample> {
    summed(Op::SumRows, shape, most)
}

pub fn mean(shape: &ShapeText, most: usize) -> Result<Sample> {
    summed(Op::Mean, shape, most)
}

pub fn sum(shape: &ShapeText, most: usize) -> Result<Sample> {
    summed(Op::Sum, shape, most)
}

pub fn cumsum(shape: &ShapeText, most: usize) -> Result<Sample> {
    summed(Op::Cumsum, shape, most)
}

pub fn cont(shape: &ShapeText, most: usize) -> Result<Sample> {
    same(Op::Cont, 1, shape, most)
}

pub fn get_rows(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [("k", None), ("rows", None), ("n", Some(1))];
    let [k, rows, n] = shape.numbers("GET_ROWS", GET_FORM, names)?;
    let dtype = shape.weight_type("GET_ROWS", k)?;
    // Far apart, as tokens of a text are.
    let id = move |i: usize| (i.wrapping_mul(7919) % rows) as i32;
    let operands = vec![Operand::weight(dtype, &[k, rows]), Operand::ints(&[n], id)];
    let sample = Sample::new(Op::GetRows, shape.text(), operands, most)?;
    let row_bytes = k / dtype.block_len() * dtype.block_bytes();
    let bytes = n * (row_bytes + 4) + sample.result_bytes;
    Ok(sample.moving(bytes))
}

pub fn set_rows(shape: &ShapeText, most: usize) -> Result<Sample> {
    let types = [DType::F16, DType::F32, DType::BF16];
    let dtype = shape.kind("SET_ROWS", &types.map(|d| (d.name().to_string(), d)))?;
    let [k, n] = shape.numbers("SET_ROWS", SET_FORM, [("k", None), ("n", Some(1))])?;
    let operands = vec![
        Operand::cache(dtype, &[k, n]),
        Operand::f32(&[k, n]),
        Operand::ints(&[n], |i| i as i32),
    ];
    // The cache is written, not read; values near the middle between two of 16 bits
    // may go to the other one.
    Ok(Sample::new(Op::SetRows, shape.text(), operands, most)?.nmse(1e-7))
}

pub fn rope(shape: &ShapeText, most: usize) -> Result<Sample> {
    let modes = [("neox", RopeMode::Neox), ("norm", RopeMode::Norm)];
    let mode = shape.kind("ROPE", &modes.map(|(name, mode)| (name.to_string(), mode)))?;
    let names = [("head_dim", None), ("n_head", None), ("n", Some(1))];
    let [head_dim, n_head, n] = shape.numbers("ROPE", ROPE_FORM, names)?;
    let params = RopeParams {
        mode,
        n_rot: head_dim,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        n_ctx_orig: 4096,
    };
    let operands = vec![
        Operand::f32(&[head_dim, n_head, n]),
        Operand::ints(&[n], |i| i as i32),
    ];
    Sample::new(Op::Rope(params), shape.text(), operands, most)
}
