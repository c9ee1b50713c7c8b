//! Times ops: many instances of one op, each on operands of its own, in one graph.
//!
//! A run of the graph is timed on the host, so what waiting for the device costs (some
//! 10 us) is shared by all instances; nothing is subtracted. Inputs are random, and the
//! sets together exceed the caches wherever memory allows.

use super::peak::cpu_bandwidth;
use super::sample::Sample;
use super::sets::Sets;
use crate::backend::cpu::CpuBackend;
use crate::backend::cuda::kernel::Node;
use crate::backend::cuda::{Context, CudaBackend, bandwidth, lower, ops};
use crate::backend::{self, Backend, Executable};
use crate::error::{Error, Result};
use crate::graph::builder::Width;
use crate::graph::{Builder, Graph, Plan};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a run reads: five times the L2 cache of an H200, more than most processors'.
const CACHED_BYTES: usize = 256 << 20;
/// Operands and results of all sets, at most.
const MOST_CPU_BYTES: usize = 1 << 30;
const MOST_CUDA_BYTES: usize = 4 << 30;
/// A run that takes less is mostly waiting.
const RUN_SECONDS: f64 = 1e-3;
/// Most instances in a graph.
const MOST_SETS: usize = 512;
/// Time for the repeats of a sample, and how many there are at least, even if they
/// take longer; where a run takes over a second, fewer are enough.
const REPEAT_SECONDS: f64 = 0.3;
const REPEATS: usize = 10;
const LONG_REPEATS: usize = 3;
const LONG_RUN_SECONDS: f64 = 1.0;

/// What a device is assumed to do, to choose the number of sets.
struct Limits {
    /// Operands and results of all sets.
    bytes: usize,
    /// Least time of an instance.
    launch_seconds: f64,
    flops_per_second: f64,
    /// Time for which products are repeated in one run.
    product_seconds: f64,
}

/// Where ops are timed.
enum Device {
    Cpu { n_threads: usize },
    Cuda(Arc<Context>),
}

/// A device whose memory bandwidth has been measured.
pub struct Bench {
    device: Device,
    /// Bytes per second of a large copy.
    pub peak: f64,
}

/// How long an op took.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Seconds an instance: the median of all repeats, and the quartiles around it.
    pub seconds: f64,
    pub quartiles: [f64; 2],
    /// Instances in a run, and runs.
    pub n_sets: usize,
    pub repeats: usize,
    /// A run was so short that waiting for the device shows (see the module's text).
    pub short: bool,
}

impl Bench {
    /// The CPU, with this number of threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn cpu(n_threads: usize) -> Result<Bench> {
        Ok(Bench {
            device: Device::Cpu { n_threads },
            peak: cpu_bandwidth(n_threads)?,
        })
    }

    /// The GPU of this index.
    ///
    /// # Errors
    /// There is none to use, or no room to measure its bandwidth.
    pub fn cuda(index: usize) -> Result<Bench> {
        let context = Context::open(index)?;
        let peak = bandwidth::copy_bandwidth(&context)?;
        Ok(Bench {
            device: Device::Cuda(context),
            peak,
        })
    }

    /// What the device is called.
    pub fn description(&self) -> String {
        match &self.device {
            Device::Cpu { n_threads } => format!("{n_threads} threads"),
            Device::Cuda(context) => context.description().to_string(),
        }
    }

    /// Most bytes that one set of a sample may have on a device.
    pub fn most_bytes_of(device: backend::Device) -> usize {
        match device {
            backend::Device::Cpu => MOST_CPU_BYTES,
            backend::Device::Cuda(_) => MOST_CUDA_BYTES,
        }
    }

    fn limits(&self) -> Limits {
        match self.device {
            Device::Cpu { n_threads } => Limits {
                bytes: MOST_CPU_BYTES,
                launch_seconds: 1e-6,
                flops_per_second: 5e10 * n_threads as f64,
                product_seconds: 0.1,
            },
            Device::Cuda(_) => Limits {
                bytes: MOST_CUDA_BYTES,
                launch_seconds: 2e-6,
                flops_per_second: 2e14,
                product_seconds: 0.02,
            },
        }
    }

    /// Instances of a sample in one graph.
    fn n_sets(&self, sample: &Sample) -> usize {
        let limits = self.limits();
        let bytes = sample.set_bytes().max(1);
        let products = sample.flops as f64 / limits.flops_per_second;
        let seconds = (sample.bytes as f64 / self.peak).max(products);
        let by_time = RUN_SECONDS / seconds.max(limits.launch_seconds);
        // Of many experts, a run of few tokens reads few: what it reads fills the caches.
        let read = sample.bytes.clamp(1, bytes);
        let wanted = CACHED_BYTES.div_ceil(read).max(by_time.ceil() as usize);
        // What takes long by its arithmetic takes as long from a cache.
        let most = (limits.product_seconds / products.max(1e-9)) as usize;
        wanted
            .min(most.max(1))
            .min(limits.bytes / bytes)
            .clamp(1, MOST_SETS)
    }

    /// Times a sample; `None` when the device has no kernel for it.
    ///
    /// # Errors
    /// The device fails, or has no room.
    pub fn time(&self, sample: &Sample) -> Result<Option<Timing>> {
        let n_sets = self.n_sets(sample);
        let apart = matches!(self.device, Device::Cpu { .. });
        let sets = Arc::new(Sets::new(sample, n_sets, apart)?);
        let instances = |joined| graph(sample, &sets, n_sets, joined);
        match &self.device {
            Device::Cpu { n_threads } => {
                let backend = CpuBackend::new(sets.clone(), *n_threads, false)?;
                let lowered = backend.lower(&instances(false)?);
                repeat(&backend, lowered, true, n_sets).map(Some)
            }
            Device::Cuda(context) => {
                let one = lower::lower(&graph(sample, &sets, 1, false)?, false);
                let Some(joins) = joins(&one) else {
                    return Ok(None);
                };
                let lowered = lower::lower(&instances(joins)?, false);
                let backend = on_cuda(context, sample, &sets, n_sets)?;
                repeat(&backend, lowered, !joins, n_sets).map(Some)
            }
        }
    }
}

