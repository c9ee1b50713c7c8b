//! Which token each cache cell holds, on the device: arrays as long as the context
//! that change in a few places a step, so only what changed is uploaded.

use super::context::Context;
use super::memory::{DeviceBuffer, PinnedBuffer};
use super::stream::Stream;
use crate::error::Result;
use crate::graph::Input;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The arrays, shared by all executables of a backend.
pub struct Cells {
    context: Arc<Context>,
    /// By input and length, so that no array goes while a graph still reads it.
    arrays: HashMap<(Input, usize), Array>,
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

    /// Device bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.arrays.values().map(|a| a.device.bytes()).sum()
    }

    /// Device address of an array of `n_cells` values, made when it is new.
    pub fn address(&mut self, stream: &Stream, input: Input, n_cells: usize) -> Result<u64> {
        if let Some(array) = self.arrays.get(&(input, n_cells)) {
            return Ok(array.device.address());
        }
        let bytes = n_cells * 4;
        let device = DeviceBuffer::alloc(&self.context, bytes, "the list of cells", "lower -c")?;
        // SAFETY: exactly the buffer.
        unsafe { stream.fill(device.address(), 0, bytes)? };
        let address = device.address();
        let host = PinnedBuffer::alloc(&self.context, bytes, "the list of cells")?;
        self.arrays.insert((input, n_cells), Array { device, host });
        Ok(address)
    }

    /// Makes the device's array of this input and length start with `data`.
    pub fn set(&mut self, stream: &Stream, key: (Input, usize), data: &[i32]) -> Result<()> {
        let Some(array) = self.arrays.get_mut(&key) else {
            return Ok(()); // no graph reads it
        };
        let held = &array.host.as_ints()[..data.len()];
        let changed = changed(held, data);
        if changed.is_empty() {
            return Ok(());
        }
        let bytes = 4 * changed.start..4 * changed.end;
        let to = &mut array.host.as_mut_slice()[bytes.clone()];
        for (to, v) in to.chunks_exact_mut(4).zip(&data[changed]) {
            to.copy_from_slice(&v.to_ne_bytes());
        }
        let address = array.device.address() + bytes.start as u64;
        // SAFETY: inside the array. A run waits for the stream; if an earlier copy
        // is under way without one, this one follows it and brings the same bytes.
        unsafe { stream.upload(address, &array.host.as_slice()[bytes]) }
    }
}

/// From the first to the last value that differs. Arrays are as long as the context and
/// hardly change, so whole blocks are compared at once.
fn changed(old: &[i32], new: &[i32]) -> Range<usize> {
    const BLOCK: usize = 1024;
    let blocks = || old.chunks(BLOCK).zip(new.chunks(BLOCK));
    let same = blocks().take_while(|(a, b)| a == b).count() * BLOCK;
    let start = same.min(new.len());
    let differ = |(_, (a, b)): &(usize, (&i32, &i32))| a != b;
    let mut rest = old[start..].iter().zip(&new[start..]).enumerate();
    let Some((first, _)) = rest.clone().find(differ) else {
        return 0..0;
    };
    let last = rest.rfind(differ).map_or(first, |(at, _)| at);
    start + first..start + last + 1
}

#[cfg(test)]
mod tests {
    use super::changed;

    #[test]
    fn what_changed_is_found_to_the_value() {
        for n in [0, 1, 1023, 1024, 1025, 5000] {
            let old: Vec<i32> = (0..n).collect();
            assert!(changed(&old, &old).is_empty(), "{n}");
            for first in [0, 1, 1023, 1024, 2047, 4999] {
                for last in [first, first + 1, first + 1500] {
                    if last >= n {
                        continue;
                    }
                    let mut new = old.clone();
                    (new[first as usize], new[last as usize]) = (-1, -1);
                    let want = first as usize..last as usize + 1;
                    assert_eq!(changed(&old, &new), want, "{n}");
                }
            }
        }
    }
}
