//! Samples of ops that carry a state. Each of `n_seqs` sequences has `n_tokens` tokens
//! and resumes from its own slot.

use crate::backend::check::sample::{Operand, Sample};
use crate::backend::check::shape::ShapeText;
use crate::error::Result;
use crate::graph::{GatedDelta, Op, SsmConv, SsmScan};
use crate::quant::DType;

pub const CONV_FORM: &str = "channels=,n_tokens=,d_conv=4,n_seqs=1; n_tokens of each sequence";
pub const SCAN_FORM: &str = "d_state=,head_dim=,n_head=,n_group=1,n_tokens=1,n_seqs=1; \
                             n_tokens of each sequence; head_dim=1 is Mamba-1";
pub const DELTA_FORM: &str =
    "d_k=,d_v=,n_k_head=,n_v_head=,n_tokens=1,n_seqs=1; n_tokens of each sequence";

/// `ids` and `rows` of sequences that lie one after the other.
fn sequences(n_tokens: usize, n_seqs: usize) -> [Operand; 2] {
    [
        Operand::ints(&[n_seqs], |i| i as i32),
        Operand::ints(&[n_seqs + 1], move |i| (i * n_tokens) as i32),
    ]
}

/// The sample's bytes, with the state, its first cache, also written.
fn with_state_written(sample: Sample) -> Sample {
    let states = sample.operands.iter().filter(|x| x.cache);
    let bytes = sample.bytes + states.map(Operand::bytes).sum::<usize>();
    sample.moving(bytes)
}

pub fn ssm_conv(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [
        ("channels", None),
        ("n_tokens", None),
        ("d_conv", Some(4)),
        ("n_seqs", Some(1)),
    ];
    let [c, n_tokens, d_conv, n_seqs] = shape.numbers("SSM_CONV", CONV_FORM, names)?;
    let [ids, rows] = sequences(n_tokens, n_seqs);
    let operands = vec![
        Operand::f32(&[c, n_tokens.saturating_mul(n_seqs)]),
        Operand::f32(&[d_conv, c]),
        Operand::cache(DType::F32, &[c, d_conv.max(2) - 1, n_seqs]),
        ids,
        rows,
        Operand::f32(&[c]),
    ];
    let op = Op::SsmConv(SsmConv {
        bias: true,
        silu: true,
    });
    Sample::new(op, shape.text(), operands, most).map(with_state_written)
}

pub fn ssm_scan(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [
        ("d_state", None),
        ("head_dim", None),
        ("n_head", None),
        ("n_group", Some(1)),
        ("n_tokens", Some(1)),
        ("n_seqs", Some(1)),
    ];
    let [d_state, head_dim, n_head, n_group, n_tokens, n_seqs] =
        shape.numbers("SSM_SCAN", SCAN_FORM, names)?;
    let n = n_tokens.saturating_mul(n_seqs);
    let [ids, rows] = sequences(n_tokens, n_seqs);
    let a = if head_dim == 1 { d_state } else { 1 };
    let operands = vec![
        Operand::cache(DType::F32, &[d_state, head_dim, n_head, n_seqs]),
        Operand::f32(&[head_dim, n_head, n]),
        Operand::f32(&[n_head, n]),
        // Below zero, as in every model: else states grow without end.
        Operand::between(&[a, n_head], -1.0, -0.01),
        Operand::f32(&[d_state, n_group, n]),
        Operand::f32(&[d_state, n_group, n]),
        ids,
        rows,
    ];
    let sample = Sample::new(
        Op::SsmScan(SsmScan::default()),
        shape.text(),
        operands,
        most,
    )?;
    // Decay, input and output of every value of the state, for each token.
    let flops = [head_dim, n_head, n, 5];
    let flops = flops.into_iter().fold(d_state, usize::saturating_mul);
    Ok(with_state_written(sample).flops(flops))
}

pub fn gated_delta_net(shape: &ShapeText, most: usize) -> Result<Sample> {
    let names = [
        ("d_k", None),
        ("d_v", None),
        ("n_k_head", None),
        ("n_v_head", None),
        ("n_tokens", Some(1)),
        ("n_seqs", Some(1)),
    ];
    let [d_k, d_v, n_k_head, n_v_head, n_tokens, n_seqs] =
        shape.numbers("GATED_DELTA_NET", DELTA_FORM, names)?;
    let n = n_tokens.saturating_mul(n_seqs);
    let [ids, rows] = sequences(n_tokens, n_seqs);
    // About as long as 1, which they are in models: else states grow without end.
    let size = (3.0 / d_k as f32).sqrt();
    let operands = vec![
        Operand::cache(DType::F32, &[d_k, d_v, n_v_head, n_seqs]),
        Operand::between(&[d_k, n_k_head, n], -size, size),
        Operand::between(&[d_k, n_k_head, n], -size, size),
        Operand::f32(&[d_v, n_v_head, n]),
        Operand::between(&[n_v_head, n], -0.5, -0.01),
        Operand::between(&[n_v_head, n], 0.1, 0.9),
        ids,
        rows,
    ];
    let op = Op::GatedDeltaNet(GatedDelta { tiled: false });
    let sample = Sample::new(op, shape.text(), operands, most)?;
    // Decay, prediction, correction and output of every value of the state.
    let flops = [d_v, n_v_head, n, 7];
    let flops = flops.into_iter().fold(d_k, usize::saturating_mul);
    Ok(with_state_written(sample).flops(flops))
}
