//! What a device has to hold, and how many layers it has room for.

use super::kv::{CacheSizes, LayerRows};
use super::placement::{GpuLayers, OFFLOAD, Placement, Schedule};
use crate::arch::CacheShape;
use crate::backend::{Device, cuda};
use crate::error::{Error, Result};
use crate::graph::builder::Width;
use crate::graph::{CacheId, Graph};
use crate::model::{Model, Wanted};
use crate::quant::DType;
use std::collections::HashMap;

/// Left free by `-ngl auto`: kernels, captured graphs, buffers of further batch
/// widths (logits of every token take up to half of it), and other programs.
pub const MARGIN_BYTES: usize = 512 << 20;
/// Contexts are proposed in multiples of this.
const CTX_STEP: usize = 256;

/// Bytes that a device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    pub weights: usize,
    pub kv: usize,
    pub compute: usize,
}

impl Need {
    /// Bytes of all kinds.
    pub fn total(&self) -> usize {
        self.weights
            .saturating_add(self.kv)
            .saturating_add(self.compute)
    }
}

/// Most layers, of `most`, whose bytes stay within `budget`; `need` grows with
/// its argument. 0 when not even one fits.
pub fn layers_that_fit(
    most: usize,
    budget: usize,
    need: &mut dyn FnMut(usize) -> Result<usize>,
) -> Result<usize> {
    largest(most, &mut |n| Ok(need(n)? <= budget))
}

/// Longest context below `n_ctx`, a multiple of 256 tokens, whose bytes stay
/// within `budget`; `None` when no such context does.
pub fn context_that_fits(
    n_ctx: usize,
    budget: usize,
    need: &mut dyn FnMut(usize) -> Result<usize>,
) -> Result<Option<usize>> {
    let most = n_ctx.saturating_sub(1) / CTX_STEP;
    let steps = largest(most, &mut |n| Ok(need(n * CTX_STEP)? <= budget))?;
    Ok((steps > 0).then_some(steps * CTX_STEP))
}

/// The largest of `1..=most` that fits, 0 when none does.
fn largest(most: usize, fits: &mut dyn FnMut(usize) -> Result<bool>) -> Result<usize> {
    if most == 0 || fits(most)? {
        return Ok(most);
    }
    let (mut good, mut bad) = (0, most);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(good)
}

/// What a session is about to evaluate, before anything is allocated.
pub struct Setup<'a> {
    model: &'a Model,
    placement: &'a Placement,
    overridden: HashMap<String, usize>,
    how: Evaluation,
    graphs: Vec<Graph>,
}

/// How a model is evaluated.
#[derive(Debug, Clone, Copy)]
pub struct Evaluation {
    /// Of K and V.
    pub kv_types: [DType; 2],
    /// Tokens that each sequence may have.
    pub n_ctx: usize,
    /// Most tokens evaluated at once.
    pub n_ubatch: usize,
    /// Sequences that may share a batch.
    pub n_seqs: usize,
    /// No 8-bit activations.
    pub exact: bool,
}

