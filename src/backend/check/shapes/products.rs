//! Samples of products, experts and attention.

use crate::backend::check::sample::{Operand, Sample};
use crate::backend::check::shape::ShapeText;
use crate::error::{Error, Result};
use crate::graph::op::AttnShape;
use crate::graph::{AttnParams, Op};
use crate::quant::DType;

pub const MUL_MAT_FORM: &str = "[type:]k,m,n";
pub const ID_FORM: &str = "[type:]k,m,n_expert,n_used,n";
pub const ROUTE_FORM: &str = "n_expert,n_used,n";
pub const SUM_FORM: &str = "m,n_used,n";
pub const ATTN_FORM: &str = "head_dim=,n_head=,n_head_kv=,n_kv=,n=, n of n_kv cells are new";

/// Multiplications and additions of `[k, m]` times `[k, n]`.
fn product_flops(k: usize, m: usize, n: usize) -> usize {
    k.saturating_mul(m).saturating_mul(n).saturating_mul(2)
}

pub fn mul_mat(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [("k", None), ("m", None), ("n", Some(1))];
    let [k, m, n] = shape.numbers("MUL_MAT", MUL_MAT_FORM, names)?;
    let dtype = shape.weight_type("MUL_MAT", k)?;
    let operands = vec![Operand::weight(dtype, &[k, m]), Operand::f32(&[k, n])];
    let sample = Sample::new(Op::MulMat, shape.text(), operands, most)?;
    Ok(sample.flops(product_flops(k, m, n)).rounded(dtype))
}

pub fn mul_mat_id(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [
        ("k", None),
        ("m", None),
        ("n_expert", None),
        ("n_used", None),
        ("n", Some(1)),
    ];
    let [k, m, n_expert, n_used, n] = shape.numbers("MUL_MAT_ID", ID_FORM, names)?;
    let dtype = shape.weight_type("MUL_MAT_ID", k)?;
    if n_used > n_expert {
        return Err(Error::input(format!(
            "MUL_MAT_ID: shape {:?}: {n_used} of {n_expert} experts; use fewer",
            shape.text()
        )));
    }
    // Each token its own experts, all different.
    let id = move |i: usize| ((i / n_used * 13 + i % n_used) % n_expert) as i32;
    let operands = vec![
        Operand::weight(dtype, &[k, m, n_expert]),
        Operand::f32(&[k, 1, n]),
        Operand::ints(&[n_used, n], id),
    ];
    let matrix = operands[0].bytes() / n_expert;
    let sample = Sample::new(Op::MulMatId, shape.text(), operands, most)?;
    let products = n_used.saturating_mul(n);
    // Experts are counted up to as many as there are products; tokens may share some.
    let unread = n_expert.saturating_sub(products) * matrix;
    let bytes = sample.bytes - unread;
    let flops = product_flops(k, m, products);
    Ok(sample.moving(bytes).flops(flops).rounded(dtype))
}

pub fn moe_route(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [("n_expert", None), ("n_used", None), ("n", Some(1))];
    let [n_expert, n_used, n] = shape.numbers("MOE_ROUTE", ROUTE_FORM, names)?;
    let op = Op::MoeRoute { n_used, norm: true };
    Sample::new(op, shape.text(), vec![Operand::f32(&[n_expert, n])], most)
}

pub fn moe_sum(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [("m", None), ("n_used", None), ("n", Some(1))];
    let [m, n_used, n] = shape.numbers("MOE_SUM", SUM_FORM, names)?;
    let operands = vec![Operand::f32(&[m, n_used, n]), Operand::f32(&[1, n_used, n])];
    Sample::new(Op::MoeSum, shape.text(), operands, most)
}

/// Causal attention of the last `n` of `n_kv` tokens over F16 caches.
pub fn attn(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [
        ("head_dim", None),
        ("n_head", None),
        ("n_head_kv", None),
        ("n_kv", None),
        ("n", Some(1)),
    ];
    let [head_dim, n_head, n_head_kv, n_kv, n] = shape.numbers("ATTN", ATTN_FORM, names)?;
    if n > n_kv || !n_head.is_multiple_of(n_head_kv) {
        return Err(Error::input(format!(
            "ATTN: shape {:?}: n is at most n_kv, and n_head a multiple of n_head_kv",
            shape.text()
        )));
    }
    let params = AttnParams {
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap: None,
        window: None,
        swa: false,
        temperature: None,
    };
    let heads = AttnShape {
        head_dim_k: head_dim,
        head_dim_v: head_dim,
        n_head,
        n_head_kv,
    };
    let row = head_dim.saturating_mul(n_head_kv);
    let operands = vec![
        Operand::f32(&[head_dim, n_head, n]),
        Operand::cache(DType::F16, &[row, n_kv]),
        Operand::cache(DType::F16, &[row, n_kv]),
        Operand::ints(&[n], move |i| (n_kv - n + i) as i32),
        Operand::ints(&[n], |_| 0),
        Operand::ints(&[n_kv], |i| i as i32),
        Operand::ints(&[n_kv], |_| 0),
    ];
    let sample = Sample::new(Op::Attn(params, heads), shape.text(), operands, most)?;
    // Pairs of a token and a cell that it sees, times the products of q K and p V.
    let pairs = n * (n_kv - n) + n * (n + 1) / 2;
    let flops = product_flops(head_dim * n_head, 2, pairs);
    // The weights of cells pass through F16 once (see `cases/attn.rs`).
    Ok(sample.flops(flops).nmse(1e-7))
}
