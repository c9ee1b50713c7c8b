//! gemma2: Gemma 2. Norms before and after each part, sliding windows in every
//! other layer, softcaps on scores and logits.

use super::blocks::{self, Attention};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

/// Layers of the 27B model, whose queries are scaled by the width instead of
/// the head dimension; files do not say it.
const N_LAYER_27B: usize = 46;

struct Gemma2 {
    hp: Hparams,
    attn_softcap: Option<f32>,
    final_softcap: Option<f32>,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let mut hp = Hparams::read(keys, catalog, RopeMode::Neox, user)?;
    hp.read_window(keys, 2)?;
    Ok(Box::new(Gemma2 {
        hp,
        attn_softcap: keys.f32("attn_logit_softcapping")?,
        final_softcap: keys.f32("final_logit_softcapping")?,
    }))
}

/// A Gemma layer: each part's result is normed before it is added.
pub fn layer(
    g: &mut Builder<'_>,
    hp: &Hparams,
    cache: &CacheShape,
    il: usize,
    x: TensorId,
    attn: &Attention,
) -> Result<TensorId> {
    let norm = |g: &mut Builder<'_>, x, name: &str| {
        let y = blocks::rms_norm(g, x, &format!("blk.{il}.{name}.weight"), hp.norm_eps)?;
        Ok(g.name(y, name, Some(il)))
    };
    let h = norm(g, x, "attn_norm")?;
    let mut a = blocks::attention(g, hp, cache, il, h, attn)?;
    let mut x = x;
    if il + 1 == hp.n_layer {
        a = blocks::select_outputs(g, a)?;
        x = blocks::select_outputs(g, x)?;
    }
    let a = norm(g, a, "post_attention_norm")?;
    let x = g.add(a, x)?;
    let h = norm(g, x, "ffn_norm")?;
    let f = blocks::ffn(g, hp, il, h, GluKind::Geglu)?;
    let f = norm(g, f, "post_ffw_norm")?;
    let x = g.add(f, x)?;
    Ok(g.name(x, "l_out", Some(il)))
}

/// Embeddings times the square root of the width.
pub fn embed(g: &mut Builder<'_>, hp: &Hparams) -> Result<TensorId> {
    let x = blocks::embed(g, hp)?;
    g.scale(x, (hp.n_embd as f32).sqrt())
}

impl Arch for Gemma2 {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let hp = &self.hp;
        let mut attn = Attention {
            softcap: self.attn_softcap,
            ..Attention::plain(hp)
        };
        if hp.n_layer == N_LAYER_27B {
            attn.scale = 1.0 / (hp.n_embd as f32 / hp.n_head[0] as f32).sqrt();
        }
        let mut x = embed(g, hp)?;
        for il in 0..hp.n_layer {
            x = layer(g, hp, cache, il, x, &attn)?;
        }
        blocks::head(g, hp, x, self.final_softcap)
    }
}
