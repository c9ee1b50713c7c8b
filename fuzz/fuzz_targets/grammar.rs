//! Any text, taken as GBNF and as a JSON schema: a grammar or an error, within bounds; what
//! the grammar lets come is never refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use llama_rs::sampling::{Chain, Grammar, GrammarSource, SamplingParams, Vocabulary};
use std::sync::{Arc, LazyLock};

/// The bytes, and after them the end of the text.
const END: u32 = 256;
/// Tokens of a text.
const MOST_TOKENS: usize = 64;

static VOCABULARY: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    Arc::new(Vocabulary::new(bytes.chain([Vec::new()]), vec![END]))
});

fuzz_target!(|text: &str| {
    for source in [
        GrammarSource::Gbnf(text.to_string()),
        GrammarSource::JsonSchema(text.to_string()),
    ] {
        if let Ok(grammar) = Grammar::new("fuzz", source, VOCABULARY.clone()) {
            follow(grammar, text.as_bytes());
        }
    }
});

/// Writes a text that the grammar allows, whose bytes are those of `wish` where they may be.
fn follow(grammar: Grammar, wish: &[u8]) {
    let params = SamplingParams {
        grammar: Some(Arc::new(grammar)),
        ..SamplingParams::greedy()
    };
    // Too many ways to read a text are an error.
    let Ok(mut chain) = Chain::new(&params) else {
        return;
    };
    for &byte in wish.iter().take(MOST_TOKENS) {
        let mut logits = [0.0; END as usize + 1];
        logits[usize::from(byte)] = 1.0;
        let Ok(id) = chain.sample(&logits) else {
            return;
        };
        if id == END {
            assert!(chain.is_whole());
            return;
        }
        chain.accept(id);
    }
}
