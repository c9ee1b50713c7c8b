//! llama-rs: runs GGUF language models on the CPU (CUDA to follow).
//!
//! Imports run one way: `cli -> session -> model -> arch -> graph -> quant ->
//! error`; `tests/layering.rs` holds the code to it.

pub mod arch;
pub mod backend;
pub mod chat;
pub mod cli;
pub mod error;
pub mod gguf;
pub mod graph;
pub mod hub;
pub mod memory;
pub mod model;
pub mod quant;
pub mod sampling;
pub mod session;
pub mod tokenizer;

pub use error::{Error, Result};
