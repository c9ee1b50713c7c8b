//! Ctrl-D where the editor would not hear it.

use rustyline::hint::Hint;
use rustyline::{Cmd, ConditionalEventHandler, Event, EventContext, RepeatCount};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Ctrl-D that was typed while a reply came. The terminal hands it over as a NUL byte, right
/// after the prompt; later that byte is Ctrl-Space, which means nothing.
pub struct EarlyEnd {
    /// When the prompt was shown.
    pub prompted: Arc<Mutex<Instant>>,
}

impl EarlyEnd {
    /// Nobody types so soon.
    const AT_ONCE: Duration = Duration::from_millis(200);
}

impl ConditionalEventHandler for EarlyEnd {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        let at_once = |prompted: &Instant| prompted.elapsed() < Self::AT_ONCE;
        let early = self.prompted.lock().is_ok_and(|p| at_once(&p));
        match early && context.line().is_empty() {
            true => Some(Cmd::EndOfFile),
            false => None,
        }
    }
}

/// Ctrl-D at the end of a block that is still open.
pub struct OpenBlock {
    pub is_open: fn(&str) -> bool,
    /// Asks for a note to the user.
    pub asked: Arc<AtomicBool>,
}

impl ConditionalEventHandler for OpenBlock {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        let at_end = context.pos() == context.line().len();
        if !at_end || !(self.is_open)(context.line()) {
            return None;
        }
        self.asked.store(true, Ordering::Relaxed);
        Some(Cmd::Repaint)
    }
}

/// Shown after the text until the next key; not to be taken over.
pub struct Note(pub &'static str);

impl Hint for Note {
    fn display(&self) -> &str {
        self.0
    }

    fn completion(&self) -> Option<&str> {
        None
    }
}
