//! granitehybrid: Granite 4. Mamba-2 or attention by layer, then a feed-forward part or
//! experts; constants scale embeddings, residuals, scores and logits.

use super::blocks::{self, Attention, Mamba2};
use super::hparams::MOST_WIDTH;
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

struct GraniteHybrid {
    hp: Hparams,
    mamba2: Mamba2,
    embedding_scale: Option<f32>,
    residual_scale: Option<f32>,
    attention_scale: Option<f32>,
    /// Divides the logits.
    logit_scale: Option<f32>,
    /// Attention has RoPE.
    rope: bool,
    /// Of the expert that every token uses, 0 without one.
    n_ff_shared: usize,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let mamba2 = Mamba2::read(keys)?;
    let mut hp = Hparams::read_hybrid(keys, catalog, RopeMode::Norm, user)?;
    hp.set_recurrent(mamba2.state, |hp, il| hp.n_head_kv[il] == 0);
    Ok(Box::new(GraniteHybrid {
        hp,
        mamba2,
        embedding_scale: keys.f32("embedding_scale")?,
        residual_scale: keys.f32("residual_scale")?,
        attention_scale: keys.f32("attention.scale")?,
        logit_scale: keys.f32("logit_scale")?,
        rope: keys.bool("rope.scaling.finetuned")? != Some(false),
        n_ff_shared: keys.size_or("expert_shared_feed_forward_length", MOST_WIDTH, 0)?,
    }))
}

impl GraniteHybrid {
    fn attention(&self) -> Attention {
        let plain = Attention::plain(&self.hp);
        Attention {
            rope: plain.rope.filter(|_| self.rope),
            scale: self.attention_scale.unwrap_or(plain.scale),
            ..plain
        }
    }

    fn ffn(&self, g: &mut Builder<'_>, il: usize, h: TensorId) -> Result<TensorId> {
        let hp = &self.hp;
        if hp.n_expert == 0 {
            return blocks::ffn(g, hp, il, h, GluKind::Swiglu);
        }
        let routed = blocks::moe(g, hp, il, h, hp.n_ff[il], true)?;
        if self.n_ff_shared == 0 {
            return Ok(routed);
        }
        let shared = blocks::shared_expert(g, hp, il, h, self.n_ff_shared)?;
        g.add(routed, shared)
    }
}

impl Arch for GraniteHybrid {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let (hp, attn) = (&self.hp, self.attention());
        let mut x = blocks::embed(g, hp)?;
        if let Some(scale) = self.embedding_scale {
            x = g.scale(x, scale)?;
        }
        for il in 0..hp.n_layer {
            let mixer = |g: &mut Builder<'_>, h| match hp.recurrent[il] {
                Some(_) => self.mamba2.mixer(g, hp, cache, il, h),
                None => blocks::attention(g, hp, cache, il, h, &attn),
            };
            x = blocks::mixed_layer(g, hp, il, x, self.residual_scale, &mixer, &|g, il, h| {
                self.ffn(g, il, h)
            })?;
        }
        let logits = blocks::head(g, hp, x, None)?;
        match self.logit_scale {
            Some(scale) => g.scale(logits, 1.0 / scale),
            None => Ok(logits),
        }
    }
}
