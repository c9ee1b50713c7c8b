//! What the terminal itself shows of keys.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::stdin;

/// While it lives, the terminal writes no keys into a reply, such as `^C`. What is typed
/// ahead shows at the next prompt.
pub struct NoEcho {
    before: Termios,
}

impl NoEcho {
    /// None where there is no terminal, or one that does not echo.
    pub fn new() -> Option<NoEcho> {
        let before = tcgetattr(stdin()).ok()?;
        if !before.local_modes.contains(LocalModes::ECHO) {
            return None;
        }
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Now, &silent).ok()?;
        Some(NoEcho { before })
    }
}

impl Drop for NoEcho {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}
