//! Which token each cache cell holds, on the device: arrays as long as the context
//! that change in a few places a step, so only what changed is uploaded.

use super::context::Context;
use super::memory::DeviceBuffer;
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
    /// What the device holds.
    shadow: Vec<i32>,
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
            .filter(|a| a.shadow.len() == n_cells)
        {
            return Ok(array.device.address());
        }
        let bytes = n_cells * 4;
        let device = DeviceBuffer::alloc(&self.context, bytes, "the list of cells", "lower -c")?;
        // SAFETY: exactly the buffer.
        unsafe { stream.fill(device.address(), 0, bytes)? };
        let address = device.address();
        let shadow = vec![0; n_cells];
        self.arrays.insert(input, Array { device, shadow });
        Ok(address)
    }

    /// Makes the device's array start with `data`. False when there is no such array.
    pub fn set(&mut self, stream: &Stream, input: Input, data: &[i32]) -> Result<bool> {
        let Some(array) = self.arrays.get_mut(&input) else {
            return Ok(false);
        };
        let same = |(a, b): &(&i32, &i32)| a == b;
        let old = &mut array.shadow[..data.len()];
        let first = old.iter().zip(data).take_while(same).count();
        let last = data.len()
            - old[first..]
                .iter()
                .zip(&data[first..])
                .rev()
                .take_while(same)
                .count();
        if first < last {
            old[first..last].copy_from_slice(&data[first..last]);
            let bytes: Vec<u8> = data[first..last]
                .iter()
                .flat_map(|v| v.to_ne_bytes())
                .collect();
            // SAFETY: inside the array; from memory that is not pinned the driver has
            // copied the bytes when the call returns.
            unsafe { stream.upload(array.device.address() + 4 * first as u64, &bytes)? };
        }
        Ok(true)
    }
}
