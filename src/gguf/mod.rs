//! GGUF files: the map, the parser, typed metadata.

pub mod meta;
pub mod mmap;
pub mod parse;

pub use meta::{Metadata, StrArray, Value};
pub use mmap::FileBytes;
pub use parse::{Gguf, TensorInfo};
