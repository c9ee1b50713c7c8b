//! Architectures: one file each, as a delta over the shared blocks, and one
//! row in [`REGISTRY`].

pub mod blocks;
mod falcon_h1;
mod gemma2;
mod gemma3;
mod granitehybrid;
pub mod hparams;
mod jamba;
pub mod keys;
mod llama;
mod mamba;
mod mamba2;
mod mistral3;
mod nemotron_h;
mod nemotron_h_moe;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3moe;
mod qwen3next;
mod smollm3;

pub use hparams::{Hparams, Recurrent, RopeOverrides, RopeScaling};
pub use keys::Keys;

use crate::error::{Error, Result};
use crate::graph::{Builder, Catalog, RopeMode, TensorId};
use crate::quant::DType;

/// The caches as graphs see them; their ids are [`crate::graph::CacheId::of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    pub k_type: DType,
    pub v_type: DType,
    /// Tokens a sequence may grow to.
    pub n_ctx: usize,
    pub n_cells: usize,
    pub n_cells_swa: usize,
    /// Recurrent states, one a sequence.
    pub n_slots: usize,
}

/// A model's architecture with its hyperparameters.
pub trait Arch: Send + Sync {
    /// Sizes.
    fn hparams(&self) -> &Hparams;
    /// Builds the graph of one batch width; gives the logits
    /// `[n_vocab, n_outputs]`.
    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId>;
}

/// The graph of an architecture that the shared hyperparameters describe.
type PlainGraph = fn(&mut Builder<'_>, &Hparams, &CacheShape) -> Result<TensorId>;

struct Plain {
    hp: Hparams,
    graph: PlainGraph,
}

impl Arch for Plain {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        (self.graph)(g, &self.hp, cache)
    }
}

/// An architecture with no keys of its own beside the shared ones.
fn plain(
    keys: &Keys<'_>,
    catalog: &dyn Catalog,
    user: &RopeOverrides,
    mode: RopeMode,
    graph: PlainGraph,
) -> Result<Box<dyn Arch>> {
    let hp = Hparams::read(keys, catalog, mode, user)?;
    Ok(Box::new(Plain { hp, graph }))
}

/// Reads an architecture's keys.
type Read = fn(&Keys<'_>, &dyn Catalog, &RopeOverrides) -> Result<Box<dyn Arch>>;

/// `general.architecture` and who reads it.
pub const REGISTRY: &[(&str, Read)] = &[
    ("llama", llama::read),
    ("mistral3", mistral3::read),
    ("qwen2", qwen2::read),
    ("qwen3", qwen3::read),
    ("qwen3moe", qwen3moe::read),
    ("qwen3next", qwen3next::read),
    ("qwen35", qwen35::read),
    ("gemma2", gemma2::read),
    ("gemma3", gemma3::read),
    ("phi3", phi3::read),
    ("smollm3", smollm3::read),
    ("mamba", mamba::read),
    ("mamba2", mamba2::read),
    ("jamba", jamba::read),
    ("falcon-h1", falcon_h1::read),
    ("granitehybrid", granitehybrid::read),
    ("nemotron_h", nemotron_h::read),
    ("nemotron_h_moe", nemotron_h_moe::read),
];

/// The architecture of a file.
pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    match REGISTRY.iter().find(|(name, _)| *name == keys.arch) {
        Some((_, read)) => read(keys, catalog, user),
        None => {
            let known: Vec<&str> = REGISTRY.iter().map(|(name, _)| *name).collect();
            Err(Error::file(
                keys.meta.path(),
                format!("architecture '{}' is not supported", keys.arch),
                format!("give a model of one that is: {}", known.join(", ")),
            ))
        }
    }
}
