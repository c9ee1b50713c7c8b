//! The GPU as a backend: weights, caches, the compute buffer that all executables
//! share, and compiling a graph to launches.

use super::bind::{Addresses, Launch, Place};
use super::cells::Cells;
use super::chain::{self, Chains};
use super::context::Context;
use super::exec::{CudaExecutable, Inputs, Memory, Output, States};
use super::experts;
use super::head_attn;
use super::kernel::{Kernel, Node, View};
use super::lower::{self, Form, VEC_TOKENS};
use super::memory::{self, DeviceBuffer};
use super::ops;
use super::ssm_token;
use super::stream::Stream;
use super::weights::{self, Weights};
use crate::backend::cpu::Storage;
use crate::backend::{Backend, Counter, Executable, Held};
use crate::error::{Error, Result};
use crate::graph::{CacheId, Graph, Origin, Plan, TensorId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// One GPU as a backend.
pub struct CudaBackend {
    context: Arc<Context>,
    stream: Arc<Stream>,
    host: Arc<dyn Storage>,
    exact: bool,
    caches: Arc<HashMap<CacheId, DeviceBuffer>>,
    weights: Arc<Mutex<Weights>>,
    /// The compute buffer, shared by all executables, one of which runs at a time. One
    /// that was compiled before it grew keeps the smaller one.
    arena: Mutex<Option<Arc<DeviceBuffer>>>,
    /// Constants of kernels, by content.
    tables: Arc<Mutex<HashMap<Vec<u8>, DeviceBuffer>>>,
    states: Arc<Mutex<States>>,
    /// Looked for when a graph of one token is compiled first.
    chains: OnceLock<Option<Chains>>,
    cells: Arc<Mutex<Cells>>,
    /// Bytes of the inputs of executables.
    own: Counter,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaBackend {
    /// Allocates and clears `caches` (bytes of each); weights come from `host` when
    /// graphs are prepared. `exact` keeps F32 activations.
    pub fn new(
        context: Arc<Context>,
        host: Arc<dyn Storage>,
        caches: &[(CacheId, usize)],
        exact: bool,
    ) -> Result<CudaBackend> {
        let stream = Arc::new(Stream::new(&context)?);
        let total = caches.iter().fold(0usize, |sum, c| sum.saturating_add(c.1));
        let what = format!("the KV cache ({} MiB in all)", total >> 20);
        let sizes: Vec<usize> = caches.iter().map(|cache| cache.1).collect();
        let remedy = "use a shorter context with -c";
        let buffers = DeviceBuffer::alloc_parts(&context, &sizes, &what, remedy)?;
        for buffer in &buffers {
            // Cells that no token sees are multiplied by zero, so they hold numbers.
            // SAFETY: exactly the buffer.
            unsafe { stream.fill(buffer.address(), 0, buffer.bytes())? };
        }
        let ids = caches.iter().map(|cache| cache.0);
        let buffers: HashMap<CacheId, DeviceBuffer> = ids.zip(buffers).collect();
        stream.sync()?;
        Ok(CudaBackend {
            cells: Arc::new(Mutex::new(Cells::new(&context))),
            context,
            stream,
            host,
            exact,
            caches: Arc::new(buffers),
            weights: Arc::default(),
            arena: Mutex::default(),
            tables: Arc::default(),
            states: Arc::default(),
            chains: OnceLock::new(),
            own: Counter::default(),
        })
    }

    /// A cache of at least `bytes`.
    fn cache(&self, id: CacheId, bytes: usize) -> Result<&DeviceBuffer> {
        let cache = self.caches.get(&id).filter(|c| c.bytes() >= bytes);
        cache.ok_or_else(|| Error::Shape {
            op: "cache",
            detail: format!("{id:?} of {bytes} bytes is not on {}", self.context.name()),
        })
    }

    /// The compute buffer, grown to `bytes` when it is smaller.
    fn arena(&self, bytes: usize) -> Result<Arc<DeviceBuffer>> {
        let mut arena = lock(&self.arena);
        if let Some(arena) = arena.as_ref().filter(|a| a.bytes() >= bytes) {
            return Ok(arena.clone());
        }
        let remedy = "lower -ub or -ngl";
        let grown = DeviceBuffer::alloc(&self.context, bytes, "the compute buffer", remedy)?;
        // Tests fill it with NaN, so that reading what nothing wrote shows.
        if std::env::var_os("LLAMA_RS_POISON").is_some() {
            // SAFETY: exactly the buffer.
            unsafe { self.stream.fill(grown.address(), 0xff, bytes)? };
        }
        Ok(arena.insert(Arc::new(grown)).clone())
    }

    /// Device address of constant bytes, uploaded once.
    fn table(&self, bytes: &[u8]) -> Result<u64> {
        let mut tables = lock(&self.tables);
        if let Some(table) = tables.get(bytes) {
            return Ok(table.address());
        }
        let table =
            DeviceBuffer::alloc(&self.context, bytes.len(), "a kernel's table", "lower -ngl")?;
        // SAFETY: exactly the buffer; waited for before `bytes` may go.
        unsafe { self.stream.upload(table.address(), bytes)? };
        self.stream.sync()?;
        let address = table.address();
        tables.insert(bytes.to_vec(), table);
        Ok(address)
    }

    /// Whether and how products become chains here.
    fn chains(&self) -> Result<Option<&Chains>> {
        if self.chains.get().is_none() {
            let found = Chains::open(&self.context, &self.stream, |k, n| self.state(k, n))?;
            let _ = self.chains.set(found);
        }
        Ok(self.chains.get().and_then(Option::as_ref))
    }

    /// Device address of what `kernel` keeps between launches, zeroed once.
    fn state(&self, kernel: &Kernel, bytes: usize) -> Result<u64> {
        let mut states = lock(&self.states);
        let key = (kernel.entry.clone(), kernel.grid, bytes);
        if let Some(state) = states.get(&key) {
            return Ok(state.address());
        }
        let state = DeviceBuffer::alloc(&self.context, bytes, "a kernel's state", "lower -ngl")?;
        // SAFETY: exactly the buffer.
        unsafe { self.stream.fill(state.address(), 0, bytes)? };
        self.stream.sync()?;
        let address = state.address();
        states.insert(key, state);
        Ok(address)
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &str {
        self.context.name()
    }

    fn lower(&self, graph: &Graph) -> Graph {
        lower::lower(graph, self.exact)
    }

    fn prepare(&self, graphs: &[&Graph], progress: &dyn Fn(usize)) -> Result<()> {
        let bytes = |graph: &&Graph| {
            let arena = lower::arena_bytes(graph, &Plan::new(graph), self.exact);
            arena.max(weights::staging_bytes(graph))
        };
        let arena = self.arena(graphs.iter().map(bytes).max().unwrap_or(0))?;
        for graph in graphs {
            lock(&self.weights).upload(&self.stream, &*self.host, graph, &arena, progress)?;
        }
        Ok(())
    }

    fn held(&self) -> Held {
        let arena = lock(&self.arena).as_ref().map_or(0, |a| a.bytes());
        Held {
            weights: lock(&self.weights).bytes(),
            kv: self
                .caches
                .values()
                .map(|b| memory::padded(b.bytes()))
                .sum(),
            compute: arena + lock(&self.cells).bytes() + self.own.bytes(),
            own: self.own.bytes(),
        }
    }

    fn read_cache(&self, id: CacheId, offset: usize, data: &mut [u8]) -> Result<()> {
        let cache = self.cache(id, offset + data.len())?;
        // SAFETY: the cache has these bytes; waited for before `data` is looked at.
        unsafe {
            self.stream
                .download(data, cache.address() + offset as u64)?
        };
        self.stream.sync()
    }

    fn write_cache(&self, id: CacheId, offset: usize, data: &[u8]) -> Result<()> {
        let cache = self.cache(id, offset + data.len())?;
        // SAFETY: the cache has these bytes; waited for before `data` may go.
        unsafe { self.stream.upload(cache.address() + offset as u64, data)? };
        self.stream.sync()
    }

    fn compile(&self, graph: Graph, plan: Plan) -> Result<Box<dyn Executable>> {
        let scratch = lower::scratch_bytes(&graph, self.exact);
        let bytes = lower::arena_bytes(&graph, &plan, self.exact);
        let arena = self.arena(bytes.max(weights::staging_bytes(&graph)))?;
        let inputs = Inputs::new(&self.context, &self.stream, &graph, &self.cells)?;
        // Without `prepare` the weights come now.
        lock(&self.weights).upload(&self.stream, &*self.host, &graph, &arena, &|_| ())?;
        let binder = Binder {
            backend: self,
            graph: &graph,
            plan: &plan,
            arena: arena.address(),
            inputs: &inputs,
        };
        let scratch_at = arena.address() + (bytes - scratch) as u64;
        let mut launches: Vec<Launch> = Vec::new();
        for id in graph.ids() {
            for launch in binder.launches(id, scratch_at)? {
                let apart = match launches.last_mut() {
                    Some(last) => last.join(launch),
                    None => Some(launch),
                };
                launches.extend(apart);
            }
        }
        let n_tokens = inputs.n_tokens();
        if chain::wanted() {
            launches = head_attn::fuse(launches);
            if experts::wanted() {
                launches = experts::fuse(&self.context, launches)?;
            }
            if n_tokens == 1 {
                launches = ssm_token::fuse(&self.context, launches)?;
                if let Some(chains) = self.chains()? {
                    launches = chains.link(&self.context, launches)?;
                }
            }
        }
        let outputs = graph.outputs.iter().map(|&id| {
            let place = binder.place(id, Form::Plain)?;
            Output::new(&self.context, graph.get(id), place.view.data)
        });
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let memory = Memory {
            _arena: arena,
            _weights: self.weights.clone(),
            _caches: self.caches.clone(),
            _tables: self.tables.clone(),
            _states: self.states.clone(),
            _own: self.own.add(inputs.bytes()),
        };
        Ok(Box::new(CudaExecutable::new(
            self.stream.clone(),
            memory,
            launches,
            inputs,
            outputs,
            bytes,
            n_tokens <= VEC_TOKENS,
        )))
    }
}

/// Resolves tensors to device memory.
struct Binder<'a> {
    backend: &'a CudaBackend,
    graph: &'a Graph,
    plan: &'a Plan,
    arena: u64,
    inputs: &'a Inputs,
}

impl Binder<'_> {
    /// Where a tensor lies. A weight in unit order is seen from its first byte.
    fn place(&self, id: TensorId, form: Form) -> Result<Place> {
        let tensor = self.graph.get(id);
        let owner_id = self.graph.owner(id);
        let owner = self.graph.get(owner_id);
        let missing = || Error::Shape {
            op: "compile",
            detail: format!("{} has no memory on the device", owner.name),
        };
        let mut offset = self.graph.offset_in_owner(id);
        let (start, bytes) = match &owner.origin {
            Origin::Op(_) => {
                let at = self.plan.offset[owner_id.at()].ok_or_else(missing)?;
                (self.arena + at as u64, owner.bytes())
            }
            Origin::Weight => {
                let weights = lock(&self.backend.weights);
                let buffer = weights.get(&owner.name, form).ok_or_else(missing)?;
                if form == Form::Matrix {
                    offset = 0;
                }
                (buffer.address(), buffer.bytes())
            }
            Origin::Cache(cache) => {
                let buffer = self.backend.caches.get(cache).ok_or_else(missing)?;
                (buffer.address(), buffer.bytes())
            }
            Origin::Input(input) => (
                self.inputs.address(*input).ok_or_else(missing)?,
                owner.bytes(),
            ),
            Origin::View { .. } => return Err(missing()),
        };
        if form == Form::Plain && offset + tensor.bytes() > bytes {
            return Err(missing());
        }
        let live = tensor
            .live
            .map(|l| (l.dim as i32, self.inputs.count_address(l.count)));
        let view = View {
            data: start + offset as u64,
            live: live.map_or(0, |l| l.1),
            nb: tensor.nb.map(|n| n as i64),
            ne: tensor.ne.map(|n| n as i32),
            live_dim: live.map_or(-1, |l| l.0),
            dtype: tensor.dtype.id() as i32,
        };
        Ok(Place {
            view,
            range: start..start + bytes as u64,
        })
    }

    /// The launches of a node; none for tensors that are no ops.
    fn launches(&self, id: TensorId, scratch: u64) -> Result<Vec<Launch>> {
        let Some(node) = Node::of(self.graph, id, self.backend.exact) else {
            return Ok(Vec::new());
        };
        let answer = ops::kernels(&node).ok_or_else(|| Error::Shape {
            op: node.op.name(),
            detail: format!("{} has no CUDA kernel", node.dst.name),
        })?;
        let dst = self.place(id, Form::Plain)?;
        let sources = self.graph.get(id).src.iter().enumerate();
        let src = sources.map(|(at, &s)| self.place(s, lower::form(&node.op, at)));
        let src = src.collect::<Result<Vec<_>>>()?;
        let mut at = Addresses {
            scratch,
            table: &mut |bytes| self.backend.table(bytes),
            state: &mut |kernel, bytes| self.backend.state(kernel, bytes),
        };
        let kept = node.op.also_writes().map(|at| &src[at]);
        let kernels = answer.kernels.iter();
        kernels
            .map(|kernel| Launch::new(&self.backend.context, kernel, &dst, &src, kept, &mut at))
            .collect()
    }
}
