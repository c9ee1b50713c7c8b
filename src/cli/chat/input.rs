//! Where a chat's messages come from: an edited line, or lines of a pipe.

use super::commands::{self, Turn};
use super::history;
use super::keys::{Keys, Typing};
use super::line_helper::LineHelper;
use super::lines::read_message;
use crate::cli::interrupt::Interrupt;
use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Config, Editor, Event, EventHandler};
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::Arc;

const PROMPT: &str = "> ";
/// Opens and closes a message of several lines.
pub const BLOCK: &str = "\"\"\"";

/// A source of messages.
pub enum Input {
    /// A person with an editor: history, pasted lines, continuation.
    Terminal(Box<Editor<LineHelper, DefaultHistory>>),
    /// A message a line until the end.
    Lines {
        /// At a terminal that knows no escapes.
        to_person: bool,
    },
}

impl Input {
    /// An editor when stdin is a terminal.
    pub fn open() -> anyhow::Result<Input> {
        let to_person = std::io::stdin().is_terminal();
        if !to_person || is_simple_terminal() {
            return Ok(Input::Lines { to_person });
        }
        // The prompt must not get into a redirected answer.
        let behavior = if std::io::stdout().is_terminal() {
            Behavior::Stdio
        } else {
            Behavior::PreferTerm
        };
        let config = Config::builder()
            .behavior(behavior)
            .auto_add_history(true)
            .completion_type(CompletionType::List)
            .max_history_size(history::MOST_LINES)?
            .build();
        let mut editor = Editor::with_config(config)?;
        let typing = Arc::new(Typing::new());
        editor.set_helper(Some(LineHelper::new(typing.clone())));
        let keys = Keys {
            typing,
            is_open: |text| inside_block(text).is_some() && !is_complete(text),
        };
        editor.bind_sequence(Event::Any, EventHandler::Conditional(Box::new(keys)));
        history::load(&mut editor);
        Ok(Input::Terminal(Box::new(editor)))
    }

    /// True when a person sees the prompt.
    pub fn is_terminal(&self) -> bool {
        !matches!(self, Input::Lines { to_person: false })
    }

    /// The next turn; empty input is skipped.
    pub fn next(&mut self, interrupt: &Interrupt) -> anyhow::Result<Turn> {
        loop {
            let text = match self {
                Input::Terminal(editor) => edit(editor, interrupt)?,
                Input::Lines { to_person: true } => {
                    interrupt.defer();
                    // When stderr is closed there is nobody to prompt.
                    let _ = write!(std::io::stderr(), "{PROMPT}");
                    let read = || read_message(&mut std::io::stdin().lock());
                    interrupt.while_editing(read).transpose()?.flatten()
                }
                Input::Lines { to_person: false } => {
                    interrupt.leave_at_once();
                    read_message(&mut std::io::stdin().lock())?
                }
            };
            let turn = match text {
                None => Some(Turn::Leave),
                Some(text) => match inside_block(&text) {
                    Some(inner) => Some(Turn::Message(inner.to_string())),
                    None => commands::turn(&text),
                },
            };
            if let Some(turn) = turn {
                return Ok(turn);
            }
        }
    }
}

/// True where the editor would not know how to move the cursor.
fn is_simple_terminal() -> bool {
    const SIMPLE: [&str; 3] = ["dumb", "cons25", "emacs"];
    std::env::var("TERM").is_ok_and(|term| SIMPLE.contains(&term.as_str()))
}

/// A text from the editor; `None` after Ctrl-D, or when the process has to end.
fn edit(
    editor: &mut Editor<LineHelper, DefaultHistory>,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<String>> {
    // The editor sees Ctrl-C as a key; one sent as a signal must not end the
    // chat either.
    interrupt.defer();
    let mut text = (String::new(), String::new());
    loop {
        if let Some(helper) = editor.helper() {
            helper.typing.begin();
        }
        let (left, right) = std::mem::take(&mut text);
        let read = || editor.readline_with_initial(PROMPT, (&left, &right));
        let Some(line) = interrupt.while_editing(read) else {
            return Ok(None);
        };
        match line {
            Ok(text) => {
                history::save(editor);
                let continued = editor.helper().map(|helper| helper.continued.take());
                return Ok(Some(without_backslashes(
                    text,
                    &continued.unwrap_or_default(),
                )));
            }
            Err(ReadlineError::Interrupted) => tracing::info!("(Ctrl-D or /exit leaves)"),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::InvalidData => {
                tracing::error!(
                    "this is not UTF-8, and what came right after it may be missing; look at \
                     the text before you send it"
                );
                text = editor
                    .helper()
                    .map(LineHelper::with_unknown)
                    .unwrap_or_default();
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a text is a whole message, so that Enter sends it.
pub fn is_complete(text: &str) -> bool {
    match text.trim_start().strip_prefix(BLOCK) {
        Some(rest) => rest.trim_end().ends_with(BLOCK),
        None => !text.ends_with('\\'),
    }
}

/// What is between the marks of a block; `None`: it is none.
pub fn inside_block(text: &str) -> Option<&str> {
    let inner = text.trim().strip_prefix(BLOCK)?;
    // The end of the input may have closed it.
    let inner = inner.strip_suffix(BLOCK).unwrap_or(inner);
    Some(inner.trim_matches('\n'))
}

/// Drops the backslashes by which a line was continued. Others, in code that was pasted,
/// stay.
fn without_backslashes(mut text: String, continued: &[String]) -> String {
    // From the end, so that the places before stay where they are.
    let mut ends: Vec<usize> = (continued.iter())
        .filter(|begin| begin.ends_with('\\') && inside_block(begin).is_none())
        .filter(|begin| text.starts_with(&format!("{begin}\n")))
        .map(|begin| begin.len() - 1)
        .collect();
    ends.sort_unstable();
    ends.dedup();
    for at in ends.into_iter().rev() {
        text.remove(at);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{inside_block, is_complete, without_backslashes};

    #[test]
    fn blocks_and_backslashes_continue() {
        for (text, complete) in [
            ("hello", true),
            ("hello\\", false),
            ("hello\\\nworld", true),
            ("\"\"\"", false),
            ("\"\"\"a\nb", false),
            ("\"\"\"a\nb\"\"\"", true),
        ] {
            assert_eq!(is_complete(text), complete, "{text:?}");
        }
        assert_eq!(inside_block("\"\"\"\na\nb\n\"\"\""), Some("a\nb"));
        assert_eq!(inside_block("\"\"\"/help\"\"\""), Some("/help"));
        assert_eq!(inside_block("/help"), None);
    }

    #[test]
    fn only_backslashes_that_continued_a_line_are_dropped() {
        let continued = ["a\\".to_string(), "a\\\nb \\".to_string()];
        let text = "a\\\nb \\\nmake \\\n  all".to_string();
        let got = without_backslashes(text, &continued);
        assert_eq!(got, "a\nb \nmake \\\n  all");
    }
}
