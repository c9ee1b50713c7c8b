//! gemma3: Gemma 3 (text). As gemma2 without the softcap on scores, with RMS
//! norm over each head of Q and K, and a RoPE of its own in sliding layers.

use super::blocks::{self, Attention};
use super::{Arch, CacheShape, Hparams, Keys, RopeOverrides, gemma2};
use crate::error::Result;
use crate::graph::{Builder, Catalog, RopeMode, RopeParams, TensorId};

/// Every sixth layer sees everything, unless the file says otherwise.
const PERIOD: usize = 6;
/// Layers of the 27B model, whose queries are scaled by the width instead of
/// the head dimension; files do not say it.
const N_LAYER_27B: usize = 62;
/// RoPE base of sliding layers when the file has none.
const FREQ_BASE_SWA: f32 = 10_000.0;

struct Gemma3 {
    hp: Hparams,
    rope_swa: RopeParams,
    final_softcap: Option<f32>,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let mut hp = Hparams::read(keys, catalog, RopeMode::Neox, user)?;
    hp.read_window(keys, PERIOD)?;
    // Sliding layers never see far enough to need scaling.
    let rope_swa = RopeParams {
        freq_base: keys
            .positive("rope.freq_base_swa")?
            .unwrap_or(FREQ_BASE_SWA),
        freq_scale: 1.0,
        ..hp.rope
    };
    Ok(Box::new(Gemma3 {
        hp,
        rope_swa,
        final_softcap: keys.f32("final_logit_softcapping")?,
    }))
}

impl Arch for Gemma3 {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let hp = &self.hp;
        let mut attn = Attention {
            qk_norm: true,
            ..Attention::plain(hp)
        };
        if hp.n_layer == N_LAYER_27B {
            attn.scale = 1.0 / (hp.n_embd as f32 / hp.n_head[0] as f32).sqrt();
        }
        let mut x = gemma2::embed(g, hp)?;
        for il in 0..hp.n_layer {
            attn.rope = Some(if hp.swa[il] { self.rope_swa } else { hp.rope });
            x = gemma2::layer(g, hp, cache, il, x, &attn)?;
        }
        blocks::head(g, hp, x, self.final_softcap)
    }
}
