//! Mixtures of experts.

use super::linear;
use crate::arch::Hparams;
use crate::error::Result;
use crate::graph::{Builder, GluKind, Op, TensorId, UnaryKind};

/// `{name}_exps` of the chosen experts: `x [k, 1 | n_used, n] -> [m, n_used, n]`.
fn experts(
    g: &mut Builder<'_>,
    hp: &Hparams,
    name: &str,
    x: TensorId,
    ids: TensorId,
    m: usize,
) -> Result<TensorId> {
    let k = g.graph.get(x).ne[0];
    let w = g.weight(&format!("{name}_exps.weight"), &[k, m, hp.n_expert])?;
    g.op(Op::MulMatId, &[w, x, ids])
}

/// Mixture of experts: softmax over all, the best `n_expert_used`, their
/// weights scaled to sum 1 (`norm_weights`), SwiGLU in each. A file may have gate and up
/// in one, `ffn_gate_up_exps`.
pub fn moe(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
    n_ff: usize,
    norm_weights: bool,
) -> Result<TensorId> {
    let (n, ffn) = (g.graph.get(x).ne[1], format!("blk.{il}.ffn"));
    let logits = linear(g, x, &format!("{ffn}_gate_inp"), hp.n_expert)?;
    let [ids, weights] = g.moe_route(logits, hp.n_expert_used, norm_weights)?;
    let ids = g.name(ids, "moe_ids", Some(il));
    let x = g.reshape(x, &[hp.n_embd, 1, n])?;
    let fused = format!("{ffn}_gate_up_exps.weight");
    let fused = g.weight_opt(&fused, &[hp.n_embd, 2 * n_ff, hp.n_expert])?;
    let h = if fused.is_some() {
        let both = experts(g, hp, &format!("{ffn}_gate_up"), x, ids, 2 * n_ff)?;
        g.op(Op::Glu(GluKind::Swiglu), &[both])?
    } else {
        let gate = experts(g, hp, &format!("{ffn}_gate"), x, ids, n_ff)?;
        let up = experts(g, hp, &format!("{ffn}_up"), x, ids, n_ff)?;
        g.glu(GluKind::Swiglu, gate, up)?
    };
    let y = experts(g, hp, &format!("{ffn}_down"), h, ids, hp.n_embd)?;
    let out = g.op(Op::MoeSum, &[y, weights])?;
    Ok(g.name(out, "ffn_moe_out", Some(il)))
}

/// The expert that every token uses, with SwiGLU.
pub fn shared_expert(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
    n_ff: usize,
) -> Result<TensorId> {
    let gate = linear(g, x, &format!("blk.{il}.ffn_gate_shexp"), n_ff)?;
    let up = linear(g, x, &format!("blk.{il}.ffn_up_shexp"), n_ff)?;
    let h = g.glu(GluKind::Swiglu, gate, up)?;
    let out = linear(g, h, &format!("blk.{il}.ffn_down_shexp"), hp.n_embd)?;
    Ok(g.name(out, "ffn_shexp", Some(il)))
}

/// [`shared_expert`] times the sigmoid of a gate of its own.
pub fn gated_shared_expert(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
    n_ff: usize,
) -> Result<TensorId> {
    let y = shared_expert(g, hp, il, x, n_ff)?;
    let share = linear(g, x, &format!("blk.{il}.ffn_gate_inp_shexp"), 1)?;
    let share = g.unary(UnaryKind::Sigmoid, share)?;
    g.mul(y, share)
}

/// How scores become the weights of the chosen experts.
#[derive(Debug, Clone, Copy)]
pub struct Weights {
    /// Scaled to sum 1.
    pub norm: bool,
    /// Then times this.
    pub scale: f32,
}

/// Experts of each token by sigmoid scores, to which `exp_probs_b` is added for the
/// choice alone (arXiv 2408.15664): ids `[n_used, n]`, weights `[1, n_used, n]`.
fn sigmoid_route(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
    weights: Weights,
) -> Result<[TensorId; 2]> {
    let (n, n_expert, n_used) = (g.graph.get(x).ne[1], hp.n_expert, hp.n_expert_used);
    let logits = linear(g, x, &format!("blk.{il}.ffn_gate_inp"), n_expert)?;
    let scores = g.unary(UnaryKind::Sigmoid, logits)?;
    let choice = match g.weight_opt(&format!("blk.{il}.exp_probs_b.bias"), &[n_expert])? {
        Some(bias) => g.add(scores, bias)?,
        None => scores,
    };
    let ids = g.op(Op::TopK { count: n_used }, &[choice])?;
    let ids = g.name(ids, "moe_ids", Some(il));
    // Rows of one value: GET_ROWS picks each token's own.
    let scores = g.reshape(scores, &[1, n_expert, n])?;
    let chosen = g.op(Op::GetRows, &[scores, ids])?;
    let mut chosen = g.reshape(chosen, &[n_used, n])?;
    if weights.norm {
        let sum = g.op(Op::SumRows, &[chosen])?;
        chosen = g.op(Op::Div, &[chosen, sum])?;
    }
    if weights.scale != 1.0 {
        chosen = g.scale(chosen, weights.scale)?;
    }
    let chosen = g.reshape(chosen, &[1, n_used, n])?;
    Ok([ids, g.name(chosen, "moe_weights", Some(il))])
}

/// Mixture of experts by sigmoid scores, each `down(max(up x, 0)^2)`.
pub fn moe_relu_sqr(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
    weights: Weights,
) -> Result<TensorId> {
    let (n, ffn) = (g.graph.get(x).ne[1], format!("blk.{il}.ffn"));
    let [ids, weights] = sigmoid_route(g, hp, il, x, weights)?;
    let x = g.reshape(x, &[hp.n_embd, 1, n])?;
    let up = experts(g, hp, &format!("{ffn}_up"), x, ids, hp.n_ff_expert)?;
    let h = g.unary(UnaryKind::ReluSqr, up)?;
    let y = experts(g, hp, &format!("{ffn}_down"), h, ids, hp.n_embd)?;
    let out = g.op(Op::MoeSum, &[y, weights])?;
    Ok(g.name(out, "ffn_moe_out", Some(il)))
}
