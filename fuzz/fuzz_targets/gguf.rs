//! Any bytes, taken as a file: errors, never a panic, a hang or much memory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use llama_rs::gguf::{FileBytes, Gguf};
use llama_rs::tokenizer::{EncodeOptions, Tokenizer};
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let path = Path::new("fuzz.gguf");
    let mut reader = data;
    let Ok(bytes) = FileBytes::read(path, &mut reader, data.len() as u64) else {
        return;
    };
    let Ok(gguf) = Gguf::from_bytes(path, bytes) else {
        return;
    };
    for tensor in &gguf.tensors {
        assert_eq!(gguf.data(tensor).len(), tensor.bytes);
    }
    for (key, _) in gguf.meta.iter() {
        let _ = gguf.meta.get_number_array(key);
        if let Ok(Some(strings)) = gguf.meta.get_str_array(key) {
            let len = strings.len();
            assert_eq!(strings.count(), len);
        }
    }
    if let Ok(tokenizer) = Tokenizer::from_meta(&gguf.meta) {
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        for id in tokenizer.encode(b"Hello <s> w\xc3\xb6rld \xff\n", options) {
            tokenizer.piece(id);
        }
    }
});
