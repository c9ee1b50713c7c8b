//! A graph bound to the device: inputs go up, launches run, outputs come down.
//!
//! Narrow graphs (decode) are recorded once, copies included, and replayed as one
//! CUDA graph; wide ones are launched one by one, since few of them run twice.

use super::bind::Launch;
use super::cells::Cells;
use super::context::Context;
use super::memory::{DeviceBuffer, PinnedBuffer};
use super::stream::{GraphExec, Stream};
use super::weights::Weights;
use crate::backend::{Counted, Executable};
use crate::error::{Error, Result};
use crate::graph::plan::ALIGN_BYTES;
use crate::graph::{CacheId, Count, Graph, Input, Origin, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Place of a count among the live counts, which open the block of inputs.
fn count_index(count: Count) -> usize {
    match count {
        Count::Tokens => 0,
        Count::Outputs => 1,
        Count::Cells { swa: false } => 2,
        Count::Cells { swa: true } => 3,
    }
}

/// Live counts and inputs: one block of pinned memory that goes up in one copy, and
/// the cells, which every executable shares.
pub struct Inputs {
    host: PinnedBuffer,
    device: DeviceBuffer,
    /// Offset in the block and width in values.
    block: HashMap<Input, (usize, usize)>,
    /// Addresses of the shared arrays, and their width.
    shared: HashMap<Input, (u64, usize)>,
    cells: Arc<Mutex<Cells>>,
    n_tokens: usize,
}

impl Inputs {
    /// Places for all inputs of `graph`.
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        graph: &Graph,
        cells: &Arc<Mutex<Cells>>,
    ) -> Result<Inputs> {
        let (mut block, mut shared) = (HashMap::new(), HashMap::new());
        let mut bytes = ALIGN_BYTES;
        // A segment may read neither tokens nor positions, but something a token wide.
        let of_tokens = graph.tensors.iter().filter_map(|t| t.live.map(|l| (t, l)));
        let of_tokens = of_tokens.filter(|(_, l)| l.count == Count::Tokens);
        let n_tokens = of_tokens.map(|(t, l)| t.ne[l.dim]).max().unwrap_or(0);
        for tensor in &graph.tensors {
            let Origin::Input(input) = tensor.origin else {
                continue;
            };
            let n = tensor.n_values();
            match input {
                Input::CellPos { .. } | Input::CellSeq { .. } => {
                    let mut cells = cells.lock().unwrap_or_else(PoisonError::into_inner);
                    shared.insert(input, (cells.address(stream, input, n)?, n));
                }
                Input::Tokens
                | Input::Pos
                | Input::Seq
                | Input::OutIds
                | Input::SeqRows
                | Input::StateSlots
                | Input::Slots { .. }
                | Input::Border(_) => {
                    block.insert(input, (bytes, n));
                    bytes += (4 * n).next_multiple_of(ALIGN_BYTES);
                }
            }
        }
        Ok(Inputs {
            host: PinnedBuffer::alloc(context, bytes, "inputs")?,
            device: DeviceBuffer::alloc(context, bytes, "inputs", "lower -ub")?,
            block,
            shared,
            cells: cells.clone(),
            n_tokens,
        })
    }

    /// Device bytes of the block, the shared lists of cells aside.
    pub fn bytes(&self) -> usize {
        self.device.bytes()
    }

    /// Full width of the batch; 0 when nothing says it.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Device address of an input.
    pub fn address(&self, input: Input) -> Option<u64> {
        let in_block = self
            .block
            .get(&input)
            .map(|&(at, _)| self.device.address() + at as u64);
        in_block.or_else(|| self.shared.get(&input).map(|&(address, _)| address))
    }

    /// Device address of a live count.
    pub fn count_address(&self, count: Count) -> u64 {
        self.device.address() + 4 * count_index(count) as u64
    }

    fn write(&mut self, at: usize, data: &[i32]) {
        let to = &mut self.host.as_mut_slice()[at..at + 4 * data.len()];
        for (to, v) in to.chunks_exact_mut(4).zip(data) {
            to.copy_from_slice(&v.to_ne_bytes());
        }
    }

    fn count(&self, count: Count) -> usize {
        let at = 4 * count_index(count);
        let bytes = &self.host.as_slice()[at..at + 4];
        bytes
            .try_into()
            .map_or(0, |b| i32::from_ne_bytes(b).max(0) as usize)
    }
}

/// A tensor that is read after the run.
pub struct Output {
    device: u64,
    host: PinnedBuffer,
    /// Bytes of one entry of the live dimension, and its count.
    live: Option<(usize, Count)>,
}

