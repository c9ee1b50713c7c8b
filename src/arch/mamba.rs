//! mamba: Mamba (arXiv 2312.00752), and Falcon Mamba, which norms dt, B and C.

use super::blocks::{self, Mamba, Norms};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, TensorId};

struct MambaLm {
    hp: Hparams,
    mamba: Mamba,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let norms = match keys.bool("ssm.dt_b_c_rms")? {
        Some(true) => Norms::Plain,
        _ => Norms::None,
    };
    let mamba = Mamba::read(keys, norms)?;
    let hp = Hparams::read_recurrent(keys, catalog, user, mamba.state)?;
    Ok(Box::new(MambaLm { hp, mamba }))
}

impl Arch for MambaLm {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        blocks::recurrent_layers(g, &self.hp, &|g, il, h| {
            self.mamba.mixer(g, &self.hp, cache, il, h)
        })
    }
}
