//! qwen2: Qwen 2 and 2.5. Biases on Q, K and V; RoPE pairs halves.

use super::blocks::{self, Attention};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides, plain};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    plain(keys, catalog, user, RopeMode::Neox, graph)
}

fn graph(g: &mut Builder<'_>, hp: &Hparams, cache: &CacheShape) -> Result<TensorId> {
    let attn = Attention::plain(hp);
    let mut x = blocks::embed(g, hp)?;
    for il in 0..hp.n_layer {
        x = blocks::pre_norm_layer(g, hp, cache, il, x, &attn, &|g, il, h| {
            blocks::ffn(g, hp, il, h, GluKind::Swiglu)
        })?;
    }
    blocks::head(g, hp, x, None)
}
