//! GBNF: the grammars that users of llama.cpp write.
//!
//! `name ::= "text" [a-z] [^"\\] . other (a | b)* x{2,5}`, a rule a line, which goes on
//! after `|`, `::=` and within parentheses; `#` begins a comment. The text begins with
//! the rule `root`.

use super::expr::{Expr, Rules, class, class_without, repeat};
use std::collections::HashMap;

/// Parentheses within parentheses.
const MAX_DEPTH: usize = 200;

/// Reads a grammar; the second is the number of its rule `root`.
///
/// # Errors
/// What is wrong, with line and column.
pub(super) fn parse(text: &str) -> Result<(Rules, usize), String> {
    let mut parser = Parser {
        text,
        rest: text,
        rules: Rules::default(),
        by_name: HashMap::new(),
    };
    parser.skip(true);
    while !parser.rest.is_empty() {
        parser.rule().map_err(|what| parser.at(&what))?;
    }
    let undefined = parser.rules.bodies.iter().position(Option::is_none);
    if let Some(rule) = undefined {
        return Err(format!(
            "rule {:?} is named but not defined",
            parser.rules.names[rule]
        ));
    }
    match parser.by_name.get("root") {
        Some(&root) => Ok((parser.rules, root)),
        None => Err("there is no rule `root`".to_string()),
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    rules: Rules,
    by_name: HashMap<&'a str, usize>,
}

/// What is wrong, without the place.
type Parsed<T> = Result<T, String>;

impl<'a> Parser<'a> {
    fn at(&self, what: &str) -> String {
        let read = &self.text[..self.text.len() - self.rest.len()];
        let line = read.matches('\n').count() + 1;
        let column = read.rsplit('\n').next().unwrap_or_default();
        format!("line {line}, column {}: {what}", column.chars().count() + 1)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn take(&mut self, what: &str) -> bool {
        let rest = self.rest.strip_prefix(what);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Spaces and comments, also line ends where `lines`.
    fn skip(&mut self, lines: bool) {
        loop {
            let space = |c: char| c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'));
            self.rest = self.rest.trim_start_matches(space);
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    fn rule_number(&mut self, name: &'a str) -> usize {
        let rules = &mut self.rules;
        *self
            .by_name
            .entry(name)
            .or_insert_with(|| rules.declare(name))
    }

    fn rule(&mut self) -> Parsed<()> {
        let name = self.name().ok_or("a rule's name is expected here")?;
        self.skip(false);
        if !self.take("::=") {
            return Err(format!("`::=` is expected after {name:?}"));
        }
        self.skip(true);
        let body = self.alternatives(0)?;
        let rule = self.rule_number(name);
        if self.rules.bodies[rule].replace(body).is_some() {
            return Err(format!("rule {name:?} is defined twice"));
        }
        match self.peek() {
            None | Some('\n' | '\r') => {
                self.skip(true);
                Ok(())
            }
            Some(c) => Err(format!("{c:?} is not expected here")),
        }
    }

    fn alternatives(&mut self, depth: usize) -> Parsed<Expr> {
        let mut all = vec![self.sequence(depth)?];
        loop {
            // A line may also begin with the bar.
            let here = self.rest;
            self.skip(true);
            if !self.take("|") {
                if depth == 0 {
                    self.rest = here;
                }
                break;
            }
            self.skip(true);
            all.push(self.sequence(depth)?);
        }
        Ok(match all.len() {
            1 => all.remove(0),
            _ => Expr::Alt(all),
        })
    }

    fn sequence(&mut self, depth: usize) -> Parsed<Expr> {
        let mut all = Vec::new();
        while let Some(expr) = self.element(depth)? {
            let expr = match self.repetition()? {
                Some((min, max)) => repeat(expr, min, max),
                None => expr,
            };
            all.push(expr);
            self.skip(depth > 0);
        }
        Ok(Expr::Seq(all))
    }

    fn element(&mut self, depth: usize) -> Parsed<Option<Expr>> {
        Ok(Some(match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.next();
                class_without(&[])
            }
            Some('(') if depth == MAX_DEPTH => {
                return Err(format!("parentheses are nested more than {MAX_DEPTH} deep"));
            }
            Some('(') => {
                self.next();
                self.skip(true);
                let inner = self.alternatives(depth + 1)?;
                self.skip(true);
                if !self.take(")") {
                    return Err("a closing parenthesis is expected here".to_string());
                }
                inner
            }
            Some('<' | '!') => {
                return Err("tokens by their names are not supported; write their text".to_string());
            }
            _ => match self.name() {
                Some(name) => Expr::Rule(self.rule_number(name)),
                None => return Ok(None),
            },
        }))
    }

    /// `*`, `+`, `?`, `{2}`, `{2,}`, `{2,5}`.
    fn repetition(&mut self) -> Parsed<Option<(u32, Option<u32>)>> {
        let range = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.next();
                self.skip(false);
                let min = self.number()?;
                let max = match self.take(",") {
                    false => Some(min),
                    true => {
                        self.skip(false);
                        let open = self.rest.starts_with('}');
                        if open { None } else { Some(self.number()?) }
                    }
                };
                if !self.rest.starts_with('}') {
                    return Err("`}` is expected here".to_string());
                }
                if max.is_some_and(|max| max < min) {
                    return Err("the repetition's end is before its beginning".to_string());
                }
                (min, max)
            }
            _ => return Ok(None),
        };
        self.next();
        if self.rest.starts_with(['*', '+', '?', '{']) {
            return Err("a repetition of a repetition needs parentheses".to_string());
        }
        Ok(Some(range))
    }

    fn number(&mut self) -> Parsed<u32> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit());
        let (digits, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        let number = digits.parse().map_err(|_| "a count is expected here")?;
        self.rest = rest;
        self.skip(false);
        Ok(number)
    }

    fn literal(&mut self) -> Parsed<Expr> {
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => break,
                Some(_) => text.push(self.character()?),
                None => return Err("the text has no closing quote".to_string()),
            }
        }
        self.next();
        Ok(Expr::Text(text.into_bytes()))
    }

    fn class(&mut self) -> Parsed<Expr> {
        self.next();
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                Some(']') => break,
                Some(_) => {
                    let low = self.character()?;
                    let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
                    let high = match is_range {
                        true => {
                            self.next();
                            self.character()?
                        }
                        false => low,
                    };
                    if high < low {
                        return Err(format!("the range {low:?} to {high:?} is empty"));
                    }
                    ranges.push((low, high));
                }
                None => return Err("the class has no closing bracket".to_string()),
            }
        }
        self.next();
        Ok(match negated {
            true => class_without(&ranges),
            false => class(&ranges),
        })
    }

    /// One character of a text or a class.
    fn character(&mut self) -> Parsed<char> {
        let unexpected = "the text ends within an escape";
        let c = self.next().ok_or(unexpected)?;
        if c != '\\' {
            return Ok(c);
        }
        let n_digits = match self.next().ok_or(unexpected)? {
            'n' => return Ok('\n'),
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            c @ ('\\' | '"' | '[' | ']' | '-' | '^') => return Ok(c),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c => return Err(format!("there is no escape \\{c}")),
        };
        let digits = self.rest.get(..n_digits);
        let digits = digits.filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let c = code.and_then(char::from_u32);
        let c = c.ok_or_else(|| format!("{n_digits} digits of a character are expected here"))?;
        self.rest = &self.rest[n_digits..];
        Ok(c)
    }
}

