//! The CPU backend.

pub mod matmul;
pub mod simd;
