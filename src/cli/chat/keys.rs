//! Keys that the editor would not take as they are meant here: pastes, and Ctrl-D where it
//! would not be heard.

use rustyline::hint::Hint;
use rustyline::{
    Cmd, ConditionalEventHandler, Event, EventContext, KeyCode, KeyEvent, Modifiers, RepeatCount,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// After the prompt nobody types so soon.
const AT_ONCE: Duration = Duration::from_millis(200);

/// What is known of the typing besides the line.
pub struct Typing {
    /// When the prompt was shown.
    prompted: Mutex<Instant>,
    /// Whether a note to the user is wanted.
    noted: AtomicBool,
    /// A paste that has not ended yet.
    paste: Mutex<Option<String>>,
}

impl Typing {
    /// Nothing has been typed.
    pub fn new() -> Typing {
        Typing {
            prompted: Mutex::new(Instant::now()),
            noted: AtomicBool::new(false),
            paste: Mutex::new(None),
        }
    }

    /// The prompt is shown now.
    pub fn begin(&self) {
        if let Ok(mut prompted) = self.prompted.lock() {
            *prompted = Instant::now();
        }
    }

    /// The note that a key asked for, once.
    pub fn note(&self) -> Option<Note> {
        let noted = self.noted.swap(false, Ordering::Relaxed);
        noted.then_some(Note("  (\"\"\" ends the message, Ctrl-C drops it)"))
    }

    /// What a paste held before bytes that the editor could not read; it has dropped what it
    /// had read ahead, so the paste goes on only where more is coming.
    pub fn broken_paste(&self) -> String {
        let Ok(mut paste) = self.paste.lock() else {
            return String::new();
        };
        let before = paste.take();
        if before.is_some() && more_is_coming() {
            *paste = Some(String::new());
        }
        with_line_feeds(&before.unwrap_or_default())
    }
}

/// Whether a terminal that was sending has more to send.
#[cfg(unix)]
fn more_is_coming() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdin = std::io::stdin();
    let mut waiting = [PollFd::new(&stdin, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: AT_ONCE.as_nanos() as i64,
    };
    poll(&mut waiting, Some(&at_once)).is_ok_and(|n| n > 0)
}

/// Editors there get no bytes.
#[cfg(not(unix))]
fn more_is_coming() -> bool {
    false
}

/// Looks at each key before the editor does.
pub struct Keys {
    pub typing: Arc<Typing>,
    /// Whether a text is a block without its end.
    pub is_open: fn(&str) -> bool,
}

impl ConditionalEventHandler for Keys {
    fn handle(
        &self,
        event: &Event,
        times: RepeatCount,
        _: bool,
        context: &EventContext,
    ) -> Option<Cmd> {
        let key = *event.get(0)?;
        if let Some(done) = self.paste(key, times) {
            return Some(done);
        }
        if key == KeyEvent::ctrl('@') {
            return self.early_end(context);
        }
        if key == KeyEvent::ctrl('D') {
            return self.end_in_block(context);
        }
        None
    }
}

impl Keys {
    /// A paste is gathered here, and inserted as a whole: what it holds is text, no keys. The
    /// editor could do so too, but would drop all of it for a byte that is not UTF-8.
    fn paste(&self, key: KeyEvent, times: RepeatCount) -> Option<Cmd> {
        let mut paste = self.typing.paste.lock().ok()?;
        let KeyEvent(code, modifiers) = key;
        if code == KeyCode::BracketedPasteStart {
            paste.get_or_insert_default();
            return Some(Cmd::Noop);
        }
        let text = paste.as_mut()?;
        match code {
            KeyCode::Char(c) if modifiers.is_empty() => text.push(c),
            KeyCode::Tab => text.push('\t'),
            KeyCode::Enter => text.push('\r'),
            KeyCode::Char('J') if modifiers == Modifiers::CTRL => text.push('\n'),
            // Of a terminal that does not tell the end.
            KeyCode::Char('C') if modifiers == Modifiers::CTRL => {
                *paste = None;
                return None;
            }
            KeyCode::BracketedPasteEnd => {
                let text = with_line_feeds(text);
                *paste = None;
                // A number among the escapes of the paste would repeat it.
                return Some(match times {
                    1 => Cmd::Insert(1, text),
                    _ => Cmd::Noop,
                });
            }
            // Other control characters and escapes are no text.
            _ => {}
        }
        Some(Cmd::Noop)
    }

    /// Ctrl-D that was typed while a reply came. The terminal hands it over as a NUL byte,
    /// right after the prompt; later that byte is Ctrl-Space, which means nothing.
    fn early_end(&self, context: &EventContext) -> Option<Cmd> {
        let prompted = self.typing.prompted.lock().ok()?;
        let early = prompted.elapsed() < AT_ONCE && context.line().is_empty();
        early.then_some(Cmd::EndOfFile)
    }

    /// Ctrl-D at the end of a block that is still open.
    fn end_in_block(&self, context: &EventContext) -> Option<Cmd> {
        let at_end = context.pos() == context.line().len();
        if !at_end || !(self.is_open)(context.line()) {
            return None;
        }
        self.typing.noted.store(true, Ordering::Relaxed);
        Some(Cmd::Repaint)
    }
}

/// Terminals send carriage returns for line ends.
fn with_line_feeds(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// Shown after the text until the next key; not to be taken over.
pub struct Note(&'static str);

impl Hint for Note {
    fn display(&self) -> &str {
        self.0
    }

    fn completion(&self) -> Option<&str> {
        None
    }
}
