//! Memory of a GPU, and host memory that it copies from and to without a detour.

use super::context::Context;
use super::driver::check;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use std::ffi::c_void;
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// Buffers start at a multiple of this.
pub const ALIGN_BYTES: usize = 256;

/// What the driver gave, freed on drop.
#[derive(Debug)]
struct Allocation {
    context: Arc<Context>,
    address: CUdeviceptr,
}

/// Device memory: an allocation, or a part of one that goes with its last part.
#[derive(Debug)]
pub struct DeviceBuffer {
    allocation: Arc<Allocation>,
    address: CUdeviceptr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates `bytes`; nothing is said about their values.
    ///
    /// When they are not there, the error tells that `what` needs them, what is free,
    /// and `remedy`.
    pub fn alloc(
        context: &Arc<Context>,
        bytes: usize,
        what: &str,
        remedy: &str,
    ) -> Result<DeviceBuffer> {
        context.make_current()?;
        let mut address = 0;
        // SAFETY: the address is written. The driver refuses zero bytes.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, _) = context.mem_info()?;
            let (name, gpu) = (context.name(), context.description());
            return Err(Error::DoesNotFit(format!(
                "no room for {what}: {} MiB, and {} MiB are free on {name} ({gpu}); {remedy}",
                bytes.div_ceil(MIB),
                free / MIB
            )));
        }
        check(result, &format!("{what} on {}", context.name()))?;
        let context = context.clone();
        Ok(DeviceBuffer {
            allocation: Arc::new(Allocation { context, address }),
            address,
            bytes,
        })
    }

    /// Allocates buffers of such `sizes` at once: apart, each would be rounded up to the
    /// driver's pages of 2 MiB. Together they take [`parts_bytes`]. Errors as
    /// [`DeviceBuffer::alloc`].
    pub fn alloc_parts(
        context: &Arc<Context>,
        sizes: &[usize],
        what: &str,
        remedy: &str,
    ) -> Result<Vec<DeviceBuffer>> {
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        let whole = DeviceBuffer::alloc(context, parts_bytes(sizes), what, remedy)?;
        let mut address = whole.address;
        let part = |&bytes: &usize| {
            let part = DeviceBuffer {
                allocation: whole.allocation.clone(),
                address,
                bytes,
            };
            address += padded(bytes) as u64;
            part
        };
        Ok(sizes.iter().map(part).collect())
    }

    /// Device address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The GPU it lies on.
    pub fn context(&self) -> &Arc<Context> {
        &self.allocation.context
    }
}

/// Bytes that buffers of such sizes take in one allocation.
pub fn parts_bytes<'a>(sizes: impl IntoIterator<Item = &'a usize>) -> usize {
    let padded = sizes.into_iter().map(|bytes| padded(*bytes));
    padded.fold(0, usize::saturating_add)
}

/// `bytes` as a part of an allocation takes them.
pub fn padded(bytes: usize) -> usize {
    bytes
        .checked_next_multiple_of(ALIGN_BYTES)
        .unwrap_or(usize::MAX)
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Errors cannot be helped here: after a failed launch every call has one.
        if self.context.make_current().is_ok() {
            // SAFETY: allocated in this context and not freed before; the driver waits
            // for launches that may still use it.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Host memory that stays where it is: copies from and to it run beside the host.
/// Cached by the CPU as usual, so that reading it is quick too. Zero at first.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Arc<Context>,
    data: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its memory, which any thread may use.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates `bytes` of host memory.
    pub fn alloc(context: &Arc<Context>, bytes: usize, what: &str) -> Result<PinnedBuffer> {
        context.make_current()?;
        let mut data: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is written. The driver refuses zero bytes.
        let result = unsafe { sys::cuMemHostAlloc(&mut data, bytes.max(1), 0) };
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::DoesNotFit(format!(
                "no room for {what}: {} MiB of pinned host memory; free some memory, or run with \
                 --device cpu",
                bytes.div_ceil(MIB)
            )));
        }
        check(result, &format!("pinned host memory for {what}"))?;
        let data = data.cast::<u8>();
        // SAFETY: `bytes` were allocated.
        unsafe { data.write_bytes(0, bytes) };
        Ok(PinnedBuffer {
            context: context.clone(),
            data,
            bytes,
        })
    }

    /// The bytes. A copy into them must be over: see [`super::stream::Stream`].
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated with this length, and initialized.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }

    /// The whole 4-byte integers among them, on the same terms.
    pub fn as_ints(&self) -> &[i32] {
        // SAFETY: as above; pinned memory starts on a page, and all bits are integers.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.bytes / 4) }
    }

    /// The bytes. A copy from or into them must be over.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: allocated by `cuMemHostAlloc` and not freed before.
            unsafe { sys::cuMemFreeHost(self.data.cast()) };
        }
    }
}
