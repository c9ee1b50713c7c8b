//! The devices of a session: their backends, weights and caches.

use super::SessionParams;
use crate::backend::cpu::{Buffer, CpuBackend, Storage};
use crate::backend::cuda::{Context, CudaBackend};
use crate::backend::sched::{self, HOST};
use crate::backend::{Backend, Device, Executable};
use crate::error::Result;
use crate::graph::{CacheId, Graph};
use crate::memory::planner::{Need, Setup};
use crate::memory::{GpuLayers, KvStore, Schedule};
use crate::model::Model;
use std::cell::Cell;
use std::sync::Arc;

/// What the device beside the CPU holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub device: Device,
    /// Layers on it; the output is one of them.
    pub n_layers: usize,
    /// Layers of the model with its output.
    pub most_layers: usize,
    /// As planned; an executable of another batch width may take more.
    pub need: Need,
}

/// What the backends read besides a graph's own buffers.
struct SessionStorage {
    model: Arc<Model>,
    kv: KvStore,
}

impl Storage for SessionStorage {
    fn weight(&self, name: &str) -> Option<&[u8]> {
        self.model.weight_data(name)
    }

    fn cache(&self, id: CacheId) -> Option<&Buffer> {
        self.kv.get(id)
    }
}

/// Backends by device number, and what runs where.
pub(super) struct Devices {
    pub schedule: Schedule,
    pub load: Option<Load>,
    /// Of all devices together.
    pub kv_bytes: usize,
    backends: Vec<Box<dyn Backend>>,
}

impl Devices {
    /// Opens the devices, decides what goes where, allocates the caches and
    /// uploads the weights; `progress` hears of bytes done and bytes in all.
    pub fn new(
        model: &Arc<Model>,
        params: &SessionParams,
        setup: &Setup<'_>,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Devices> {
        let placement = &params.placement;
        let context = match placement.offload {
            Some(Device::Cuda(index)) => Some(Context::open(index)?),
            Some(Device::Cpu) | None => None,
        };
        let free_bytes = match &context {
            Some(context) => Some(context.mem_info()?.0),
            None => None,
        };
        let (schedule, need) = setup.fit(free_bytes)?;
        for op in schedule.refused() {
            tracing::warn!("{op} runs on the CPU: no CUDA kernel");
        }
        let load = placement.offload.map(|device| Load {
            device,
            n_layers: schedule.n_offloaded(),
            most_layers: model.n_layer() + 1,
            need,
        });
        if let Some(load) = load.filter(|l| l.n_layers == 0 && placement.layers == GpuLayers::Auto)
        {
            tracing::warn!(
                "not one layer fits the {} MiB that are free on {}; all run on the CPU",
                free_bytes.unwrap_or(0) >> 20,
                load.device
            );
        }
        let bytes = setup.cache_bytes();
        let devices = Devices {
            backends: backends(model, params, &schedule, &bytes, context)?,
            schedule,
            load,
            kv_bytes: bytes.iter().fold(0, |sum, b| sum.saturating_add(*b)),
        };
        devices.prepare(setup.graphs(), need.weights, progress)?;
        Ok(devices)
    }

    /// Uploads what the graphs read, all of one device at once.
    fn prepare(
        &self,
        graphs: &[Graph],
        total: usize,
        progress: &dyn Fn(usize, usize),
    ) -> Result<()> {
        let mut splits = Vec::new();
        for graph in graphs {
            let mut split = self.schedule.split(graph)?;
            split.lower(&self.backends);
            splits.push(split);
        }
        let done = Cell::new(0);
        for (number, backend) in self.backends.iter().enumerate() {
            let graphs: Vec<&Graph> = splits.iter().flat_map(|s| s.graphs_on(number)).collect();
            backend.prepare(&graphs, &|bytes| {
                done.set(done.get() + bytes);
                progress(done.get(), total);
            })?;
        }
        Ok(())
    }

    /// A graph ready to run, wherever its nodes go.
    pub fn compile(&self, graph: &Graph) -> Result<Box<dyn Executable>> {
        let mut split = self.schedule.split(graph)?;
        split.lower(&self.backends);
        tracing::debug!(
            "graph of {} tensors in {} segments",
            graph.tensors.len(),
            split.segments.len()
        );
        for (number, backend) in self.backends.iter().enumerate() {
            backend.prepare(&split.graphs_on(number), &|_| ())?;
        }
        sched::compile(split, &self.backends)
    }

    /// Reads bytes of a cache from `offset` on.
    pub fn read_cache(&self, id: CacheId, offset: usize, data: &mut [u8]) -> Result<()> {
        self.backends[self.schedule.cache(id)].read_cache(id, offset, data)
    }

    /// Overwrites bytes of a cache from `offset` on.
    pub fn write_cache(&self, id: CacheId, offset: usize, data: &[u8]) -> Result<()> {
        self.backends[self.schedule.cache(id)].write_cache(id, offset, data)
    }

    /// Whether the graph's first output is computed beside the CPU.
    pub fn computes_output(&self, graph: &Graph) -> bool {
        let by = graph.outputs.first().map(|&id| graph.owner(id));
        let placed = self.schedule.place(graph);
        by.is_some_and(|id| placed.device_of[id.at()] != HOST)
    }
}

/// A backend for each device, with the caches of these `bytes` that lie there.
fn backends(
    model: &Arc<Model>,
    params: &SessionParams,
    schedule: &Schedule,
    bytes: &[usize],
    context: Option<Arc<Context>>,
) -> Result<Vec<Box<dyn Backend>>> {
    let devices = params.placement.devices();
    let on_host = |id: CacheId| devices[schedule.cache(id)] == Device::Cpu;
    let storage = Arc::new(SessionStorage {
        model: model.clone(),
        kv: KvStore::new(bytes, params.n_ctx, &on_host)?,
    });
    let exact = params.exact_activations;
    let mut backends: Vec<Box<dyn Backend>> = Vec::new();
    for (number, device) in devices.iter().enumerate() {
        backends.push(match (device, &context) {
            (Device::Cuda(_), Some(context)) => {
                let all = (0..).map(CacheId).zip(bytes.iter().copied());
                let here: Vec<_> = all
                    .filter(|c| c.1 > 0 && schedule.cache(c.0) == number)
                    .collect();
                let (context, host) = (context.clone(), storage.clone());
                Box::new(CudaBackend::new(context, host, &here, exact)?)
            }
            _ => Box::new(CpuBackend::new(storage.clone(), params.n_threads, exact)?),
        });
    }
    Ok(backends)
}
