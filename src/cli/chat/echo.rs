//! What the terminal itself shows of keys while a reply comes.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::stdin;

/// While it lives, the terminal does not write `^C` into a reply. Everything else stays as
/// it was.
pub struct NoControlEcho {
    before: Termios,
}

impl NoControlEcho {
    /// None where there is no terminal, or it does not write such things.
    pub fn new() -> Option<NoControlEcho> {
        let before = tcgetattr(stdin()).ok()?;
        if !before.local_modes.contains(LocalModes::ECHOCTL) {
            return None;
        }
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHOCTL);
        tcsetattr(stdin(), OptionalActions::Now, &silent).ok()?;
        Some(NoControlEcho { before })
    }
}

impl Drop for NoControlEcho {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}
