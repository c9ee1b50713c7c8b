//! phi3: Phi 3, 3.5 and 4 (mini). Fused QKV and gate/up; long-context files
//! have two sets of RoPE factors, chosen by the context size (arXiv 2402.13753).

use super::blocks::{self, Attention};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides, plain};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    plain(keys, catalog, user, RopeMode::Neox, graph)
}

fn graph(g: &mut Builder<'_>, hp: &Hparams, cache: &CacheShape) -> Result<TensorId> {
    let long = cache.n_ctx > hp.rope.n_ctx_orig as usize;
    let factors = match long {
        true => "rope_factors_long.weight",
        false => "rope_factors_short.weight",
    };
    let attn = Attention {
        rope_factors: g.weight_opt(factors, &[hp.rope.n_rot / 2])?,
        ..Attention::plain(hp)
    };
    let mut x = blocks::embed(g, hp)?;
    for il in 0..hp.n_layer {
        x = blocks::pre_norm_layer(g, hp, cache, il, x, &attn, &|g, il, h| {
            blocks::ffn(g, hp, il, h, GluKind::Swiglu)
        })?;
    }
    blocks::head(g, hp, x, None)
}
