//! Patterns: regular expressions within a JSON string.

use super::{Expr, Made, empty, repeat, text};
use crate::sampling::grammar::expr::class;
use regex_syntax::Parser;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// What is inside the quotes of a string with this pattern; `any` is any character.
pub(super) fn of(pattern: &str, any: Expr) -> Made<Expr> {
    let parsed = Parser::new().parse(&ascii_classes(pattern));
    let hir = parsed.map_err(|e| {
        let text = e.to_string();
        let last = text.lines().last().unwrap_or_default();
        last.trim_start_matches("error: ").to_string()
    })?;
    let mut parts: Vec<Hir> = match hir.kind() {
        HirKind::Concat(parts) => parts.clone(),
        _ => vec![hir],
    };
    let is = |part: Option<&Hir>, look| part.is_some_and(|p| *p.kind() == HirKind::Look(look));
    let (from_start, to_end) = (is(parts.first(), Look::Start), is(parts.last(), Look::End));
    if from_start {
        parts.remove(0);
    }
    if to_end {
        parts.pop();
    }
    let mut all = Vec::new();
    if !from_start {
        all.push(repeat(any.clone(), 0, None));
    }
    for part in &parts {
        all.push(expr(part)?);
    }
    if !to_end {
        all.push(repeat(any, 0, None));
    }
    Ok(Expr::Seq(all))
}

/// The parser's nesting limit bounds the recursion.
fn expr(hir: &Hir) -> Made<Expr> {
    Ok(match hir.kind() {
        HirKind::Empty => empty(),
        HirKind::Literal(literal) => {
            let literal = std::str::from_utf8(&literal.0).map_err(|_| "bytes are no characters")?;
            Expr::Seq(literal.chars().map(|c| characters(&[(c, c)])).collect())
        }
        HirKind::Class(Class::Unicode(class)) => {
            let ranges = class.iter().map(|r| (r.start(), r.end()));
            characters(&ranges.collect::<Vec<_>>())
        }
        HirKind::Class(Class::Bytes(class)) => {
            let class = class.to_unicode_class();
            let class = class.ok_or("bytes are no characters")?;
            let ranges = class.iter().map(|r| (r.start(), r.end()));
            characters(&ranges.collect::<Vec<_>>())
        }
        HirKind::Look(_) => {
            return Err("^ and $ are supported at its ends only, \\b nowhere".to_string());
        }
        HirKind::Repetition(repetition) => {
            repeat(expr(&repetition.sub)?, repetition.min, repetition.max)
        }
        HirKind::Capture(capture) => expr(&capture.sub)?,
        HirKind::Concat(parts) => Expr::Seq(parts.iter().map(expr).collect::<Made<_>>()?),
        HirKind::Alternation(parts) => Expr::Alt(parts.iter().map(expr).collect::<Made<_>>()?),
    })
}

/// Characters as JSON writes them in a string: some by escapes.
fn characters(ranges: &[(char, char)]) -> Expr {
    let mut plain = Vec::new();
    let mut escapes = Vec::new();
    for &(low, high) in ranges {
        for (from, to) in [(' ', '!'), ('#', '['), (']', char::MAX)] {
            plain.push((low.max(from), high.min(to)));
        }
        let special = ('\0'..='\x1f').chain(['"', '\\']);
        for c in special.filter(|c| (low..=high).contains(c)) {
            let quoted = serde_json::Value::from(c.to_string()).to_string();
            escapes.push(text(&quoted[1..quoted.len() - 1]));
        }
    }
    let plain = class(&plain);
    match escapes.is_empty() {
        true => plain,
        false => Expr::Alt([vec![plain], escapes].concat()),
    }
}

/// In these patterns `\d` and `\w` are ASCII, which the parser spells otherwise.
fn ascii_classes(pattern: &str) -> String {
    let mut out = String::new();
    let mut in_class = false;
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let escaped = chars.next();
                let name = match escaped {
                    Some('d') => "[:digit:]",
                    Some('D') => "[:^digit:]",
                    Some('w') => "[:word:]",
                    Some('W') => "[:^word:]",
                    // The parser knows no needless escape of this one.
                    Some('/') => "/",
                    _ => "",
                };
                match (name, in_class) {
                    ("", _) => out.extend(['\\'].into_iter().chain(escaped)),
                    ("/", _) | (_, true) => out.push_str(name),
                    _ => out.extend(["[", name, "]"]),
                }
                continue;
            }
            '[' => in_class = true,
            ']' => in_class = false,
            _ => {}
        }
        out.push(c);
    }
    out
}
