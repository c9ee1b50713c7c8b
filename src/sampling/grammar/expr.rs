//! What a grammar is made of, however it was written.

/// Text that a rule, or a part of one, may be.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expr {
    /// These bytes.
    Text(Vec<u8>),
    /// One character of these ranges, which ascend and do not touch.
    Class(Vec<(char, char)>),
    /// What that rule may be.
    Rule(usize),
    /// One after another.
    Seq(Vec<Expr>),
    /// One of them.
    Alt(Vec<Expr>),
    /// From `min` to `max` times; `None` is without end.
    Repeat {
        expr: Box<Expr>,
        min: u32,
        max: Option<u32>,
    },
}

/// Rules with their names.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub names: Vec<String>,
    /// `None`: named somewhere, but not written yet.
    pub bodies: Vec<Option<Expr>>,
}

impl Rules {
    /// A rule that is written later.
    pub fn declare(&mut self, name: impl Into<String>) -> usize {
        self.names.push(name.into());
        self.bodies.push(None);
        self.names.len() - 1
    }

    /// A rule and its text at once.
    pub fn add(&mut self, name: impl Into<String>, body: Expr) -> usize {
        let rule = self.declare(name);
        self.bodies[rule] = Some(body);
        rule
    }
}

/// This text.
pub(super) fn text(text: &str) -> Expr {
    Expr::Text(text.as_bytes().to_vec())
}

/// Nothing.
pub(super) fn empty() -> Expr {
    Expr::Seq(Vec::new())
}

pub(super) fn repeat(expr: Expr, min: u32, max: Option<u32>) -> Expr {
    Expr::Repeat {
        expr: Box::new(expr),
        min,
        max,
    }
}

pub(super) fn optional(expr: Expr) -> Expr {
    repeat(expr, 0, Some(1))
}

/// One character of these ranges, in whatever order they are.
pub(super) fn class(ranges: &[(char, char)]) -> Expr {
    let mut sorted: Vec<(char, char)> = ranges.iter().copied().filter(|r| r.0 <= r.1).collect();
    sorted.sort_unstable();
    let mut merged: Vec<(char, char)> = Vec::new();
    for (low, high) in sorted {
        match merged.last_mut() {
            Some(last) if after(last.1).is_none_or(|next| low <= next) => {
                last.1 = last.1.max(high);
            }
            _ => merged.push((low, high)),
        }
    }
    Expr::Class(merged)
}

/// One character of none of these ranges.
pub(super) fn class_without(ranges: &[(char, char)]) -> Expr {
    let Expr::Class(taken) = class(ranges) else {
        return empty();
    };
    let mut free = Vec::new();
    let mut next = Some('\0');
    for (low, high) in taken {
        if let (Some(start), Some(end)) = (next, before(low))
            && start <= end
        {
            free.push((start, end));
        }
        next = after(high);
    }
    free.extend(next.map(|start| (start, char::MAX)));
    Expr::Class(free)
}

/// The next character; the surrogates in between are none.
fn after(c: char) -> Option<char> {
    match c {
        '\u{d7ff}' => Some('\u{e000}'),
        _ => char::from_u32(c as u32 + 1),
    }
}

fn before(c: char) -> Option<char> {
    match c {
        '\u{e000}' => Some('\u{d7ff}'),
        _ => (c as u32).checked_sub(1).and_then(char::from_u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_merged_and_turned_round() {
        let ranges = [('c', 'd'), ('a', 'b'), ('x', 'w'), ('f', 'f')];
        assert_eq!(class(&ranges), Expr::Class(vec![('a', 'd'), ('f', 'f')]));
        let Expr::Class(without) = class_without(&ranges) else {
            panic!("no class");
        };
        assert_eq!(without, [('\0', '`'), ('e', 'e'), ('g', char::MAX)]);
        let all = class_without(&[]);
        assert_eq!(all, class(&[('\0', '\u{d7ff}'), ('\u{e000}', char::MAX)]));
        assert_eq!(class_without(&[('\0', char::MAX)]), Expr::Class(vec![]));
    }
}
