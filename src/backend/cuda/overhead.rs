//! What the driver takes of a GPU's memory for itself.

/// Kernels as the driver loads them, recorded graphs, tables and states of kernels,
/// inputs of further batch widths. Assumed, not measured: to be replaced by what an H200
/// shows between opening a GPU and the first tokens, less the plan's own bytes.
const KERNELS_BYTES: usize = 96 << 20;

/// A CUDA context on a GPU that is not here. Recorded constant, assumed until it is
/// measured on the H200; of a GPU that is here the free memory is read with the context
/// open, so what it takes is measured.
const RECORDED_CONTEXT_BYTES: usize = 512 << 20;

/// Bytes besides weights, caches and compute, on a GPU that `is_here` (whose free memory
/// was read with a context open) or is planned for from elsewhere.
pub fn overhead_bytes(is_here: bool) -> usize {
    match is_here {
        true => KERNELS_BYTES,
        false => KERNELS_BYTES + RECORDED_CONTEXT_BYTES,
    }
}
