//! Every op: what it takes, and how `--shape` becomes a [`Sample`] of it.

mod products;
mod rows;
mod states;

use super::compare::within;
use super::sample::Sample;
use super::shape::ShapeText;
use crate::error::{Error, Result};

/// Makes a sample of at most so many bytes.
type Make = fn(&ShapeText, usize) -> Result<Sample>;

/// An op by ggml's name.
pub struct OpRow {
    pub name: &'static str,
    /// Operands and result in a line; `n` is tokens.
    pub takes: &'static str,
    /// What `--shape` takes; empty where there is no `make`.
    pub form: &'static str,
    make: Option<Make>,
}

const fn row(name: &'static str, takes: &'static str, form: &'static str, make: Make) -> OpRow {
    OpRow {
        name,
        takes,
        form,
        make: Some(make),
    }
}

/// An op that only fusion or lowering makes; it is part of what another sample runs.
const fn inner(name: &'static str, takes: &'static str) -> OpRow {
    OpRow {
        name,
        takes,
        form: "",
        make: None,
    }
}

/// All ops.
pub const OPS: &[OpRow] = &[
    row("ADD", "a [..], b [.. or 1] -> a + b", rows::FORM, rows::add),
    row("MUL", "a [..], b [.. or 1] -> a * b", rows::FORM, rows::mul),
    row("DIV", "a [..], b [.. or 1] -> a / b", rows::FORM, rows::div),
    row(
        "SCALE",
        "x [..] -> x * scale + bias",
        rows::FORM,
        rows::scale,
    ),
    row(
        "UNARY",
        "x [..] -> f(x), f one of silu, gelu, exp, ...",
        rows::UNARY_FORM,
        rows::unary,
    ),
    row(
        "GLU",
        "gate [k, n], up [k, n] -> act(gate) * up",
        rows::FORM,
        rows::glu,
    ),
    row(
        "RMS_NORM",
        "x [k, ..] (, weight [k]) -> x / rms(x) (* weight)",
        rows::FORM,
        rows::rms_norm,
    ),
    row(
        "NORM",
        "x [k, ..] -> (x - mean) / deviation",
        rows::FORM,
        rows::norm,
    ),
    row(
        "L2_NORM",
        "x [k, ..] -> x / length",
        rows::FORM,
        rows::l2_norm,
    ),
    row(
        "SOFT_MAX",
        "x [k, ..] -> softmax over k",
        rows::FORM,
        rows::soft_max,
    ),
    row(
        "ARGMAX",
        "x [k, rows] -> index of the largest [rows]",
        rows::FORM,
        rows::argmax,
    ),
    row(
        "TOP_K",
        "x [k, rows] -> indices [count, rows]",
        rows::TOP_K_FORM,
        rows::top_k,
    ),
    row(
        "SUM_ROWS",
        "x [k, ..] -> [1, ..]",
        rows::FORM,
        rows::sum_rows,
    ),
    row("SUM", "x [..] -> [1]", rows::FORM, rows::sum),
    row("MEAN", "x [k, ..] -> [1, ..]", rows::FORM, rows::mean),
    row(
        "CUMSUM",
        "x [k, ..] -> running sum over k",
        rows::FORM,
        rows::cumsum,
    ),
    row(
        "CONT",
        "view [..] -> contiguous copy",
        rows::FORM,
        rows::cont,
    ),
    row(
        "CONCAT",
        "a, b [k, ..] -> [2 k, ..]",
        rows::FORM,
        rows::concat,
    ),
    inner("CPY", "x [..] -> the same as F32, F16 or BF16"),
    row(
        "GET_ROWS",
        "table [k, rows], ids [n] -> [k, n]",
        rows::GET_FORM,
        rows::get_rows,
    ),
    row(
        "SET_ROWS",
        "cache [k, cells], x [k, n], slots [n] -> the cache",
        rows::SET_FORM,
        rows::set_rows,
    ),
    row(
        "ROPE",
        "x [head_dim, n_head, n], pos [n] -> rotated",
        rows::ROPE_FORM,
        rows::rope,
    ),
    inner(
        "HEAD_ROWS",
        "norm, ROPE and SET_ROWS of heads in one (CUDA)",
    ),
    row(
        "MUL_MAT",
        "w [k, m], x [k, n] -> [m, n]",
        products::MUL_MAT_FORM,
        products::mul_mat,
    ),
    row(
        "MUL_MAT_ID",
        "w [k, m, n_expert], x [k, 1, n], ids [n_used, n] -> [m, n_used, n]",
        products::ID_FORM,
        products::mul_mat_id,
    ),
    inner("MUL_MAT_ADD", "MUL_MAT and ADD in one (CUDA)"),
    inner("MUL_MAT_GLU", "two MUL_MAT and GLU in one (CUDA)"),
    inner("MUL_MAT_NORM", "RMS_NORM and MUL_MAT in one (CUDA)"),
    inner("MUL_MAT_ID_GLU", "two MUL_MAT_ID and GLU in one (CUDA)"),
    inner("MUL_MAT_ID_NORM", "RMS_NORM and MUL_MAT_ID in one (CUDA)"),
    inner("QUANTIZE_Q8", "x [k, n] -> 8-bit rows for products (CPU)"),
    inner("QUANTIZE_Q16", "x [k, n] -> 16-bit rows for products (CPU)"),
    inner("PACK_F16", "x [k, n] -> F16 for products (CUDA)"),
    row(
        "MOE_ROUTE",
        "logits [n_expert, n] -> ids and weights [2 n_used, n]",
        products::ROUTE_FORM,
        products::moe_route,
    ),
    row(
        "MOE_SUM",
        "y [m, n_used, n], weights [1, n_used, n] -> [m, n]",
        products::SUM_FORM,
        products::moe_sum,
    ),
    row(
        "ATTN",
        "q [head_dim, n_head, n], K and V cache -> [head_dim * n_head, n]",
        products::ATTN_FORM,
        products::attn,
    ),
    row(
        "SSM_CONV",
        "x [c, n], w [d_conv, c], state -> [c, n]",
        states::CONV_FORM,
        states::ssm_conv,
    ),
    row(
        "SSM_SCAN",
        "state, x [head_dim, n_head, n], dt, a, b, c -> x's shape",
        states::SCAN_FORM,
        states::ssm_scan,
    ),
    row(
        "GATED_DELTA_NET",
        "state, q, k [d_k, n_k_head, n], v [d_v, n_v_head, n], g, beta -> v's shape",
        states::DELTA_FORM,
        states::gated_delta_net,
    ),
];

