//! What the driver takes of a GPU's memory for itself.

/// Kernels as the driver loads them, recorded graphs, tables and states of kernels,
/// inputs of further batch widths (at most 8 MiB), rounding to pages of 2 MiB. On an H200
/// with driver 580, 4 to 10 MiB were gone beyond the plan's own bytes: tests/planned_cuda.rs.
const KERNELS_BYTES: usize = 24 << 20;

/// A CUDA context on a GPU that is not here: recorded on an H200 with driver 580. Of a
/// GPU that is here the free memory is read with the context open, so what it takes is
/// measured.
const RECORDED_CONTEXT_BYTES: usize = 524 << 20;

/// Bytes besides weights, caches and compute, on a GPU that `is_here` (whose free memory
/// was read with a context open) or is planned for from elsewhere.
pub fn overhead_bytes(is_here: bool) -> usize {
    match is_here {
        true => KERNELS_BYTES,
        false => KERNELS_BYTES + RECORDED_CONTEXT_BYTES,
    }
}
