//! falcon-h1: Falcon-H1 (arXiv 2507.22448). Attention and Mamba-2 side by side in
//! every layer; the file's weights contain the model's multipliers.

use super::blocks::{self, Attention, Mamba2};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

struct FalconH1 {
    hp: Hparams,
    mamba2: Mamba2,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let mamba2 = Mamba2::read(keys)?;
    let mut hp = Hparams::read(keys, catalog, RopeMode::Neox, user)?;
    hp.set_recurrent(mamba2.state, |_, _| true);
    Ok(Box::new(FalconH1 { hp, mamba2 }))
}

impl Arch for FalconH1 {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let hp = &self.hp;
        let attn = Attention::plain(hp);
        let mut x = blocks::embed(g, hp)?;
        for il in 0..hp.n_layer {
            let mixer = |g: &mut Builder<'_>, h| {
                let a = blocks::attention(g, hp, cache, il, h, &attn)?;
                let s = self.mamba2.mixer(g, hp, cache, il, h)?;
                g.add(a, s)
            };
            x = blocks::mixed_layer(g, hp, il, x, None, &mixer, &|g, il, h| {
                blocks::ffn(g, hp, il, h, GluKind::Swiglu)
            })?;
        }
        blocks::head(g, hp, x, None)
    }
}