/// `n_sets` instances of a sample, none of which reads another; all on the same caches
/// where launches would be joined, see [`repeat`].
fn graph(sample: &Sample, sets: &Sets, n_sets: usize, one_cache: bool) -> Result<Graph> {
    let mut b = Builder::new(sets, Width::of(1, 1));
    for set in 0..n_sets {
        let caches_of = if one_cache { 0 } else { set };
        let out = sample.append_to(&mut b, set, caches_of)?;
        b.output(out);
    }
    Ok(b.graph)
}

/// Whether CUDA may put neighbours of this lowered graph into one launch; `None` when
/// a node has no kernel.
fn joins(graph: &Graph) -> Option<bool> {
    let nodes = graph.ids().filter_map(|id| Node::of(graph, id, false));
    let mut joins = false;
    for node in nodes {
        joins |= ops::kernels(&node)?.kernels.iter().any(|k| k.job);
    }
    Some(joins)
}

/// A backend whose caches hold random values.
fn on_cuda(
    context: &Arc<Context>,
    sample: &Sample,
    sets: &Arc<Sets>,
    n_sets: usize,
) -> Result<CudaBackend> {
    let mut caches = Vec::new();
    for set in 0..n_sets {
        for (at, x) in sample.operands.iter().enumerate().filter(|(_, x)| x.cache) {
            caches.push((sample.cache_id(set, at), x));
        }
    }
    let sizes: Vec<_> = caches.iter().map(|(id, x)| (*id, x.bytes())).collect();
    let backend = CudaBackend::new(context.clone(), sets.clone(), &sizes, false)?;
    for (id, x) in caches {
        backend.write_cache(id, 0, sets.cache_bytes(x))?;
    }
    Ok(backend)
}

/// Runs a lowered graph again and again. Its results are `apart`, as different tensors
/// of a model are, or share one place: then CUDA joins no launches, since each writes
/// what the one before it wrote.
fn repeat(backend: &dyn Backend, mut graph: Graph, apart: bool, n_sets: usize) -> Result<Timing> {
    // Planned as outputs, so that they outlive the run, but not read after it.
    let mut planned = graph.clone();
    graph.outputs.clear();
    if !apart {
        planned.outputs.clear();
    }
    backend.prepare(&[&planned], &|_| ())?;
    let plan = Plan::new(&planned);
    let mut exe = backend.compile(graph, plan)?;
    // On CUDA the first run records.
    exe.run()?;
    let first = run(&mut *exe)?.as_secs_f64();
    let repeats = match first > LONG_RUN_SECONDS {
        true => LONG_REPEATS,
        false => (REPEAT_SECONDS / first.max(1e-6)).clamp(REPEATS as f64, 1000.0) as usize,
    };
    let runs = (0..repeats).map(|_| Ok(run(&mut *exe)?.as_secs_f64()));
    let mut runs = runs.collect::<Result<Vec<f64>>>()?;
    runs.sort_by(f64::total_cmp);
    // Rounded outwards: of three repeats the quartiles are the first and the last.
    let at = |quarter: usize| {
        let last = (runs.len() - 1) * quarter;
        let index = if quarter > 2 {
            last.div_ceil(4)
        } else {
            last / 4
        };
        runs.get(index).copied()
    };
    let [Some(low), Some(median), Some(high)] = [1, 2, 3].map(at) else {
        return Err(Error::input("no op was timed"));
    };
    let each = |seconds: f64| seconds / n_sets as f64;
    Ok(Timing {
        seconds: each(median),
        quartiles: [each(low), each(high)],
        n_sets,
        repeats,
        short: median < RUN_SECONDS,
    })
}

fn run(exe: &mut dyn Executable) -> Result<Duration> {
    let started = Instant::now();
    exe.run()?;
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::check::shapes;

    #[test]
    fn sets_exceed_the_caches_within_the_memory() {
        let bench = Bench {
            device: Device::Cpu { n_threads: 2 },
            peak: 2e10,
        };
        let n_sets = |op: &str, shape: &str| {
            let row = shapes::find(op).expect("a row");
            bench.n_sets(&row.sample(shape, 1 << 30).expect("a shape"))
        };
        // 8 MiB each, read and written.
        assert_eq!(n_sets("SCALE", "1024,1024"), 32);
        assert_eq!(n_sets("ADD", "8"), MOST_SETS);
        // 256 MiB: no cache holds one set.
        assert_eq!(n_sets("SUM_ROWS", "8192,8192"), 1);
        // 60 GFLOP: more than a run should take, from wherever the operands come.
        assert_eq!(n_sets("MUL_MAT", "q4_K:4096,14336,512"), 1);
    }
}
