//! The CUDA backend: the same graph on an NVIDIA GPU.

pub mod context;
pub mod device;
pub mod driver;
pub mod image;
pub mod kernel;
pub mod layout;
pub mod memory;
pub mod ops;
pub mod stream;

mod stand_in;
pub use context::Context;
pub use device::{DeviceInfo, Unavailable, discover};
pub use stand_in::{CudaBackend, compute_bytes, lower, runs, weight_bytes};
