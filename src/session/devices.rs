//! The devices of a session: their backends, weights and caches.

use super::SessionParams;
use crate::backend::cpu::{Buffer, CpuBackend, Storage};
use crate::backend::cuda::{self, Context, CudaBackend};
use crate::backend::sched::{self, HOST};
use crate::backend::{Backend, Device, Executable, Held};
use crate::error::Result;
use crate::graph::{CacheId, Graph};
use crate::memory::host::available_bytes;
use crate::memory::placement::OFFLOAD;
use crate::memory::planner::{Budget, Need, Plan, Planner, Setup, Wish};
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
    pub plan: Plan,
    /// Of all devices together.
    pub kv_bytes: usize,
    backends: Vec<Box<dyn Backend>>,
    storage: Arc<SessionStorage>,
    /// Bytes of each cache tensor.
    cache_bytes: Vec<usize>,
}

impl Devices {
    /// Opens the devices, decides what goes where, allocates the caches and uploads the
    /// weights; `progress` hears of bytes done and bytes in all. Gives also what the
    /// session evaluates: `base` with the context that was decided on.
    pub fn new<'a>(
        model: &Arc<Model>,
        params: &SessionParams,
        base: Setup<'a>,
        progress: &dyn Fn(usize, usize),
    ) -> Result<(Devices, Setup<'a>)> {
        let placement = &params.placement;
        let context = match placement.offload {
            Some(Device::Cuda(index)) => Some(Context::open(index)?),
            Some(Device::Cpu) | None => None,
        };
        let room = match (&context, placement.offload) {
            (Some(context), _) => Some((Some(free_bytes(context)?), cuda::overhead_bytes(true))),
            (None, offload) => offload.map(|_| (None, 0)),
        };
        let budget = Budget::new(available_bytes(), room, params.fit.margin_bytes);
        let (plan, setup) = plan(params, base, &budget)?;
        let schedule = setup.schedule(plan.point.n_layers, plan.point.n_cpu_moe);
        for op in schedule.refused(setup.graphs()) {
            tracing::warn!("{op} runs on the CPU: no CUDA kernel");
        }
        let share = plan.shares.get(OFFLOAD);
        let load = share.map(|share| Load {
            device: share.device,
            n_layers: schedule.n_offloaded(),
            most_layers: plan.most_layers,
            need: share.need,
        });
        if let Some(load) = load.filter(|l| l.n_layers == 0 && placement.layers == GpuLayers::Auto)
        {
            let free = room.and_then(|room| room.0).unwrap_or(0);
            tracing::warn!(
                "not one layer fits the {} MiB that are free on {}; all run on the CPU",
                free >> 20,
                load.device
            );
        }
        let cache_bytes = setup.cache_bytes();
        let devices_of_caches = placement.devices();
        let on_host = |id: CacheId| devices_of_caches[schedule.cache(id)] == Device::Cpu;
        let storage = Arc::new(SessionStorage {
            model: model.clone(),
            kv: KvStore::new(&cache_bytes, plan.point.n_ctx, &on_host)?,
        });
        let devices = Devices {
            backends: backends(params, &schedule, &cache_bytes, &storage, context)?,
            schedule,
            load,
            kv_bytes: cache_bytes.iter().fold(0, |sum, b| sum.saturating_add(*b)),
            storage,
            cache_bytes,
            plan,
        };
        let uploaded = devices.load.map_or(0, |load| load.need.weights);
        devices.prepare(setup.graphs(), uploaded, progress)?;
        Ok((devices, setup))
    }

    /// Bytes allocated so far, by device number.
    pub fn held(&self) -> Vec<Held> {
        let held = self.backends.iter().enumerate().map(|(number, backend)| {
            let mut held = backend.held();
            // Of caches the backend of a CPU knows nothing.
            for at in 0..self.cache_bytes.len() {
                let id = CacheId(at);
                if self.schedule.cache(id) == number {
                    held.kv += self.storage.kv.get(id).map_or(0, Buffer::bytes);
                }
            }
            held
        });
        held.collect()
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

/// What a GPU has free. Tests set it to see what happens where a plan is wrong.
fn free_bytes(context: &Context) -> Result<usize> {
    let told = std::env::var("LLAMA_RS_DEVICE_FREE");
    match told.ok().and_then(|bytes| bytes.parse().ok()) {
        Some(bytes) => Ok(bytes),
        None => Ok(context.mem_info()?.0),
    }
}

/// What fits, and what is evaluated then. Where the user has left something to choose, a
/// host that is too small for all weights is no reason not to start.
fn plan<'a>(params: &SessionParams, base: Setup<'a>, budget: &Budget) -> Result<(Plan, Setup<'a>)> {
    let wish = Wish {
        n_ctx: params.n_ctx,
        least: params.fit.least_ctx.unwrap_or(params.n_ctx),
    };
    let mut planner = Planner::new(base, budget.clone());
    let given = planner.is_given(wish);
    let budget = match given {
        true => budget.without_margins(),
        false => budget.clone(),
    };
    planner = planner.with_budget(budget.clone());
    let mut plan = planner.plan(wish)?;
    if !plan.fits {
        // With the least context, since even that is tight.
        planner = planner.with_budget(budget.lenient());
        plan = planner.plan(Wish {
            n_ctx: wish.least,
            ..wish
        })?;
        if plan.fits {
            tracing::warn!("the host has hardly room for this, so it may be slow");
        }
    }
    match plan.fits {
        true => Ok((plan.clone(), planner.into_setup(plan.point.n_ctx)?)),
        false => Err(planner.error(&plan, wish)),
    }
}

/// A backend for each device, with the caches of these `bytes` that lie there.
fn backends(
    params: &SessionParams,
    schedule: &Schedule,
    bytes: &[usize],
    storage: &Arc<SessionStorage>,
    context: Option<Arc<Context>>,
) -> Result<Vec<Box<dyn Backend>>> {
    let exact = params.exact_activations;
    let mut backends: Vec<Box<dyn Backend>> = Vec::new();
    for (number, device) in params.placement.devices().iter().enumerate() {
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
