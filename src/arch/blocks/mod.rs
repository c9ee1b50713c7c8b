//! Pieces that architectures share: embedding, attention, feed-forward, head.

pub mod delta_net;
mod moe;
mod ssm;

pub use moe::{Weights, gated_shared_expert, moe, moe_relu_sqr, shared_expert};
pub use ssm::{Mamba, Mamba2, Norms};

use super::{CacheShape, Hparams};
use crate::error::Result;
use crate::graph::op::AttnShape;
use crate::graph::{
    AttnParams, Builder, CacheId, CacheKind, GluKind, Input, Op, RopeParams, TensorId, UnaryKind,
};

/// `token_embd` rows of the batch: `[n_embd, n_tokens]`.
pub fn embed(g: &mut Builder<'_>, hp: &Hparams) -> Result<TensorId> {
    let table = g.weight("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let tokens = g.input(Input::Tokens, 0);
    let x = g.op(Op::GetRows, &[table, tokens])?;
    Ok(g.name(x, "embd", None))
}

/// RMS norm times a weight of `x.ne[0]` values.
pub fn rms_norm(g: &mut Builder<'_>, x: TensorId, weight: &str, eps: f32) -> Result<TensorId> {
    let n = g.graph.get(x).ne[0];
    let weight = g.weight(weight, &[n])?;
    let y = g.op(Op::RmsNorm { eps }, &[x])?;
    g.mul(y, weight)
}

/// `weight * x (+ bias)` with GGUF names `{name}.weight` and `{name}.bias`.
pub fn linear(g: &mut Builder<'_>, x: TensorId, name: &str, m: usize) -> Result<TensorId> {
    let k = g.graph.get(x).ne[0];
    let w = g.weight(&format!("{name}.weight"), &[k, m])?;
    let y = g.mul_mat(w, x)?;
    let y = match g.weight_opt(&format!("{name}.bias"), &[m])? {
        Some(bias) => g.add(y, bias)?,
        None => y,
    };
    Ok(g.name(y, name, None))
}

/// What one layer's attention is like.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// `None`: this layer has no position embedding.
    pub rope: Option<RopeParams>,
    /// Divides the frequencies.
    pub rope_factors: Option<TensorId>,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub temperature: Option<(f32, u32)>,
    /// RMS norm over each head of Q and K.
    pub qk_norm: bool,
    /// `attn_q` gives Q and a gate of each head; the heads' output is multiplied by the
    /// gate's sigmoid.
    pub output_gate: bool,
}

impl Attention {
    /// Plain attention with the model's RoPE.
    pub fn plain(hp: &Hparams) -> Attention {
        Attention {
            rope: Some(hp.rope),
            rope_factors: None,
            scale: 1.0 / (hp.head_dim_k as f32).sqrt(),
            softcap: None,
            temperature: None,
            qk_norm: false,
            output_gate: false,
        }
    }
}

/// Q, K and V of a layer, from three weights or one fused `attn_qkv`.
fn project_qkv(g: &mut Builder<'_>, hp: &Hparams, il: usize, x: TensorId) -> Result<[TensorId; 3]> {
    let (n_q, n_k, n_v) = (
        hp.head_dim_k * hp.n_head[il],
        hp.n_embd_k(il),
        hp.n_embd_v(il),
    );
    let fused = format!("blk.{il}.attn_qkv");
    if g.weight_opt(&format!("{fused}.weight"), &[hp.n_embd, n_q + n_k + n_v])?
        .is_none()
    {
        return Ok([
            linear(g, x, &format!("blk.{il}.attn_q"), n_q)?,
            linear(g, x, &format!("blk.{il}.attn_k"), n_k)?,
            linear(g, x, &format!("blk.{il}.attn_v"), n_v)?,
        ]);
    }
    let qkv = linear(g, x, &fused, n_q + n_k + n_v)?;
    let mut start = 0;
    let mut part = |n: usize| {
        let view = g.slice(qkv, 0, start, n)?;
        start += n;
        // Heads are split from a contiguous row.
        g.op(Op::Cont, &[view])
    };
    Ok([part(n_q)?, part(n_k)?, part(n_v)?])
}

/// Q `[head_dim, n_head, n]` and the gate's sigmoid `[head_dim * n_head, n]`, from
/// `attn_q` which has both of each head side by side; then K and V.
fn project_gated(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
) -> Result<([TensorId; 3], TensorId)> {
    let (n, hd, n_head) = (g.graph.get(x).ne[1], hp.head_dim_k, hp.n_head[il]);
    let both = linear(g, x, &format!("blk.{il}.attn_q"), 2 * hd * n_head)?;
    let both = g.split_rows(both, [2 * hd, n_head])?;
    let q = g.slice(both, 0, 0, hd)?;
    let gate = g.slice(both, 0, hd, hd)?;
    let gate = g.unary(UnaryKind::Sigmoid, gate)?;
    let gate = g.reshape(gate, &[hd * n_head, n])?;
    let k = linear(g, x, &format!("blk.{il}.attn_k"), hp.n_embd_k(il))?;
    let v = linear(g, x, &format!("blk.{il}.attn_v"), hp.n_embd_v(il))?;
    Ok(([q, k, v], gate))
}

