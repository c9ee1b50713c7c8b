//! What the memory of a GPU gives: the share of this that a kernel reaches says more
//! than its bytes per second.

use super::context::Context;
use super::memory::DeviceBuffer;
use super::stream::Stream;
use crate::error::Result;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a copy: far beyond the caches (50 MiB on an H200).
const COPY_BYTES: usize = 1 << 30;
/// Copies on the stream at a time, so that waiting for them is nothing beside them.
const COPIES: usize = 4;
const REPEATS: usize = 5;

/// Bytes per second, read and written, of a large copy on the GPU: the best of some.
///
/// # Errors
/// There is no room for 2 GiB, or the driver fails.
pub fn copy_bandwidth(context: &Arc<Context>) -> Result<f64> {
    let stream = Stream::new(context)?;
    let alloc = || {
        let remedy = "end what else runs on this GPU";
        DeviceBuffer::alloc(context, COPY_BYTES, "measuring the bandwidth", remedy)
    };
    let (src, dst) = (alloc()?, alloc()?);
    // Not zeros, which some memory compresses.
    // SAFETY: exactly the buffer.
    unsafe { stream.fill(src.address(), 0x5a, COPY_BYTES)? };
    let mut best = 0.0f64;
    // The first one warms up.
    for repeat in 0..=REPEATS {
        stream.sync()?;
        let started = Instant::now();
        let copied = copies(&stream, &dst, &src);
        // Also after an error: no copy may be under way when its memory goes.
        let done = stream.sync();
        copied.and(done)?;
        let seconds = started.elapsed().as_secs_f64();
        if repeat > 0 {
            best = best.max((2 * COPIES * COPY_BYTES) as f64 / seconds);
        }
    }
    Ok(best)
}

fn copies(stream: &Stream, dst: &DeviceBuffer, src: &DeviceBuffer) -> Result<()> {
    for _ in 0..COPIES {
        // SAFETY: two buffers of these bytes, which outlive the caller's `sync`.
        unsafe { stream.copy(dst.address(), src.address(), COPY_BYTES)? };
    }
    Ok(())
}
