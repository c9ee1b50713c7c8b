//! Ctrl-C: leave at once, or ask the running generation to stop. SIGTERM and SIGHUP, where
//! there is something to save: stop, then leave.

use crate::{Error, Result};
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// Exit code of an interrupted command: 128 plus the signal's number, as in shells.
const EXIT_CODE: i32 = SIGNALLED + SIGINT;
/// What shells add to a signal's number.
const SIGNALLED: i32 = 128;

/// The one of this process.
static INSTALLED: OnceLock<Interrupt> = OnceLock::new();

/// What the next Ctrl-C does. At first it ends the process with code 130.
#[derive(Clone)]
pub struct Interrupt {
    stop: Arc<AtomicBool>,
    leave: Arc<AtomicBool>,
    /// The signal that asked the process to end; 0: none did.
    ending: Arc<AtomicI32>,
    /// A line is being edited: reading has to be woken up.
    editing: Arc<AtomicBool>,
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
        // Else a file beyond `ulimit -f` ends the process; when it is caught, writing fails.
        #[cfg(unix)]
        flag::register(signal_hook::consts::SIGXFSZ, Arc::default())
            .map_err(|e| Error::io("cannot watch for signals", e))?;
        let interrupt = Interrupt {
            stop,
            leave,
            ending: Arc::default(),
            editing: Arc::default(),
        };
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

    /// From now on SIGTERM and SIGHUP act as Ctrl-C does, and [`Interrupt::ending`] tells
    /// that the process has to end.
    #[cfg(unix)]
    pub fn watch_for_end(&self) -> Result<()> {
        use signal_hook::consts::{SIGHUP, SIGTERM};
        let cannot = |e| Error::io("cannot watch for signals", e);
        let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGHUP]).map_err(cannot)?;
        let interrupt = self.clone();
        let watch = move || {
            for signal in signals.forever() {
                interrupt.ending.store(signal, Ordering::SeqCst);
                interrupt.stop.store(true, Ordering::Relaxed);
                if interrupt.leave.load(Ordering::Relaxed) {
                    std::process::exit(SIGNALLED + signal);
                }
                interrupt.wake_editor();
            }
        };
        let thread = thread::Builder::new().spawn(watch);
        thread.map(|_| ()).map_err(cannot)
    }

    /// There are no such signals.
    #[cfg(not(unix))]
    pub fn watch_for_end(&self) -> Result<()> {
        Ok(())
    }

    /// The editor knows only Ctrl-C, which makes it give the terminal back. Where there is
    /// no such editor, the terminal was left as it is, and the process ends here.
    #[cfg(unix)]
    fn wake_editor(&self) {
        use rustix::process::{Signal, getpid, kill_process};
        /// It may not have been listening yet.
        const TRIES: usize = 50;
        const AGAIN_AFTER: Duration = Duration::from_millis(20);
        for _ in 0..TRIES {
            if !self.editing.load(Ordering::SeqCst) {
                return;
            }
            // The process is there, and it is ours.
            let _ = kill_process(getpid(), Signal::INT);
            thread::sleep(AGAIN_AFTER);
        }
        std::process::exit(self.ending().unwrap_or(EXIT_CODE));
    }

    /// Runs `edit`, which waits for a line; `None` when the process has to end.
    pub fn while_editing<T>(&self, edit: impl FnOnce() -> T) -> Option<T> {
        self.editing.store(true, Ordering::SeqCst);
        let line = match self.ending() {
            None => Some(edit()),
            Some(_) => None,
        };
        self.editing.store(false, Ordering::SeqCst);
        line.filter(|_| self.ending().is_none())
    }

    /// The exit code of a process that was asked to end.
    pub fn ending(&self) -> Option<i32> {
        let signal = self.ending.load(Ordering::SeqCst);
        (signal != 0).then_some(SIGNALLED + signal)
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
