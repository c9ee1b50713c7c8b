//! Models that mix gated delta nets (arXiv 2412.06464) with full attention: sizes, the
//! delta net between its projections, and the layers.

use super::{Attention, Ffn, add_ffn, attention, embed, head, linear, rms_norm, select_outputs};
use crate::arch::{CacheShape, Hparams, Keys, Recurrent};
use crate::error::{Error, Result};
use crate::graph::recurrent::MOST_STATE;
use crate::graph::{
    Builder, CacheId, CacheKind, GatedDelta, GluKind, Input, Op, SsmConv, TensorId, UnaryKind,
};

/// Every fourth layer sees everything, unless the file says otherwise.
const PERIOD: usize = 4;
/// Bounds that no model comes near.
const MOST_INNER: usize = 1 << 20;
const MOST_HEADS: usize = 4096;
const MOST_TAPS: usize = 64;

/// Reads the sizes of the recurrent layers into `hp`.
///
/// # Errors
/// A key is missing, or heads do not share the widths evenly.
pub fn read(keys: &Keys<'_>, hp: &mut Hparams) -> Result<()> {
    let n_inner = keys.size("ssm.inner_size", MOST_INNER)?;
    let n_v_head = keys.size("ssm.time_step_rank", MOST_HEADS)?;
    let n_k_head = keys.size("ssm.group_count", MOST_HEADS)?;
    let d_k = keys.size("ssm.state_size", MOST_STATE)?;
    let d_conv = keys.size("ssm.conv_kernel", MOST_TAPS)?;
    if n_inner % n_v_head != 0 || n_v_head % n_k_head != 0 || d_conv < 2 {
        return Err(Error::file(
            keys.meta.path(),
            format!(
                "{n_k_head} K and {n_v_head} V heads cannot share {n_inner} values over {d_conv} taps"
            ),
            "the file is damaged; fetch it again",
        ));
    }
    let recurrent = Recurrent {
        d_conv,
        n_channels: 2 * d_k * n_k_head + n_inner,
        d_state: d_k,
        head_dim: n_inner / n_v_head,
        n_head: n_v_head,
    };
    let period = keys.size_or("full_attention_interval", hp.n_layer, PERIOD)?;
    for il in (0..hp.n_layer).filter(|il| (il + 1) % period != 0) {
        hp.recurrent[il] = Some(recurrent);
        // Such a layer keeps no K and V.
        hp.n_head_kv[il] = 0;
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
    let ids = g.input(Input::StateSlots, 0);
    let rows = g.input(Input::SeqRows, 0);
    let kept = [r.n_channels, r.d_conv - 1, cache.n_slots];
    let kept = g.states(CacheId::of(il, CacheKind::Conv), &kept)?;
    let taps = g.weight(&name("ssm_conv1d.weight"), &[r.d_conv, r.n_channels])?;
    let conv = Op::SsmConv(SsmConv::default());
    let qkv = g.op(conv, &[x.qkv, taps, kept, ids, rows])?;
    let qkv = g.unary(UnaryKind::Silu, qkv)?;
    let qkv = g.name(qkv, "conv", Some(il));

    let mut start = 0;
    let mut part = |g: &mut Builder<'_>, head_dim: usize, n_head: usize| {
        let part = g.slice(qkv, 0, start, head_dim * n_head)?;
        start += head_dim * n_head;
        g.split_rows(part, [head_dim, n_head])
    };
    let unit = Op::L2Norm { eps: hp.norm_eps };
    let q = part(g, heads.d_k, heads.n_k)?;
    let q = g.op(unit, &[q])?;
    let k = part(g, heads.d_k, heads.n_k)?;
    let k = g.op(unit, &[k])?;
    let v = part(g, heads.d_v, heads.n_v)?;

    let beta = g.unary(UnaryKind::Sigmoid, x.beta)?;
    let bias = g.weight(&name("ssm_dt.bias"), &[heads.n_v])?;
    let a = g.weight(&name("ssm_a"), &[heads.n_v])?;
    let decay = g.add(x.alpha, bias)?;
    let decay = g.unary(UnaryKind::Softplus, decay)?;
    let decay = g.mul(decay, a)?;

    let state = [r.d_state, r.head_dim, r.n_head, cache.n_slots];
    let state = g.states(CacheId::of(il, CacheKind::State), &state)?;
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
    ffn: Ffn<'_>,
) -> Result<TensorId> {
    let spec = Attention {
        qk_norm: true,
        output_gate: true,
        ..Attention::plain(hp)
    };
    let mut x = embed(g, hp)?;
    for il in 0..hp.n_layer {
        let h = rms_norm(g, x, &format!("blk.{il}.attn_norm.weight"), hp.norm_eps)?;
        let h = g.name(h, "attn_norm", Some(il));
        let mut y = match &hp.recurrent[il] {
            Some(r) => mixer(g, il, r, h)?,
            None => attention(g, hp, cache, il, h, &spec)?,
        };
        if il + 1 == hp.n_layer {
            y = select_outputs(g, y)?;
            x = select_outputs(g, x)?;
        }
        x = g.add(y, x)?;
        x = add_ffn(g, hp, il, x, "post_attention_norm", ffn)?;
    }
    head(g, hp, x, None)
}
