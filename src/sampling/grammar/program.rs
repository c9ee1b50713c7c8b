//! Rules as states and the edges between them, byte by byte.
//!
//! A rule is a small automaton; an edge that calls a rule goes on where that rule
//! returns. Characters are spelled out in UTF-8, so a token may end within one.

use super::expr::{Expr, Rules};
use regex_syntax::utf8::Utf8Sequences;
use std::collections::HashMap;

/// A place in a rule.
pub(super) type State = u32;

/// A way on from a state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Edge {
    /// One byte from `low` to `high`.
    Byte { low: u8, high: u8, to: State },
    /// Nothing is read.
    Goto(State),
    /// All of the rule that begins at `rule`, then on from `back`.
    Call { rule: State, back: State },
    /// The end of a rule.
    Return,
}

/// States are this many at most; each takes some 50 bytes.
const MAX_STATES: usize = 200_000;

/// A grammar as an automaton. Every text that it begins can be ended: what leads
/// nowhere has been cut.
#[derive(Debug)]
pub(super) struct Program {
    pub edges: Vec<Vec<Edge>>,
    /// Where the whole text begins.
    pub root: State,
    /// States from which the rule can only return.
    pub only_returns: Vec<bool>,
}

impl Program {
    /// Translates the rules.
    ///
    /// # Errors
    /// A rule that begins with itself, a grammar without any text, one too large.
    pub fn new(rules: &Rules, root: usize) -> Result<Program, String> {
        let mut compiler = Compiler::default();
        for _ in &rules.names {
            let start = compiler.state()?;
            compiler.starts.push(start);
        }
        for (rule, body) in rules.bodies.iter().enumerate() {
            let body = body.as_ref();
            let body = body.ok_or_else(|| format!("rule {:?} has no text", rules.names[rule]))?;
            let end = compiler.expr(body, compiler.starts[rule])?;
            compiler.edges[end as usize].push(Edge::Return);
        }
        let Compiler {
            mut edges, starts, ..
        } = compiler;
        let root = starts[root];
        let nullable = can_return(&edges, false);
        if let Some(start) = super::recursion::begins_with_itself(&edges, &nullable) {
            let rule = starts.iter().position(|s| *s == start).unwrap_or_default();
            return Err(format!(
                "rule {:?} begins with itself (left recursion); write it as a repetition",
                rules.names[rule]
            ));
        }
        let live = can_return(&edges, true);
        if !live[root as usize] {
            return Err("no text is ever complete under this grammar".to_string());
        }
        let alive = |state: State| live[state as usize];
        for edges in &mut edges {
            edges.retain(|edge| match *edge {
                Edge::Byte { to, .. } | Edge::Goto(to) => alive(to),
                Edge::Call { rule, back } => alive(rule) && alive(back),
                Edge::Return => true,
            });
        }
        let only_returns = (0..).take(edges.len()).map(|s| only_returns(&edges, s));
        Ok(Program {
            only_returns: only_returns.collect(),
            root,
            edges,
        })
    }
}

/// Whether nothing but the end of the rule follows.
fn only_returns(edges: &[Vec<Edge>], mut state: State) -> bool {
    /// Enough for the ends of nested repetitions; a miss costs only a longer stack.
    const MOST_STEPS: usize = 16;
    for _ in 0..MOST_STEPS {
        match edges[state as usize][..] {
            [Edge::Return] => return true,
            [Edge::Goto(to)] => state = to,
            _ => return false,
        }
    }
    false
}

/// From which states the rule can return: at all, or without reading a byte.
fn can_return(edges: &[Vec<Edge>], with_bytes: bool) -> Vec<bool> {
    // Backwards from the ends. A call counts once both its rule and what follows do.
    let mut before: Vec<Vec<State>> = vec![Vec::new(); edges.len()];
    for (state, edges) in (0..).zip(edges) {
        for edge in edges {
            match *edge {
                Edge::Byte { to, .. } if with_bytes => before[to as usize].push(state),
                Edge::Goto(to) => before[to as usize].push(state),
                Edge::Call { rule, back } => {
                    before[rule as usize].push(state);
                    before[back as usize].push(state);
                }
                Edge::Byte { .. } | Edge::Return => {}
            }
        }
    }
    let mut can = vec![false; edges.len()];
    let ends = (0..).zip(edges).filter(|(_, e)| e.contains(&Edge::Return));
    let mut work: Vec<State> = ends.map(|(state, _)| state).collect();
    while let Some(state) = work.pop() {
        if std::mem::replace(&mut can[state as usize], true) {
            continue;
        }
        for &earlier in &before[state as usize] {
            let reaches = edges[earlier as usize].iter().any(|edge| match *edge {
                Edge::Byte { to, .. } => with_bytes && can[to as usize],
                Edge::Goto(to) => can[to as usize],
                Edge::Call { rule, back } => can[rule as usize] && can[back as usize],
                Edge::Return => false,
            });
            if reaches && !can[earlier as usize] {
                work.push(earlier);
            }
        }
    }
    can
}

#[derive(Default)]
struct Compiler {
    edges: Vec<Vec<Edge>>,
    /// Where each rule begins.
    starts: Vec<State>,
    /// Classes beyond ASCII are rules of their own, for they take many states.
    classes: HashMap<Vec<(char, char)>, State>,
}

