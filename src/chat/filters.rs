//! Filters, tests and functions as Jinja on Python has them, where the engine's
//! own differ or are missing.

use super::python::{self, JsonStyle};
use minijinja::filters;
use minijinja::value::{Kwargs, Rest, StringInput, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// Widest indent that `tojson` takes, in characters.
const MAX_INDENT: usize = 64;

/// Registers all of this module.
pub(super) fn register(env: &mut Environment) {
    env.add_filter("tojson", tojson);
    env.add_filter("join", join);
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
    env.add_filter("items", items);
    env.add_filter("replace", replace);
    env.add_filter("trim", trim);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("wordcount", |state: &State, value: &Value| {
        python::text(state, value).map(|text| text.split_whitespace().count())
    });
    env.add_filter("string", |state: &State, value: &Value| {
        python::text(state, value).map(Value::from)
    });
    env.add_filter("upper", |state: &State, value: &Value| {
        python::text(state, value).map(|text| text.to_uppercase())
    });
    env.add_filter("lower", |state: &State, value: &Value| {
        python::text(state, value).map(|text| text.to_lowercase())
    });
    env.add_filter("title", |state: &State, value: &Value| {
        python::text(state, value).map(|text| filters::title(text.into()))
    });
    env.add_filter("capitalize", |state: &State, value: &Value| {
        let text = Value::from(python::text(state, value)?);
        Ok::<Value, Error>(filters::capitalize(StringInput::new(state, &text)?))
    });
    register_tests(env);
    env.add_function("raise_exception", raise_exception);
    env.add_function("cycler", |items: Rest<Value>| {
        minijinja_contrib::globals::cycler(items.0)
    });
    env.add_function("joiner", minijinja_contrib::globals::joiner);
}

/// In Python a string is a sequence, a dict has a length and items, and a
/// slice of a list is a list.
fn register_tests(env: &mut Environment) {
    fn holds_items(value: &Value) -> bool {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map
        )
    }
    env.add_test("sequence", |value: &Value| {
        holds_items(value) || value.is_undefined()
    });
    env.add_test("iterable", |value: &Value| {
        holds_items(value) || value.is_undefined()
    });
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}

