//! qwen2: Qwen 2 and 2.5. Biases on Q, K and V; RoPE pairs halves.

use super::blocks::{self, Attention};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

struct Qwen2 {
    hp: Hparams,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let hp = Hparams::read(keys, catalog, RopeMode::Neox, user)?;
    Ok(Box::new(Qwen2 { hp }))
}

impl Arch for Qwen2 {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let hp = &self.hp;
        let attn = Attention::plain(hp);
        let mut x = blocks::embed(g, hp)?;
        for il in 0..hp.n_layer {
            x = blocks::pre_norm_layer(g, hp, cache, il, x, &attn, &|g, il, h| {
                blocks::ffn(g, hp, il, h, GluKind::Swiglu)
            })?;
        }
        blocks::head(g, hp, x, None)
    }
}
