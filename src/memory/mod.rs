//! What a session remembers between steps.

pub mod kv;

pub use kv::{Cells, KvStore, LayerRows};
