//! The one error type of the library.
//!
//! Every message is one line that says what went wrong, where, and what to do.

use std::path::{Path, PathBuf};

/// What can go wrong; [`Error::exit_code`] gives the process exit code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be used: its path, the cause and the remedy.
    #[error("{}: {cause}; {remedy}", file.display())]
    File {
        file: PathBuf,
        cause: String,
        remedy: String,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        what: String,
        source: std::io::Error,
    },
    /// Input or environment is at fault: one line of what, where, what to do.
    #[error("{0}")]
    Input(String),
    /// It does not fit: memory, or the context is full.
    #[error("{0}")]
    DoesNotFit(String),
    /// Operands of an op do not match.
    #[error("{op}: {detail}")]
    Shape { op: &'static str, detail: String },
    /// The user interrupted a one-shot command.
    #[error("interrupted")]
    Interrupted,
}

/// The library's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Process exit code: 1 input or environment, 3 does not fit, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::DoesNotFit(_) => 3,
            Error::Interrupted => 130,
            Error::File { .. } | Error::Io { .. } | Error::Input(_) | Error::Shape { .. } => 1,
        }
    }

    /// A file error.
    pub fn file(file: &Path, cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::File {
            file: file.to_path_buf(),
            cause: cause.into(),
            remedy: remedy.into(),
        }
    }

    /// An error about input that is not a file.
    pub fn input(text: impl Into<String>) -> Self {
        Error::Input(text.into())
    }

    /// An operating system error while doing `what`.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Error::Io {
            what: what.into(),
            source,
        }
    }
}
