//! nemotron_h_moe: Nemotron 3. A nemotron_h whose feed-forward layers are experts,
//! chosen by sigmoid scores, beside one that every token uses.

use super::blocks::{self, Weights};
use super::hparams::{MOST_EXPERTS, MOST_WIDTH};
use super::nemotron_h::Layers;
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::{Error, Result};
use crate::graph::{Builder, Catalog, TensorId};

struct NemotronHMoe {
    layers: Layers,
    weights: Weights,
    /// Of the expert that every token uses, 0 without one.
    n_ff_shared: usize,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let layers = Layers::read(keys, catalog, user)?;
    if layers.hp.n_expert == 0 {
        return Err(keys.missing("expert_count"));
    }
    let n_group = keys.size_or("expert_group_count", MOST_EXPERTS, 1)?;
    if n_group > 1 {
        return Err(Error::file(
            keys.meta.path(),
            format!("experts in {n_group} groups are not supported"),
            "give a model whose experts are one group",
        ));
    }
    Ok(Box::new(NemotronHMoe {
        layers,
        weights: Weights {
            norm: keys.bool("expert_weights_norm")? == Some(true),
            scale: keys.f32("expert_weights_scale")?.unwrap_or(1.0),
        },
        n_ff_shared: keys.size_or("expert_shared_feed_forward_length", MOST_WIDTH, 0)?,
    }))
}

impl Arch for NemotronHMoe {
    fn hparams(&self) -> &Hparams {
        &self.layers.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let hp = &self.layers.hp;
        self.layers.graph(g, cache, &|g, il, h| {
            let routed = blocks::moe_relu_sqr(g, hp, il, h, self.weights)?;
            if self.n_ff_shared == 0 {
                return Ok(routed);
            }
            let shared = blocks::ffn_relu_sqr(g, hp, il, h, "_shexp", self.n_ff_shared)?;
            g.add(routed, shared)
        })
    }
}
