//! Backends: who evaluates a graph.

pub mod check;
pub mod cpu;
pub mod cuda;
pub mod sched;

use crate::error::Result;
use crate::graph::{CacheId, Count, Graph, Input, Plan, TensorId};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A place where graphs are evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Cpu,
    /// A GPU, by its index among those that CUDA shows.
    Cuda(usize),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda{index}"),
        }
    }
}

impl Device {
    /// Whether the device has a kernel for this node of a graph that no backend
    /// has lowered yet.
    pub fn runs(self, graph: &Graph, id: TensorId) -> bool {
        match self {
            Device::Cpu => true,
            Device::Cuda(_) => cuda::runs(graph, id),
        }
    }
}

/// Bytes that a backend has taken. On the CPU weights stay in the file's map, and caches
/// belong to the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    pub weights: usize,
    pub kv: usize,
    /// The compute buffer, scratch, inputs and tables.
    pub compute: usize,
    /// Of these, what executables have each to itself.
    pub own: usize,
}

/// How many bytes the executables of a backend have to themselves.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<AtomicUsize>);

impl Counter {
    /// Counts `bytes` for as long as the result lives.
    pub fn add(&self, bytes: usize) -> Counted {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Counted {
            counter: self.clone(),
            bytes,
        }
    }

    /// What is counted now.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct Counted {
    counter: Counter,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counter.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Evaluates graphs on one device.
pub trait Backend {
    /// Name as users give it (`cpu`).
    fn name(&self) -> &str;
    /// The graph this backend wants to run for `graph`: fused, lowered.
    fn lower(&self, graph: &Graph) -> Graph;
    /// Brings the weights that these lowered graphs read to where they run, each
    /// once, and allocates what they compute in; `progress` hears of bytes that
    /// are on their way.
    ///
    /// # Errors
    /// There is no room for them.
    fn prepare(&self, _graphs: &[&Graph], _progress: &dyn Fn(usize)) -> Result<()> {
        Ok(())
    }
    /// What it has taken so far.
    fn held(&self) -> Held;
    /// Reads bytes of a cache from `offset` on, between runs.
    ///
    /// # Errors
    /// The cache does not lie here, or has fewer bytes.
    fn read_cache(&self, id: CacheId, offset: usize, data: &mut [u8]) -> Result<()>;
    /// Overwrites bytes of a cache from `offset` on, between runs.
    ///
    /// # Errors
    /// As [`Backend::read_cache`].
    fn write_cache(&self, id: CacheId, offset: usize, data: &[u8]) -> Result<()>;
    /// Binds a lowered and planned graph, whose weights are prepared, to memory.
    fn compile(&self, graph: Graph, plan: Plan) -> Result<Box<dyn Executable>>;
}

/// A compiled graph.
pub trait Executable {
    /// Sets an input; `data` may be shorter than the input's full width.
    fn set_input(&mut self, input: Input, data: &[i32]) -> Result<()>;
    /// Sets a live count.
    fn set_count(&mut self, count: Count, n: usize);
    /// Runs all nodes.
    fn run(&mut self) -> Result<()>;
    /// The values of an output of the graph, at full width; of i32 their bits.
    fn output(&self, index: usize) -> &[f32];
    /// Bytes of the compute buffer that this executable was planned with.
    fn compute_bytes(&self) -> usize;
}
