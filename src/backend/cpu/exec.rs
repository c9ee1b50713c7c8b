//! Compiles a planned graph to a list of nodes bound to memory, and runs it.

use super::bind::{Binder, Storage};
use super::buffer::{Buffer, Scratch};
use super::matmul::{ActKind, act_kind, q8_bytes, q16_bytes};
use super::pool::{Pool, Worker};
use super::rope::RopeTable;
use super::shares::Shares;
use super::simd::Simd;
use super::view::{Counts, View};
use super::{Ctx, Node, demand, run_node};
use crate::backend::{Backend, Counted, Counter, Executable, Held};
use crate::error::{Error, Result};
use crate::graph::fuse::{self, Rules};
use crate::graph::{CacheId, Count, Graph, Input, Op, Origin, Plan, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The CPU as a backend.
pub struct CpuBackend {
    simd: Simd,
    /// No 8-bit activations.
    exact: bool,
    pool: Arc<Mutex<Pool>>,
    storage: Arc<dyn Storage>,
    /// Shared by all executables, one of which runs at a time.
    arena: Mutex<Arc<Buffer>>,
    scratch: Mutex<Arc<Scratch>>,
    /// Weights that executables read, and their bytes.
    weights: Mutex<HashMap<Arc<str>, usize>>,
    /// Bytes that executables have to themselves.
    own: Counter,
}

impl CpuBackend {
    /// A backend of `n_threads` threads over `storage`, on the fastest path.
    pub fn new(storage: Arc<dyn Storage>, n_threads: usize, exact: bool) -> Result<CpuBackend> {
        Self::with_simd(storage, n_threads, exact, Simd::detect()?)
    }

    /// A backend on the path `simd`.
    ///
    /// # Errors
    /// This machine cannot run the path, or start the threads.
    pub fn with_simd(
        storage: Arc<dyn Storage>,
        n_threads: usize,
        exact: bool,
        simd: Simd,
    ) -> Result<CpuBackend> {
        if !simd.available() {
            return Err(Error::input(format!(
                "{}: not available on this machine; use scalar",
                simd.name()
            )));
        }
        Ok(CpuBackend {
            simd,
            exact,
            pool: Arc::new(Mutex::new(Pool::new(n_threads)?)),
            storage,
            arena: Mutex::new(Arc::new(Buffer::new(0, "the compute buffer")?)),
            scratch: Mutex::new(Arc::new(Scratch::new(0, n_threads)?)),
            weights: Mutex::default(),
            own: Counter::default(),
        })
    }

    /// Gives `f` the bytes of a cache; no run starts before it is done.
    fn with_cache(
        &self,
        id: CacheId,
        offset: usize,
        len: usize,
        f: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let _no_run = lock(&self.pool);
        let cache = self.storage.cache(id);
        let bytes = cache.and_then(|c| c.bytes_at(offset, len));
        bytes.map(f).ok_or_else(|| Error::Shape {
            op: "cache",
            detail: format!("{id:?} does not hold {len} bytes at {offset} on the CPU"),
        })
    }

    /// The compute buffer, grown to `bytes` when it is smaller.
    fn arena(&self, bytes: usize) -> Result<Arc<Buffer>> {
        let mut arena = lock(&self.arena);
        if arena.bytes() < bytes {
            *arena = Arc::new(Buffer::new(bytes, "the compute buffer")?);
        }
        Ok(arena.clone())
    }

    /// The scratch of all threads, grown to `bytes` for each when it is smaller.
    fn scratch(&self, bytes: usize) -> Result<Arc<Scratch>> {
        let mut scratch = lock(&self.scratch);
        if scratch.part_bytes() < bytes {
            *scratch = Arc::new(Scratch::new(bytes, self.n_threads())?);
        }
        Ok(scratch.clone())
    }

    fn n_threads(&self) -> usize {
        lock(&self.pool).n_threads()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rewrites that the CPU wants.
struct CpuRules {
    exact: bool,
}

/// The graph that the CPU runs for `graph`; `exact` keeps F32 activations.
pub fn lower(graph: &Graph, exact: bool) -> Graph {
    fuse::rewrite(graph, &CpuRules { exact })
}

/// Tokens up to which F16 and BF16 weights are multiplied with f32 activations: memory
/// bounds them, so 16-bit ones, which round the weights too, would gain nothing. A few
/// tokens get the bits that they get alone, as on GPUs.
const FEW_TOKENS: usize = 16;

impl Rules for CpuRules {
    fn norm_mul(&self) -> bool {
        true
    }

    fn scans(&self) -> bool {
        true
    }

    fn quantized(&self, w: &Tensor, x: &Tensor) -> Option<Op> {
        let n = x.n_values() / x.ne[0];
        // Experts see the same tokens in every slot.
        let n_tokens = if w.ne[2] > 1 { x.ne[2] } else { n };
        match act_kind(w.dtype, w.ne[0], self.exact) {
            ActKind::Q8 => Some(Op::QuantizeQ8 {
                words: q8_bytes(w.ne[0], n).div_ceil(4),
            }),
            ActKind::Q16 if n_tokens > FEW_TOKENS => Some(Op::QuantizeQ16 {
                words: q16_bytes(w.ne[0], n).div_ceil(4),
            }),
            ActKind::Q16 | ActKind::F32 => None,
        }
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn lower(&self, graph: &Graph) -> Graph {
        lower(graph, self.exact)
    }

    fn prepare(&self, graphs: &[&Graph], _: &dyn Fn(usize)) -> Result<()> {
        let n_threads = self.n_threads();
        let (mut arena, mut scratch) = (0, 0);
        for graph in graphs {
            arena = arena.max(Plan::new(graph).bytes);
            scratch = scratch.max(demand::scratch_bytes(graph, n_threads));
        }
        self.arena(arena)?;
        self.scratch(scratch).map(drop)
    }

    fn held(&self) -> Held {
        let scratch = lock(&self.scratch).part_bytes() * self.n_threads();
        // An empty buffer has a byte.
        let arena = lock(&self.arena).bytes();
        let arena = if arena > 1 { arena } else { 0 };
        Held {
            weights: lock(&self.weights).values().sum(),
            kv: 0,
            compute: arena + scratch + self.own.bytes(),
            own: self.own.bytes(),
        }
    }

    fn read_cache(&self, id: CacheId, offset: usize, data: &mut [u8]) -> Result<()> {
        self.with_cache(id, offset, data.len(), |cache| data.copy_from_slice(cache))
    }

    fn write_cache(&self, id: CacheId, offset: usize, data: &[u8]) -> Result<()> {
        self.with_cache(id, offset, data.len(), |cache| cache.copy_from_slice(data))
    }

    fn compile(&self, graph: Graph, plan: Plan) -> Result<Box<dyn Executable>> {
        let arena = self.arena(plan.bytes)?;
        let mut binder = Binder::new(&graph, &plan, &*self.storage, &arena);
        let mut nodes = Vec::new();
        for id in graph.ids() {
            if let Origin::Op(op) = graph.get(id).origin {
                nodes.push(binder.node(id, op)?);
            }
        }
        place_barriers(&mut nodes);
        let shares = Shares::new(number_products(&mut nodes), self.n_threads());
        let outputs = graph
            .outputs
            .iter()
            .map(|&id| binder.output(id))
            .collect::<Result<Vec<_>>>()?;
        let (inputs, rope_tables) = (binder.inputs, binder.tables);
        lock(&self.weights).extend(demand::weights(&graph));
        let scratch = self.scratch(demand::scratch_bytes(&graph, self.n_threads()))?;
        let identity: Vec<u32> = (0..demand::most_rows(&graph) as u32).collect();
        let inputs_bytes = inputs.values().map(|(_, n)| 4 * n).sum::<usize>();
        let tables_bytes = rope_tables.iter().map(RopeTable::held_bytes).sum::<usize>();
        let own = inputs_bytes + tables_bytes + 4 * identity.len();
        Ok(Box::new(CpuExecutable {
            pool: self.pool.clone(),
            _storage: self.storage.clone(),
            _arena: arena,
            simd: self.simd,
            counts: Counts::default(),
            scratch,
            identity,
            shares,
            _own: self.own.add(own),
            nodes,
            rope_tables,
            inputs,
            outputs,
            plan_bytes: plan.bytes,
        }))
    }
}

/// Bytes a view may touch.
fn range_of(view: &View) -> std::ops::Range<usize> {
    let start = view.ptr as usize;
    let last: usize = (1..4).map(|i| (view.ne[i] - 1) * view.nb[i]).sum();
    start..start + last + view.ne[0].div_ceil(view.dtype.block_len()) * view.dtype.block_bytes()
}

/// Keeps a barrier only where a node touches what another wrote, or overwrites
/// what another reads, since the last one.
fn place_barriers(nodes: &mut [Node]) {
    let mut written: Vec<std::ops::Range<usize>> = Vec::new();
    let mut read: Vec<std::ops::Range<usize>> = Vec::new();
    let meets = |set: &[std::ops::Range<usize>], r: &std::ops::Range<usize>| {
        set.iter().any(|s| s.start < r.end && r.start < s.end)
    };
    for node in nodes {
        let dst = range_of(&node.dst);
        let state = node.op.also_writes().map(|at| range_of(&node.src[at]));
        // SET_ROWS lists its cache as a source, but only writes it.
        let reads: Vec<_> = match node.op {
            Op::SetRows => node.src[1..].iter().map(range_of).collect(),
            _ => node.src.iter().map(range_of).collect(),
        };
        node.barrier_before = meets(&written, &dst)
            || meets(&read, &dst)
            || reads.iter().any(|r| meets(&written, r))
            || state.iter().any(|s| meets(&read, s));
        if node.barrier_before {
            written.clear();
            read.clear();
        }
        written.push(dst);
        written.extend(state);
        read.extend(reads);
    }
}

/// Numbers the products, and gives the rows of each.
fn number_products(nodes: &mut [Node]) -> Vec<usize> {
    let products = nodes.iter_mut().filter(|node| node.op == Op::MulMat);
    let number = |(i, node): (usize, &mut Node)| {
        node.product = i;
        node.src[0].ne[1]
    };
    products.enumerate().map(number).collect()
}

/// A graph bound to memory.
struct CpuExecutable {
    pool: Arc<Mutex<Pool>>,
    /// Views point into these.
    _storage: Arc<dyn Storage>,
    _arena: Arc<Buffer>,
    simd: Simd,
    counts: Counts,
    scratch: Arc<Scratch>,
    _own: Counted,
    identity: Vec<u32>,
    shares: Shares,
    nodes: Vec<Node>,
    rope_tables: Vec<RopeTable>,
    /// Data and full width.
    inputs: HashMap<Input, (Buffer, usize)>,
    outputs: Vec<View>,
    plan_bytes: usize,
}

impl Executable for CpuExecutable {
    fn set_input(&mut self, input: Input, data: &[i32]) -> Result<()> {
        let Some((buffer, width)) = self.inputs.get_mut(&input) else {
            return Ok(()); // this graph does not read it
        };
        if data.len() > *width {
            return Err(Error::Shape {
                op: "input",
                detail: format!("{input:?} holds {width} values, got {}", data.len()),
            });
        }
        let bytes = buffer.as_mut_slice();
        for (out, v) in bytes.chunks_exact_mut(4).zip(data) {
            out.copy_from_slice(&v.to_ne_bytes());
        }
        Ok(())
    }

    fn set_count(&mut self, count: Count, n: usize) {
        match count {
            Count::Tokens => self.counts.tokens = n,
            Count::Outputs => self.counts.outputs = n,
            Count::Cells { swa: false } => self.counts.cells = n,
            Count::Cells { swa: true } => self.counts.cells_swa = n,
        }
    }

    fn run(&mut self) -> Result<()> {
        let ctx = Ctx {
            simd: self.simd,
            counts: self.counts,
            identity: &self.identity,
            rope_tables: &self.rope_tables,
            scratch: &self.scratch,
            shares: &self.shares,
        };
        let nodes = &self.nodes;
        let mut pool = lock(&self.pool);
        pool.run(&|worker: &Worker<'_>| {
            ctx.shares.begin(worker);
            for table in ctx.rope_tables {
                table.fill(&ctx.counts, worker);
            }
            worker.barrier();
            for node in nodes {
                if node.barrier_before {
                    worker.barrier();
                }
                run_node(&ctx, node, worker);
            }
        });
        Ok(())
    }

    fn output(&self, index: usize) -> &[f32] {
        self.outputs[index].all_floats()
    }

    fn compute_bytes(&self) -> usize {
        self.plan_bytes
    }
}