#[cfg(test)]
mod tests {
    use super::super::expr::{optional, text};
    use super::*;

    fn root(grammar: &str) -> Expr {
        let (rules, root) = parse(grammar).unwrap();
        rules.bodies[root].clone().unwrap()
    }

    fn seq(all: &[Expr]) -> Expr {
        Expr::Seq(all.to_vec())
    }

    #[test]
    fn all_forms() {
        let digits = class(&[('0', '9')]);
        assert_eq!(
            root("root ::= \"a\\n\" [0-9]{2,} # the end"),
            seq(&[text("a\n"), repeat(digits.clone(), 2, None)])
        );
        assert_eq!(
            root("root::=[0-9]{ 3 }"),
            seq(&[repeat(digits, 3, Some(3))])
        );
        assert_eq!(
            root("root ::= (\n\"a\" | . )?\n\n"),
            seq(&[optional(Expr::Alt(vec![
                seq(&[text("a")]),
                seq(&[class_without(&[])])
            ]))])
        );
        let class_text = r#"root ::= [^\x41-\u0043\]"-]"#;
        let ranges = [('A', 'C'), (']', ']'), ('"', '"'), ('-', '-')];
        assert_eq!(root(class_text), seq(&[class_without(&ranges)]));
    }

    #[test]
    fn rules_end_with_their_line_unless_a_bar_follows() {
        let lines = "# first\nroot ::= x |\n  \"b\" # or\n  | \"c\"\n\nx ::= \"\\\"\"\r\n";
        let (rules, root) = parse(lines).unwrap();
        assert_eq!(rules.names, ["x", "root"]);
        assert!(matches!(&rules.bodies[root], Some(Expr::Alt(all)) if all.len() == 3));
        assert_eq!(rules.bodies[0], Some(seq(&[text("\"")])));
    }

    #[test]
    fn faults_have_a_place() {
        for (grammar, part) in [
            ("", "no rule `root`"),
            ("root ::= x", "\"x\" is named but not defined"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 13"),
            ("root ::= \"a", "no closing quote"),
            ("root ::= [a", "no closing bracket"),
            ("root ::= (\"a\"", "closing parenthesis"),
            ("root ::= \"a\")", "line 1, column 13: ')'"),
            ("root = \"a\"", "`::=` is expected"),
            ("\n ?", "line 2, column 2: a rule's name"),
            ("root ::= \"a\"**", "parentheses"),
            ("root ::= \"a\"{2", "`}` is expected"),
            ("root ::= \"a\"{3,2}", "before its beginning"),
            ("root ::= \"a\"{99999999999}", "a count"),
            ("root ::= \"\\q\"", "no escape \\q"),
            ("root ::= \"\\ud800\"", "4 digits"),
            ("root ::= [b-a]", "is empty"),
            ("root ::= <think>", "not supported"),
        ] {
            let error = parse(grammar).unwrap_err();
            assert!(error.contains(part), "{grammar}: {error}");
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
        assert!(parse(&deep).unwrap_err().contains("more than 200 deep"));
    }
}
