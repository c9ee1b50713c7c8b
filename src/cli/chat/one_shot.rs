//! `chat -p "question"`: one answer, as text or JSON.

use super::act::Next;
use super::turn::Chat;
use crate::cli::args::PromptArgs;
use crate::cli::generate::{Finish, Speed};
use crate::cli::load;
use crate::cli::output::Product;
use crate::cli::prompt;
use crate::model::Model;
use crate::{Error, Result};
use serde_json::{Value as Json, json};

/// The question that the flags give; `None`: messages come from standard input.
///
/// # Errors
/// An empty one, or a file that cannot be read.
pub fn question(args: &PromptArgs) -> Result<Option<String>> {
    let Some(bytes) = prompt::given(args)? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.trim().is_empty() {
        true => Err(prompt::empty(args)),
        false => Ok(Some(text)),
    }
}

impl Chat<'_> {
    /// Answers one question.
    ///
    /// # Errors
    /// Also an answer that Ctrl-C or the end of the context cut off, or `-n` before its
    /// grammar lets it end, after it was printed.
    pub fn ask(&mut self, text: &str, model: &Model) -> anyhow::Result<()> {
        tracing::info!("{}", load::describe_context(&self.generator.session, model));
        self.generator.interrupt.second_leaves()?;
        let finish = self.say(text)?;
        self.told(Next::Replied(finish))?;
        match self.cut(finish) {
            Some(error) => Err(error.into()),
            None if finish == Finish::Interrupted => Err(Error::Interrupted.into()),
            None => Ok(()),
        }
    }
}

/// Prints the newest reply as one line of JSON.
pub fn print_json(chat: &Chat, finish: Finish) -> anyhow::Result<()> {
    let (last, generator) = (&chat.last, &chat.generator);
    let thinking = match last.thinking.is_empty() {
        true => Json::Null,
        false => last.thinking.as_str().into(),
    };
    let object = json!({
        "reply": last.answer,
        "thinking": thinking,
        "stop_reason": match finish {
            Finish::End => "end",
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ContextFull => "context_full",
            Finish::Interrupted => "interrupted",
        },
        "prompt_tokens": last.n_prompt,
        "evaluated_tokens": last.n_evaluated,
        "reply_tokens": last.n_reply,
        "seed": generator.chain.seed(),
        "prefill": timing(&last.prefill),
        "decode": timing(&last.decode),
    });
    Product::stdout().stream(format!("{object}\n").as_bytes())?;
    Ok(())
}

fn timing(speed: &Speed) -> Json {
    json!({
        "tokens": speed.n_tokens,
        "seconds": speed.time.as_secs_f64(),
        "tokens_per_second": speed.per_second(),
    })
}
