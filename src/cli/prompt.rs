//! Where a prompt's bytes come from.

use super::args::PromptArgs;
use crate::{Error, Result};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

/// Names standard input where a file is expected.
const STDIN: &str = "-";
/// Bytes of a prompt or another text: far above what a context holds.
pub const MOST_BYTES: u64 = 64 << 20;

/// The prompt that the flags give: words or `-p`, then `-f` after a newline.
/// `None` when no flag gives any.
pub fn given(args: &PromptArgs) -> Result<Option<Vec<u8>>> {
    let text = match &args.prompt {
        Some(text) => Some(text.clone()),
        None if args.words.is_empty() => None,
        None => Some(args.words.join(" ")),
    };
    let text = text.map(String::into_bytes);
    let Some(file) = &args.file else {
        return Ok(text);
    };
    let file = read(file, "the prompt")?;
    Ok(Some(match text {
        Some(text) => [&text[..], b"\n", &file[..]].concat(),
        None => file,
    }))
}

/// The prompt of a generation: as [`given`], else standard input when that is
/// not a terminal, without its last newline. An empty prompt is an error.
pub fn required(args: &PromptArgs) -> Result<Vec<u8>> {
    let prompt = match given(args)? {
        Some(prompt) => prompt,
        None if std::io::stdin().is_terminal() => Vec::new(),
        None => without_last_newline(read_stdin()?),
    };
    if prompt.is_empty() {
        return Err(empty(args));
    }
    Ok(prompt)
}

/// The error for a prompt without bytes or without tokens.
pub fn empty(args: &PromptArgs) -> Error {
    match &args.file {
        Some(file) => Error::file(file, "the prompt is empty", "give a file with text"),
        None => Error::input("the prompt is empty; give it as words, with -p TEXT or -f FILE"),
    }
}

/// The error for more than [`MOST_BYTES`].
pub fn too_long(what: &str) -> Error {
    let most = MOST_BYTES >> 20;
    Error::DoesNotFit(format!(
        "{what} is too long: more than {most} MiB; give a shorter one"
    ))
}

/// A file's bytes; `-` is standard input.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    read(path, &path.display().to_string())
}

fn read(path: &Path, what: &str) -> Result<Vec<u8>> {
    if path.as_os_str() == STDIN {
        return read_stdin();
    }
    let bytes = File::open(path).and_then(bounded);
    let bytes =
        bytes.map_err(|e| Error::file(path, e.to_string(), "give the path of a readable file"))?;
    bytes.ok_or_else(|| too_long(what))
}

/// Standard input until its end.
pub fn read_stdin() -> Result<Vec<u8>> {
    let bytes = bounded(std::io::stdin().lock());
    let bytes = bytes.map_err(|e| Error::io("cannot read standard input", e))?;
    bytes.ok_or_else(|| too_long("standard input"))
}

/// `None`: there is more than [`MOST_BYTES`].
fn bounded(from: impl Read) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MOST_BYTES).then_some(bytes))
}

/// `echo` ends its text with a newline that nobody means.
fn without_last_newline(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{given, without_last_newline};
    use crate::cli::args::PromptArgs;

    #[test]
    fn one_newline_at_the_end_is_dropped() {
        for (given, want) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a")] {
            assert_eq!(without_last_newline(given.into()), want.as_bytes());
        }
    }

    #[test]
    fn words_and_a_file_are_joined() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"two\xff\n").expect("written");
        let mut args = PromptArgs {
            words: vec!["one".into(), "1".into()],
            prompt: None,
            file: Some(file.path().to_path_buf()),
        };
        let prompt = given(&args).expect("readable");
        assert_eq!(prompt.as_deref(), Some(&b"one 1\ntwo\xff\n"[..]));
        args.words.clear();
        let prompt = given(&args).expect("readable");
        assert_eq!(prompt.as_deref(), Some(&b"two\xff\n"[..]));
    }
}
