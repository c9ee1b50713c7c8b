//! qwen3moe: Qwen 3 with experts in every layer.

use super::blocks::{self, Attention};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, RopeMode, TensorId};

struct Qwen3Moe {
    hp: Hparams,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let hp = Hparams::read(keys, catalog, RopeMode::Neox, user)?;
    Ok(Box::new(Qwen3Moe { hp }))
}

impl Arch for Qwen3Moe {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let hp = &self.hp;
        let attn = Attention {
            qk_norm: true,
            ..Attention::plain(hp)
        };
        let mut x = blocks::embed(g, hp)?;
        for il in 0..hp.n_layer {
            x = blocks::pre_norm_layer(g, hp, cache, il, x, &attn, &|g, il, h| {
                blocks::moe(g, hp, il, h, hp.n_ff_expert, true)
            })?;
        }
        blocks::head(g, hp, x, None)
    }
}
