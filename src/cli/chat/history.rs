//! Lines that were typed, kept for the next chat.

use rustyline::history::DefaultHistory;
use rustyline::{Editor, Helper};
use std::path::PathBuf;

/// Lines kept; the oldest go first.
pub const MOST_LINES: usize = 1000;
/// The file, instead of the usual one; empty: none.
const VARIABLE: &str = "LLAMA_RS_HISTORY";

/// Brings back the lines of earlier chats.
pub fn load<H: Helper>(editor: &mut Editor<H, DefaultHistory>) {
    // Without a file there is nothing to bring back; a damaged one gives what it can.
    if let Some(path) = path().filter(|path| path.exists())
        && let Err(error) = editor.load_history(&path)
    {
        tracing::debug!("{}: {error}", path.display());
    }
}

/// Adds the new lines to the file, which only the user may read.
pub fn save<H: Helper>(editor: &mut Editor<H, DefaultHistory>) {
    let Some(path) = path() else {
        return;
    };
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let saved = folder
        .map_err(rustyline::error::ReadlineError::from)
        .and_then(|()| editor.append_history(&path));
    if let Err(error) = saved {
        // Not worth an interruption; the chat does not depend on it.
        tracing::debug!("{}: {error}", path.display());
    }
}

fn path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return (!path.is_empty()).then(|| PathBuf::from(path));
    }
    let folder = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("llama-rs").join("history"))
}
