//! What devices have to hold, and what fits.
//!
//! [`Setup`] asks the backends for the bytes of one choice, with the code that they
//! allocate by; `solve` searches among choices; [`Planner`] puts both together.

mod budget;
mod plan;
mod search;
mod solve;

pub use budget::{Budget, MARGIN_BYTES, Room};
pub use plan::{Plan, Planner, Share, Wish, flags};
pub use solve::Point;

use super::kv::{CacheSizes, LayerRows};
use super::placement::{Placement, Schedule, is_expert};
use crate::arch::CacheShape;
use crate::backend::{Device, cpu, cuda};
use crate::error::Result;
use crate::graph::builder::Width;
use crate::graph::{CacheId, Graph};
use crate::model::{Model, Wanted};
use crate::quant::DType;
use rayon::prelude::*;
use std::collections::HashMap;

/// Bytes that a device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// As they lie there: on the CPU in the file's map.
    pub weights: usize,
    pub kv: usize,
    pub compute: usize,
    /// What the driver takes for itself, beside what it took before the device's free
    /// memory was read.
    pub overhead: usize,
}

impl Need {
    /// Bytes of all kinds.
    pub fn total(&self) -> usize {
        [self.kv, self.compute, self.overhead]
            .into_iter()
            .fold(self.weights, usize::saturating_add)
    }
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
    /// Most tokens of a batch all of whose logits are wanted; 0: there are none.
    pub n_all_logits: usize,
    /// Of the CPU.
    pub n_threads: usize,
    /// No 8-bit activations.
    pub exact: bool,
}

/// What a session with one length of context is about to evaluate, before anything is
/// allocated.
pub struct Setup<'a> {
    model: &'a Model,
    placement: &'a Placement,
    overridden: HashMap<String, usize>,
    how: Evaluation,
    graphs: Vec<Graph>,
    /// Of the graphs, those whose inputs are all there at once; the others take the
    /// place of one of them.
    n_apart: usize,
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
            n_apart: 0,
        };
        setup.with_context(how.n_ctx)
    }

    /// The same with contexts of `n_ctx` tokens.
    pub fn with_context(&self, n_ctx: usize) -> Result<Setup<'a>> {
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
        let whole = Width {
            n_tokens: setup.how.n_ubatch,
            n_outputs: setup.how.n_seqs,
            n_seqs: setup.how.n_seqs,
        };
        let mut widths = vec![whole, Width::of(1, 1)];
        widths.dedup();
        let of = |wanted| widths.iter().map(move |&width| (wanted, width));
        let mut wanted: Vec<(Wanted, Width)> = of(Wanted::Logits).collect();
        setup.n_apart = wanted.len();
        if setup.placement.offload.is_some() {
            // Who has the logits on a device looks for the highest there.
            wanted.extend(of(Wanted::Argmax));
        }
        let n = setup.how.n_all_logits.min(setup.how.n_ubatch);
        if n > 1 {
            wanted.push((Wanted::Logits, Width::of(n, n)));
        }
        let shape = setup.cache_shape();
        let graph = |(wanted, width)| setup.model.graph(wanted, width, &shape);
        setup.graphs = wanted
            .into_par_iter()
            .map(graph)
            .collect::<Result<Vec<_>>>()?;
        Ok(setup)
    }

    /// The model.
    pub fn model(&self) -> &'a Model {
        self.model
    }

    /// Which devices take part, and what the user said about them.
    pub fn placement(&self) -> &'a Placement {
        self.placement
    }

    /// How it is evaluated.
    pub fn how(&self) -> Evaluation {
        self.how
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

    /// The graphs of a whole ubatch and of a single token, first for logits.
    pub fn graphs(&self) -> &[Graph] {
        &self.graphs
    }

    /// Layers of the model up to the last one with experts.
    pub fn most_moe(&self) -> usize {
        let experts = self.model.weight_names().filter(|name| is_expert(name));
        let layers = experts.filter_map(super::placement::layer_of);
        layers.max().map_or(0, |il| il + 1)
    }

    /// The schedule with `n_layers` layers, the output included, on the device, but for
    /// the experts of the first `n_cpu_moe`.
    pub fn schedule(&self, n_layers: usize, n_cpu_moe: usize) -> Schedule {
        Schedule::new(
            self.placement.devices(),
            self.model.n_layer(),
            n_layers,
            n_cpu_moe,
            self.overridden.clone(),
            &self.graphs.iter().collect::<Vec<_>>(),
        )
    }

    /// Bytes that a schedule puts on each device, by number, without overhead. All
    /// graphs share one compute buffer on each.
    pub fn needs(&self, schedule: &Schedule) -> Result<Vec<Need>> {
        let devices = self.placement.devices();
        let empty = || devices.iter().map(|d| Demand::of(*d)).collect::<Vec<_>>();
        let of = |(at, graph): (usize, &Graph)| {
            let mut demands = empty();
            for segment in schedule.split(graph)?.segments {
                let demand = &mut demands[segment.device];
                demand.add(&segment.graph, &self.how, at < self.n_apart);
            }
            Ok(demands)
        };
        let all = self.graphs.par_iter().enumerate().map(of);
        let all = all.collect::<Result<Vec<_>>>()?;
        let mut demands = empty();
        for of_graph in all {
            for (demand, more) in demands.iter_mut().zip(of_graph) {
                demand.merge(more);
            }
        }
        let mut needs: Vec<Need> = demands.iter().map(Demand::need).collect();
        for (at, bytes) in self.cache_bytes().into_iter().enumerate() {
            let number = schedule.cache(CacheId(at));
            let bytes = demands[number].cache(bytes);
            needs[number].kv = needs[number].kv.saturating_add(bytes);
        }
        Ok(needs)
    }
}

