//! Text of values as Python writes it: `str`, `repr` and `json.dumps`.
//!
//! Values come from untrusted templates: nesting and length are bounded, and
//! what is written is paid for with fuel.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Deepest nesting that is written; JSON parsers stop near here too.
const MAX_DEPTH: usize = 128;
/// Bytes of text that one unit of fuel pays for; a quarter of what the engine
/// takes for copying because the value is walked.
const BYTES_PER_FUEL: u64 = 16;

/// How `json.dumps` is asked to write.
pub(super) struct JsonStyle {
    /// What one level of nesting adds in front of a line; none for one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

/// `str(value)`; a string as it is, nothing for undefined.
pub(super) fn text(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_string());
    }
    let mut writer = Writer::new(state);
    writer.display(value)?;
    writer.finish(state)
}

/// `json.dumps(value)`.
pub(super) fn json(state: &State, value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut writer = Writer::new(state);
    writer.json(value, style, 0)?;
    writer.finish(state)
}

fn bad(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

struct Writer {
    out: String,
    limit_bytes: u64,
}

impl Writer {
    fn new(state: &State) -> Writer {
        let fuel = state.fuel_levels().map_or(0, |(_, remaining)| remaining);
        Writer {
            out: String::new(),
            limit_bytes: fuel.saturating_mul(BYTES_PER_FUEL),
        }
    }

    fn finish(self, state: &State) -> Result<String, Error> {
        state.consume_fuel(self.out.len() as u64 / BYTES_PER_FUEL)?;
        Ok(self.out)
    }

    fn push(&mut self, text: &str) -> Result<(), Error> {
        if (self.out.len() + text.len()) as u64 > self.limit_bytes {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn display(&mut self, value: &Value) -> Result<(), Error> {
        match (value.kind(), value.as_str()) {
            (_, Some(text)) => self.push(text),
            (ValueKind::Undefined, _) => Ok(()),
            _ => self.repr(value, 0),
        }
    }

    fn repr(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(bad("a value is nested too deeply to be printed"));
        }
        if let Some(text) = value.as_str() {
            return self.quoted(text);
        }
        match value.kind() {
            ValueKind::Undefined => self.push("Undefined"),
            ValueKind::Number if !value.is_integer() => self.push(&float(value)?),
            ValueKind::Seq | ValueKind::Iterable => {
                let tuple = value.is_tuple();
                self.push(if tuple { "(" } else { "[" })?;
                let mut count = 0;
                for item in value.try_iter()?.checked() {
                    if count > 0 {
                        self.push(", ")?;
                    }
                    count += 1;
                    self.repr(&item?, depth + 1)?;
                }
                self.push(match (tuple, count) {
                    (true, 1) => ",)",
                    (true, _) => ")",
                    _ => "]",
                })
            }
            ValueKind::Map => {
                self.push("{")?;
                for (index, key) in value.try_iter()?.checked().enumerate() {
                    let key = key?;
                    if index > 0 {
                        self.push(", ")?;
                    }
                    self.repr(&key, depth + 1)?;
                    self.push(": ")?;
                    self.repr(&value.get_item(&key)?, depth + 1)?;
                }
                self.push("}")
            }
            _ => self.push(&value.to_string()),
        }
    }

    /// A string literal: single quotes unless only double ones avoid escapes.
    fn quoted(&mut self, text: &str) -> Result<(), Error> {
        let quote = match text.contains('\'') && !text.contains('"') {
            true => '"',
            false => '\'',
        };
        let mut out = String::with_capacity(text.len() + 2);
        out.push(quote);
        for c in text.chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\\' => out.push_str("\\\\"),
                c if c == quote => out.extend(['\\', c]),
                c if (c as u32) < 0x20
                    || (0x7f..0xa1).contains(&(c as u32))
                    || c as u32 == 0xad =>
                {
                    let _ = write!(out, "\\x{:02x}", c as u32);
                }
                c => out.push(c),
            }
        }
        out.push(quote);
        self.push(&out)
    }

    fn json(&mut self, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(bad("a value is nested too deeply for tojson"));
        }
        if let Some(text) = value.as_str() {
            return self.json_string(text, style.ensure_ascii);
        }
        match value.kind() {
            ValueKind::None => self.push("null"),
            ValueKind::Bool => self.push(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let text = number(value)?;
                self.push(match text.as_str() {
                    "nan" => "NaN",
                    "inf" => "Infinity",
                    "-inf" => "-Infinity",
                    other => other,
                })
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.push("[")?;
                let mut empty = true;
                for item in value.try_iter()?.checked() {
                    self.json_item(style, depth + 1, empty)?;
                    empty = false;
                    self.json(&item?, style, depth + 1)?;
                }
                self.json_end(style, depth, empty, "]")
            }
            ValueKind::Map => self.json_map(value, style, depth),
            kind => Err(bad(format!("{kind} cannot be written as JSON"))),
        }
    }

    fn json_map(&mut self, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        let mut keys = value
            .try_iter()?
            .checked()
            .collect::<Result<Vec<Value>, Error>>()?;
        if style.sort_keys {
            keys.sort();
        }
        self.push("{")?;
        for (index, key) in keys.iter().enumerate() {
            self.json_item(style, depth + 1, index == 0)?;
            match (key.as_str(), key.kind()) {
                (Some(text), _) => self.json_string(text, style.ensure_ascii)?,
                (None, ValueKind::None | ValueKind::Bool | ValueKind::Number) => {
                    self.push("\"")?;
                    self.json(key, style, depth)?;
                    self.push("\"")?;
                }
                (None, kind) => return Err(bad(format!("{kind} cannot be a key in JSON"))),
            }
            self.push(&style.key_separator)?;
            self.json(&value.get_item(key)?, style, depth + 1)?;
        }
        self.json_end(style, depth, keys.is_empty(), "}")
    }

    fn json_item(&mut self, style: &JsonStyle, depth: usize, first: bool) -> Result<(), Error> {
        if !first {
            self.push(&style.item_separator)?;
        }
        self.json_newline(style, depth)
    }

    fn json_end(
        &mut self,
        style: &JsonStyle,
        depth: usize,
        empty: bool,
        close: &str,
    ) -> Result<(), Error> {
        if !empty {
            self.json_newline(style, depth)?;
        }
        self.push(close)
    }

    fn json_newline(&mut self, style: &JsonStyle, depth: usize) -> Result<(), Error> {
        let Some(indent) = &style.indent else {
            return Ok(());
        };
        self.push("\n")?;
        for _ in 0..depth {
            self.push(indent)?;
        }
        Ok(())
    }

    fn json_string(&mut self, text: &str, ensure_ascii: bool) -> Result<(), Error> {
        let mut out = String::with_capacity(text.len() + 2);
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 => {
                    let _ = write!(out, "\\u{:04x}", c as u32);
                }
                // The sentinel is no part of the text and goes away later.
                c if ensure_ascii && !c.is_ascii() && c != super::guard::SENTINEL => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
        self.push(&out)
    }
}

fn number(value: &Value) -> Result<String, Error> {
    match value.is_integer() {
        true => Ok(value.to_string()),
        false => float(value),
    }
}

/// `repr` of a float: the shortest digits that read back the same, with an
/// exponent below 1e-4 and from 1e16 on.
fn float(value: &Value) -> Result<String, Error> {
    let number = f64::try_from(value.clone())?;
    if number.is_nan() {
        return Ok("nan".to_string());
    }
    if number.is_infinite() {
        return Ok(if number > 0.0 { "inf" } else { "-inf" }.to_string());
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number == 0.0 || (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return Ok(match plain.contains('.') {
            true => plain,
            false => plain + ".0",
        });
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    Ok(format!("{digits}e{sign}{:02}", exponent.unsigned_abs()))
}
