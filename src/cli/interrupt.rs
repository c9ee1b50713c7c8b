//! Ctrl-C: leave at once, or ask the running generation to stop.

use crate::{Error, Result};
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of an interrupted command: 128 plus the signal's number, as in shells.
const EXIT_CODE: i32 = 130;

/// What the next Ctrl-C does. At first it ends the process with code 130.
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
        Ok(Interrupt { stop, leave })
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
