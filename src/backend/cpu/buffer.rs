//! Memory that several threads work on; `view.rs` has the views ops get of it.
//!
//! The contract that makes the shared access sound: within one node every
//! thread writes only its own share of the result, results never overlap
//! sources (the plan gives each live tensor its own bytes), and a barrier lies
//! between a node and its readers. All `unsafe` here and in `view.rs` rests on it.

use super::pool::Worker;
use crate::error::{Error, Result};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Where a buffer's first byte lies: a cache line.
const ALIGN_BYTES: usize = 64;

/// Zeroed bytes on a 64-byte border, shared between threads.
pub struct Buffer {
    /// The first aligned byte of the allocation.
    ptr: NonNull<u8>,
    bytes: usize,
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: access follows the contract in the module text.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates exactly `bytes` zeroed bytes (at least one).
    pub fn new(bytes: usize, what: &str) -> Result<Buffer> {
        let too_large = || {
            Error::DoesNotFit(format!(
                "{what} needs {} MiB, which this machine does not give; lower -c or -ub",
                bytes >> 20
            ))
        };
        let bytes = bytes.max(1);
        // Aligned by hand: with an alignment of its own the allocator writes
        // the zeros, and a long context is paid for before the first token.
        let layout = bytes
            .checked_add(ALIGN_BYTES - 1)
            .and_then(|n| Layout::from_size_align(n, 1).ok())
            .ok_or_else(too_large)?;
        // SAFETY: the layout has a size of at least one byte.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or_else(too_large)?;
        let skip = base.as_ptr() as usize % ALIGN_BYTES;
        // SAFETY: less than `ALIGN_BYTES` are skipped, as many as were added.
        let ptr = unsafe { base.add((ALIGN_BYTES - skip) % ALIGN_BYTES) };
        Ok(Buffer {
            ptr,
            bytes,
            base,
            layout,
        })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of a byte.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes(), "offset inside the buffer");
        // SAFETY: just checked.
        unsafe { self.ptr.as_ptr().add(offset) }
    }

    /// Some bytes, to be read or changed between runs; `None` when they are not inside.
    #[allow(clippy::mut_from_ref)]
    pub fn bytes_at(&self, offset: usize, len: usize) -> Option<&mut [u8]> {
        (offset.checked_add(len)? <= self.bytes).then_some(())?;
        // SAFETY: inside the buffer; between runs nobody else touches it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.at(offset), len) })
    }

    /// All bytes, for one owner (saving and restoring state).
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `&mut self` excludes runs; all bytes are initialised (zeroed).
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// Working memory of each thread, used by one kernel at a time.
pub struct Scratch {
    buffer: Buffer,
    /// A thread's part, whole cache lines.
    bytes: usize,
}

impl Scratch {
    /// `bytes` (rounded up to a cache line) for each thread.
    pub fn new(bytes: usize, n_threads: usize) -> Result<Scratch> {
        let bytes = bytes.next_multiple_of(64);
        Ok(Scratch {
            buffer: Buffer::new(bytes * n_threads, "scratch")?,
            bytes,
        })
    }

    /// Bytes of each thread's part.
    pub fn part_bytes(&self) -> usize {
        self.bytes
    }

    /// This thread's bytes.
    #[allow(clippy::mut_from_ref)]
    pub fn bytes(&self, worker: &Worker<'_>) -> &mut [u8] {
        let at = self.buffer.at(worker.ith * self.bytes);
        // SAFETY: each thread has its own part, and runs one kernel at a time,
        // which asks for its scratch once.
        unsafe { std::slice::from_raw_parts_mut(at, self.bytes) }
    }

    /// This thread's memory as 8-byte words.
    #[allow(clippy::mut_from_ref)]
    pub fn words(&self, worker: &Worker<'_>) -> &mut [u64] {
        // SAFETY: parts start on cache lines, and any bytes are valid integers.
        unsafe { self.bytes(worker).align_to_mut::<u64>().1 }
    }

    /// A word of thread `ith`. Between two barriers: it wrote the word before the first
    /// and uses its memory again after the second.
    pub fn word_of(&self, ith: usize, at: usize) -> u64 {
        assert!(8 * at + 8 <= self.bytes, "a word of its part");
        let at = self.buffer.at(ith * self.bytes + 8 * at);
        // SAFETY: just checked, parts start on cache lines; nobody writes meanwhile.
        unsafe { at.cast::<u64>().read() }
    }

    /// This thread's memory as f32.
    #[allow(clippy::mut_from_ref)]
    pub fn floats(&self, worker: &Worker<'_>) -> &mut [f32] {
        // SAFETY: parts start on cache lines, and any bytes are valid floats.
        unsafe { self.bytes(worker).align_to_mut::<f32>().1 }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{ALIGN_BYTES, Buffer};

    /// Pages of this process that are in memory.
    fn resident_pages() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").expect("readable");
        let pages = text.split(' ').nth(1).and_then(|n| n.parse().ok());
        pages.expect("a number")
    }

    #[test]
    fn a_large_buffer_costs_no_memory_until_it_is_used() {
        let before = resident_pages();
        let mut buffer = Buffer::new(1 << 30, "a test").expect("address space");
        // Other tests run beside this one; the buffer has 262,144 pages.
        assert!(resident_pages() < before + 65_536);
        assert_eq!(buffer.at(0) as usize % ALIGN_BYTES, 0);
        assert_eq!(buffer.bytes(), 1 << 30);
        assert_eq!(buffer.as_mut_slice()[(1 << 30) - 1], 0);
    }
}
