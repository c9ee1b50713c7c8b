//! JSON schemas: what is made fits, what is not supported is named.

use super::fits::fits;
use super::*;
use serde_json::{Value as Json, json};

fn of(schema: &Json) -> Arc<Grammar> {
    let grammar = of_schema("test", &schema.to_string());
    Arc::new(grammar.unwrap())
}

fn schemas() -> Vec<Json> {
    vec![
        json!({}),
        json!(true),
        json!({"type": "object"}),
        json!({"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "integer"}}),
        json!({"type": "array", "maxItems": 0}),
        json!({"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": {"const": "x"},
               "minItems": 3, "maxItems": 5}),
        json!({"type": "object", "required": ["b", "d"], "title": "T", "properties": {
            "a": {"type": "string"}, "b": {"type": "number"}, "c": {"type": ["null", "integer"]},
            "d": {"enum": ["x\"y", 1, null, [true]]}, "e": {"type": "boolean"}}}),
        json!({"properties": {"ab": {"type": "integer"}, "abc": {"type": "null"}},
               "additionalProperties": {"type": "boolean"}, "required": ["zz"]}),
        json!({"anyOf": [{"type": "string", "maxLength": 3}, {"$ref": "#/$defs/tree"}], "$defs": {
            "tree": {"type": "object", "required": ["v"], "properties": {"v": {"type": "integer"},
                "left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}}}}),
        json!({"type": "string", "minLength": 2, "maxLength": 5}),
        json!({"type": "string", "pattern": "^[a-c]{2,4}-\\d+(\"|\\\\)?$"}),
        json!({"type": "string", "pattern": "x[^y]z"}),
        json!({"type": "integer", "minimum": -12, "maximum": 345}),
        json!({"type": "integer", "exclusiveMinimum": 98, "maximum": 1002}),
        json!({"type": "integer", "maximum": -7}),
        json!({"type": "integer", "minimum": 5.5}),
        json!({"type": "number", "minimum": -2, "maximum": 30}),
        json!({"type": "number", "minimum": 0}),
        json!({"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"q": {"type": "null"}},
               "required": ["q"]}], "$defs": {"a": {"type": "object", "properties": {
               "p": {"type": "boolean"}}, "required": ["p"]}}}),
        json!({"oneOf": [{"const": {"k": [1, 2.5]}}, {"type": "null"}]}),
    ]
}

#[test]
fn what_is_made_parses_and_fits() {
    for schema in schemas() {
        let grammar = of(&schema);
        for seed in 0..25 {
            let made = random_text(&grammar, seed, b"\"}]z1-x");
            let value: Json = serde_json::from_slice(&made)
                .unwrap_or_else(|e| panic!("{schema}: {e}: {}", made.escape_ascii()));
            assert!(fits(&value, &schema, &schema), "{schema}: {value}");
        }
    }
}

/// Whether the grammar of a schema takes this text.
fn takes_json(schema: Json, text: &str) -> bool {
    takes(&of(&schema), text.as_bytes())
}

#[test]
fn what_fits_can_be_made() {
    let small = json!({"type": "integer", "minimum": 9, "maximum": 120});
    let two = json!({"properties": {"a": true, "b": true}});
    let open = json!({"properties": {"ab": true}, "additionalProperties": true});
    for (schema, text) in [
        (json!({}), r#"{"a": [1.5e3, "\u00e9🦀\n", {}], "b":null}"#),
        (json!(true), "[1,\n  2]"),
        (json!({"items": {}}), "[1, [\"a\"]]"),
        (small, "120"),
        (json!({"type": "number", "maximum": 3}), "2.999"),
        (json!({"format": "date"}), "\"2024-02-28\""),
        (json!({"format": "date-time"}), "\"2024-12-31T23:59:59.5Z\""),
        (json!({"pattern": "^\\w+\\/x$"}), "\"ab/x\""),
        (open, "{\"a\": 1}"),
        (two, "{\"b\": 1}"),
    ] {
        assert!(takes_json(schema, text), "{text}");
    }
}

#[test]
fn what_does_not_fit_cannot_be_made() {
    let small = json!({"type": "integer", "minimum": 9, "maximum": 120});
    let two = json!({"properties": {"a": true, "b": true}});
    for (schema, text) in [
        (json!({}), "1"),
        (json!(true), "[01]"),
        (json!(true), "\"\\ud800\""),
        (small.clone(), "121"),
        (small, "8"),
        (json!({"type": "integer"}), "-0"),
        (json!({"type": "number", "maximum": 3}), "3.001"),
        (json!({"format": "date"}), "\"2024-13-01\""),
        (json!({"properties": {"ab": true}}), "{\"a\": 1}"),
        // In the schema's order only.
        (two, "{\"b\": 1, \"a\": 1}"),
    ] {
        assert!(!takes_json(schema, text), "{text}");
    }
}

#[test]
fn what_is_not_supported_is_named() {
    for (schema, part) in [
        (json!([]), "#: a schema is an object"),
        (json!({"type": "strin"}), "there is no type \"strin\""),
        (
            json!({"type": "object", "properties": {"a": {"not": {}}}}),
            "#/properties/a: \"not\"",
        ),
        (
            json!({"type": "string", "pattern": "a(?=b)"}),
            "look-around",
        ),
        (json!({"type": "string", "pattern": "a\\bb"}), "\\b nowhere"),
        (
            json!({"type": "string", "minLength": 3, "maxLength": 2}),
            "less than minLength",
        ),
        (
            json!({"type": "array", "uniqueItems": true}),
            "\"uniqueItems\"",
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 0}),
            "only whole minimum",
        ),
        (json!({"type": "integer", "minimum": "1"}), "no number"),
        (json!({"$ref": "#/$defs/none"}), "names nothing"),
        (json!({"$ref": "other.json"}), "names nothing"),
        (
            json!({"anyOf": [{}], "type": "null"}),
            "\"type\" is not supported beside",
        ),
        (
            json!({"type": "integer", "minimum": 3, "maximum": 2}),
            "ever complete",
        ),
        (json!(false), "ever complete"),
        (json!({"$ref": "#"}), "begins with itself"),
    ] {
        let made = of_schema("s.json", &schema.to_string());
        let error = made.unwrap_err().to_string();
        assert!(
            error.starts_with("s.json: ") && error.contains(part),
            "{schema}: {error}"
        );
    }
    let broken = of_schema("s.json", "{").unwrap_err();
    assert!(
        broken.to_string().starts_with("s.json: no JSON: "),
        "{broken}"
    );
}

#[test]
fn hostile_schemas_are_errors_in_time() {
    let started = Instant::now();
    // Each names the next twice: 2^40 parts.
    let mut all = serde_json::Map::new();
    for i in 0..40 {
        let next = json!({"$ref": format!("#/$defs/{}", i + 1)});
        all.insert(i.to_string(), json!({"allOf": [next, next]}));
    }
    all.insert("40".into(), json!({"type": "null"}));
    let doubling = json!({"allOf": [{"$ref": "#/$defs/0"}], "$defs": all});
    let circle = json!({"allOf": [{"$ref": "#"}]});
    let large = json!({"type": "string", "minLength": 4_000_000_000u32});
    let nested = (0..100).fold(
        json!({"type": "null"}),
        |inner, _| json!({"type": "array", "items": inner, "minItems": 100}),
    );
    let parentheses = "(".repeat(60_000) + &")".repeat(60_000);
    let deep = json!({"type": "string", "pattern": format!("^{parentheses}$")});
    for schema in [doubling, circle, large, deep] {
        let made = of_schema("s", &schema.to_string());
        assert!(made.is_err());
    }
    // Large, but each level once.
    let made = of_schema("s", &nested.to_string());
    assert!(made.is_ok(), "{made:?}");
    let long = of_gbnf("s", &"#".repeat(2 << 20));
    assert!(long.unwrap_err().to_string().contains("more than 1048576"));
    assert!(started.elapsed() < Duration::from_secs(20));
}
