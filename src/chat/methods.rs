//! Methods of Python's strings, dicts and lists.

use super::python;
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// What a template may call on a value: what `pycompat` knows, what it lacks,
/// and, because it does not bound them, what builds text out of many values.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return match method {
            "join" => join(state, text, args),
            "format" => {
                charge_format(state, text, args)?;
                pycompat::unknown_method_callback(state, value, method, args)
            }
            _ => match string_method(text, method, args)? {
                Some(result) => Ok(result),
                None => pycompat::unknown_method_callback(state, value, method, args),
            },
        };
    }
    match (value.kind(), method) {
        (ValueKind::Map | ValueKind::Seq | ValueKind::Iterable, "copy") => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        // A slice is a list to a template, though not to the engine.
        (ValueKind::Iterable, "count" | "index") | (ValueKind::Seq, "index") => {
            let (wanted,): (&Value,) = from_args(args)?;
            let mut places = Vec::new();
            for (index, item) in value.try_iter()?.checked().enumerate() {
                state.consume_fuel(1)?;
                if item? == *wanted {
                    places.push(index);
                }
            }
            match (method, places.first()) {
                ("count", _) => Ok(Value::from(places.len())),
                (_, Some(&first)) => Ok(Value::from(first)),
                _ => Err(bad(
                    "the list does not have the item that index() looks for",
                )),
            }
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn bad(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

fn join(state: &State, separator: &str, args: &[Value]) -> Result<Value, Error> {
    let (items,): (&Value,) = from_args(args)?;
    let mut out = String::new();
    for (index, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let text = item
            .as_str()
            .ok_or_else(|| bad("join() takes strings only"))?;
        state.consume_fuel(1 + (separator.len() + text.len()) as u64 / 64)?;
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(Value::from(out))
}

/// Pays for the most that `format` can write: each field may be any argument
/// and as wide as the digits in the text ask.
fn charge_format(state: &State, text: &str, args: &[Value]) -> Result<(), Error> {
    let fields = text.matches('{').count() as u64;
    let mut longest = 0;
    for arg in args {
        longest = longest.max(python::text(state, arg)?.len() as u64);
    }
    let widest = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| match digits.is_empty() {
            true => 0,
            false => digits.parse::<u64>().unwrap_or(u64::MAX),
        })
        .max()
        .unwrap_or(0);
    let most = fields.saturating_mul(longest.saturating_add(widest));
    state.consume_fuel(most / 64)
}

/// String methods that `pycompat` lacks or answers otherwise than Python.
fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let last = method == "rpartition";
            let parts = match last {
                true => text.rsplit_once(separator),
                false => text.split_once(separator),
            };
            let parts = match (parts, last) {
                (Some((before, after)), _) => [before, separator, after],
                (None, false) => [text, "", ""],
                (None, true) => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "split" | "rsplit" => split(text, method == "rsplit", args)?,
        "index" => {
            let (wanted,): (&str,) = from_args(args)?;
            let at = text
                .find(wanted)
                .ok_or_else(|| bad("the text does not have what index() looks for"))?;
            Value::from(text[..at].chars().count())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
        }
        _ => return Ok(None),
    }))
}

/// `split` and `rsplit`: at runs of white space without a separator.
fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, most, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(given) => Some(given),
        None => kwargs.get::<Option<Value>>("sep")?,
    }
    .filter(|given| !given.is_none());
    let most = match most {
        Some(most) => Some(most),
        None => kwargs.get::<Option<i64>>("maxsplit")?,
    };
    kwargs.assert_all_used()?;
    let most = usize::try_from(most.unwrap_or(-1)).unwrap_or(usize::MAX);
    let separator = match &separator {
        Some(given) => Some(
            given
                .as_str()
                .ok_or_else(|| bad("split() takes a string"))?,
        ),
        None => None,
    };
    let mut parts: Vec<&str> = match (separator, from_right) {
        (Some(""), _) => return Err(bad("split() takes a separator that is not empty")),
        (Some(at), false) => text.splitn(most.saturating_add(1), at).collect(),
        (Some(at), true) => text.rsplitn(most.saturating_add(1), at).collect(),
        (None, _) => split_at_space(text, from_right, most),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words, from the left or from the right; after `most` splits the rest, with
/// the white space inside it, is the last.
fn split_at_space(text: &str, from_right: bool, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = match from_right {
            true => rest.trim_end(),
            false => rest.trim_start(),
        };
        if rest.is_empty() {
            return parts;
        }
        let cut = match from_right {
            _ if parts.len() >= most => None,
            true => rest.rsplit_once(char::is_whitespace).map(|(a, b)| (b, a)),
            false => rest.split_once(char::is_whitespace),
        };
        let Some((word, tail)) = cut else {
            parts.push(rest);
            return parts;
        };
        parts.push(word);
        rest = tail;
    }
}
