//! How a reply looks on stdout.

use crate::chat::{Part, ThinkSplitter};
use crate::cli::output::{Product, stdout_colour};
use clap::ValueEnum;
use std::io::{self, Write};

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// What becomes of a model's thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Think {
    /// Shown before the answer, dimmed on a terminal
    Show,
    /// Not shown
    Hide,
    /// Switched off, where the model's template can
    Off,
}

/// A reply that is shown as it comes, or kept for [`Shown::texts`].
pub struct Shown {
    splitter: ThinkSplitter,
    /// What the prompt ended with when it opened the thinking.
    opened: String,
    /// `None`: the reply is not for people.
    product: Option<Product>,
    shows_thinking: bool,
    colour: bool,
    dimmed: bool,
    thinking: String,
    answer: String,
}

impl Shown {
    /// A reply to `prompt`; with `silent` nothing is written.
    pub fn new(prompt: &str, think: Think, silent: bool) -> Shown {
        let (splitter, opened) = ThinkSplitter::after(prompt);
        Shown {
            splitter,
            product: (!silent).then(Product::stdout),
            shows_thinking: think == Think::Show,
            colour: stdout_colour(),
            dimmed: false,
            thinking: opened.clone(),
            answer: String::new(),
            opened,
        }
    }

    /// Before the first piece.
    pub fn begin(&mut self) -> io::Result<()> {
        match self.opened.is_empty() {
            true => Ok(()),
            false => self.write(&Part::Thinking(self.opened.clone())),
        }
    }

    /// The next piece of the reply.
    pub fn push(&mut self, piece: &str) -> io::Result<()> {
        for part in self.splitter.push(piece) {
            self.take(part)?;
        }
        Ok(())
    }

    /// The reply is over.
    pub fn end(&mut self) -> io::Result<()> {
        if let Some(part) = self.splitter.finish() {
            self.take(part)?;
        }
        self.dim(false)?;
        match &mut self.product {
            Some(product) => product.stream(b"\n"),
            None => Ok(()),
        }
    }

    /// What the prompt ended with when it opened the thinking, else nothing.
    pub fn opened(&self) -> &str {
        &self.opened
    }

    /// Thinking and answer so far.
    pub fn texts(&self) -> (&str, &str) {
        (&self.thinking, &self.answer)
    }

    fn take(&mut self, part: Part) -> io::Result<()> {
        match &part {
            Part::Thinking(text) => self.thinking.push_str(text),
            Part::Answer(text) => self.answer.push_str(text),
        }
        self.write(&part)
    }

    fn write(&mut self, part: &Part) -> io::Result<()> {
        let (text, thinks) = match part {
            Part::Thinking(_) if !self.shows_thinking => return Ok(()),
            Part::Thinking(text) => (text, true),
            Part::Answer(text) => (text, false),
        };
        // The answer stands apart from the thinking that was shown.
        let first = !thinks && self.answer.len() == text.len();
        let gap = first && self.shows_thinking && !self.thinking.is_empty();
        self.dim(thinks)?;
        let Some(product) = &mut self.product else {
            return Ok(());
        };
        if gap {
            product.write_all(b"\n\n")?;
        }
        product.stream(text.as_bytes())
    }

    fn dim(&mut self, wanted: bool) -> io::Result<()> {
        let Some(product) = self.product.as_mut().filter(|_| self.colour) else {
            return Ok(());
        };
        if wanted == self.dimmed {
            return Ok(());
        }
        self.dimmed = wanted;
        product.stream(if wanted { DIM } else { PLAIN }.as_bytes())
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // After an error nobody is left who could be told of another.
        let _ = self.dim(false);
    }
}