/// Self-attention of layer `il` over its cache; gives the output projection.
pub fn attention(
    g: &mut Builder<'_>,
    hp: &Hparams,
    cache: &CacheShape,
    il: usize,
    x: TensorId,
    spec: &Attention,
) -> Result<TensorId> {
    let n = g.width.n_tokens;
    let (hd, n_head, n_head_kv) = (hp.head_dim_k, hp.n_head[il], hp.n_head_kv[il]);
    let ([q, k, v], gate) = match spec.output_gate {
        true => project_gated(g, hp, il, x).map(|(qkv, gate)| (qkv, Some(gate)))?,
        false => (project_qkv(g, hp, il, x)?, None),
    };
    let turn = |g: &mut Builder<'_>, x, n_head, norm: &str| -> Result<TensorId> {
        let mut x = x;
        // Beside a gate, heads are apart already.
        if g.graph.get(x).ne != [hd, n_head, n, 1] {
            x = g.reshape(x, &[hd, n_head, n])?;
        }
        if spec.qk_norm {
            x = rms_norm(g, x, &format!("blk.{il}.{norm}.weight"), hp.norm_eps)?;
        }
        match spec.rope {
            Some(rope) => g.rope(rope, x, spec.rope_factors),
            None => Ok(x),
        }
    };
    let q = turn(g, q, n_head, "attn_q_norm")?;
    let q = g.name(q, "q", Some(il));
    let k = turn(g, k, n_head_kv, "attn_k_norm")?;
    let k = g.name(k, "k", Some(il));

    let swa = hp.swa[il];
    let cells = if swa {
        cache.n_cells_swa
    } else {
        cache.n_cells
    };
    let k_cache = g.cache(
        CacheId::of(il, CacheKind::K),
        cache.k_type,
        hp.n_embd_k(il),
        cells,
    );
    let v_cache = g.cache(
        CacheId::of(il, CacheKind::V),
        cache.v_type,
        hp.n_embd_v(il),
        cells,
    );
    let slots = g.input(Input::Slots { swa }, 0);
    let k = g.reshape(k, &[hp.n_embd_k(il), n])?;
    let k = g.op(Op::SetRows, &[k_cache, k, slots])?;
    let v = g.op(Op::SetRows, &[v_cache, v, slots])?;

    let params = AttnParams {
        scale: spec.scale,
        softcap: spec.softcap,
        window: hp.window.filter(|_| swa),
        swa,
        temperature: spec.temperature,
    };
    let shape = AttnShape {
        head_dim_k: hd,
        head_dim_v: hp.head_dim_v,
        n_head,
        n_head_kv,
    };
    let mut out = g.attn(params, shape, q, k, v)?;
    if let Some(gate) = gate {
        out = g.mul(out, gate)?;
    }
    let out = g.name(out, "attn", Some(il));
    let out = linear(g, out, &format!("blk.{il}.attn_output"), hp.n_embd)?;
    Ok(g.name(out, "attn_out", Some(il)))
}

/// Gated feed-forward; a file without `ffn_gate` has gate and up in `ffn_up`.
pub fn ffn(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
    kind: GluKind,
) -> Result<TensorId> {
    let n_ff = hp.n_ff[il];
    let gate = format!("blk.{il}.ffn_gate");
    let up = format!("blk.{il}.ffn_up");
    let fused = g
        .weight_opt(&format!("{gate}.weight"), &[hp.n_embd, n_ff])?
        .is_none();
    let h = if fused {
        let both = linear(g, x, &up, 2 * n_ff)?;
        g.op(Op::Glu(kind), &[both])?
    } else {
        let gate = linear(g, x, &gate, n_ff)?;
        let up = linear(g, x, &up, n_ff)?;
        g.glu(kind, gate, up)?
    };
    let out = linear(g, h, &format!("blk.{il}.ffn_down"), hp.n_embd)?;
    Ok(g.name(out, "ffn_out", Some(il)))
}

/// Feed-forward without a gate, `down(max(up x, 0)^2)`; `kind` ends the names of the
/// weights.
pub fn ffn_relu_sqr(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
    kind: &str,
    n_ff: usize,
) -> Result<TensorId> {
    let h = linear(g, x, &format!("blk.{il}.ffn_up{kind}"), n_ff)?;
    let h = g.unary(UnaryKind::ReluSqr, h)?;
    let out = linear(g, h, &format!("blk.{il}.ffn_down{kind}"), hp.n_embd)?;
    Ok(g.name(out, "ffn_out", Some(il)))
}

