//! Which chat template a command uses.

use super::flags::TemplateArgs;
use super::{load, prompt};
use crate::chat::ChatTemplate;
use crate::gguf::Metadata;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Name of the built-in template, used only on request.
const CHATML_NAME: &str = "chatml";
/// The turn markers of ChatML, which many models without a template know.
const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + \
                      '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}\
                      {{ '<|im_start|>assistant\n' }}{% endif %}";
const KEY: &str = "tokenizer.chat_template";

/// The template that the flags give; `None` leaves it to the model.
pub fn given(args: &TemplateArgs) -> Result<Option<ChatTemplate>> {
    if let Some(file) = &args.chat_template_file {
        let source = String::from_utf8(prompt::read_file(file)?).map_err(|_| {
            Error::file(
                file,
                "the chat template is not valid UTF-8",
                "give a Jinja text file",
            )
        })?;
        return ChatTemplate::parse(&source, &file.display().to_string()).map(Some);
    }
    match args.chat_template.as_deref() {
        None => Ok(None),
        Some(CHATML_NAME) => ChatTemplate::parse(CHATML, CHATML_NAME).map(Some),
        Some(source) if source.contains("{%") || source.contains("{{") => {
            ChatTemplate::parse(source, "--chat-template").map(Some)
        }
        Some(name) => Err(Error::input(format!(
            "--chat-template: {name:?} is neither Jinja text nor `{CHATML_NAME}`; \
             pass a file with --chat-template-file"
        ))),
    }
}

/// The model's own template.
pub fn of_model(meta: &Metadata) -> Result<ChatTemplate> {
    let source = meta.get_str(KEY)?.ok_or_else(|| {
        Error::file(
            meta.path(),
            format!("no chat template ({KEY}): this may be a base model"),
            format!(
                "pass --chat-template-file FILE or --chat-template {CHATML_NAME}, \
                 or continue text with `llama-rs simple`"
            ),
        )
    })?;
    ChatTemplate::parse(source, &meta.path().display().to_string())
}

/// The texts of BOS and EOS that templates print; empty where there is none.
pub fn boundary_texts(meta: &Metadata) -> Result<(String, String)> {
    if !load::has_vocabulary(meta)? {
        return Ok((String::new(), String::new()));
    }
    let tokenizer = Tokenizer::from_meta(meta)?;
    Ok(texts(&tokenizer))
}

/// As [`boundary_texts`], of a tokenizer.
pub fn texts(tokenizer: &Tokenizer) -> (String, String) {
    let text = |id: Option<u32>| {
        let bytes = id.map(|id| tokenizer.token_text(id));
        String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
    };
    (text(tokenizer.bos()), text(tokenizer.eos()))
}