impl Compiler {
    fn state(&mut self) -> Result<State, String> {
        if self.edges.len() == MAX_STATES {
            return Err(format!(
                "the grammar is too large: more than {MAX_STATES} states, often from a \
                 high count in braces"
            ));
        }
        self.edges.push(Vec::new());
        Ok(self.edges.len() as State - 1)
    }

    fn edge(&mut self, from: State, edge: Edge) {
        self.edges[from as usize].push(edge);
    }

    /// A new state that `from` leads to with nothing read.
    fn then(&mut self, from: State) -> Result<State, String> {
        let to = self.state()?;
        self.edge(from, Edge::Goto(to));
        Ok(to)
    }

    /// The state after an expression that begins at `from`.
    fn expr(&mut self, expr: &Expr, from: State) -> Result<State, String> {
        match expr {
            Expr::Text(bytes) => bytes.iter().try_fold(from, |from, &byte| {
                let to = self.state()?;
                let (low, high) = (byte, byte);
                self.edge(from, Edge::Byte { low, high, to });
                Ok(to)
            }),
            Expr::Class(ranges) => self.class(ranges, from),
            Expr::Rule(rule) => {
                let back = self.state()?;
                let rule = self.starts[*rule];
                self.edge(from, Edge::Call { rule, back });
                Ok(back)
            }
            Expr::Seq(all) => all
                .iter()
                .try_fold(from, |from, expr| self.expr(expr, from)),
            Expr::Alt(all) => {
                let end = self.state()?;
                for expr in all {
                    let start = self.then(from)?;
                    let after = self.expr(expr, start)?;
                    self.edge(after, Edge::Goto(end));
                }
                Ok(end)
            }
            Expr::Repeat { expr, min, max } => self.repeat(expr, *min, *max, from),
        }
    }

    fn repeat(
        &mut self,
        expr: &Expr,
        min: u32,
        max: Option<u32>,
        from: State,
    ) -> Result<State, String> {
        let mut at = from;
        for _ in 0..min {
            at = self.then(at)?;
            at = self.expr(expr, at)?;
        }
        let Some(max) = max else {
            let again = self.then(at)?;
            let after = self.expr(expr, again)?;
            self.edge(after, Edge::Goto(again));
            return self.then(again);
        };
        let end = self.state()?;
        self.edge(at, Edge::Goto(end));
        for _ in min..max {
            at = self.then(at)?;
            at = self.expr(expr, at)?;
            self.edge(at, Edge::Goto(end));
        }
        Ok(end)
    }

    fn class(&mut self, ranges: &[(char, char)], from: State) -> Result<State, String> {
        let to = self.state()?;
        if ranges.iter().all(|range| range.1.is_ascii()) {
            for &(low, high) in ranges {
                let (low, high) = (low as u8, high as u8);
                self.edge(from, Edge::Byte { low, high, to });
            }
            return Ok(to);
        }
        let rule = match self.classes.get(ranges) {
            Some(&rule) => rule,
            None => self.class_rule(ranges)?,
        };
        self.edge(from, Edge::Call { rule, back: to });
        Ok(to)
    }

    fn class_rule(&mut self, ranges: &[(char, char)]) -> Result<State, String> {
        let (rule, end) = (self.state()?, self.state()?);
        self.edge(end, Edge::Return);
        let sequences = ranges.iter().flat_map(|r| Utf8Sequences::new(r.0, r.1));
        for sequence in sequences {
            let mut at = rule;
            let bytes = sequence.as_slice();
            for (i, range) in bytes.iter().enumerate() {
                let last = i + 1 == bytes.len();
                let to = if last { end } else { self.state()? };
                let (low, high) = (range.start, range.end);
                self.edge(at, Edge::Byte { low, high, to });
                at = to;
            }
        }
        self.classes.insert(ranges.to_vec(), rule);
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::super::gbnf::parse;
    use super::*;

    fn program(grammar: &str) -> Result<Program, String> {
        let (rules, root) = parse(grammar)?;
        Program::new(&rules, root)
    }

    #[test]
    fn left_recursion_is_an_error_that_names_the_rule() {
        for (grammar, rule) in [
            ("root ::= root \"a\" | \"b\"", "root"),
            ("root ::= x\nx ::= y* \"a\"\ny ::= \"\" x", "x"),
            ("root ::= x\nx ::= (\"b\"? x) | \"c\"", "x"),
        ] {
            let error = program(grammar).unwrap_err();
            let named = error.contains(&format!("{rule:?} begins"));
            let other = error.contains("\"y\" begins");
            assert!(named || other, "{grammar}: {error}");
        }
        // Not at the beginning, or not a rule but a repetition.
        for grammar in [
            "root ::= \"a\" root | \"b\" root root | \"\"",
            "root ::= ((\"a\"*)*)*",
            "root ::= (x)*\nx ::= \"a\"?",
        ] {
            assert!(program(grammar).is_ok(), "{grammar}");
        }
    }

    #[test]
    fn endless_and_empty_grammars_are_errors() {
        for grammar in [
            "root ::= \"(\" root \")\"",
            "root ::= []",
            "root ::= \"a\" x\nx ::= \"b\" x",
        ] {
            let error = program(grammar).unwrap_err();
            assert!(error.contains("ever complete"), "{error}");
        }
    }

    #[test]
    fn counts_that_blow_up_are_errors() {
        for grammar in [
            "root ::= \"a\"{1000000000}",
            "root ::= \"\"{0,1000000000}",
            "root ::= ((((\"a\"{99}){99}){99}){99}){99}",
        ] {
            assert!(program(grammar).unwrap_err().contains("too large"));
        }
    }
}
