//! Where a chat's messages come from: an edited line, or lines of a pipe.

use super::commands::{self, Turn};
use super::history;
use super::keys::{EarlyEnd, Note, OpenBlock};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::stdout_colour;
use crate::cli::prompt;
use crate::sampling::SamplingParams;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, EventHandler, Helper, KeyEvent};
use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{BufRead, ErrorKind, IsTerminal, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const PROMPT: &str = "> ";
/// Opens and closes a message of several lines.
const BLOCK: &str = "\"\"\"";

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
        let prompted = Arc::new(Mutex::new(Instant::now()));
        let asked = Arc::new(AtomicBool::new(false));
        editor.set_helper(Some(LineHelper {
            files: FilenameCompleter::new(),
            colour: stdout_colour(),
            continued: RefCell::default(),
            typed: RefCell::default(),
            prompted: prompted.clone(),
            asked: asked.clone(),
        }));
        let early = EventHandler::Conditional(Box::new(EarlyEnd { prompted }));
        editor.bind_sequence(KeyEvent::ctrl('@'), early);
        let block = EventHandler::Conditional(Box::new(OpenBlock {
            is_open: |text| inside_block(text).is_some() && !is_complete(text),
            asked,
        }));
        editor.bind_sequence(KeyEvent::ctrl('D'), block);
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
        if let Some(mut prompted) = editor.helper().and_then(|h| h.prompted.lock().ok()) {
            *prompted = Instant::now();
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
                tracing::error!("this is not UTF-8; look at the line before you send it");
                text = editor
                    .helper()
                    .map(LineHelper::with_unknown)
                    .unwrap_or_default();
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The lines of a message, without the backslashes that continue them; `None` at the end of
/// the input.
fn read_message(lines: &mut dyn BufRead) -> crate::Result<Option<String>> {
    let mut text = String::new();
    let mut n_lines = 0;
    // Where its first character is that is no space. What was read is not looked at again,
    // or messages of many lines would never end.
    let mut begin = None;
    loop {
        let mut bytes = Vec::new();
        let left = prompt::MOST_BYTES.saturating_sub(text.len() as u64) + 1;
        let n_read = Read::take(&mut *lines, left)
            .read_until(b'\n', &mut bytes)
            .map_err(|e| crate::Error::io("cannot read standard input", e))?;
        if n_read as u64 == left {
            return Err(prompt::too_long("the prompt"));
        }
        if n_read == 0 {
            return Ok((n_lines > 0).then_some(text));
        }
        let line = String::from_utf8_lossy(&bytes);
        let line = line.strip_suffix('\n').unwrap_or(&line);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if n_lines > 0 {
            text.push('\n');
        }
        n_lines += 1;
        let first = line.find(|c: char| !c.is_whitespace());
        begin = begin.or(first.map(|at| text.len() + at));
        text.push_str(line);
        let block = begin.and_then(|at| text[at..].strip_prefix(BLOCK));
        let goes_on = match block {
            // A blank line closes none.
            Some(rest) => first.is_none() || !rest.trim_end().ends_with(BLOCK),
            None => text.ends_with('\\'),
        };
        if !goes_on {
            return Ok(Some(text));
        }
        if block.is_none() {
            text.pop();
        }
    }
}

/// Completes commands; continues a message after a trailing backslash and inside `"""`.
pub struct LineHelper {
    files: FilenameCompleter,
    colour: bool,
    /// Texts that a backslash at their end continued.
    continued: RefCell<Vec<String>>,
    /// The text so far, and where in it the cursor was.
    typed: RefCell<(String, usize)>,
    prompted: Arc<Mutex<Instant>>,
    /// Whether to tell how a block ends.
    asked: Arc<AtomicBool>,
}

impl LineHelper {
    /// What was typed before and after a character that is not known.
    fn with_unknown(&self) -> (String, String) {
        let (mut left, at) = self.typed.take();
        let right = left.split_off(left.floor_char_boundary(at));
        left.push(char::REPLACEMENT_CHARACTER);
        (left, right)
    }
}

impl Completer for LineHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        if ["/save ", "/load "].iter().any(|c| line.starts_with(c)) {
            return self.files.complete(line, pos, context);
        }
        Ok(words(line.get(..pos).unwrap_or_default()))
    }
}

