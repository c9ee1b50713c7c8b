//! Numbers.

use super::{Expr, Made, Schema, class, optional, repeat, text};
use std::cmp::Ordering;

/// Digits that a number without bounds may have: what a float of 64 bits holds.
const MAX_DIGITS: u32 = 15;

/// Integers as `minimum` and `maximum` say.
pub(super) fn integer(schema: &Schema, place: &str) -> Made<Expr> {
    let low = bound(schema, ["minimum", "exclusiveMinimum"], place)?;
    let high = bound(schema, ["maximum", "exclusiveMaximum"], place)?;
    let low = low.map(|(bound, open)| match open {
        true => bound.floor() as i64 + 1,
        false => bound.ceil() as i64,
    });
    let high = high.map(|(bound, open)| match open {
        true => bound.ceil() as i64 - 1,
        false => bound.floor() as i64,
    });
    let (low, high) = both(low, high);
    let mut signs = Vec::new();
    if low < 0 {
        let digits = between(high.min(-1).unsigned_abs(), low.unsigned_abs());
        signs.push(Expr::Seq(vec![text("-"), digits]));
    }
    if high >= 0 {
        signs.push(between(low.max(0) as u64, high as u64));
    }
    Ok(Expr::Alt(signs))
}

/// Numbers; bounds are whole numbers, and part of the range.
pub(super) fn number(schema: &Schema, place: &str) -> Made<Expr> {
    let digit = || class(&[('0', '9')]);
    let fraction = || Expr::Seq(vec![text("."), repeat(digit(), 1, Some(MAX_DIGITS))]);
    let low = bound(schema, ["minimum", "exclusiveMinimum"], place)?;
    let high = bound(schema, ["maximum", "exclusiveMaximum"], place)?;
    if low.is_none() && high.is_none() {
        let sign = class(&[('+', '+'), ('-', '-')]);
        let exponent = Expr::Seq(vec![
            class(&[('e', 'e'), ('E', 'E')]),
            optional(sign),
            repeat(digit(), 1, Some(2)),
        ]);
        let most = 10u64.pow(MAX_DIGITS) - 1;
        let parts = vec![
            optional(text("-")),
            between(0, most),
            optional(fraction()),
            optional(exponent),
        ];
        return Ok(Expr::Seq(parts));
    }
    for (bound, open) in [low, high].into_iter().flatten() {
        if open || bound.fract() != 0.0 {
            return Err(format!(
                "{place}: of type number only whole minimum and maximum are supported"
            ));
        }
    }
    let whole = |bound: Option<(f64, bool)>| bound.map(|(bound, _)| bound as i64);
    let (low, high) = both(whole(low), whole(high));
    // From one whole number to another: all but the last with any fraction.
    let from_to = |least: u64, most: u64| {
        let zeros = optional(text(".0"));
        let last = Expr::Seq(vec![text(&most.to_string()), zeros]);
        match least.cmp(&most) {
            Ordering::Less => {
                let others = Expr::Seq(vec![between(least, most - 1), optional(fraction())]);
                Expr::Alt(vec![others, last])
            }
            Ordering::Equal => last,
            Ordering::Greater => Expr::Alt(Vec::new()),
        }
    };
    let mut signs = Vec::new();
    if low < 0 {
        let digits = from_to(high.min(0).unsigned_abs(), low.unsigned_abs());
        signs.push(Expr::Seq(vec![text("-"), digits]));
    }
    if high >= 0 {
        signs.push(from_to(low.max(0) as u64, high as u64));
    }
    Ok(Expr::Alt(signs))
}

/// Both bounds; one that is not given leaves room for the other.
fn both(low: Option<i64>, high: Option<i64>) -> (i64, i64) {
    let most = 10i64.pow(MAX_DIGITS) - 1;
    let low = low.unwrap_or((-most).min(high.unwrap_or(0)));
    (low, high.unwrap_or(most.max(low)))
}

/// A bound, and whether it is itself outside; of two the keyword that is there.
fn bound(schema: &Schema, names: [&str; 2], place: &str) -> Made<Option<(f64, bool)>> {
    /// Beyond it floats are not all whole numbers.
    const MOST: f64 = 9e15;
    let given = [0, 1].map(|i| schema.get(names[i]).map(|value| (value, i == 1)));
    let (value, open) = match given {
        [None, None] => return Ok(None),
        [Some(_), Some(_)] => {
            return Err(format!("{place}: {} beside {}", names[0], names[1]));
        }
        [Some(one), None] | [None, Some(one)] => one,
    };
    let bound = value.as_f64().filter(|bound| bound.abs() < MOST);
    let bound =
        bound.ok_or_else(|| format!("{place}: the bound {value} is no number below {MOST:e}"))?;
    Ok(Some((bound, open)))
}

/// The whole numbers from `low` to `high`, as they are written.
fn between(low: u64, high: u64) -> Expr {
    let mut all = Vec::new();
    let mut low = low;
    while low <= high {
        let n_digits = low.to_string().len() as u32;
        let longest = 10u64.saturating_pow(n_digits) - 1;
        let end = high.min(longest);
        all.push(same_length(&low.to_string(), &end.to_string()));
        low = end + 1;
    }
    Expr::Alt(all)
}

/// As [`between`], of as many digits each.
fn same_length(low: &str, high: &str) -> Expr {
    let Some(first) = low.chars().next().zip(high.chars().next()) else {
        return Expr::Seq(Vec::new());
    };
    let (low_rest, high_rest) = (&low[1..], &high[1..]);
    let n_rest = low_rest.len();
    let (zeros, nines) = ("0".repeat(n_rest), "9".repeat(n_rest));
    let mut all = Vec::new();
    let (mut from, mut to) = (first.0, first.1);
    let digit = |c: char| Expr::Text(vec![c as u8]);
    if from == to {
        return Expr::Seq(vec![digit(from), same_length(low_rest, high_rest)]);
    }
    if low_rest != zeros {
        all.push(Expr::Seq(vec![digit(from), same_length(low_rest, &nines)]));
        from = (from as u8 + 1) as char;
    }
    if high_rest != nines {
        all.push(Expr::Seq(vec![digit(to), same_length(&zeros, high_rest)]));
        to = (to as u8 - 1) as char;
    }
    if from <= to {
        let any = repeat(class(&[('0', '9')]), n_rest as u32, Some(n_rest as u32));
        all.push(Expr::Seq(vec![class(&[(from, to)]), any]));
    }
    Expr::Alt(all)
}
