//! Grammars at work: what they accept, what is made with them, and hostile ones.

mod fits;
mod random;
mod schema;
mod texts;

use super::expr::{Expr, Rules};
use super::{Grammar, GrammarSource, Matcher, gbnf};
use crate::error::Result;
use crate::sampling::Vocabulary;
use crate::sampling::rng::Rng;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens 0 to 255 are the bytes, 256 ends a text, then some longer ones, also with
/// parts of characters.
const END: u32 = 256;

fn vocabulary() -> Arc<Vocabulary> {
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    let longer: [&[u8]; 9] = [
        b"",
        b"yes",
        b"ab",
        b"a+",
        b"\": ",
        b"true",
        b"},{",
        b"\xF0\x9F",
        b"\xA6\x80\xC3",
    ];
    let longer = longer.iter().map(|bytes| bytes.to_vec());
    Arc::new(Vocabulary::new(bytes.chain(longer), vec![END]))
}

fn of_gbnf(name: &str, text: &str) -> Result<Grammar> {
    Grammar::new(name, GrammarSource::Gbnf(text.to_string()), vocabulary())
}

fn of_schema(name: &str, text: &str) -> Result<Grammar> {
    let source = GrammarSource::JsonSchema(text.to_string());
    Grammar::new(name, source, vocabulary())
}

fn gbnf(text: &str) -> Arc<Grammar> {
    Arc::new(of_gbnf("test", text).unwrap())
}

/// The tokens that may come next.
fn allowed(matcher: &mut Matcher, grammar: &Grammar) -> Vec<u32> {
    let mask = matcher.mask().unwrap();
    let ids = 0..grammar.vocabulary.len() as u32;
    ids.filter(|&id| mask.has(id)).collect()
}

/// Whether the grammar takes exactly this text, byte by byte.
fn takes(grammar: &Arc<Grammar>, text: &[u8]) -> bool {
    let mut matcher = Matcher::new(grammar.clone()).unwrap();
    for &byte in text {
        if !matcher.mask().unwrap().has(byte.into()) {
            return false;
        }
        matcher.accept(byte.into());
    }
    matcher.mask().unwrap().has(END)
}

/// A text of random tokens that the grammar allows; after a while only those of `closers`
/// where they are allowed, and the first end, so that it comes to one.
fn random_text(grammar: &Arc<Grammar>, seed: u64, closers: &[u8]) -> Vec<u8> {
    let mut matcher = Matcher::new(grammar.clone()).unwrap();
    let mut rng = Rng::new(seed);
    let mut text = Vec::new();
    for n in 0..5000 {
        let mut ids = allowed(&mut matcher, grammar);
        assert!(!ids.is_empty(), "stuck after {}", text.escape_ascii());
        if n > 40 {
            if ids.contains(&END) {
                return text;
            }
            let closing = |id: &u32| closers.iter().any(|&byte| u32::from(byte) == *id);
            if ids.iter().any(closing) {
                ids.retain(closing);
            }
        }
        let id = ids[rng.next_u64() as usize % ids.len()];
        if id == END {
            return text;
        }
        matcher.accept(id);
        text.extend(grammar.vocabulary.piece(id));
    }
    panic!("no end of {}", text.escape_ascii());
}

/// A plain search, to compare.
struct Search<'a> {
    rules: &'a Rules,
    text: &'a [u8],
    /// Where each expression (by its address) ends that begins there.
    known: HashMap<(*const Expr, usize), BTreeSet<usize>>,
}

impl Search<'_> {
    /// Where an expression that begins at `at` may end.
    fn ends(&mut self, expr: &Expr, at: usize) -> BTreeSet<usize> {
        let key = (std::ptr::from_ref(expr), at);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let rest = &self.text[at..];
        let ends = match expr {
            Expr::Text(bytes) => {
                let fits = rest.starts_with(bytes);
                fits.then_some(at + bytes.len()).into_iter().collect()
            }
            Expr::Class(ranges) => {
                let chunk = rest.utf8_chunks().next();
                let first = chunk.and_then(|chunk| chunk.valid().chars().next());
                let fits = first.filter(|c| ranges.iter().any(|r| (r.0..=r.1).contains(c)));
                fits.map(|c| at + c.len_utf8()).into_iter().collect()
            }
            Expr::Rule(rule) => {
                let rules = self.rules;
                self.ends(rules.bodies[*rule].as_ref().unwrap(), at)
            }
            Expr::Seq(all) => {
                let begin = BTreeSet::from([at]);
                all.iter()
                    .fold(begin, |from, expr| self.all_ends(expr, &from))
            }
            Expr::Alt(all) => all.iter().flat_map(|expr| self.ends(expr, at)).collect(),
            Expr::Repeat { expr, min, max } => {
                let (mut all, mut from) = (BTreeSet::new(), BTreeSet::from([at]));
                // More rounds than bytes reach nothing new.
                let most = min + self.text.len() as u32 + 1;
                for round in 0..=max.unwrap_or(most).min(most) {
                    if round >= *min {
                        all.extend(&from);
                    }
                    from = self.all_ends(expr, &from);
                }
                all
            }
        };
        self.known.insert(key, ends.clone());
        ends
    }

    fn all_ends(&mut self, expr: &Expr, from: &BTreeSet<usize>) -> BTreeSet<usize> {
        from.iter().flat_map(|&at| self.ends(expr, at)).collect()
    }
}

fn plain_search(grammar: &str, text: &[u8]) -> bool {
    let (rules, root) = gbnf::parse(grammar).unwrap();
    let mut search = Search {
        rules: &rules,
        text,
        known: HashMap::new(),
    };
    let body = rules.bodies[root].as_ref().unwrap();
    search.ends(body, 0).contains(&text.len())
}
