//! Compiles a planned graph to a list of nodes bound to memory, and runs it.

use super::buffer::{Buffer, Counts, Scratch, View};
use super::matmul::{ActKind, act_kind, q8_bytes};
use super::pool::{Pool, Worker};
use super::rope::RopeTable;
use super::simd::Simd;
use super::{Ctx, Node, attn, mul_mat, run_node};
use crate::backend::{Backend, Executable};
use crate::error::{Error, Result};
use crate::graph::fuse::{self, Rules};
use crate::graph::{Count, Graph, Input, Op, Origin, Plan, RopeParams, Tensor, TensorId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that outlives a graph: weights in the map, cache tensors.
pub trait Storage: Send + Sync {
    /// First byte and length of a weight.
    fn weight(&self, name: &str) -> Option<&[u8]>;
    /// The buffer of a cache tensor.
    fn cache(&self, id: crate::graph::CacheId) -> Option<&Buffer>;
}

/// The CPU as a backend.
pub struct CpuBackend {
    simd: Simd,
    /// No 8-bit activations.
    exact: bool,
    pool: Arc<Mutex<Pool>>,
    storage: Arc<dyn Storage>,
    /// Shared by all executables, one of which runs at a time.
    arena: Mutex<Arc<Buffer>>,
}

impl CpuBackend {
    /// A backend of `n_threads` threads over `storage`.
    pub fn new(storage: Arc<dyn Storage>, n_threads: usize, exact: bool) -> Result<CpuBackend> {
        Ok(CpuBackend {
            simd: Simd::detect()?,
            exact,
            pool: Arc::new(Mutex::new(Pool::new(n_threads)?)),
            storage,
            arena: Mutex::new(Arc::new(Buffer::new(0, "the compute buffer")?)),
        })
    }

    /// The compute buffer, grown to `bytes` when it is smaller.
    fn arena(&self, bytes: usize) -> Result<Arc<Buffer>> {
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        if arena.bytes() < bytes {
            *arena = Arc::new(Buffer::new(bytes, "the compute buffer")?);
        }
        Ok(arena.clone())
    }
}

impl Rules for CpuBackend {
    fn norm_mul(&self) -> bool {
        true
    }

    fn q8_words(&self, w: &Tensor, x: &Tensor) -> Option<usize> {
        let n = x.n_values() / x.ne[0];
        match act_kind(w.dtype, w.ne[0], self.exact) {
            ActKind::Q8 => Some(q8_bytes(w.ne[0], n).div_ceil(4)),
            ActKind::F32 => None,
        }
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn lower(&self, graph: &Graph) -> Graph {
        fuse::rewrite(graph, self)
    }

    fn compile(&self, graph: Graph, plan: Plan) -> Result<Box<dyn Executable>> {
        let arena = self.arena(plan.bytes)?;
        let mut binder = Binder {
            graph: &graph,
            plan: &plan,
            storage: &*self.storage,
            arena: &arena,
            inputs: HashMap::new(),
            tables: Vec::new(),
            table_of: Vec::new(),
        };
        let mut nodes = Vec::new();
        for id in graph.ids() {
            if let Origin::Op(op) = graph.get(id).origin {
                nodes.push(binder.node(id, op)?);
            }
        }
        place_barriers(&mut nodes);
        let outputs = graph
            .outputs
            .iter()
            .map(|&id| binder.view(id))
            .collect::<Result<Vec<_>>>()?;
        let (inputs, rope_tables) = (binder.inputs, binder.tables);
        let n_threads = self
            .pool
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .n_threads();
        let scratch_bytes = nodes
            .iter()
            .map(scratch_of)
            .max()
            .unwrap_or(0)
            .next_multiple_of(64);
        let widest = nodes.iter().map(|n| n.dst.n_rows()).max().unwrap_or(0);
        Ok(Box::new(CpuExecutable {
            pool: self.pool.clone(),
            _storage: self.storage.clone(),
            _arena: arena,
            simd: self.simd,
            counts: Counts::default(),
            scratch: Scratch::new(scratch_bytes, n_threads)?,
            identity: (0..widest as u32).collect(),
            nodes,
            rope_tables,
            inputs,
            outputs,
            output_ids: graph.outputs.clone(),
            plan_bytes: plan.bytes,
        }))
    }
}

/// Scratch bytes a thread needs for a node.
fn scratch_of(node: &Node) -> usize {
    match node.op {
        Op::MulMat => mul_mat::kernel_scratch_bytes(&node.src[0], &node.src[1]),
        Op::MulMatId => {
            let ids = &node.src[2];
            mul_mat::kernel_scratch_bytes(&node.src[0], &node.dst)
                + mul_mat::id_lists_bytes(ids.ne[0], ids.ne[1])
        }
        Op::Attn(_, shape) => attn::scratch_bytes(&shape),
        _ => 0,
    }
}

/// Resolves tensors to memory.
struct Binder<'a> {
    graph: &'a Graph,
    plan: &'a Plan,
    storage: &'a dyn Storage,
    arena: &'a Buffer,
    inputs: HashMap<Input, (Buffer, usize)>,
    tables: Vec<RopeTable>,
    table_of: Vec<(RopeParams, Option<TensorId>)>,
}

impl Binder<'_> {
    fn view(&mut self, id: TensorId) -> Result<View> {
        let tensor = self.graph.get(id);
        let owner_id = self.graph.owner(id);
        let owner = self.graph.get(owner_id);
        let (ptr, bytes) = match &owner.origin {
            Origin::Op(_) => {
                let at = self.plan.offset[owner_id.at()].ok_or_else(|| unplanned(owner))?;
                assert!(at + owner.bytes() <= self.arena.bytes());
                (self.arena.at(at), owner.bytes())
            }
            Origin::Weight => {
                let data = self
                    .storage
                    .weight(&owner.name)
                    .ok_or_else(|| unplanned(owner))?;
                (data.as_ptr().cast_mut(), data.len())
            }
            Origin::Cache(cache) => {
                let data = self.storage.cache(*cache).ok_or_else(|| unplanned(owner))?;
                (data.at(0), data.bytes())
            }
            Origin::Input(input) => {
                let n = owner.ne[0];
                if !self.inputs.contains_key(input) {
                    let data = Buffer::new(n * 4, "inputs")?;
                    self.inputs.insert(*input, (data, n));
                }
                (self.inputs[input].0.at(0), n * 4)
            }
            Origin::View { .. } => return Err(unplanned(owner)),
        };
        let offset = self.graph.offset_in_owner(id);
        if offset + tensor.bytes() > bytes {
            return Err(Error::Shape {
                op: "VIEW",
                detail: format!(
                    "{} needs {} bytes, {} has {bytes}",
                    tensor.name,
                    offset + tensor.bytes(),
                    owner.name
                ),
            });
        }
        Ok(View {
            ptr: ptr.wrapping_add(offset),
            dtype: tensor.dtype,
            ne: tensor.ne,
            nb: tensor.nb,
            live: tensor.live,
        })
    }

    fn node(&mut self, id: TensorId, op: Op) -> Result<Node> {
        let tensor = self.graph.get(id);
        let src = tensor
            .src
            .iter()
            .map(|&s| self.view(s))
            .collect::<Result<Vec<_>>>()?;
        let contiguous = |at: usize| self.graph.get(tensor.src[at]).is_contiguous();
        if matches!(op, Op::MulMat | Op::MulMatId) && !(contiguous(0) && contiguous(1)) {
            return Err(Error::Shape {
                op: op.name(),
                detail: format!("{} needs contiguous operands", tensor.name),
            });
        }
        let rope_table = match op {
            Op::Rope(params) => self.rope_table(params, &src, tensor.src.get(2).copied())?,
            _ => 0,
        };
        Ok(Node {
            op,
            dst: self.view(id)?,
            src,
            rope_table,
            barrier_before: true,
        })
    }

    fn rope_table(
        &mut self,
        params: RopeParams,
        src: &[View],
        factors: Option<TensorId>,
    ) -> Result<usize> {
        let key = (params, factors);
        if let Some(at) = self.table_of.iter().position(|k| *k == key) {
            return Ok(at);
        }
        self.tables
            .push(RopeTable::new(params, src[1], src.get(2).copied())?);
        self.table_of.push(key);
        Ok(self.tables.len() - 1)
    }
}

