//! What goes where: the product to stdout, everything else to stderr.

use super::log;
use crate::hub::shown;
use clap::error::ContextValue;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::process::ExitCode;
use std::sync::LazyLock;
use unicode_normalization::char::is_combining_mark;

/// Exit code of a usage error.
const USAGE: u8 = 2;

/// Version and build: what `--version` prints after the program's name.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        format!(
            "{} ({}-{}, {profile} build)",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::ARCH,
            std::env::consts::OS,
        )
    });
    &VERSION
}

/// True when stderr may carry escapes: a terminal, and nobody said no.
pub fn stderr_colour() -> bool {
    wants_colour() && io::stderr().is_terminal()
}

/// As [`stderr_colour`], for stdout.
pub fn stdout_colour() -> bool {
    wants_colour() && io::stdout().is_terminal()
}

fn wants_colour() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
    !no_color && !dumb && !log::no_color()
}

/// One `error:` line on stderr, and in the log file.
fn error_line(text: &str) {
    let text = printable(&one_line(text));
    log::to_file("error: ", &text);
    let label = log::paint("error: ", "1;31", stderr_colour());
    // When stderr is closed there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{label}{text}");
}

/// Text in which characters that would not show, or would change how the others show, are
/// escaped: names of files come from others.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '"' | '\'' | '\\') || is_combining_mark(c) {
            out.push(c);
        } else {
            out.extend(c.escape_debug());
        }
    }
    out
}

fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Tells why a command failed and gives its exit code. A closed pipe on stdout
/// is a reader that has had enough: quiet, exit 0.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    error_line(&describe(error));
    let code = error.chain().find_map(|cause| {
        let ours = cause.downcast_ref::<crate::Error>()?;
        Some(ours.exit_code())
    });
    ExitCode::from(code.unwrap_or(1))
}

/// Our own errors name their cause; others need the chain.
pub fn describe(error: &anyhow::Error) -> String {
    match error.downcast_ref::<crate::Error>() {
        Some(ours) => ours.to_string(),
        None => format!("{error:#}"),
    }
}

fn closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Prints help and versions on stdout, a usage error as one line on stderr.
pub fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is no fault of the user's.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(USAGE)
        }
        _ => {
            error_line(&usage_text(&without_values(error)));
            ExitCode::from(USAGE)
        }
    }
}

/// clap's message, which repeats values as they were given. One with `@` may be an address
/// with a password, so nothing of it is shown, and one with `?` an address with a signature.
fn without_values(error: &clap::Error) -> String {
    let mut text = error.to_string();
    for (_, value) in error.context() {
        let values = match value {
            ContextValue::String(value) => std::slice::from_ref(value),
            ContextValue::Strings(values) => values.as_slice(),
            _ => &[],
        };
        for value in values.iter().filter(|value| value.contains(['@', '?'])) {
            text = text.replace(value, &shown(value));
        }
    }
    text
}

/// clap's message without its usage block, which `--help` shows.
fn usage_text(rendered: &str) -> String {
    let text = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let cause = text.split("\nUsage:").next().unwrap_or(text);
    let cause = cause
        .split("\nFor more information")
        .next()
        .unwrap_or(cause);
    let cause = one_line(&cause.replace("\n\n", ";\n"));
    format!("{cause}; see --help")
}

/// Buffered stdout whose errors carry the io error that [`report`] looks for.
pub struct Product(BufWriter<StdoutLock<'static>>);

impl Product {
    /// Locks stdout.
    pub fn stdout() -> Self {
        Product(BufWriter::new(io::stdout().lock()))
    }

    /// Writes a piece and shows it at once.
    pub fn stream(&mut self, piece: &[u8]) -> io::Result<()> {
        self.write_all(piece)?;
        self.flush()
    }
}

impl Write for Product {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(unwritten)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(unwritten)
    }
}

/// Names standard output; the kind stays what it is.
fn unwritten(error: io::Error) -> io::Error {
    let text = format!("cannot write to standard output: {error}; free some room or redirect it");
    io::Error::new(error.kind(), text)
}

/// A progress bar on stderr; hidden unless that is a terminal and
/// information is wanted there.
pub fn progress(len: usize, what: &str) -> ProgressBar {
    bar(len, what, "{msg} {wide_bar} {pos}/{len}")
}

/// As [`progress`], for tokens: how many, and how fast.
pub fn progress_tokens(len: usize, what: &str) -> ProgressBar {
    bar(len, what, "{msg} {wide_bar} {pos}/{len} tokens {per_sec}")
}

/// As [`progress`], for bytes whose number is not known yet.
pub fn progress_bytes(what: &str) -> ProgressBar {
    bar(0, what, "{msg} {wide_bar} {bytes}/{total_bytes}")
}

/// As [`progress_bytes`], for `done` of `total` bytes of a file that comes over a network.
pub fn transfer(file: &str, done: u64, total: u64) -> ProgressBar {
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let bar = bar(usize::try_from(total).unwrap_or(usize::MAX), file, template);
    bar.set_position(done);
    // What was there before came at no rate.
    bar.reset_eta();
    bar
}

fn bar(len: usize, what: &str, template: &str) -> ProgressBar {
    let shown = !log::is_quiet() && stderr_colour();
    let target = if shown {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(len as u64), target);
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_message(printable(what))
}

/// `12.3 MiB`, for people.
pub fn human_bytes(bytes: usize) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if size < 1024.0 {
            return format!("{size:.1} {unit}");
        }
        size /= 1024.0;
    }
    format!("{size:.1} GiB")
}

#[cfg(test)]
mod tests {
    use super::{human_bytes, printable, usage_text};

    #[test]
    fn a_usage_error_is_one_line() {
        let rendered = "error: unexpected argument '--tmp' found\n\n  tip: a similar \
                        argument exists: '--temp'\n\nUsage: llama-rs simple\n\nFor more \
                        information, try '--help'.\n";
        assert_eq!(
            usage_text(rendered),
            "unexpected argument '--tmp' found; tip: a similar argument exists: '--temp'; see --help"
        );
    }

    #[test]
    fn what_does_not_show_is_escaped() {
        let text = "a\u{202e}b\u{2028}c\u{1b}[2J\td";
        assert_eq!(printable(text), r"a\u{202e}b\u{2028}c\u{1b}[2J\td");
        let plain = "\"it's\" C:\\ü u\u{308} 漢";
        assert_eq!(printable(plain), plain);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(human_bytes(512), "512.0 B");
        assert_eq!(human_bytes(3 << 20), "3.0 MiB");
        assert_eq!(human_bytes(5 << 30), "5.0 GiB");
    }
}