/// What graphs take on one device.
enum Demand {
    Cpu(cpu::Demand),
    Cuda(cuda::Demand),
}

impl Demand {
    fn of(device: Device) -> Demand {
        match device {
            Device::Cpu => Demand::Cpu(cpu::Demand::default()),
            Device::Cuda(_) => Demand::Cuda(cuda::Demand::default()),
        }
    }

    /// Takes a graph in as it is lowered there; `apart`: with inputs of its own.
    fn add(&mut self, graph: &Graph, how: &Evaluation, apart: bool) {
        match (self, apart) {
            (Demand::Cpu(d), true) => d.add(&cpu::lower(graph, how.exact), how.n_threads),
            (Demand::Cpu(d), false) => d.widen(&cpu::lower(graph, how.exact), how.n_threads),
            (Demand::Cuda(d), true) => d.add(&cuda::lower(graph, how.exact), how.exact),
            (Demand::Cuda(d), false) => d.widen(&cuda::lower(graph, how.exact), how.exact),
        }
    }

    /// Takes in what other graphs take on the same device.
    fn merge(&mut self, more: Demand) {
        match (self, more) {
            (Demand::Cpu(d), Demand::Cpu(more)) => d.merge(more),
            (Demand::Cuda(d), Demand::Cuda(more)) => d.merge(more),
            // They are made for the same devices.
            (Demand::Cpu(_), Demand::Cuda(_)) | (Demand::Cuda(_), Demand::Cpu(_)) => (),
        }
    }

    /// Bytes that a cache of `bytes` takes there.
    fn cache(&self, bytes: usize) -> usize {
        match self {
            Demand::Cpu(_) => bytes,
            Demand::Cuda(_) => cuda::Demand::cache(bytes),
        }
    }

    fn need(&self) -> Need {
        let (weights, compute) = match self {
            Demand::Cpu(demand) => (demand.weights(), demand.compute()),
            Demand::Cuda(demand) => (demand.weights(), demand.compute()),
        };
        Need {
            weights,
            compute,
            ..Need::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_never_overflow() {
        let need = Need {
            weights: 3,
            kv: usize::MAX,
            compute: 1,
            overhead: 2,
        };
        assert_eq!(need.total(), usize::MAX);
    }
}
