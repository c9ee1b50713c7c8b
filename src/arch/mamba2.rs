//! mamba2: Mamba-2 (arXiv 2405.21060).

use super::blocks::{self, Mamba2};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, TensorId};

struct Mamba2Lm {
    hp: Hparams,
    mamba2: Mamba2,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let mamba2 = Mamba2::read(keys)?;
    let hp = Hparams::read_recurrent(keys, catalog, user, mamba2.state)?;
    Ok(Box::new(Mamba2Lm { hp, mamba2 }))
}

impl Arch for Mamba2Lm {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        blocks::recurrent_layers(g, &self.hp, &|g, il, h| {
            self.mamba2.mixer(g, &self.hp, cache, il, h)
        })
    }
}
