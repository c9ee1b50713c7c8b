//! The CUDA backend: the same graph on an NVIDIA GPU.
//!
//! Before there is a device: `ops` says which kernels run a node, `lower` what a graph
//! becomes, `layout` how weights will lie, `demand` how much memory it all takes, `overhead` what the driver takes besides. With
//! one: `device` finds it, `context` opens it, `memory` and `stream` are its memory and
//! its queues; `weights` brings weights there, `cells` the list of who sits where in the
//! KV cache. `backend` and `bind` give a graph addresses (`clusters` says which form of a kernel); where one token or few are all there
//! is, `head_attn` makes one launch of attention and what is ahead of it, `experts` two of four,
//! `ssm_token` two of what a Mamba layer does between its products, `chain` one of matrix products
//! that follow each other (`seen` reads what launches were given); `exec` runs it.

mod backend;
pub mod bandwidth;
mod bind;
mod cells;
mod chain;
mod clusters;
pub mod context;
mod demand;
pub mod device;
pub mod driver;
mod exec;
mod experts;
mod head_attn;
pub mod image;
pub mod kernel;
pub mod layout;
pub mod lower;
pub mod memory;
pub mod ops;
mod overhead;
mod seen;
mod ssm_token;
pub mod stream;
mod weights;

pub use backend::CudaBackend;
pub use context::Context;
pub use demand::Demand;
pub use device::{DeviceInfo, Unavailable, discover};
pub use lower::{lower, runs};
pub use overhead::overhead_bytes;