/// What the end of `line` may become, and where it begins.
fn words(line: &str) -> (usize, Vec<Pair>) {
    let start = line.rfind(' ').map_or(0, |at| at + 1);
    let all: Vec<&str> = match &line[..start] {
        "" if line.starts_with('/') => commands::names().collect(),
        "/set " => SamplingParams::NAMES.to_vec(),
        "/think " => vec!["show", "hide", "off"],
        _ => Vec::new(),
    };
    let begun = all.into_iter().filter(|w| w.starts_with(&line[start..]));
    let pair = |word: &str| Pair {
        display: word.to_string(),
        replacement: word.to_string(),
    };
    (start, begun.map(pair).collect())
}

impl Highlighter for LineHelper {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(
        &'s self,
        prompt: &'p str,
        _default: bool,
    ) -> Cow<'b, str> {
        match self.colour {
            true => Cow::Owned(format!("\x1b[1;32m{prompt}\x1b[0m")),
            false => Cow::Borrowed(prompt),
        }
    }
}

impl Hinter for LineHelper {
    type Hint = Note;

    fn hint(&self, line: &str, pos: usize, _: &Context<'_>) -> Option<Note> {
        self.typed.replace((line.to_string(), pos));
        let asked = self.asked.swap(false, Ordering::Relaxed);
        asked.then_some(Note("  (\"\"\" ends the message, Ctrl-C drops it)"))
    }
}

impl Helper for LineHelper {}

impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        let text = context.input();
        if is_complete(text) {
            return Ok(ValidationResult::Valid(None));
        }
        self.continued.borrow_mut().push(text.to_string());
        Ok(ValidationResult::Incomplete)
    }
}

fn is_complete(text: &str) -> bool {
    match text.trim_start().strip_prefix(BLOCK) {
        Some(rest) => rest.trim_end().ends_with(BLOCK),
        None => !text.ends_with('\\'),
    }
}

/// What is between the marks of a block; `None`: it is none.
fn inside_block(text: &str) -> Option<&str> {
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
    use super::{inside_block, is_complete, read_message, without_backslashes, words};

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

    #[test]
    fn a_pipe_has_messages_of_several_lines_too() {
        let mut pipe = "one\r\ntwo\\\nlines\\\n3\n\"\"\"\na\\\n\nb\"\"\"\nlast\\".as_bytes();
        let mut messages = Vec::new();
        while let Some(text) = read_message(&mut pipe).expect("bytes in memory") {
            messages.push(inside_block(&text).unwrap_or(&text).to_string());
        }
        assert_eq!(messages, ["one", "two\nlines\n3", "a\\\n\nb", "last"]);
        // In time that grows with the text, not with its square.
        for (line, n_left) in [("\\\n", 300_000), (" \\\n", 600_000)] {
            let many = line.repeat(300_000) + "end";
            let text = read_message(&mut many.as_bytes()).expect("bytes in memory");
            assert_eq!(text.map(|t| t.len()), Some(n_left + 3));
        }
        let blank = "\"\"\"".to_string() + &"\n".repeat(300_000);
        let text = read_message(&mut blank.as_bytes()).expect("bytes in memory");
        assert_eq!(text.map(|t| t.len()), Some(3 + 299_999));
        let mut open = "\"\"\"a\nb".as_bytes();
        let text = read_message(&mut open).expect("bytes in memory");
        assert_eq!(text.as_deref().and_then(inside_block), Some("a\nb"));
    }

    #[test]
    fn tab_completes_commands_and_what_follows_them() {
        let texts = |line| -> Vec<String> {
            let (_, pairs) = words(line);
            pairs.into_iter().map(|p| p.replacement).collect()
        };
        assert_eq!(texts("/se"), ["/set"]);
        assert_eq!(texts("/set top"), ["top-k", "top-p", "top-n-sigma"]);
        assert_eq!(texts("/think h"), ["hide"]);
        assert_eq!(words("/think h").0, 7);
        assert!(texts("a /se").is_empty() && texts("").is_empty());
    }
}
