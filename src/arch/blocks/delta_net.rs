//! Models that mix gated delta nets (arXiv 2412.06464) with full attention: sizes, the
//! delta net between its projections, and the layers.

use super::ssm::{MOST_TAPS, conv, damaged, rows_of, size};
use super::{Attention, PartOf, Residual, attention, embed, head, linear, residual, rms_norm};
use crate::arch::hparams::{MOST_HEADS, MOST_WIDTH};
use crate::arch::{CacheShape, Hparams, Keys, Recurrent};
use crate::error::Result;
use crate::graph::recurrent::MOST_STATE;
use crate::graph::{
    Builder, CacheId, CacheKind, GatedDelta, GluKind, Input, Op, TensorId, UnaryKind,
};

/// Every fourth layer sees everything, unless the file says otherwise.
const PERIOD: usize = 4;

/// Reads the sizes of the recurrent layers into `hp`.
///
/// # Errors
/// A key is missing, or is no size that a model can have.
pub fn read(keys: &Keys<'_>, hp: &mut Hparams) -> Result<()> {
    let n_inner = size(keys, "ssm.inner_size", 1, MOST_WIDTH)?;
    let n_v_head = size(keys, "ssm.time_step_rank", 1, MOST_HEADS)?;
    let n_k_head = size(keys, "ssm.group_count", 1, MOST_HEADS)?;
    let d_k = size(keys, "ssm.state_size", 1, MOST_STATE)?;
    if !n_inner.is_multiple_of(n_v_head) || !n_v_head.is_multiple_of(n_k_head) {
        let sizes = format!("{n_inner} values, {n_v_head} V heads and {n_k_head} K heads");
        return Err(damaged(keys, format!("ssm: {sizes} do not divide")));
    }
    let recurrent = Recurrent {
        d_conv: size(keys, "ssm.conv_kernel", 2, MOST_TAPS)?,
        n_channels: 2 * d_k * n_k_head + n_inner,
        d_state: d_k,
        head_dim: n_inner / n_v_head,
        n_head: n_v_head,
    };
    // A number above the layers is allowed: all are recurrent then.
    let period = keys.size_or("full_attention_interval", MOST_WIDTH, PERIOD)?;
    for il in (0..hp.n_layer).filter(|il| (il + 1) % period != 0) {
        hp.recurrent[il] = Some(recurrent);
        // Such a layer keeps no K and V.
        hp.n_head_kv[il] = 0;
    }
    if (0..hp.n_layer).any(|il| hp.recurrent[il].is_none() && hp.n_head_kv[il] == 0) {
        return Err(damaged(
            keys,
            "attention.head_count_kv is 0 where attention is".to_string(),
        ));
    }
    Ok(())
}

/// Shape of the delta nets' heads.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    pub d_k: usize,
    pub d_v: usize,
    pub n_k: usize,
    pub n_v: usize,
}

impl Heads {
    /// As [`read`] left them.
    pub fn of(r: &Recurrent) -> Heads {
        let n_qk = r.n_channels - r.head_dim * r.n_head;
        Heads {
            d_k: r.d_state,
            d_v: r.head_dim,
            n_k: n_qk / (2 * r.d_state),
            n_v: r.n_head,
        }
    }

    /// Values of Q, or of K, of a token.
    pub fn n_qk(&self) -> usize {
        self.d_k * self.n_k
    }

    /// Values of V of a token.
    pub fn n_inner(&self) -> usize {
        self.d_v * self.n_v
    }
}

/// What a layer's projections give.
#[derive(Debug, Clone, Copy)]
pub struct Projected {
    /// Q, K and V, `[2 * d_k * n_k + d_v * n_v, n]`.
    pub qkv: TensorId,
    /// The output's gate, `[d_v, n_v, n]`.
    pub z: TensorId,
    /// Before the sigmoid, `[n_v, n]`.
    pub beta: TensorId,
    /// Before bias and softplus, `[n_v, n]`.
    pub alpha: TensorId,
}

