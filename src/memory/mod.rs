//! What a session remembers between steps, and what lies on which device.

pub mod host;
pub mod kv;
pub mod placement;
pub mod planner;

pub use kv::{CacheSizes, Cells, KvStore, LayerRows};
pub use placement::{GpuLayers, Placement, Schedule, TensorOverride};
