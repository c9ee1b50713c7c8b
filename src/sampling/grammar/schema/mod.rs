//! JSON schemas as grammars.

mod array;
mod number;
mod object;
mod pattern;
mod string;

use super::expr::{Expr, Rules, class, empty, optional, repeat, text};
use serde_json::{Map, Value as Json};
use std::collections::HashMap;

/// An object of JSON Schema.
type Schema = Map<String, Json>;
/// A grammar, or what of the schema cannot become one.
type Made<T> = Result<T, String>;

/// Keywords that do not change which texts fit.
const NOTES: [&str; 15] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$schema",
    "$id",
    "$anchor",
    "$comment",
    "$defs",
    "definitions",
    "contentMediaType",
    "contentEncoding",
];

/// Keywords of one type, which also tell the type where none is named.
const OF_TYPE: [(&str, &[&str]); 5] = [
    (
        "object",
        &["properties", "required", "additionalProperties"],
    ),
    ("array", &["items", "prefixItems", "minItems", "maxItems"]),
    ("string", &["minLength", "maxLength", "pattern", "format"]),
    (
        "number",
        &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
    ),
    (
        "integer",
        &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
    ),
];

/// The rules of a schema, and the number of the first.
///
/// # Errors
/// What is not supported, and where.
pub(super) fn rules(schema: &Json) -> Made<(Rules, usize)> {
    let mut builder = Builder {
        document: schema,
        rules: Rules::default(),
        shared: HashMap::new(),
        references: HashMap::new(),
        waiting: Vec::new(),
        n_merged: 0,
    };
    let root = builder.rules.declare("root");
    // By itself `{}` means any object, as llama.cpp's users know it; within others any
    // value, as JSON Schema has it.
    let body = match schema.as_object() {
        Some(keys) if keys.is_empty() => builder.any_object(),
        _ => builder.value(schema, "#")?,
    };
    builder.rules.bodies[root] = Some(body);
    // Not within each other: references may form circles.
    while let Some((rule, target)) = builder.waiting.pop() {
        let referred = resolve(schema, &target)?;
        let body = builder.value(referred, &target)?;
        builder.rules.bodies[rule] = Some(body);
    }
    Ok((builder.rules, root))
}

struct Builder<'a> {
    document: &'a Json,
    rules: Rules,
    /// Rules of JSON itself, by name.
    shared: HashMap<&'static str, usize>,
    /// Rules of what `$ref` names.
    references: HashMap<String, usize>,
    /// Of those the ones without a body yet.
    waiting: Vec<(usize, String)>,
    /// Objects that `allOf` has merged.
    n_merged: usize,
}

