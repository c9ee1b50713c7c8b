//! Weights on the device: streamed from the file's map through pinned memory, and
//! rearranged there into the order that kernels read.

use super::layout::{self, Rearrange};
use super::lower::{self, Form};
use super::memory::{self, DeviceBuffer, PinnedBuffer};
use super::stream::{Event, Start, Stream};
use crate::backend::cpu::Storage;
use crate::error::{Error, Result};
use crate::graph::{Graph, Tensor, TensorId};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// Most bytes that travel at once: long enough for full bandwidth, short enough that
/// the first piece is soon on its way.
const PIECE_BYTES: usize = 16 << 20;
/// Pieces in flight: one is filled, one travels, one is rearranged, one is spare.
const SLOTS: usize = 4;
/// Bytes that one thread copies from the map at a time.
const COPY_BYTES: usize = 1 << 20;

const REMEDY: &str = "put fewer layers on the GPU with a lower -ngl";

/// Weights by name and form.
#[derive(Default)]
pub struct Weights {
    buffers: HashMap<(Arc<str>, Form), DeviceBuffer>,
}

/// A way to the device: pinned memory, the address where it arrives, and when both are
/// free again.
struct Slot {
    pinned: PinnedBuffer,
    staging: u64,
    done: Event,
}

/// Device bytes that weights of `graph` pass through before they are rearranged. The
/// compute buffer lends them.
pub fn staging_bytes(graph: &Graph) -> usize {
    SLOTS * slot_bytes(graph, &lower::weights(graph))
}

/// As much as the longest of these weights has, at most a piece; in front of others it
/// keeps their alignment.
fn slot_bytes(graph: &Graph, weights: &[(TensorId, Form)]) -> usize {
    let matrices = weights.iter().filter(|(_, form)| *form == Form::Matrix);
    let longest = matrices.map(|&(id, _)| graph.get(id).bytes()).max();
    memory::padded(longest.unwrap_or(0).min(PIECE_BYTES))
}

impl Weights {
    /// The device memory of a weight.
    pub fn get(&self, name: &str, form: Form) -> Option<&DeviceBuffer> {
        self.buffers.get(&(name.into(), form))
    }

    /// Bytes that all weights take.
    pub fn bytes(&self) -> usize {
        let sizes = self.buffers.values().map(|b| memory::padded(b.bytes()));
        sizes.sum()
    }

    /// Brings all weights of `graph` that are not there yet, through `staging`, which has
    /// [`staging_bytes`]; `progress` hears of the bytes of each piece that is on its way.
    pub fn upload(
        &mut self,
        stream: &Stream,
        host: &dyn Storage,
        graph: &Graph,
        staging: &DeviceBuffer,
        progress: &dyn Fn(usize),
    ) -> Result<()> {
        let mut missing = lower::weights(graph);
        missing.retain(|&(id, form)| self.get(&graph.get(id).name, form).is_none());
        let longest = missing.iter().map(|&(id, _)| graph.get(id).bytes()).max();
        let mut uploader = Uploader {
            stream,
            staging,
            slots: Vec::new(),
            pinned_bytes: longest.unwrap_or(0).min(PIECE_BYTES),
            slot_bytes: slot_bytes(graph, &missing),
            next: 0,
            progress,
        };
        let sent = self.send(&mut uploader, host, graph, &missing);
        // Also after an error: no copy may be under way when its memory goes.
        let arrived = stream.sync();
        sent.and(arrived)
    }

    /// Allocates weights and puts them on their way.
    fn send(
        &mut self,
        uploader: &mut Uploader<'_>,
        host: &dyn Storage,
        graph: &Graph,
        missing: &[(TensorId, Form)],
    ) -> Result<()> {
        let size = |&(id, form): &(TensorId, Form)| lower::bytes_of(graph.get(id), form);
        let sizes: Vec<usize> = missing.iter().map(size).collect();
        let context = uploader.stream.context();
        let buffers = DeviceBuffer::alloc_parts(context, &sizes, "the weights", REMEDY)?;
        for (&(id, form), buffer) in missing.iter().zip(buffers) {
            let tensor = graph.get(id);
            let data = host.weight(&tensor.name).ok_or_else(|| Error::Shape {
                op: "upload",
                detail: format!("{} has no data", tensor.name),
            })?;
            match form {
                Form::Plain => uploader.plain(&buffer, data)?,
                Form::Matrix => uploader.matrix(&buffer, tensor, data)?,
            }
            self.buffers.insert((tensor.name.clone(), form), buffer);
        }
        Ok(())
    }
}

