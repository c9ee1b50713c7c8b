//! smollm3: SmolLM 3. A llama without RoPE in every fourth layer (arXiv 2501.18795).

use super::blocks::{self, Attention};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides, plain};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

/// Every so many layers one has no position embedding; files do not say it.
const NO_ROPE_STEP: usize = 4;

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    plain(keys, catalog, user, RopeMode::Norm, graph)
}

fn graph(g: &mut Builder<'_>, hp: &Hparams, cache: &CacheShape) -> Result<TensorId> {
    let mut x = blocks::embed(g, hp)?;
    for il in 0..hp.n_layer {
        let mut attn = Attention::plain(hp);
        if (il + 1) % NO_ROPE_STEP == 0 {
            attn.rope = None;
        }
        x = blocks::pre_norm_layer(g, hp, cache, il, x, &attn, &|g, il, h| {
            blocks::ffn(g, hp, il, h, GluKind::Swiglu)
        })?;
    }
    blocks::head(g, hp, x, None)
}
