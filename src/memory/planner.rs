//! What a device has to hold, and how many layers it has room for.

use super::kv::{self, LayerRows};
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
    /// Of K and V.
    kv_types: [DType; 2],
    n_ctx: usize,
    n_ubatch: usize,
    exact: bool,
    graphs: Vec<Graph>,
}

impl<'a> Setup<'a> {
    /// A setup of contexts of `n_ctx` tokens, evaluated `n_ubatch` at a time;
    /// `exact`: no 8-bit activations.
    ///
    /// # Errors
    /// As [`Placement::overridden`].
    pub fn new(
        model: &'a Model,
        placement: &'a Placement,
        kv_types: [DType; 2],
        n_ctx: usize,
        n_ubatch: usize,
        exact: bool,
    ) -> Result<Setup<'a>> {
        let setup = Setup {
            model,
            placement,
            overridden: placement.overridden(model.weight_names())?,
            kv_types,
            n_ctx,
            n_ubatch,
            exact,
            graphs: Vec::new(),
        };
        setup.with_context(n_ctx)
    }

    /// The same with contexts of `n_ctx` tokens.
    fn with_context(&self, n_ctx: usize) -> Result<Setup<'a>> {
        let mut setup = Setup {
            n_ctx,
            n_ubatch: self.n_ubatch.min(n_ctx),
            overridden: self.overridden.clone(),
            graphs: Vec::new(),
            ..*self
        };
        setup.graphs = setup.build_graphs()?;
        Ok(setup)
    }

    /// The cache as graphs see it.
    pub fn cache_shape(&self) -> CacheShape {
        // A sliding layer needs its window and the tokens of one ubatch.
        let n_cells_swa = match self.model.hparams().window {
            Some(w) => self.n_ctx.min(w as usize + self.n_ubatch),
            None => 1,
        };
        CacheShape {
            k_type: self.kv_types[0],
            v_type: self.kv_types[1],
            n_ctx: self.n_ctx,
            n_cells: self.n_ctx,
            n_cells_swa,
        }
    }

    /// Bytes of every cache tensor, by [`CacheId`].
    pub fn cache_bytes(&self) -> Vec<usize> {
        let hp = self.model.hparams();
        let rows = |il: usize| LayerRows {
            k: hp.n_embd_k(il),
            v: hp.n_embd_v(il),
            swa: hp.swa[il],
        };
        let layers: Vec<LayerRows> = (0..hp.n_layer).map(rows).collect();
        let shape = self.cache_shape();
        let n_cells = [shape.n_cells, shape.n_cells_swa];
        kv::cache_bytes(&layers, self.kv_types, n_cells)
    }

    /// The graphs of a whole ubatch and of a single token.
    pub fn graphs(&self) -> &[Graph] {
        &self.graphs
    }

    fn build_graphs(&self) -> Result<Vec<Graph>> {
        let shape = self.cache_shape();
        let mut widths = vec![self.n_ubatch, 1];
        widths.dedup();
        let graph = |n_tokens| {
            let width = Width::of(n_tokens, 1);
            self.model.graph(Wanted::Logits, width, &shape)
        };
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
                demand.add(&cuda::lower(&segment.graph, self.exact), self.exact);
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
        let n_ctx = context_that_fits(self.n_ctx, free, &mut |n_ctx| {
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
            self.n_ctx,
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
