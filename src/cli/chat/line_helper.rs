//! What the editor asks while a line is typed: completions, colours, whether it is complete.

use super::commands;
use super::input::is_complete;
use super::keys::{Note, Typing};
use crate::cli::output::stdout_colour;
use crate::sampling::SamplingParams;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

/// Completes commands; continues a message after a trailing backslash and inside `"""`.
pub struct LineHelper {
    files: FilenameCompleter,
    colour: bool,
    /// Texts that a backslash at their end continued.
    pub continued: RefCell<Vec<String>>,
    /// The text so far, and where in it the cursor was.
    typed: RefCell<(String, usize)>,
    pub typing: Arc<Typing>,
}

impl LineHelper {
    /// Nothing has been typed.
    pub fn new(typing: Arc<Typing>) -> LineHelper {
        LineHelper {
            files: FilenameCompleter::new(),
            colour: stdout_colour(),
            continued: RefCell::default(),
            typed: RefCell::default(),
            typing,
        }
    }

    /// What was typed or pasted before a character that is not known, with a mark for it, and
    /// after it.
    pub fn with_unknown(&self) -> (String, String) {
        let (mut left, at) = self.typed.take();
        let right = left.split_off(left.floor_char_boundary(at));
        left.push_str(&self.typing.broken_paste());
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
        self.typing.note()
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

#[cfg(test)]
mod tests {
    use super::words;

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
