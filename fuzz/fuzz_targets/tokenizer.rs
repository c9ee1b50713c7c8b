//! Any bytes, taken as text: every id is in the vocabulary.

#![no_main]

use libfuzzer_sys::fuzz_target;
use llama_rs::gguf::Gguf;
use llama_rs::tokenizer::{EncodeOptions, StreamDecoder, Tokenizer};
use std::sync::LazyLock;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let path = std::env::var_os("LLAMA_RS_FUZZ_VOCAB")
        .expect("LLAMA_RS_FUZZ_VOCAB names a GGUF file with a vocabulary");
    let gguf = Gguf::open(path.as_ref(), true).expect("the file opens");
    Tokenizer::from_meta(&gguf.meta).expect("the file has a vocabulary")
});

fuzz_target!(|data: &[u8]| {
    for parse_special in [false, true] {
        let options = EncodeOptions {
            add_special: false,
            parse_special,
        };
        let mut stream = StreamDecoder::new();
        for id in TOKENIZER.encode(data, options) {
            assert!((id as usize) < TOKENIZER.n_vocab());
            stream.push(&TOKENIZER, id);
        }
        stream.finish();
    }
});