fn bad(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

/// What a template says when it refuses the messages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub String);

fn raise_exception(state: &State, message: &Value) -> Result<Value, Error> {
    let message = python::text(state, message)?;
    Err(bad("raise_exception").with_source(Refusal(message)))
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(
    state: &State,
    value: &Value,
    positional: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let argument = |index: usize, name: &str| -> Result<Value, Error> {
        match positional.get(index) {
            Some(given) => Ok(given.clone()),
            None => Ok(kwargs.get::<Option<Value>>(name)?.unwrap_or_default()),
        }
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_true();
    let indent = argument(1, "indent")?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?.is_true();
    kwargs.assert_all_used()?;
    let indent = match (indent.as_str(), indent.kind()) {
        (Some(text), _) => Some(text.to_string()),
        (None, ValueKind::Undefined | ValueKind::None) => None,
        _ => Some(" ".repeat(i64::try_from(indent)?.clamp(0, MAX_INDENT as i64 + 1) as usize)),
    };
    if indent.as_ref().is_some_and(|text| text.len() > MAX_INDENT) {
        return Err(bad(format!("tojson indents by {MAX_INDENT} at most")));
    }
    let (item_separator, key_separator) = match separators.kind() {
        ValueKind::Undefined | ValueKind::None => {
            let item = if indent.is_some() { "," } else { ", " };
            (item.to_string(), ": ".to_string())
        }
        _ => (
            separators.get_item_by_index(0)?.to_string(),
            separators.get_item_by_index(1)?.to_string(),
        ),
    };
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        sort_keys,
        ensure_ascii,
    };
    python::json(state, value, &style).map(Value::from)
}

/// `join(d='', attribute=None)`: each item as Python prints it.
fn join(
    state: &State,
    items: &Value,
    separator: Option<&str>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let separator = match separator {
        Some(given) => given,
        None => kwargs.get::<Option<&str>>("d")?.unwrap_or_default(),
    };
    let attribute = kwargs.get::<Option<&str>>("attribute")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    let mut push = |index: usize, text: &str| -> Result<(), Error> {
        state.consume_fuel(1 + (separator.len() + text.len()) as u64 / 64)?;
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
        Ok(())
    };
    if let Some(text) = items.as_str() {
        for (index, c) in text.chars().enumerate() {
            push(index, c.encode_utf8(&mut [0; 4]))?;
        }
        return Ok(out);
    }
    for (index, item) in items.try_iter()?.checked().enumerate() {
        let mut item = item?;
        if let Some(attribute) = attribute {
            for name in attribute.split('.') {
                item = item.get_attr(name)?;
            }
        }
        push(index, &python::text(state, &item)?)?;
    }
    Ok(out)
}

/// HTML escapes as Python's `markupsafe` writes them.
fn escape(state: &State, value: &Value) -> Result<String, Error> {
    let text = python::text(state, value)?;
    state.consume_fuel(text.len() as u64 / 16)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// Pairs of a mapping; of something undefined, none.
fn items(value: &Value) -> Result<Value, Error> {
    match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => filters::items(value),
    }
}

/// `int(default=0, base=10)`: text that is no number gives the default.
fn int(value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = match default {
        Some(given) => given,
        None => kwargs
            .get::<Option<Value>>("default")?
            .unwrap_or_else(|| Value::from(0)),
    };
    let base = kwargs.get::<Option<u32>>("base")?.unwrap_or(10);
    kwargs.assert_all_used()?;
    let Some(text) = value.as_str() else {
        return Ok(match i128::try_from(value.clone()) {
            Ok(number) => Value::from(number),
            Err(_) => truncated(f64::try_from(value.clone()).ok()).unwrap_or(default),
        });
    };
    let text = text.trim();
    let digits = match base {
        16 => text.trim_start_matches("0x").trim_start_matches("0X"),
        8 => text.trim_start_matches("0o").trim_start_matches("0O"),
        2 => text.trim_start_matches("0b").trim_start_matches("0B"),
        3..=36 => text,
        _ => return Err(bad("int() takes a base from 2 to 36")),
    };
    Ok(match i128::from_str_radix(digits, base) {
        Ok(number) => Value::from(number),
        Err(_) => truncated(text.parse().ok()).unwrap_or(default),
    })
}

/// The whole part of a number that fits 64 bits.
fn truncated(number: Option<f64>) -> Option<Value> {
    number
        .filter(|number| number.abs() < i64::MAX as f64)
        .map(|number| Value::from(number as i64))
}

/// `float(default=0.0)`: text that is no number gives the default.
fn float(value: &Value, default: Option<Value>) -> Value {
    let number = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None => f64::try_from(value.clone()).ok(),
    };
    match (number, default) {
        (Some(number), _) => Value::from(number),
        (None, Some(default)) => default,
        (None, None) => Value::from(0.0),
    }
}

/// `replace(old, new, count=None)`; the result is paid for before it is made.
fn replace(
    state: &State,
    value: &Value,
    old: &Value,
    new: &Value,
    count: Option<i64>,
) -> Result<String, Error> {
    let text = python::text(state, value)?;
    let old = python::text(state, old)?;
    let new = python::text(state, new)?;
    let matches = text.len() / old.len().max(1) + 1;
    let most = match count.map(usize::try_from) {
        Some(Ok(count)) => count.min(matches),
        _ => matches,
    };
    state.consume_fuel((text.len() as u64 + most as u64 * new.len() as u64) / 64)?;
    Ok(text.replacen(&old, &new, most))
}

/// `trim(chars=None)`: from both ends.
fn trim(state: &State, value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = python::text(state, value)?;
    Ok(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_string(),
        None => text.trim().to_string(),
    })
}