impl Builder<'_> {
    /// The values that fit a schema; `place` is its path, for messages.
    fn value(&mut self, schema: &Json, place: &str) -> Made<Expr> {
        let schema = match schema {
            Json::Bool(true) => return Ok(self.any()),
            Json::Bool(false) => return Ok(Expr::Alt(Vec::new())),
            Json::Object(schema) => schema,
            _ => return Err(format!("{place}: a schema is an object, true or false")),
        };
        if let Some(value) = schema.get("const") {
            return Ok(literal(value));
        }
        if let Some(values) = schema.get("enum") {
            let values = values.as_array();
            let values = values.ok_or_else(|| format!("{place}: enum is not a list"))?;
            let fits = |value: &&Json| schema.get("type").is_none_or(|ty| has_type(value, ty));
            return Ok(Expr::Alt(values.iter().filter(fits).map(literal).collect()));
        }
        if let Some(target) = schema.get("$ref") {
            only(schema, &["$ref"], place)?;
            return self.reference(target, place);
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(choices) = schema.get(keyword) {
                only(schema, &[keyword], place)?;
                return self.choices(choices, &format!("{place}/{keyword}"));
            }
        }
        if schema.contains_key("allOf") {
            let merged = self.merge(schema, place)?;
            return self.value(&Json::Object(merged), place);
        }
        self.typed(schema, place)
    }

    fn choices(&mut self, choices: &Json, place: &str) -> Made<Expr> {
        let choices = choices
            .as_array()
            .ok_or_else(|| format!("{place}: not a list"))?;
        let each = choices.iter().enumerate();
        let each = each.map(|(i, choice)| self.value(choice, &format!("{place}/{i}")));
        each.collect::<Made<Vec<Expr>>>().map(Expr::Alt)
    }

    fn reference(&mut self, target: &Json, place: &str) -> Made<Expr> {
        let target = target.as_str().unwrap_or_default();
        if let Some(&rule) = self.references.get(target) {
            return Ok(Expr::Rule(rule));
        }
        resolve(self.document, target).map_err(|e| format!("{place}: {e}"))?;
        let rule = self.rules.declare(target);
        self.references.insert(target.to_string(), rule);
        self.waiting.push((rule, target.to_string()));
        Ok(Expr::Rule(rule))
    }

    /// One object of all that `allOf` lists.
    fn merge(&mut self, schema: &Schema, place: &str) -> Made<Schema> {
        /// References to each other would otherwise go round for ever.
        const MAX_MERGED: usize = 1000;
        self.n_merged += 1;
        if self.n_merged > MAX_MERGED {
            return Err(format!("{place}: more than {MAX_MERGED} parts of allOf"));
        }
        let mut merged = schema.clone();
        let parts = merged.remove("allOf").unwrap_or_default();
        let reference = merged.remove("$ref").into_iter();
        let reference = reference.map(|target| serde_json::json!({ "$ref": target }));
        for part in parts
            .as_array()
            .into_iter()
            .flatten()
            .cloned()
            .chain(reference)
        {
            let mut part = part;
            if let Some(target) = part.get("$ref") {
                let target = target.as_str().unwrap_or_default();
                part = resolve(self.document, target)?.clone();
            }
            let part = part.as_object();
            let part = part.ok_or_else(|| format!("{place}: allOf lists what is no object"))?;
            for (key, value) in self.merge(part, place)? {
                match (merged.get_mut(&key), value) {
                    (None, value) => {
                        merged.insert(key, value);
                    }
                    (Some(Json::Object(all)), Json::Object(more)) if key == "properties" => {
                        let twice = more
                            .iter()
                            .find(|(k, v)| all.get(*k).is_some_and(|o| o != *v));
                        if let Some((name, _)) = twice {
                            return Err(format!("{place}: allOf has {name:?} twice"));
                        }
                        all.extend(more);
                    }
                    (Some(Json::Array(all)), Json::Array(more)) if key == "required" => {
                        all.extend(more);
                    }
                    (Some(one), other) if *one == other || NOTES.contains(&&key[..]) => {}
                    _ => return Err(format!("{place}: allOf has different {key:?}")),
                }
            }
        }
        Ok(merged)
    }

    fn typed(&mut self, schema: &Schema, place: &str) -> Made<Expr> {
        let types: Vec<&str> = match schema.get("type") {
            Some(Json::String(name)) => vec![name],
            Some(Json::Array(names)) => names.iter().filter_map(Json::as_str).collect(),
            Some(_) => return Err(format!("{place}: type is neither a text nor a list")),
            None => {
                let told = |row: &&(&str, &[&str])| row.1.iter().any(|k| schema.contains_key(*k));
                OF_TYPE
                    .iter()
                    .find(told)
                    .map(|row| row.0)
                    .into_iter()
                    .collect()
            }
        };
        let mut known = vec!["type"];
        for name in &types {
            let own = OF_TYPE.iter().filter(|row| row.0 == *name);
            known.extend(own.flat_map(|row| row.1));
        }
        only(schema, &known, place)?;
        if types.is_empty() {
            return Ok(self.any());
        }
        let each = types.iter().map(|name| match *name {
            "object" => self.object(schema, place),
            "array" => self.array(schema, place),
            "string" => self.string(schema, place),
            "integer" => number::integer(schema, place),
            "number" => number::number(schema, place),
            "boolean" => Ok(Expr::Alt(vec![text("true"), text("false")])),
            "null" => Ok(text("null")),
            other => Err(format!("{place}: there is no type {other:?}")),
        });
        Ok(Expr::Alt(each.collect::<Made<_>>()?))
    }

    /// A rule of JSON itself, made when first asked for.
    fn shared(&mut self, name: &'static str, body: fn(&mut Self) -> Expr) -> Expr {
        if let Some(&rule) = self.shared.get(name) {
            return Expr::Rule(rule);
        }
        // Declared first: values contain values.
        let rule = self.rules.declare(name);
        self.shared.insert(name, rule);
        self.rules.bodies[rule] = Some(body(self));
        Expr::Rule(rule)
    }

    /// A rule, so that what names it several times does not copy it.
    fn rule(&mut self, name: &str, body: Expr) -> Expr {
        Expr::Rule(self.rules.add(name, body))
    }

    /// A space or a line break with indentation, or neither; a model that may write
    /// more of them sometimes never stops.
    fn space(&mut self) -> Expr {
        self.shared("space", |_| {
            let indent = repeat(class(&[(' ', ' '), ('\t', '\t')]), 0, Some(20));
            let line = Expr::Seq(vec![text("\n"), indent]);
            optional(Expr::Alt(vec![text(" "), line]))
        })
    }

    /// Any JSON value.
    fn any(&mut self) -> Expr {
        self.shared("value", |builder| {
            let object = builder.any_object();
            let any = builder.any();
            let array = builder.list(any, 0, None);
            let numbers = number::number(&Schema::new(), "").unwrap_or_else(|_| empty());
            let words = ["true", "false", "null"].map(text);
            let string = builder.any_string();
            let mut all = vec![object, array, string, numbers];
            all.extend(words);
            Expr::Alt(all)
        })
    }
}

