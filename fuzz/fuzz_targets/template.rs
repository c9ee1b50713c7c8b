//! Any text, taken as a chat template: rendered or refused, within bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use llama_rs::chat::{ChatTemplate, RenderOptions};
use serde_json::json;

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::parse(source, "fuzz") else {
        return;
    };
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "user", "content": "Bye"},
    ]);
    let options = RenderOptions {
        add_generation_prompt: true,
        bos_token: "<s>",
        eos_token: "</s>",
        now: Some("2024-07-26T00:00:00"),
        ..Default::default()
    };
    let _ = template.render(&messages, &options);
});