impl<'a> Setup<'a> {
    /// What `model` takes when it is evaluated so.
    ///
    /// # Errors
    /// As [`Placement::overridden`].
    pub fn new(model: &'a Model, placement: &'a Placement, how: Evaluation) -> Result<Setup<'a>> {
        let setup = Setup {
            model,
            placement,
            overridden: placement.overridden(model.weight_names())?,
            how,
            graphs: Vec::new(),
        };
        setup.with_context(how.n_ctx)
    }

    /// The same with contexts of `n_ctx` tokens.
    fn with_context(&self, n_ctx: usize) -> Result<Setup<'a>> {
        let mut setup = Setup {
            how: Evaluation {
                n_ctx,
                n_ubatch: self.how.n_ubatch.min(n_ctx),
                ..self.how
            },
            overridden: self.overridden.clone(),
            graphs: Vec::new(),
            ..*self
        };
        setup.graphs = setup.build_graphs()?;
        Ok(setup)
    }

    /// The cache as graphs see it.
    pub fn cache_shape(&self) -> CacheShape {
        let how = self.how;
        // A sliding layer needs its window and the tokens of one ubatch.
        let n_cells_swa = match self.model.hparams().window {
            Some(w) => how.n_seqs * how.n_ctx.min(w as usize + how.n_ubatch),
            None => 1,
        };
        CacheShape {
            k_type: how.kv_types[0],
            v_type: how.kv_types[1],
            n_ctx: how.n_ctx,
            n_cells: how.n_seqs * how.n_ctx,
            n_cells_swa,
            n_slots: how.n_seqs,
        }
    }

    /// What each layer keeps.
    pub fn layer_rows(&self) -> Vec<LayerRows> {
        let hp = self.model.hparams();
        let rows = |il: usize| LayerRows {
            k: hp.n_embd_k(il),
            v: hp.n_embd_v(il),
            swa: hp.swa[il],
            conv: hp.recurrent[il].map_or(0, |r| r.n_conv()),
            state: hp.recurrent[il].map_or(0, |r| r.n_state()),
        };
        (0..hp.n_layer).map(rows).collect()
    }

    /// Cells, slots and their types.
    pub fn cache_sizes(&self) -> CacheSizes {
        let shape = self.cache_shape();
        CacheSizes {
            types: self.how.kv_types,
            n_cells: [shape.n_cells, shape.n_cells_swa],
            n_slots: shape.n_slots,
        }
    }

    /// Bytes of every cache tensor, by [`CacheId`].
    pub fn cache_bytes(&self) -> Vec<usize> {
        self.cache_sizes().bytes(&self.layer_rows())
    }

    /// The graphs of a whole ubatch and of a single token.
    pub fn graphs(&self) -> &[Graph] {
        &self.graphs
    }

    fn build_graphs(&self) -> Result<Vec<Graph>> {
        let shape = self.cache_shape();
        let whole = Width {
            n_tokens: self.how.n_ubatch,
            n_outputs: self.how.n_seqs,
            n_seqs: self.how.n_seqs,
        };
        let mut widths = vec![whole, Width::of(1, 1)];
        widths.dedup();
        let graph = |width| self.model.graph(Wanted::Logits, width, &shape);
        widths.into_iter().map(graph).collect()
    }

    /// The schedule with `n_offloaded` layers, the output included, on the device.
    pub fn schedule(&self, n_offloaded: usize) -> Schedule {
        Schedule::new(
            self.placement.devices(),
            self.model.n_layer(),
            n_offloaded,
            self.overridden.clone(),
            &self.graphs.iter().collect::<Vec<_>>(),
        )
    }

    /// Bytes that a schedule puts on the device beside the CPU. All graphs share
    /// one compute buffer.
    pub fn need(&self, schedule: &Schedule) -> Result<Need> {
        let mut need = Need::default();
        let Some(Device::Cuda(_)) = self.placement.offload else {
            return Ok(need);
        };
        let mut demand = cuda::Demand::default();
        for graph in &self.graphs {
            let segments = schedule.split(graph)?.segments;
            for segment in segments.iter().filter(|s| s.device == OFFLOAD) {
                demand.add(&cuda::lower(&segment.graph, self.how.exact), self.how.exact);
            }
        }
        need.weights = demand.weights();
        need.compute = demand.compute();
        let caches = (0..).zip(self.cache_bytes());
        let on_device = caches.filter(|&(at, _)| schedule.cache(CacheId(at)) == OFFLOAD);
        need.kv = on_device.fold(0, |sum, (_, bytes)| sum.saturating_add(bytes));
        Ok(need)
    }

    fn total(&self, n_offloaded: usize) -> Result<usize> {
        Ok(self.need(&self.schedule(n_offloaded))?.total())
    }

    /// The schedule that the user asked for, or with all that fits into
    /// `free_bytes` of the device (`None`: no limit).
    ///
    /// # Errors
    /// What was asked for does not fit.
    pub fn fit(&self, free_bytes: Option<usize>) -> Result<(Schedule, Need)> {
        let most = self.model.n_layer() + 1;
        let free = free_bytes.unwrap_or(usize::MAX);
        let n_offloaded = match self.placement.layers {
            GpuLayers::Count(n) => n.min(most),
            GpuLayers::All => most,
            GpuLayers::Auto => {
                let budget = free.saturating_sub(MARGIN_BYTES);
                layers_that_fit(most, budget, &mut |n| self.total(n))?
            }
        };
        let schedule = self.schedule(n_offloaded);
        let need = self.need(&schedule)?;
        if need.total() > free {
            let flags = self.flags_that_fit(n_offloaded, free)?;
            return Err(self.too_large(n_offloaded, need, free, &flags));
        }
        Ok((schedule, need))
    }

    /// `-ngl` and `-c`, each of which alone would make the rest fit.
    fn flags_that_fit(&self, n_offloaded: usize, free: usize) -> Result<Vec<String>> {
        let fewer = n_offloaded.saturating_sub(1);
        let n = layers_that_fit(fewer, free, &mut |n| self.total(n))?;
        let n_ctx = context_that_fits(self.how.n_ctx, free, &mut |n_ctx| {
            self.with_context(n_ctx)?.total(n_offloaded)
        })?;
        let mut flags = vec![format!("-ngl {n}")];
        flags.extend(n_ctx.map(|n_ctx| format!("-c {n_ctx}")));
        Ok(flags)
    }

    fn too_large(&self, n: usize, need: Need, free: usize, flags: &[String]) -> Error {
        let device = self.placement.offload.unwrap_or(Device::Cpu);
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        Error::DoesNotFit(format!(
            "{device}: -ngl {n} -c {} needs {} MiB (weights {}, KV cache {}, compute {}), \
             {} MiB are free; give {}",
            self.how.n_ctx,
            mib(need.total()),
            mib(need.weights),
            mib(need.kv),
            mib(need.compute),
            free >> 20,
            flags.join(" or "),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights 10 a layer, 30 the output; KV and compute besides.
    fn need(n_layers: usize, n_ctx: usize) -> usize {
        let output = if n_layers > 0 { 30 } else { 0 };
        let layers = n_layers.saturating_sub(1);
        output + layers * (10 + n_ctx / 256)
    }

    #[test]
    fn as_many_layers_as_fit() {
        for most in [1, 2, 33] {
            for budget in 0..600 {
                let mut asked = 0;
                let n = layers_that_fit(most, budget, &mut |n| {
                    asked += 1;
                    Ok(need(n, 1024))
                });
                let n = n.expect("no errors");
                assert!(n == 0 || need(n, 1024) <= budget, "{budget}: {n}");
                assert!(n == most || need(n + 1, 1024) > budget, "{budget}: {n}");
                assert!(asked <= 7, "{asked} graphs for {most} layers");
            }
        }
        let failed = layers_that_fit(4, 9, &mut |_| Err(Error::input("no")));
        assert!(failed.is_err());
    }

    #[test]
    fn the_longest_context_that_fits_is_a_multiple_of_256() {
        // 32 layers: 30 + 320 + 32 for each 256 tokens.
        let fits =
            |budget| context_that_fits(131_072, budget, &mut |c| Ok(need(33, c))).expect("fine");
        assert_eq!(fits(350 + 31), None);
        assert_eq!(fits(350 + 32), Some(256));
        assert_eq!(fits(350 + 32 * 32), Some(8192));
        // Never what did not fit before.
        assert_eq!(fits(usize::MAX), Some(131_072 - 256));
        let short = context_that_fits(100, 1000, &mut |c| Ok(need(33, c)));
        assert_eq!(short.expect("fine"), None);
    }

    #[test]
    fn needs_never_overflow() {
        let need = Need {
            weights: 3,
            kv: usize::MAX,
            compute: 1,
        };
        assert_eq!(need.total(), usize::MAX);
    }
}