/// The rows whose logits are wanted; everything after the last layer's
/// attention is computed for these only.
pub fn select_outputs(g: &mut Builder<'_>, x: TensorId) -> Result<TensorId> {
    let ids = g.input(Input::OutIds, 0);
    g.op(Op::GetRows, &[x, ids])
}

/// What a part of a layer adds for its normed input.
pub type Part<'f> = &'f dyn Fn(&mut Builder<'_>, TensorId) -> Result<TensorId>;

/// What stands around a part of a layer.
#[derive(Debug, Clone, Copy)]
pub struct Residual<'n> {
    /// Of the norm before it: `blk.{il}.{norm}.weight`.
    pub norm: &'n str,
    /// Times what the part adds.
    pub scale: Option<f32>,
    /// Only the output rows go on from here.
    pub select: bool,
}

/// `x + scale * part(norm(x))`.
pub fn residual(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
    around: Residual<'_>,
    part: Part<'_>,
) -> Result<TensorId> {
    let name = around.norm;
    let mut weight = format!("blk.{il}.{name}");
    // Falcon-H1's files lack the ending.
    if g.weight_opt(&weight, &[hp.n_embd])?.is_none() {
        weight.push_str(".weight");
    }
    let h = rms_norm(g, x, &weight, hp.norm_eps)?;
    let h = g.name(h, name, Some(il));
    let (mut y, mut x) = (part(g, h)?, x);
    if around.select {
        y = select_outputs(g, y)?;
        x = select_outputs(g, x)?;
    }
    if let Some(scale) = around.scale {
        y = g.scale(y, scale)?;
    }
    g.add(y, x)
}

/// A part of any layer, by the layer's number.
pub type PartOf<'f> = &'f dyn Fn(&mut Builder<'_>, usize, TensorId) -> Result<TensorId>;

/// A pre-norm layer: `x + attn(norm(x))`, then `x + ffn(norm(x))`.
pub fn pre_norm_layer(
    g: &mut Builder<'_>,
    hp: &Hparams,
    cache: &CacheShape,
    il: usize,
    x: TensorId,
    attn: &Attention,
    ffn: PartOf<'_>,
) -> Result<TensorId> {
    let attn = |g: &mut Builder<'_>, h| attention(g, hp, cache, il, h, attn);
    mixed_layer(g, hp, il, x, None, &attn, ffn)
}

/// A pre-norm layer with any `mixer` in place of attention; each part times `scale`.
pub fn mixed_layer(
    g: &mut Builder<'_>,
    hp: &Hparams,
    il: usize,
    x: TensorId,
    scale: Option<f32>,
    mixer: Part<'_>,
    ffn: PartOf<'_>,
) -> Result<TensorId> {
    let around = |norm, select| Residual {
        norm,
        scale,
        select,
    };
    let last = il + 1 == hp.n_layer;
    let x = residual(g, hp, il, x, around("attn_norm", last), mixer)?;
    let ffn = |g: &mut Builder<'_>, h| ffn(g, il, h);
    let x = residual(g, hp, il, x, around("ffn_norm", false), &ffn)?;
    Ok(g.name(x, "l_out", Some(il)))
}

/// A model of layers `x + mixer(norm(x))`, from embedding to logits.
pub fn recurrent_layers(g: &mut Builder<'_>, hp: &Hparams, mixer: PartOf<'_>) -> Result<TensorId> {
    let mut x = embed(g, hp)?;
    for il in 0..hp.n_layer {
        let around = Residual {
            norm: "attn_norm",
            scale: None,
            select: il + 1 == hp.n_layer,
        };
        x = residual(g, hp, il, x, around, &|g, h| mixer(g, il, h))?;
        x = g.name(x, "l_out", Some(il));
    }
    head(g, hp, x, None)
}

/// Final norm and logits `[n_vocab, n_outputs]`; without `output.weight` the
/// embedding is used again. `softcap`: `cap * tanh(x / cap)`.
pub fn head(
    g: &mut Builder<'_>,
    hp: &Hparams,
    x: TensorId,
    softcap: Option<f32>,
) -> Result<TensorId> {
    let x = rms_norm(g, x, "output_norm.weight", hp.norm_eps)?;
    let x = g.name(x, "output_norm", None);
    let shape = [hp.n_embd, hp.n_vocab];
    let w = match g.weight_opt("output.weight", &shape)? {
        Some(w) => w,
        None => g.weight("token_embd.weight", &shape)?,
    };
    let mut y = g.mul_mat(w, x)?;
    if let Some(bias) = g.weight_opt("output.bias", &[hp.n_vocab])? {
        y = g.add(y, bias)?;
    }
    if let Some(cap) = softcap {
        y = g.scale(y, 1.0 / cap)?;
        y = g.unary(UnaryKind::Tanh, y)?;
        y = g.scale(y, cap)?;
    }
    Ok(g.name(y, "logits", None))
}
