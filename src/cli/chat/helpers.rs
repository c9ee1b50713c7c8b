//! Programs that a chat calls: the user's editor, and what fills the clipboard.

use crate::{Error, Result};
use std::io::Write;
use std::process::{Command, Stdio};

/// Variables that name an editor, and what is used without them.
const EDITOR_VARIABLES: [&str; 2] = ["VISUAL", "EDITOR"];
const EDITOR: &str = "vi";

/// Clipboard programs with their arguments; the first that is there is used.
const CLIPBOARDS: [&[&str]; 5] = [
    &["wl-copy"],
    &["xclip", "-selection", "clipboard"],
    &["xsel", "--clipboard", "--input"],
    &["pbcopy"],
    &["clip.exe"],
];

/// Lets the user change `text`; without the line end that editors add.
///
/// # Errors
/// The editor does not start or fails; nothing has been changed then.
pub fn edit(text: &str) -> Result<String> {
    let given = EDITOR_VARIABLES.iter().find_map(|name| {
        let value = std::env::var(name).ok()?;
        (!value.trim().is_empty()).then_some(value)
    });
    let editor = given.unwrap_or_else(|| EDITOR.to_string());
    let cannot = |e| Error::io("cannot make a file for the editor", e);
    let mut file = tempfile::Builder::new()
        .prefix("llama-rs-")
        .suffix(".md")
        .tempfile()
        .map_err(cannot)?;
    file.write_all(text.as_bytes()).map_err(cannot)?;
    // A variable may hold arguments too, as in `code --wait`.
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or(EDITOR);
    let status = Command::new(program).args(words).arg(file.path()).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            return Err(Error::input(format!(
                "the editor {editor:?} ended with {status}; nothing was sent"
            )));
        }
        Err(e) => {
            return Err(Error::io(
                format!("cannot start the editor {editor:?}; set EDITOR"),
                e,
            ));
        }
    }
    // The editor may have replaced the file, so it is opened anew.
    let bytes =
        std::fs::read(file.path()).map_err(|e| Error::io("cannot read what was edited", e))?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches(['\r', '\n']).to_string())
}

/// Puts `text` on the clipboard.
///
/// # Errors
/// There is no program for it.
pub fn copy(text: &str) -> Result<()> {
    for call in CLIPBOARDS {
        let child = Command::new(call[0])
            .args(&call[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            continue;
        };
        let written = child
            .stdin
            .take()
            .map(|mut pipe| pipe.write_all(text.as_bytes()));
        let ended = child.wait().is_ok_and(|status| status.success());
        if ended && matches!(written, Some(Ok(()))) {
            return Ok(());
        }
    }
    Err(Error::input(
        "no clipboard program works here; install wl-copy, xclip or xsel",
    ))
}
