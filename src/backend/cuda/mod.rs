//! The CUDA backend: the same graph on an NVIDIA GPU.
//!
//! `ops` says which kernels run a node, `lower` what a graph becomes before it has a
//! device, `backend` binds it to memory, `exec` runs it.

mod backend;
mod bind;
mod cells;
pub mod context;
mod demand;
pub mod device;
pub mod driver;
mod exec;
pub mod image;
pub mod kernel;
pub mod layout;
pub mod lower;
pub mod memory;
pub mod ops;
pub mod stream;
mod weights;

pub use backend::CudaBackend;
pub use context::Context;
pub use demand::Demand;
pub use device::{DeviceInfo, Unavailable, discover};
pub use lower::{lower, runs};
