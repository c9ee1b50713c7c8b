//! Objects.

use super::{Builder, Expr, Made, Schema, empty, literal, optional, repeat, text};
use crate::sampling::grammar::expr::class_without;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Bytes of a name beside additional properties: their tree is as deep.
const MAX_NAME_BYTES: usize = 1000;

/// A property that may or must come.
struct Property {
    pair: Expr,
    required: bool,
}

impl Builder<'_> {
    /// Properties in the schema's order, then others where they are asked for.
    pub(super) fn object(&mut self, schema: &Schema, place: &str) -> Made<Expr> {
        let others = schema.get("additionalProperties");
        if others.is_none()
            && !schema.contains_key("properties")
            && !schema.contains_key("required")
        {
            return Ok(self.any_object());
        }
        let nothing = Schema::new();
        let named = schema.get("properties").unwrap_or(&Json::Null);
        let named = named.as_object().unwrap_or(&nothing);
        let required = schema.get("required").unwrap_or(&Json::Null).as_array();
        let required: Vec<&str> = required
            .into_iter()
            .flatten()
            .filter_map(Json::as_str)
            .collect();
        let mut properties = Vec::new();
        for (name, value) in named {
            let value = self.value(value, &format!("{place}/properties/{name}"))?;
            properties.push(Property {
                pair: self.pair(literal(&Json::from(name.as_str())), value),
                required: required.contains(&name.as_str()),
            });
        }
        let mut names: Vec<&str> = named.keys().map(String::as_str).collect();
        for name in required {
            if names.contains(&name) {
                continue;
            }
            if others == Some(&Json::Bool(false)) {
                return Err(format!("{place}: {name:?} is required but not allowed"));
            }
            names.push(name);
            // A name without a property of its own is an additional one.
            let others = others.unwrap_or(&Json::Bool(true));
            let value = self.value(others, &format!("{place}/additionalProperties"))?;
            properties.push(Property {
                pair: self.pair(literal(&Json::from(name)), value),
                required: true,
            });
        }
        let other = match others {
            None | Some(Json::Bool(false)) => None,
            Some(schema) => {
                if names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
                    return Err(format!(
                        "{place}: a name of more than {MAX_NAME_BYTES} bytes"
                    ));
                }
                let value = self.value(schema, &format!("{place}/additionalProperties"))?;
                let key = self.key_besides(&names);
                Some(self.pair(key, value))
            }
        };
        Ok(self.braces(properties, other))
    }

    /// Any object.
    pub(super) fn any_object(&mut self) -> Expr {
        let (key, value) = (self.any_string(), self.any());
        let pair = self.pair(key, value);
        self.braces(Vec::new(), Some(pair))
    }

    fn pair(&mut self, key: Expr, value: Expr) -> Expr {
        let space = self.space();
        let pair = Expr::Seq(vec![key, text(":"), space, value]);
        self.rule("pair", pair)
    }

    /// `{`, pairs, `}`. From the last property backwards: `after` is what may follow
    /// when some pair has been written, `first` when none has.
    fn braces(&mut self, properties: Vec<Property>, other: Option<Expr>) -> Expr {
        let space = self.space();
        let comma = |pair: Expr| Expr::Seq(vec![text(","), space.clone(), pair]);
        let mut after = match &other {
            Some(pair) => repeat(comma(pair.clone()), 0, None),
            None => empty(),
        };
        after = self.rule("others", Expr::Seq(vec![after, space.clone()]));
        let mut first = match other {
            Some(pair) => optional(Expr::Seq(vec![pair, after.clone()])),
            None => empty(),
        };
        for property in properties.into_iter().rev() {
            let begin = Expr::Seq(vec![property.pair.clone(), after.clone()]);
            let go_on = Expr::Seq(vec![comma(property.pair), after.clone()]);
            if property.required {
                (first, after) = (begin, go_on);
            } else {
                first = Expr::Alt(vec![begin, first]);
                after = Expr::Alt(vec![go_on, after]);
            }
            first = self.rule("first", first);
            after = self.rule("after", after);
        }
        Expr::Seq(vec![text("{"), space, first, text("}")])
    }

    /// A key that is none of these. It is written without escapes, so that no name
    /// comes in disguise.
    fn key_besides(&mut self, names: &[&str]) -> Expr {
        let quoted: Vec<String> = names
            .iter()
            .map(|name| Json::from(*name).to_string())
            .collect();
        // Those with escapes cannot be written so anyway.
        let plain = quoted.iter().filter(|name| !name.contains('\\'));
        let mut tree = Tree::default();
        for name in plain {
            let inner = &name[1..name.len() - 1];
            let end = inner
                .chars()
                .fold(&mut tree, |tree, c| tree.children.entry(c).or_default());
            end.is_name = true;
        }
        let rest = self.besides(&tree);
        Expr::Seq(vec![text("\""), rest, text("\"")])
    }

    /// The ends that make none of the tree's names.
    fn besides(&mut self, tree: &Tree) -> Expr {
        // As long as a name: bounded by the size of a schema, but a chain of rules, not
        // of calls.
        let mut waiting = vec![(tree, self.rules.declare("key"))];
        let whole = waiting[0].1;
        while let Some((tree, rule)) = waiting.pop() {
            let taken: Vec<(char, char)> = tree.children.keys().map(|&c| (c, c)).collect();
            let not_plain = [('"', '"'), ('\\', '\\'), ('\0', '\x1f')];
            let plain = class_without(&not_plain);
            let different = class_without(&[&taken[..], &not_plain].concat());
            let mut all = vec![Expr::Seq(vec![different, repeat(plain, 0, None)])];
            if !tree.is_name {
                all.push(empty());
            }
            for (c, child) in &tree.children {
                let next = self.rules.declare("key");
                waiting.push((child, next));
                let c = text(&c.to_string());
                all.push(Expr::Seq(vec![c, Expr::Rule(next)]));
            }
            self.rules.bodies[rule] = Some(Expr::Alt(all));
        }
        Expr::Rule(whole)
    }
}

/// Names by their characters.
#[derive(Default)]
struct Tree {
    is_name: bool,
    children: BTreeMap<char, Tree>,
}