fn unplanned(tensor: &Tensor) -> Error {
    Error::Shape {
        op: "compile",
        detail: format!("{} has no memory", tensor.name),
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
        // SET_ROWS lists its cache as a source, but only writes it.
        let reads: Vec<_> = match node.op {
            Op::SetRows => node.src[1..].iter().map(range_of).collect(),
            _ => node.src.iter().map(range_of).collect(),
        };
        node.barrier_before =
            meets(&written, &dst) || meets(&read, &dst) || reads.iter().any(|r| meets(&written, r));
        if node.barrier_before {
            written.clear();
            read.clear();
        }
        written.push(dst);
        read.extend(reads);
    }
}

/// A graph bound to memory.
struct CpuExecutable {
    pool: Arc<Mutex<Pool>>,
    /// Views point into these.
    _storage: Arc<dyn Storage>,
    _arena: Arc<Buffer>,
    simd: Simd,
    counts: Counts,
    scratch: Scratch,
    identity: Vec<u32>,
    nodes: Vec<Node>,
    rope_tables: Vec<RopeTable>,
    /// Data and full width.
    inputs: HashMap<Input, (Buffer, usize)>,
    outputs: Vec<View>,
    output_ids: Vec<TensorId>,
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
        };
        let nodes = &self.nodes;
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.run(&|worker: &Worker<'_>| {
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

    fn output_id(&self, index: usize) -> TensorId {
        self.output_ids[index]
    }
}
