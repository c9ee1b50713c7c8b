//! The CUDA backend: the same graph on an NVIDIA GPU.

pub mod context;
pub mod device;
pub mod driver;
pub mod image;
pub mod kernel;
pub mod memory;
pub mod ops;
pub mod stream;