/// Names of ggml whose work another op does here, and how to ask for that.
const PARTS: &[(&str, &str)] = &[
    ("SILU", "-o UNARY --shape silu:4096,512"),
    ("SIGMOID", "-o UNARY --shape sigmoid:4096,512"),
    ("SOFTPLUS", "-o UNARY --shape softplus:4096,512"),
    ("EXP", "-o UNARY --shape exp:4096,512"),
    ("SWIGLU", "-o GLU"),
    ("GEGLU", "-o GLU"),
    ("TRI", "-o GATED_DELTA_NET"),
    ("SOLVE_TRI", "-o GATED_DELTA_NET"),
    ("FLASH_ATTN_EXT", "-o ATTN"),
];

/// The row of an op; names are taken in any case.
///
/// # Errors
/// There is no such op: the list.
pub fn find(name: &str) -> Result<&'static OpRow> {
    let found = OPS.iter().find(|op| op.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        let part = PARTS.iter().find(|p| p.0.eq_ignore_ascii_case(name));
        if let Some((name, whole)) = part {
            return Error::input(format!("{name} is part of another op; give {whole}"));
        }
        let names: Vec<_> = OPS.iter().map(|op| op.name).collect();
        Error::input(format!("no op {name:?}; there are {}", names.join(", ")))
    })
}

impl OpRow {
    /// The op at a shape, whose operands and result take at most `most_bytes`.
    ///
    /// # Errors
    /// The shape is not one of the op, or too large.
    pub fn sample(&self, shape: &str, most_bytes: usize) -> Result<Sample> {
        let Some(make) = self.make else {
            return Err(self.within_others());
        };
        let read = ShapeText::parse(shape).map_err(within(self.name.to_string()))?;
        make(&read, most_bytes).map_err(|error| match error {
            Error::Shape { .. } => Error::input(format!(
                "{}: the sizes of shape {shape:?} do not go together; its operands are {}, \
                 --shape {}",
                self.name, self.takes, self.form
            )),
            error => error,
        })
    }

    /// Why this op takes no shape, where it takes none.
    ///
    /// # Errors
    /// It only occurs within other ops.
    pub fn need_shape(&self) -> Result<()> {
        match self.make {
            Some(_) => Ok(()),
            None => Err(self.within_others()),
        }
    }

    fn within_others(&self) -> Error {
        Error::input(format!(
            "{} only occurs among other ops and has no shape of its own; choose an op for which \
             `llama-rs ops list` shows one",
            self.name
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::check::cases;
    use std::collections::BTreeSet;

    #[test]
    fn every_op_of_the_cases_has_a_row() {
        let names: BTreeSet<_> = OPS.iter().map(|op| op.name).collect();
        assert_eq!(names.len(), OPS.len(), "an op is there twice");
        for case in cases::all() {
            assert!(names.contains(case.op()), "{} has no row", case.op());
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused_before_there_is_memory() {
        const MOST: usize = 1 << 20;
        let big = 1 << 28;
        for op in OPS.iter().filter(|op| op.make.is_some()) {
            for n in 1..8 {
                let shape = vec![big.to_string(); n].join(",");
                let made = op.sample(&shape, MOST);
                assert!(made.is_err(), "{} takes {shape}", op.name);
            }
        }
        let error = find("CUMSUM").and_then(|op| op.sample("1000000,16", MOST));
        let error = error.err().expect("too large");
        assert_eq!(error.exit_code(), 3);
        assert!(
            find("FROB")
                .err()
                .expect("none")
                .to_string()
                .contains("MUL_MAT")
        );
        let inner = find("HEAD_ROWS").expect("a row");
        assert!(inner.sample("1", MOST).is_err() && inner.need_shape().is_err());
        let told = |op: &str, shape: &str| {
            let made = find(op).and_then(|op| op.sample(shape, MOST));
            made.err().expect("refused").to_string()
        };
        let error = told("SSM_SCAN", "d_state=16,head_dim=64,n_head=8,n_group=3");
        assert!(error.contains("do not go together") && error.contains("n_group="));
        assert!(told("SOFTPLUS", "1").contains("UNARY"));
    }
}