/// An error when a schema has keywords besides these and notes.
fn only(schema: &Schema, known: &[&str], place: &str) -> Made<()> {
    let fine = |key: &str| known.contains(&key) || NOTES.contains(&key) || key.starts_with("x-");
    match schema.keys().find(|key| !fine(key)) {
        None => Ok(()),
        Some(key) => {
            let beside = match known {
                ["type"] | [] => String::new(),
                [one] => format!(" beside {one:?}"),
                _ => format!(" for {}", schema.get("type").unwrap_or(&Json::Null)),
            };
            Err(format!("{place}: {key:?} is not supported{beside}"))
        }
    }
}

/// What a reference within the document names.
fn resolve<'a>(document: &'a Json, target: &str) -> Made<&'a Json> {
    let pointer = target.strip_prefix('#');
    let found = pointer.and_then(|pointer| document.pointer(pointer));
    found.ok_or_else(|| format!("$ref {target:?} names nothing in this schema"))
}

/// Exactly this value.
fn literal(value: &Json) -> Expr {
    text(&value.to_string())
}

/// Whether a value is of a type, or of one of a list of types.
fn has_type(value: &Json, ty: &Json) -> bool {
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    };
    match ty {
        Json::Array(names) => names.iter().filter_map(Json::as_str).any(is),
        other => other.as_str().is_some_and(is),
    }
}

/// A count of a schema, such as `minItems`.
fn count(schema: &Schema, key: &str, place: &str) -> Made<Option<u32>> {
    let Some(value) = schema.get(key) else {
        return Ok(None);
    };
    let whole = value.as_u64().or_else(|| {
        let float = value.as_f64().filter(|f| *f >= 0.0 && f.fract() == 0.0);
        float.map(|f| f as u64)
    });
    let count = whole.and_then(|n| u32::try_from(n).ok());
    count
        .map(Some)
        .ok_or_else(|| format!("{place}: {key} is no count"))
}
