//! Work in order: streams, copies on them, events between them, captured graphs.

use super::context::{Context, Function};
use super::driver::check;
use crate::error::Result;
use cudarc::driver::sys::{
    self, CUevent, CUevent_flags_enum as EventFlags, CUgraph, CUgraphExec, CUlaunchAttribute,
    CUlaunchAttributeID, CUlaunchConfig, CUresult, CUstream, CUstream_flags_enum as StreamFlags,
    CUstreamCaptureMode_enum as CaptureMode,
};
use std::ffi::c_void;
use std::sync::Arc;

/// When a launch may start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Start {
    /// Before what is on the stream is done, for which it waits itself
    /// (`cuda-kernels/common.cuh`); GPUs before sm_90 start it afterwards.
    pub dependent: bool,
    /// With all its blocks at once, or not at all.
    pub cooperative: bool,
}

/// A queue of copies and launches that run in order, apart from other streams.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: the driver locks its streams; every method makes the context current.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream, which does not wait for the default stream.
    pub fn new(context: &Arc<Context>) -> Result<Stream> {
        context.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is written.
        let result =
            unsafe { sys::cuStreamCreate(&mut raw, StreamFlags::CU_STREAM_NON_BLOCKING as u32) };
        check(result, &format!("a stream on {}", context.name()))?;
        Ok(Stream {
            context: context.clone(),
            raw,
        })
    }

    /// The GPU it runs on.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits until everything on the stream is done; errors of launches show here.
    pub fn sync(&self) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: the stream lives.
        let result = unsafe { sys::cuStreamSynchronize(self.raw) };
        check(result, &format!("running on {}", self.context.name()))
    }

    /// Copies host bytes to device address `dst`.
    ///
    /// # Safety
    /// `dst` has room for them. When `src` is pinned, it stays unchanged and allocated
    /// until the stream is past the copy.
    pub unsafe fn upload(&self, dst: u64, src: &[u8]) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: the caller's promise.
        let result =
            unsafe { sys::cuMemcpyHtoDAsync_v2(dst, src.as_ptr().cast(), src.len(), self.raw) };
        check(result, &format!("a copy to {}", self.context.name()))
    }

    /// Copies from device address `src` to the host.
    ///
    /// # Safety
    /// `src` has `dst.len()` bytes. `dst` stays allocated and is not looked at until
    /// the stream is past the copy.
    pub unsafe fn download(&self, dst: &mut [u8], src: u64) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: the caller's promise.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(dst.as_mut_ptr().cast(), src, dst.len(), self.raw) };
        check(result, &format!("a copy from {}", self.context.name()))
    }

    /// Copies `bytes` from device address `src` to `dst`.
    ///
    /// # Safety
    /// Both have that many bytes, allocated until the stream is past the copy, and do
    /// not overlap.
    pub unsafe fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(dst, src, bytes, self.raw) };
        check(result, &format!("a copy on {}", self.context.name()))
    }

    /// Sets `bytes` from device address `dst` on to `value`.
    ///
    /// # Safety
    /// The address has that many bytes.
    pub unsafe fn fill(&self, dst: u64, value: u8, bytes: usize) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuMemsetD8Async(dst, value, bytes, self.raw) };
        check(
            result,
            &format!("filling memory of {}", self.context.name()),
        )
    }

    /// Launches `function` with `grid` blocks of `block` threads.
    ///
    /// # Safety
    /// `params` points to one value for each parameter of the kernel, in order and of
    /// its size; the driver copies them before this returns. What the kernel reads and
    /// writes stays allocated until the stream is past the launch. `function` is of this
    /// context. A `dependent` kernel calls `start`.
    pub unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        (block, shared_bytes): (u32, u32),
        start: Start,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        self.context.make_current()?;
        let [x, y, z] = grid;
        // SAFETY: a union of plain numbers.
        let mut attributes: [CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        let mut n = 0;
        if start.dependent && self.context.compute_capability() >= (9, 0) {
            attributes[n].id =
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[n].value.programmaticStreamSerializationAllowed = 1;
            n += 1;
        }
        if start.cooperative {
            attributes[n].id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes[n].value.cooperative = 1;
            n += 1;
        }
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared_bytes,
            hStream: self.raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: n as u32,
        };
        // SAFETY: the caller's promise; the attributes outlive the call.
        let result = unsafe {
            sys::cuLaunchKernelEx(
                &config,
                function.0,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        if result == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let what = format!(
            "{}: a launch of {x} x {y} x {z} blocks of {block} threads with {shared_bytes} \
             bytes of shared memory",
            self.context.name()
        );
        check(result, &what)
    }

    /// Records what `work` puts on this stream instead of running it. While it runs,
    /// this thread allocates nothing on the device and loads no kernels.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.context.make_current()?;
        // Other threads may allocate meanwhile.
        let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        let result = unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) };
        check(result, "starting to record a graph")?;
        let worked = work();
        let mut raw = std::ptr::null_mut();
        // The stream leaves its recording state even when the work failed.
        // SAFETY: begun above on this thread; the handle is written.
        let result = unsafe { sys::cuStreamEndCapture(self.raw, &mut raw) };
        let graph = Graph {
            context: self.context.clone(),
            raw,
        };
        worked?;
        check(result, "recording a graph")?;
        Ok(graph)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: created in `new`; the driver lets what is queued finish.
            unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: the driver locks its events; every method makes the context current.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event for ordering, without a time.
    pub fn new(context: &Arc<Context>) -> Result<Event> {
        context.make_current()?;
        let mut raw = std::ptr::null_mut();
        let flags = EventFlags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the handle is written.
        let result = unsafe { sys::cuEventCreate(&mut raw, flags) };
        check(result, &format!("an event on {}", context.name()))?;
        Ok(Event {
            context: context.clone(),
            raw,
        })
    }

    /// Puts the event behind what is on `stream` now.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: both live.
        let result = unsafe { sys::cuEventRecord(self.raw, stream.raw) };
        check(result, "recording an event")
    }

    /// Waits until the stream has passed the event; at once when it was never recorded.
    pub fn sync(&self) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: the event lives.
        let result = unsafe { sys::cuEventSynchronize(self.raw) };
        check(result, &format!("running on {}", self.context.name()))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: created in `new` and not destroyed before.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// Recorded work.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    raw: CUgraph,
}

impl Graph {
    /// Makes it ready for launches.
    pub fn instantiate(&self) -> Result<GraphExec> {
        self.context.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph lives; the handle is written.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, self.raw, 0) };
        check(result, "making a recorded graph ready")?;
        Ok(GraphExec {
            context: self.context.clone(),
            raw,
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A recording that failed left no graph.
        if !self.raw.is_null() && self.context.make_current().is_ok() {
            // SAFETY: the driver's, and not destroyed before.
            unsafe { sys::cuGraphDestroy(self.raw) };
        }
    }
}

/// Recorded work that can be launched again and again.
#[derive(Debug)]
pub struct GraphExec {
    context: Arc<Context>,
    raw: CUgraphExec,
}

// SAFETY: owned by one place at a time; every method makes the context current.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Puts all of the recorded work on `stream`.
    ///
    /// # Safety
    /// What the work reads and writes is still allocated, and stays so until `stream`
    /// is past it.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuGraphLaunch(self.raw, stream.raw) };
        check(
            result,
            &format!("running a graph on {}", self.context.name()),
        )
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: created in `instantiate`; the driver lets a running one finish.
            unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