/// The delta net of layer `il` from its projections to `ssm_out`; `tiled` as
/// [`GatedDelta`] has it.
pub fn delta_net(
    g: &mut Builder<'_>,
    hp: &Hparams,
    cache: &CacheShape,
    il: usize,
    r: &Recurrent,
    x: &Projected,
    tiled: bool,
) -> Result<TensorId> {
    let n = g.width.n_tokens;
    let heads = Heads::of(r);
    let name = |part: &str| format!("blk.{il}.{part}");
    let qkv = conv(g, r, cache, il, x.qkv)?;
    let unit = Op::L2Norm { eps: hp.norm_eps };
    let q = rows_of(g, qkv, 0, [heads.d_k, heads.n_k])?;
    let q = g.op(unit, &[q])?;
    let k = rows_of(g, qkv, heads.n_qk(), [heads.d_k, heads.n_k])?;
    let k = g.op(unit, &[k])?;
    let v = rows_of(g, qkv, 2 * heads.n_qk(), [heads.d_v, heads.n_v])?;

    let beta = g.unary(UnaryKind::Sigmoid, x.beta)?;
    let bias = g.weight(&name("ssm_dt.bias"), &[heads.n_v])?;
    let a = g.weight(&name("ssm_a"), &[heads.n_v])?;
    let decay = g.add(x.alpha, bias)?;
    let decay = g.unary(UnaryKind::Softplus, decay)?;
    let decay = g.mul(decay, a)?;

    let state = [r.d_state, r.head_dim, r.n_head, cache.n_slots];
    let state = g.states(CacheId::of(il, CacheKind::State), &state)?;
    let ids = g.input(Input::StateSlots, 0);
    let rows = g.input(Input::SeqRows, 0);
    let op = Op::GatedDeltaNet(GatedDelta { tiled });
    let y = g.op(op, &[state, q, k, v, decay, beta, ids, rows])?;
    let y = g.name(y, "delta_net", Some(il));
    let y = rms_norm(g, y, &name("ssm_norm.weight"), hp.norm_eps)?;
    let y = g.glu(GluKind::Swiglu, x.z, y)?;
    let y = g.reshape(y, &[heads.n_inner(), n])?;
    let out = linear(g, y, &name("ssm_out"), hp.n_embd)?;
    Ok(g.name(out, "delta_out", Some(il)))
}

/// Q, K and V, and the gate, from weights of their own: `attn_qkv`, `attn_gate`.
pub fn project_qkv_z(
    g: &mut Builder<'_>,
    il: usize,
    heads: &Heads,
    x: TensorId,
) -> Result<[TensorId; 2]> {
    let n_qkv = 2 * heads.n_qk() + heads.n_inner();
    let qkv = linear(g, x, &format!("blk.{il}.attn_qkv"), n_qkv)?;
    let z = linear(g, x, &format!("blk.{il}.attn_gate"), heads.n_inner())?;
    let z = g.split_rows(z, [heads.d_v, heads.n_v])?;
    Ok([qkv, z])
}

/// The mixer of a recurrent layer.
pub type Mixer<'f> = &'f dyn Fn(&mut Builder<'_>, usize, &Recurrent, TensorId) -> Result<TensorId>;

/// The whole graph: recurrent layers by `mixer`, the others by attention whose output
/// is gated.
pub fn graph(
    g: &mut Builder<'_>,
    hp: &Hparams,
    cache: &CacheShape,
    mixer: Mixer<'_>,
    ffn: PartOf<'_>,
) -> Result<TensorId> {
    let spec = Attention {
        qk_norm: true,
        output_gate: true,
        ..Attention::plain(hp)
    };
    let mut x = embed(g, hp)?;
    for il in 0..hp.n_layer {
        let around = |norm, select| Residual {
            norm,
            scale: None,
            select,
        };
        let mixer = |g: &mut Builder<'_>, h| match &hp.recurrent[il] {
            Some(r) => mixer(g, il, r, h),
            None => attention(g, hp, cache, il, h, &spec),
        };
        let last = il + 1 == hp.n_layer;
        x = residual(g, hp, il, x, around("attn_norm", last), &mixer)?;
        let ffn = |g: &mut Builder<'_>, h| ffn(g, il, h);
        x = residual(g, hp, il, x, around("post_attention_norm", false), &ffn)?;
        x = g.name(x, "l_out", Some(il));
    }
    head(g, hp, x, None)
}