impl Output {
    /// Room for `tensor`, which lies at `device`; it must be contiguous F32 or I32.
    pub fn new(context: &Arc<Context>, tensor: &Tensor, device: u64) -> Result<Output> {
        if !tensor.is_contiguous() || tensor.dtype.block_bytes() != 4 {
            return Err(Error::Shape {
                op: "output",
                detail: format!("{} is not contiguous F32 or I32", tensor.name),
            });
        }
        let last = (0..4).rev().find(|&d| tensor.ne[d] > 1).unwrap_or(0);
        let live = tensor.live.filter(|l| l.dim == last);
        Ok(Output {
            device,
            host: PinnedBuffer::alloc(context, tensor.bytes(), &tensor.name)?,
            live: live.map(|l| (tensor.nb[l.dim], l.count)),
        })
    }
}

/// What launches read and write besides inputs and outputs, held as long as they live.
pub(super) struct Memory {
    pub _arena: Arc<DeviceBuffer>,
    pub _weights: Arc<Mutex<Weights>>,
    pub _caches: Arc<HashMap<CacheId, DeviceBuffer>>,
    pub _tables: Arc<Mutex<HashMap<Vec<u8>, DeviceBuffer>>>,
    pub _states: Arc<Mutex<States>>,
    pub _own: Counted,
}

/// What kernels keep between launches, by entry, grid and bytes.
pub type States = HashMap<(String, [u32; 3], usize), DeviceBuffer>;

/// A graph ready to run on the device.
pub struct CudaExecutable {
    stream: Arc<Stream>,
    /// Launches point into these.
    _memory: Memory,
    launches: Vec<Launch>,
    inputs: Inputs,
    outputs: Vec<Output>,
    plan_bytes: usize,
    /// Record on the first run and replay from then on.
    replay: bool,
    recorded: Option<GraphExec>,
}

impl CudaExecutable {
    pub(super) fn new(
        stream: Arc<Stream>,
        memory: Memory,
        launches: Vec<Launch>,
        inputs: Inputs,
        outputs: Vec<Output>,
        plan_bytes: usize,
        replay: bool,
    ) -> CudaExecutable {
        CudaExecutable {
            stream,
            _memory: memory,
            launches,
            inputs,
            outputs,
            plan_bytes,
            replay,
            recorded: None,
        }
    }

    /// Inputs up, launches, outputs down. A recording has outputs at full width,
    /// since the live counts of later runs are not known.
    fn enqueue(&mut self) -> Result<()> {
        let host = self.inputs.host.as_slice();
        // SAFETY: equally long; not written before the stream was waited for.
        unsafe { self.stream.upload(self.inputs.device.address(), host)? };
        for launch in &self.launches {
            // SAFETY: `_memory`, inputs and outputs live as long as this executable.
            unsafe { launch.run(&self.stream)? };
        }
        for output in &mut self.outputs {
            let full = output.host.as_slice().len();
            let bytes = match output.live {
                Some((entry, count)) if !self.replay => {
                    (entry * self.inputs.count(count)).min(full)
                }
                _ => full,
            };
            let host = &mut output.host.as_mut_slice()[..bytes];
            // SAFETY: the tensor has at least these bytes; read after the stream was
            // waited for.
            unsafe { self.stream.download(host, output.device)? };
        }
        Ok(())
    }
}

impl Executable for CudaExecutable {
    fn set_input(&mut self, input: Input, data: &[i32]) -> Result<()> {
        let inputs = &mut self.inputs;
        let place = inputs.block.get(&input).copied();
        let shared = inputs.shared.get(&input).copied();
        let Some(width) = place.map(|p| p.1).or(shared.map(|s| s.1)) else {
            return Ok(()); // this graph does not read it
        };
        if data.len() > width {
            return Err(Error::Shape {
                op: "input",
                detail: format!("{input:?} holds {width} values, got {}", data.len()),
            });
        }
        match place {
            Some((at, _)) => inputs.write(at, data),
            None => {
                let mut cells = inputs.cells.lock().unwrap_or_else(PoisonError::into_inner);
                cells.set(&self.stream, (input, width), data)?;
            }
        }
        Ok(())
    }

    fn set_count(&mut self, count: Count, n: usize) {
        self.inputs.write(4 * count_index(count), &[n as i32]);
    }

    fn run(&mut self) -> Result<()> {
        if !self.replay {
            let queued = self.enqueue();
            // Also after an error: no copy may be under way when its memory goes.
            let done = self.stream.sync();
            return queued.and(done);
        }
        let recorded = match self.recorded.take() {
            Some(recorded) => recorded,
            None => {
                let stream = self.stream.clone();
                stream.capture(|| self.enqueue())?.instantiate()?
            }
        };
        // SAFETY: everything recorded lives as long as this executable.
        unsafe { self.recorded.insert(recorded).launch(&self.stream)? };
        self.stream.sync()
    }

    fn output(&self, index: usize) -> &[f32] {
        let bytes = self.outputs[index].host.as_slice();
        // SAFETY: pinned memory starts on a page; every bit pattern is a float.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / 4) }
    }

    fn compute_bytes(&self) -> usize {
        self.plan_bytes
    }
}
