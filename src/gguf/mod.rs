//! GGUF files: the map, the parser, typed metadata, split files.

mod cursor;
mod identify;
pub mod meta;
pub mod mmap;
pub mod parse;
mod records;
mod split;

pub use meta::{Metadata, StrArray, Value};
pub use mmap::FileBytes;
pub use parse::Gguf;
pub use records::TensorInfo;
