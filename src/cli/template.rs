//! `llama-rs template`: messages as the model will read them.

use super::args::RenderArgs;
use super::output::Product;
use super::{load, prompt, template_source};
use crate::Error;
use crate::chat::RenderOptions;
use serde_json::Value as Json;
use std::path::Path;

/// Runs the command.
pub fn run(args: RenderArgs) -> anyhow::Result<()> {
    let messages = read_messages(&args.messages)?;
    let given = template_source::given(&args.template)?;
    let (template, (bos, eos)) = match given {
        Some(template) if args.model.model.is_none() && args.model.hub.hf_repo.is_none() => {
            (template, Default::default())
        }
        given => {
            let gguf = load::open(&args.model)?;
            let template = match given {
                Some(template) => template,
                None => template_source::of_model(&gguf.meta)?,
            };
            (template, template_source::boundary_texts(&gguf.meta)?)
        }
    };
    let options = RenderOptions {
        add_generation_prompt: !args.no_generation_prompt,
        bos_token: args.bos.as_ref().unwrap_or(&bos),
        eos_token: args.eos.as_ref().unwrap_or(&eos),
        now: args.now.as_deref(),
        kwargs: args.template.chat_template_kwargs.unwrap_or_default(),
    };
    let text = template.render(&messages, &options)?;
    Product::stdout().stream(text.as_bytes())?;
    Ok(())
}

/// A JSON array of messages.
fn read_messages(path: &Path) -> crate::Result<Json> {
    let bytes = prompt::read_file(path)?;
    let bad = |cause: String| {
        let remedy = "give a JSON array of {\"role\", \"content\"} objects";
        Error::file(path, cause, remedy)
    };
    let messages: Json =
        serde_json::from_slice(&bytes).map_err(|e| bad(format!("not valid JSON: {e}")))?;
    match messages.as_array() {
        Some(list) if list.iter().all(Json::is_object) => Ok(messages),
        _ => Err(bad("not an array of messages".to_string())),
    }
}
