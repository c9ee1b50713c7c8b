//! The CUDA backend: the same graph on an NVIDIA GPU.

pub mod kernel;
pub mod ops;
