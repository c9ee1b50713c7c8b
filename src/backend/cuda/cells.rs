//! Which token each cache cell holds, on the device: arrays as long as the context
//! that change in a few places a step, so only what changed is uploaded.

use super::context::Context;
use super::memory::{DeviceBuffer, PinnedBuffer};
use super::stream::Stream;
use crate::error::Result;
use crate::graph::Input;
use std::collections::HashMap;
use std::sync::Arc;

/// The arrays, shared by all executables of a backend.
pub struct Cells {
    context: Arc<Context>,
    arrays: HashMap<Input, Array>,
}

struct Array {
    device: DeviceBuffer,
    /// What the device holds, once the stream is past the uploads.
    host: PinnedBuffer,
}

impl Cells {
    /// No arrays yet.
    pub fn new(context: &Arc<Context>) -> Cells {
        Cells {
            context: context.clone(),
            arrays: HashMap::new(),
        }
    }

    /// Device address of an array of `n_cells` values, made when it is new.
    pub fn address(&mut self, stream: &Stream, input: Input, n_cells: usize) -> Result<u64> {
        if let Some(array) = self
            .arrays
            .get(&input)
            .filter(|a| a.device.bytes() == 4 * n_cells)
        {
            return Ok(array.device.address());
        }
        let bytes = n_cells * 4;
        let device = DeviceBuffer::alloc(&self.context, bytes, "the list of cells", "lower -c")?;
        // SAFETY: exactly the buffer.
        unsafe { stream.fill(device.address(), 0, bytes)? };
        let address = device.address();
        let host = PinnedBuffer::alloc(&self.context, bytes, "the list of cells")?;
        self.arrays.insert(input, Array { device, host });
        Ok(address)
    }

    /// Makes the device's array start with `data`. False when there is no such array.
    pub fn set(&mut self, stream: &Stream, input: Input, data: &[i32]) -> Result<bool> {
        let Some(array) = self.arrays.get_mut(&input) else {
            return Ok(false);
        };
        let same = |(old, new): &(&[u8], &i32)| *old == new.to_ne_bytes();
        let old = array.host.as_slice().chunks_exact(4).zip(data);
        let first = old.clone().take_while(same).count();
        let last = data.len() - old.skip(first).rev().take_while(same).count();
        if first < last {
            let changed = 4 * first..4 * last;
            let to = &mut array.host.as_mut_slice()[changed.clone()];
            for (to, v) in to.chunks_exact_mut(4).zip(&data[first..last]) {
                to.copy_from_slice(&v.to_ne_bytes());
            }
            let address = array.device.address() + changed.start as u64;
            // SAFETY: inside the array. A run waits for the stream; if an earlier copy
            // is under way without one, this one follows it and brings the same bytes.
            unsafe { stream.upload(address, &array.host.as_slice()[changed])? };
        }
        Ok(true)
    }
}
