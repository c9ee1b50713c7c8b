//! Rules that begin with themselves: reading one would never come to a byte.

use super::program::{Edge, State};
use std::collections::{BTreeMap, BTreeSet};

/// The start of a rule that can come to itself before a byte is read, if there is one.
/// `nullable`: from which states the rule can return without a byte.
pub(super) fn begins_with_itself(edges: &[Vec<Edge>], nullable: &[bool]) -> Option<State> {
    let mut begins = rules_at_the_beginning(edges, nullable);
    // A rule that begins with none of the rest is on no circle.
    let mut callers: BTreeMap<State, Vec<State>> = BTreeMap::new();
    for (&rule, first) in &begins {
        for &called in first {
            callers.entry(called).or_default().push(rule);
        }
    }
    let harmless = begins.iter().filter(|(_, first)| first.is_empty());
    let mut work: Vec<State> = harmless.map(|(&rule, _)| rule).collect();
    while let Some(rule) = work.pop() {
        begins.remove(&rule);
        for caller in callers.remove(&rule).unwrap_or_default() {
            if let Some(first) = begins.get_mut(&caller) {
                first.remove(&rule);
                if first.is_empty() {
                    work.push(caller);
                }
            }
        }
    }
    // All that are left lead to a circle: follow one until it comes back.
    let mut seen = BTreeSet::new();
    let mut at = *begins.keys().next()?;
    while seen.insert(at) {
        at = *begins.get(&at)?.first()?;
    }
    Some(at)
}

/// For each rule the rules that it may begin with.
fn rules_at_the_beginning(
    edges: &[Vec<Edge>],
    nullable: &[bool],
) -> BTreeMap<State, BTreeSet<State>> {
    let mut rules: BTreeMap<State, BTreeSet<State>> = BTreeMap::new();
    for edge in edges.iter().flatten() {
        if let Edge::Call { rule, .. } = *edge {
            rules.entry(rule).or_default();
        }
    }
    // Each state belongs to one rule, so all walks together take each edge once.
    let mut seen = vec![false; edges.len()];
    for (&start, first) in &mut rules {
        let mut work = vec![start];
        while let Some(state) = work.pop() {
            if std::mem::replace(&mut seen[state as usize], true) {
                continue;
            }
            for edge in &edges[state as usize] {
                match *edge {
                    Edge::Goto(to) => work.push(to),
                    Edge::Call { rule, back } => {
                        first.insert(rule);
                        if nullable[rule as usize] {
                            work.push(back);
                        }
                    }
                    Edge::Byte { .. } | Edge::Return => {}
                }
            }
        }
    }
    rules
}
