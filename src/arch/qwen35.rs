//! qwen35: Qwen 3.5 (text). Gated delta nets, and attention in every fourth layer.

use super::blocks::delta_net::{self, Heads, Projected};
use super::blocks::{self, linear};
use super::{Arch, CacheShape, Hparams, Keys, Plain, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, GluKind, RopeMode, TensorId};

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    // Sections of RoPE do not matter: text has the same position in all.
    let mut hp = Hparams::read_hybrid(keys, catalog, RopeMode::Neox, user)?;
    delta_net::read(keys, &mut hp)?;
    Ok(Box::new(Plain { hp, graph }))
}

fn graph(g: &mut Builder<'_>, hp: &Hparams, cache: &CacheShape) -> Result<TensorId> {
    delta_net::graph(
        g,
        hp,
        cache,
        &|g, il, r, h| {
            let heads = Heads::of(r);
            let [qkv, z] = delta_net::project_qkv_z(g, il, &heads, h)?;
            let beta = linear(g, h, &format!("blk.{il}.ssm_beta"), heads.n_v)?;
            let alpha = linear(g, h, &format!("blk.{il}.ssm_alpha"), heads.n_v)?;
            let x = Projected {
                qkv,
                z,
                beta,
                alpha,
            };
            // Converters put V heads that share a K head apart.
            delta_net::delta_net(g, hp, cache, il, r, &x, true)
        },
        &|g, il, h| blocks::ffn(g, hp, il, h, GluKind::Swiglu),
    )
}
