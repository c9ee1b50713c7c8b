//! llama: Llama 1 to 3, Mistral, Mixtral, SmolLM2 and all that share the file
//! layout. Mixtral-style files have experts; Llama 3.1 files have `rope_freqs`.

use super::blocks::{self, Attention};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides, plain};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    plain(keys, catalog, user, RopeMode::Norm, |g, hp, cache| {
        graph(g, hp, cache, Attention::plain(hp))
    })
}

/// The graph of a llama with `attn` in every layer.
pub fn graph(
    g: &mut Builder<'_>,
    hp: &Hparams,
    cache: &CacheShape,
    mut attn: Attention,
) -> Result<TensorId> {
    attn.rope_factors = g.weight_opt("rope_freqs.weight", &[hp.rope.n_rot / 2])?;
    let mut x = blocks::embed(g, hp)?;
    for il in 0..hp.n_layer {
        x = blocks::pre_norm_layer(g, hp, cache, il, x, &attn, &|g, il, h| {
            if hp.n_expert > 0 {
                blocks::moe(g, hp, il, h, hp.n_ff[il], true)
            } else {
                blocks::ffn(g, hp, il, h, GluKind::Swiglu)
            }
        })?;
    }
    blocks::head(g, hp, x, None)
}
