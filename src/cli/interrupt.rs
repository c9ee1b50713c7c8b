//! Ctrl-C: leave at once, or ask the running generation to stop.

use crate::{Error, Result};
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// Exit code of an interrupted command: 128 plus the signal's number, as in shells.
const EXIT_CODE: i32 = 130;

/// The one of this process.
static INSTALLED: OnceLock<Interrupt> = OnceLock::new();

/// What the next Ctrl-C does. At first it ends the process with code 130.
#[derive(Clone)]
pub struct Interrupt {
    stop: Arc<AtomicBool>,
    leave: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over SIGINT.
    pub fn install() -> Result<Interrupt> {
        let stop = Arc::new(AtomicBool::new(false));
        let leave = Arc::new(AtomicBool::new(true));
        // Actions run in this order: leave if told so, else note the wish.
        flag::register_conditional_shutdown(SIGINT, EXIT_CODE, leave.clone())
            .and_then(|_| flag::register(SIGINT, stop.clone()))
            .map_err(|e| Error::io("cannot watch for Ctrl-C", e))?;
        let interrupt = Interrupt { stop, leave };
        Ok(INSTALLED.get_or_init(|| interrupt).clone())
    }

    /// From now on Ctrl-C only sets [`Interrupt::is_set`], which is cleared.
    pub fn defer(&self) {
        self.stop.store(false, Ordering::Relaxed);
        self.leave.store(false, Ordering::Relaxed);
    }

    /// From now on Ctrl-C ends the process.
    pub fn leave_at_once(&self) {
        self.leave.store(true, Ordering::Relaxed);
    }

    /// True when Ctrl-C came since [`Interrupt::defer`].
    pub fn is_set(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Makes a second Ctrl-C end the process even while deferred: for commands
    /// that have nothing to lose.
    pub fn second_leaves(&self) -> Result<()> {
        flag::register(SIGINT, self.leave.clone())
            .map(|_| ())
            .map_err(|e| Error::io("cannot watch for Ctrl-C", e))
    }
}

/// While it lives, Ctrl-C ends the process as ever, but says something first.
pub struct LastWord {
    interrupt: Interrupt,
    over: Arc<AtomicBool>,
}

impl LastWord {
    /// Of a process that may be waiting for something, so another thread says it. None where
    /// Ctrl-C is not watched.
    pub fn new(text: &'static str) -> Option<LastWord> {
        /// Short enough to seem at once.
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        let interrupt = INSTALLED.get()?.clone();
        let over = Arc::new(AtomicBool::new(false));
        let (watched, done) = (interrupt.clone(), over.clone());
        let watch = move || {
            while !done.load(Ordering::Relaxed) {
                if watched.is_set() {
                    tracing::warn!("{text}");
                    std::process::exit(EXIT_CODE);
                }
                thread::sleep(LOOK_EVERY);
            }
        };
        thread::Builder::new().spawn(watch).ok()?;
        interrupt.defer();
        Some(LastWord { interrupt, over })
    }
}

impl Drop for LastWord {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.interrupt.leave_at_once();
        if self.interrupt.is_set() {
            // It came just before; all is here.
            std::process::exit(EXIT_CODE);
        }
    }
}