struct Uploader<'a> {
    stream: &'a Stream,
    staging: &'a DeviceBuffer,
    slots: Vec<Slot>,
    /// As much as the longest weight has, at most a piece.
    pinned_bytes: usize,
    /// Of `staging`, for each slot.
    slot_bytes: usize,
    next: usize,
    progress: &'a dyn Fn(usize),
}

impl Uploader<'_> {
    /// The next slot, once its last piece has left it.
    fn slot(&mut self) -> Result<usize> {
        let context = self.stream.context();
        if self.slots.len() < SLOTS {
            let staging = self.staging.address() + (self.slots.len() * self.slot_bytes) as u64;
            self.slots.push(Slot {
                pinned: PinnedBuffer::alloc(context, self.pinned_bytes, "the way of the weights")?,
                staging,
                done: Event::new(context)?,
            });
        }
        let at = self.next % SLOTS;
        self.next += 1;
        self.slots[at].done.sync()?;
        Ok(at)
    }

    /// Fills a slot's pinned memory with `data` (at most one piece).
    fn fill(&mut self, at: usize, data: &[u8]) {
        let pinned = &mut self.slots[at].pinned.as_mut_slice()[..data.len()];
        let pieces = pinned
            .par_chunks_mut(COPY_BYTES)
            .zip(data.par_chunks(COPY_BYTES));
        pieces.for_each(|(to, from)| to.copy_from_slice(from));
    }

    /// Whether a piece fits a slot and its part of the staging memory.
    fn takes(&self, raw: &[u8]) -> bool {
        let most = self.slot_bytes.min(self.pinned_bytes);
        raw.len() <= most && SLOTS * self.slot_bytes <= self.staging.bytes()
    }

    fn plain(&mut self, buffer: &DeviceBuffer, data: &[u8]) -> Result<()> {
        let data = &data[..data.len().min(buffer.bytes())];
        for (i, piece) in data.chunks(PIECE_BYTES).enumerate() {
            let at = self.slot()?;
            self.fill(at, piece);
            let slot = &self.slots[at];
            let dst = buffer.address() + (i * PIECE_BYTES) as u64;
            // SAFETY: the piece lies inside `buffer`; the slot is not touched before
            // its event has passed.
            unsafe {
                self.stream
                    .upload(dst, &slot.pinned.as_slice()[..piece.len()])?
            };
            slot.done.record(self.stream)?;
            (self.progress)(piece.len());
        }
        Ok(())
    }

    /// Uploads whole row tiles at a time and rearranges each piece on the device.
    fn matrix(&mut self, buffer: &DeviceBuffer, tensor: &Tensor, data: &[u8]) -> Result<()> {
        for piece in layout::pieces(tensor.dtype, tensor.ne, PIECE_BYTES) {
            let range = piece.src_offset_bytes..piece.src_offset_bytes + piece.src_bytes;
            let Some(raw) = data.get(range).filter(|raw| self.takes(raw)) else {
                return Err(Error::input(format!(
                    "{}: rows of {} values are too long for CUDA; run with --device cpu",
                    tensor.name, tensor.ne[0]
                )));
            };
            let at = self.slot()?;
            self.fill(at, raw);
            let slot = &self.slots[at];
            let staging = slot.staging;
            let dst = buffer.address() + piece.dst_offset_bytes as u64;
            // SAFETY: the piece fits the staging memory and its row tiles lie inside
            // `buffer`; the slot is not touched before its event has passed.
            unsafe {
                self.stream
                    .upload(staging, &slot.pinned.as_slice()[..raw.len()])?;
                rearrange(self.stream, &piece.launch, staging, dst)?;
            }
            slot.done.record(self.stream)?;
            (self.progress)(raw.len());
        }
        Ok(())
    }
}

/// Rearranges raw rows at `src` into row tiles at `dst`.
///
/// # Safety
/// Both hold what the launch says until the stream is past it.
unsafe fn rearrange(stream: &Stream, launch: &Rearrange, src: u64, dst: u64) -> Result<()> {
    let function = stream.context().function(&launch.entry)?;
    let (mut src, mut dst, mut k, mut n_rows) = (src, dst, launch.k, launch.n_rows);
    let mut params: [*mut c_void; 4] = [
        (&raw mut src).cast(),
        (&raw mut dst).cast(),
        (&raw mut k).cast(),
        (&raw mut n_rows).cast(),
    ];
    // SAFETY: the parameters of `cuda-kernels/rearrange.cu`; memory is the caller's.
    unsafe {
        stream.launch(
            function,
            [launch.grid, 1, 1],
            (launch.block, 0),
            Start::default(),
            &mut params,
        )
    }
}
