//! Strings.

use super::pattern;
use super::{Builder, Expr, Made, Schema, class, count, repeat, text};
use crate::sampling::grammar::expr::class_without;
use serde_json::Value as Json;

/// Formats that are held to, as patterns; others are notes. Days are those that every
/// year has.
const FORMATS: [(&str, &str); 4] = [
    ("date", DATE),
    ("time", TIME),
    ("date-time", DATE_TIME),
    (
        "uuid",
        "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    ),
];

macro_rules! date {
    () => {
        "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])\
         |(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    };
}
macro_rules! time {
    () => {
        "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?\
         (Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
    };
}
const DATE: &str = concat!("^", date!(), "$");
const TIME: &str = concat!("^", time!(), "$");
const DATE_TIME: &str = concat!("^", date!(), "T", time!(), "$");

impl Builder<'_> {
    pub(super) fn string(&mut self, schema: &Schema, place: &str) -> Made<Expr> {
        let min = count(schema, "minLength", place)?;
        let max = count(schema, "maxLength", place)?;
        if max.is_some_and(|max| max < min.unwrap_or(0)) {
            return Err(format!("{place}: maxLength is less than minLength"));
        }
        let format = schema.get("format").and_then(Json::as_str);
        let format = format.and_then(|name| FORMATS.iter().find(|row| row.0 == name));
        let pattern = match (schema.get("pattern"), format) {
            (Some(Json::String(pattern)), _) => Some(pattern.as_str()),
            (Some(_), _) => return Err(format!("{place}: pattern is no text")),
            (None, format) => format.map(|row| row.1),
        };
        let character = self.character();
        let inner = match pattern {
            None if min.is_none() && max.is_none() => return Ok(self.any_string()),
            None => repeat(character, min.unwrap_or(0), max),
            Some(_) if min.is_some() || max.is_some() => {
                return Err(format!(
                    "{place}: a length beside a pattern is not supported"
                ));
            }
            Some(pattern) => {
                let made = pattern::of(pattern, character);
                made.map_err(|e| format!("{place}: pattern {pattern:?}: {e}"))?
            }
        };
        Ok(Expr::Seq(vec![text("\""), inner, text("\"")]))
    }

    /// Any string.
    pub(super) fn any_string(&mut self) -> Expr {
        self.shared("string", |builder| {
            let characters = repeat(builder.character(), 0, None);
            Expr::Seq(vec![text("\""), characters, text("\"")])
        })
    }

    /// A character of a string, or its escape; halves of surrogate pairs are none.
    fn character(&mut self) -> Expr {
        self.shared("character", |_| {
            let plain = class_without(&[('"', '"'), ('\\', '\\'), ('\0', '\x1f')]);
            let named = "\"\\/bfnrt".chars().map(|c| (c, c));
            let named = class(&named.collect::<Vec<_>>());
            let digit = class(&[('0', '9'), ('a', 'f'), ('A', 'F')]);
            let not_d = class(&[('0', '9'), ('a', 'c'), ('A', 'C'), ('e', 'f'), ('E', 'F')]);
            let low = Expr::Seq(vec![class(&[('d', 'd'), ('D', 'D')]), class(&[('0', '7')])]);
            let high = Expr::Seq(vec![not_d, digit.clone()]);
            let code = Expr::Seq(vec![
                text("u"),
                Expr::Alt(vec![high, low]),
                repeat(digit, 2, Some(2)),
            ]);
            let escape = Expr::Seq(vec![text("\\"), Expr::Alt(vec![named, code])]);
            Expr::Alt(vec![plain, escape])
        })
    }
}
