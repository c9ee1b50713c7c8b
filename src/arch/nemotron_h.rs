//! nemotron_h: Nemotron-H (arXiv 2504.03624). Each layer is one of Mamba-2, attention
//! without a position embedding, and feed-forward with squared ReLU.

use super::blocks::{self, Attention, Mamba2, PartOf, Residual};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, RopeMode, TensorId};

/// What the dense models and those with experts share.
pub struct Layers {
    pub hp: Hparams,
    pub mamba2: Mamba2,
}

impl Layers {
    /// Reads the keys; a layer with neither KV heads nor feed-forward values is Mamba-2.
    pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Layers> {
        let mamba2 = Mamba2::read(keys)?;
        let mut hp = Hparams::read_hybrid(keys, catalog, RopeMode::Norm, user)?;
        hp.set_recurrent(mamba2.state, |hp, il| {
            hp.n_head_kv[il] == 0 && hp.n_ff[il] == 0
        });
        Ok(Layers { hp, mamba2 })
    }

    /// The graph, with `ffn` in the feed-forward layers.
    pub fn graph(
        &self,
        g: &mut Builder<'_>,
        cache: &CacheShape,
        ffn: PartOf<'_>,
    ) -> Result<TensorId> {
        let hp = &self.hp;
        let attn = Attention {
            rope: None,
            ..Attention::plain(hp)
        };
        let mixes = |il: &usize| hp.recurrent[*il].is_some() || hp.n_head_kv[*il] > 0;
        let last_mixer = (0..hp.n_layer).rev().find(mixes).unwrap_or(0);
        let mut x = blocks::embed(g, hp)?;
        for il in 0..hp.n_layer {
            let around = Residual {
                norm: "attn_norm",
                scale: None,
                select: il == last_mixer,
            };
            x = blocks::residual(g, hp, il, x, around, &|g, h| {
                if hp.recurrent[il].is_some() {
                    self.mamba2.mixer(g, hp, cache, il, h)
                } else if hp.n_head_kv[il] > 0 {
                    blocks::attention(g, hp, cache, il, h, &attn)
                } else {
                    ffn(g, il, h)
                }
            })?;
            x = g.name(x, "l_out", Some(il));
        }
        blocks::head(g, hp, x, None)
    }
}

struct NemotronH(Layers);

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    Ok(Box::new(NemotronH(Layers::read(keys, catalog, user)?)))
}

impl Arch for NemotronH {
    fn hparams(&self) -> &Hparams {
        &self.0.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let hp = &self.0.hp;
        self.0.graph(g, cache, &|g, il, h| {
            blocks::ffn_relu_sqr(g, hp, il, h, "", hp.n_ff[il])
        })
    }
}
