//! Where a chat's messages come from: an edited line, or lines of a pipe.

use super::interrupt::Interrupt;
use rustyline::completion::Completer;
use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};
use std::io::{BufRead, IsTerminal};

const PROMPT: &str = "> ";
/// Opens and closes a message of several lines.
const BLOCK: &str = "\"\"\"";

/// A source of messages.
pub enum Input {
    /// A person with an editor: history, pasted lines, continuation.
    Terminal(Box<Editor<Continuation, DefaultHistory>>),
    /// One message a line until the end.
    Lines,
}

/// One turn of input.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    Message(String),
    /// Start over.
    Clear,
    Help,
    /// `/exit`, Ctrl-D or the end of the input.
    Leave,
}

impl Input {
    /// An editor when stdin is a terminal.
    pub fn open() -> anyhow::Result<Input> {
        if !std::io::stdin().is_terminal() {
            return Ok(Input::Lines);
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
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Continuation));
        Ok(Input::Terminal(Box::new(editor)))
    }

    /// True when a person sees the prompt.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    /// The next turn; empty input is skipped.
    pub fn next(&mut self, interrupt: &Interrupt) -> anyhow::Result<Turn> {
        loop {
            let text = match self {
                Input::Terminal(editor) => edit(editor, interrupt)?,
                Input::Lines => {
                    interrupt.leave_at_once();
                    read_line()?
                }
            };
            let turn = text.map_or(Some(Turn::Leave), |text| turn(&text));
            if let Some(turn) = turn {
                return Ok(turn);
            }
        }
    }
}

/// A message from the editor; `None` after Ctrl-D.
fn edit(
    editor: &mut Editor<Continuation, DefaultHistory>,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<String>> {
    // The editor sees Ctrl-C as a key; one sent as a signal must not end the
    // chat either.
    interrupt.defer();
    loop {
        match editor.readline(PROMPT) {
            Ok(text) => return Ok(Some(joined(&text))),
            Err(ReadlineError::Interrupted) => tracing::info!("(Ctrl-D or /exit leaves)"),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A line without its end, as text; `None` at the end of the input.
fn read_line() -> crate::Result<Option<String>> {
    let mut bytes = Vec::new();
    let n_read = std::io::stdin()
        .lock()
        .read_until(b'\n', &mut bytes)
        .map_err(|e| crate::Error::io("cannot read standard input", e))?;
    if n_read == 0 {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Some(text.strip_suffix('\r').unwrap_or(text).to_string()))
}

/// What a text means; `None` when it is empty.
fn turn(text: &str) -> Option<Turn> {
    match text.trim() {
        "" => None,
        "/exit" | "/quit" => Some(Turn::Leave),
        "/clear" => Some(Turn::Clear),
        "/help" => Some(Turn::Help),
        _ => Some(Turn::Message(text.to_string())),
    }
}

/// Continues a message after a trailing backslash and inside `"""`.
pub struct Continuation;

impl Completer for Continuation {
    type Candidate = String;
}

impl Highlighter for Continuation {}

impl Hinter for Continuation {
    type Hint = String;
}

impl Helper for Continuation {}

impl Validator for Continuation {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(if is_complete(context.input()) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

fn is_complete(text: &str) -> bool {
    match text.trim_start().strip_prefix(BLOCK) {
        Some(rest) => rest.trim_end().ends_with(BLOCK),
        None => !text.ends_with('\\'),
    }
}

/// The message of an edited text: without block marks, lines joined where a
/// backslash continues them.
fn joined(text: &str) -> String {
    let block = text.trim();
    let block = block
        .strip_prefix(BLOCK)
        .and_then(|t| t.strip_suffix(BLOCK));
    match block {
        Some(inner) => inner.trim_matches('\n').to_string(),
        None => text.replace("\\\n", "\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Turn, is_complete, joined, turn};

    #[test]
    fn commands_are_whole_messages() {
        assert_eq!(turn("/exit"), Some(Turn::Leave));
        assert_eq!(turn(" /clear "), Some(Turn::Clear));
        assert_eq!(turn("  "), None);
        let path = "/usr/bin holds what?";
        assert_eq!(turn(path), Some(Turn::Message(path.to_string())));
    }

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
        assert_eq!(joined("a\\\nb"), "a\nb");
        assert_eq!(joined("\"\"\"\na\nb\n\"\"\""), "a\nb");
    }
}
