//! Messages: one plain line each, to stderr and, where asked for, to a file.

use super::args::GlobalArgs;
use super::output::{printable, stderr_colour};
use crate::{Error, Result};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::OnceLock;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, Layer};
use tracing_subscriber::layer::{Layer as _, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

/// What the flags of every command say.
struct Settings {
    quiet: bool,
    no_color: bool,
    file: Option<File>,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// True when nothing but errors is wanted on stderr.
pub fn is_quiet() -> bool {
    SETTINGS.get().is_some_and(|settings| settings.quiet)
}

/// True when a flag forbids colours.
pub fn no_color() -> bool {
    SETTINGS.get().is_some_and(|settings| settings.no_color)
}

/// Sends `tracing` events to stderr, and to the log file if there is one.
///
/// # Errors
/// The log file cannot be opened.
pub fn init(global: &GlobalArgs) -> Result<()> {
    let file = match &global.log_file {
        None => None,
        Some(path) => {
            let file = OpenOptions::new().append(true).create(true).open(path);
            Some(file.map_err(|e| {
                Error::file(
                    path,
                    e.to_string(),
                    "give --log-file a path that can be written",
                )
            })?)
        }
    };
    let to_file = file.as_ref().and_then(|file| file.try_clone().ok());
    let settings = Settings {
        quiet: global.quiet,
        no_color: global.no_color,
        file,
    };
    // A second call (there is none in the program) keeps the first settings.
    let _ = SETTINGS.set(settings);
    let more = match global.verbose {
        0 => Level::INFO,
        1 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let level = if global.quiet { Level::ERROR } else { more };
    let stderr = Layer::default()
        // Else a stderr that cannot be written to is reported on stderr, with a panic.
        .log_internal_errors(false)
        .with_writer(io::stderr)
        .with_ansi(stderr_colour())
        .event_format(Lines { timed: false });
    let file = to_file.map(|file| {
        let file = Layer::default()
            .log_internal_errors(false)
            .with_writer(std::sync::Mutex::new(file))
            .with_ansi(false)
            .event_format(Lines { timed: true });
        file.with_filter(ours(more))
    });
    let _ = Registry::default()
        .with(stderr.with_filter(ours(level)))
        .with(file)
        .try_init();
    Ok(())
}

/// Our own messages, and the errors of others: what else they log may hold secrets, as
/// the HTTP crate dumps whole requests.
fn ours(level: Level) -> EnvFilter {
    EnvFilter::new(format!("error,llama_rs={level}"))
}

/// A line in the log file that is no `tracing` event.
pub fn to_file(label: &str, text: &str) {
    if let Some(mut file) = SETTINGS.get().and_then(|settings| settings.file.as_ref()) {
        // A full disk is no reason to stop, nor to tell stderr with each line.
        let _ = writeln!(file, "{} {label}{text}", now());
    }
}

/// `2026-11-30T13:20:07Z`
fn now() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `warning: text`; plain text for information.
struct Lines {
    /// With the time in front.
    timed: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (label, colour) = match *event.metadata().level() {
            Level::ERROR => ("error: ", "1;31"),
            Level::WARN => ("warning: ", "1;33"),
            Level::INFO => ("", ""),
            Level::DEBUG | Level::TRACE => ("debug: ", "2"),
        };
        if self.timed {
            write!(writer, "{} ", now())?;
        }
        let escape = writer.has_ansi_escapes();
        write!(writer, "{}", paint(label, colour, escape))?;
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        writeln!(writer, "{}", printable(&text))
    }
}

/// Text in a colour, given as the numbers of its escape, where escapes are wanted.
pub fn paint(text: &str, colour: &str, escape: bool) -> String {
    if escape && !text.is_empty() {
        format!("\x1b[{colour}m{text}\x1b[0m")
    } else {
        text.to_string()
    }
}
