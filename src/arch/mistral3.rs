//! mistral3: Ministral 3 and Devstral 2. A llama whose queries grow with the
//! position beyond the training context.

use super::blocks::Attention;
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides, llama};
use crate::error::Result;
use crate::graph::{Builder, Catalog, RopeMode, TensorId};

struct Mistral3 {
    hp: Hparams,
    /// beta of the query temperature.
    beta: Option<f32>,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    Ok(Box::new(Mistral3 {
        hp: Hparams::read(keys, catalog, RopeMode::Norm, user)?,
        beta: keys.f32("attention.temperature_scale")?,
    }))
}

impl Arch for Mistral3 {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let attn = Attention {
            temperature: self.beta.map(|beta| (beta, self.hp.rope.n_ctx_orig)),
            ..Attention::plain(&self.hp)
        };
        llama::graph(g, &self.hp, cache, attn)
    }
}
