//! jamba: Jamba (arXiv 2403.19887). Mamba or attention, which has no position
//! embedding, then a feed-forward part, in some layers one of experts.

use super::blocks::{self, Attention, Mamba, Norms};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

struct Jamba {
    hp: Hparams,
    mamba: Mamba,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let mamba = Mamba::read(keys, Norms::Weighted)?;
    let mut hp = Hparams::read_hybrid(keys, catalog, RopeMode::Norm, user)?;
    hp.set_recurrent(mamba.state, |hp, il| hp.n_head_kv[il] == 0);
    Ok(Box::new(Jamba { hp, mamba }))
}

impl Arch for Jamba {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let hp = &self.hp;
        let attn = Attention {
            rope: None,
            ..Attention::plain(hp)
        };
        let mut x = blocks::embed(g, hp)?;
        for il in 0..hp.n_layer {
            let mixer = |g: &mut Builder<'_>, h| match hp.recurrent[il] {
                Some(_) => self.mamba.mixer(g, hp, cache, il, h),
                None => blocks::attention(g, hp, cache, il, h, &attn),
            };
            x = blocks::mixed_layer(g, hp, il, x, None, &mixer, &|g, il, h| {
                let router = format!("blk.{il}.ffn_gate_inp.weight");
                match g.weight_opt(&router, &[hp.n_embd, hp.n_expert])? {
                    Some(_) => blocks::moe(g, hp, il, h, hp.n_ff[il], false),
                    None => blocks::ffn(g, hp, il, h, GluKind::Swiglu),
                }
            })?;
        }
        blocks::head(g, hp, x, None)
    }
}
