//! The model inside the program, for a first run without a download.

use crate::Result;
use crate::gguf::{FileBytes, Gguf};
use std::path::Path;

/// Stands where messages name a file.
const NAME: &str = "built-in toy model";
/// A model worth talking to: 1 GB in Q4_K_M, Apache-2.0, of the same architecture.
const REAL: &str = "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF";

/// Bytes at an address that is a multiple of 64. `include_bytes!` promises none, but F32
/// weights are read where they lie in the file, at offsets that are aligned relative to its
/// first byte. 64 is a cache line, and what files in memory get too.
#[repr(C, align(64))]
struct Aligned<Bytes: ?Sized>(Bytes);

static TOY: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/models/toy-llama.gguf"
)));

/// Opens the model and says so; neither copies its bytes nor touches a disk.
pub fn open() -> Result<Gguf> {
    let gguf = Gguf::from_bytes(Path::new(NAME), FileBytes::from_static(&TOY.0))?;
    let n_params: u64 = (gguf.tensors.iter())
        .map(|tensor| tensor.shape.iter().product::<u64>())
        .sum();
    tracing::info!(
        "no model given: using the {NAME} ({:.0} M parameters; its facts are made up); \
         for a real one: llama-rs chat -hf {REAL}",
        n_params as f64 / 1e6
    );
    Ok(gguf)
}

#[cfg(test)]
mod tests {
    use super::{TOY, open};
    use crate::cli::load;

    #[test]
    fn the_bytes_are_the_file_and_aligned() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/toy-llama.gguf");
        let file = std::fs::read(path).expect("the file that was built in");
        // Not assert_eq: it would print both.
        assert!(TOY.0 == file, "the program holds another file");
        assert!((TOY.0.as_ptr() as usize).is_multiple_of(64));
    }

    #[test]
    fn it_speaks_and_chats() {
        let gguf = open().expect("it opens");
        load::need_tensors(&gguf).expect("weights");
        load::tokenizer(&gguf.meta).expect("a vocabulary");
        let template = gguf.meta.get_str("tokenizer.chat_template");
        assert!(template.expect("UTF-8").is_some());
        let data = gguf.data(&gguf.tensors[0]).as_ptr_range();
        assert!(TOY.0.as_ptr_range().contains(&data.start), "a copy");
    }
}
