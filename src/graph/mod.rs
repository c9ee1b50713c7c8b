//! ggml-style tensor graphs: tensors, ops, a builder, fusion and the memory plan.

pub mod builder;
pub mod fuse;
pub mod op;
pub mod plan;
pub mod recurrent;
mod rope;
mod shape;
pub mod tensor;

pub use builder::{Builder, Catalog};
pub use op::{
    AttnParams, AttnShape, FusedMulMat, GluKind, HeadRows, Op, RopeMode, RopeParams, UnaryKind,
};
pub use plan::Plan;
pub use recurrent::{GatedDelta, SsmConv, SsmScan};
pub use tensor::{CacheId, Count, Graph, Input, Live, Origin, Tensor, TensorId};
