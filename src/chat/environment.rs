//! The engine, set up as chat templates expect it and bounded because
//! templates come with files of unknown origin.

use super::{clock, filters, methods, python};
use crate::error::{Error, Result};
use jiff::civil::DateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Output, State, UndefinedBehavior, Value};

/// Nested macro calls, includes and recursive loops; the engine counts a macro
/// call as several.
const MAX_RECURSION: usize = 200;

/// An environment whose `strftime_now` says `now`, and that stops a template
/// after `fuel` units: one an instruction, one for 64 bytes of text made.
pub(super) fn environment(now: DateTime, fuel: u64) -> Result<Environment<'static>> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|e| Error::input(e.to_string()))?;
    env.set_syntax(syntax);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_formatter(write_value);
    env.set_unknown_method_callback(methods::call);
    env.set_recursion_limit(MAX_RECURSION);
    env.set_fuel(Some(fuel));
    // Errors know their column only in this mode.
    env.set_debug(true);
    filters::register(&mut env);
    env.remove_filter("pprint");
    env.add_function("strftime_now", move |format: &str| {
        clock::strftime(&now, format)
    });
    Ok(env)
}

/// What `{{ value }}` writes.
fn write_value(
    out: &mut Output,
    state: &mut State,
    value: &Value,
) -> std::result::Result<(), minijinja::Error> {
    if let Some(text) = value.as_str() {
        return Ok(out.write_str(text)?);
    }
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        _ => Ok(out.write_str(&python::text(state, value)?)?),
    }
}
