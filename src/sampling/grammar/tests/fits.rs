//! JSON Schema written down once more, to compare: the few keywords of the tests.

use serde_json::{Map, Value as Json, json};

/// Whether a value fits a schema of `document`.
pub fn fits(value: &Json, schema: &Json, document: &Json) -> bool {
    let Some(keys) = schema.as_object() else {
        return schema == &json!(true);
    };
    keys.iter().all(|(key, want)| {
        alone(value, key, want)
            && combined(value, key, want, document)
            && within(value, key, want, keys, document)
    })
}

fn list(value: &Json) -> &[Json] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn members(value: &Json) -> impl Iterator<Item = (&String, &Json)> {
    value.as_object().into_iter().flatten()
}

fn has_type(value: &Json, name: &Json) -> bool {
    match name.as_str() {
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => list(name).iter().any(|name| has_type(value, name)),
    }
}

/// Keywords about the value itself.
fn alone(value: &Json, key: &str, want: &Json) -> bool {
    let size = value.as_str().map(|s| s.chars().count());
    let size = size.unwrap_or(list(value).len()) as f64;
    let number = || value.as_f64().unwrap();
    let bound = || want.as_f64().unwrap();
    match key {
        "type" => has_type(value, want),
        "const" => value == want,
        "enum" => list(want).contains(value),
        "minimum" => number() >= bound(),
        "maximum" => number() <= bound(),
        "exclusiveMinimum" => number() > bound(),
        "exclusiveMaximum" => number() < bound(),
        "minLength" | "minItems" => size >= bound(),
        "maxLength" | "maxItems" => size <= bound(),
        "pattern" => {
            let regex = fancy_regex::Regex::new(want.as_str().unwrap()).unwrap();
            regex.is_match(value.as_str().unwrap()).unwrap()
        }
        "required" => {
            let mut names = list(want).iter().filter_map(Json::as_str);
            names.all(|name| value.get(name).is_some())
        }
        _ => true,
    }
}

/// Keywords that combine schemas.
fn combined(value: &Json, key: &str, want: &Json, document: &Json) -> bool {
    let mut choices = list(want)
        .iter()
        .map(|schema| fits(value, schema, document));
    match key {
        "anyOf" | "oneOf" => choices.any(|fits| fits),
        "allOf" => choices.all(|fits| fits),
        "$ref" => {
            let target = document.pointer(&want.as_str().unwrap()[1..]).unwrap();
            fits(value, target, document)
        }
        _ => true,
    }
}

/// Keywords about what is within the value.
fn within(value: &Json, key: &str, want: &Json, keys: &Map<String, Json>, document: &Json) -> bool {
    match key {
        "prefixItems" => {
            let mut pairs = list(value).iter().zip(list(want));
            pairs.all(|(value, schema)| fits(value, schema, document))
        }
        "items" => {
            let n_first = keys.get("prefixItems").map_or(0, |first| list(first).len());
            let mut rest = list(value).iter().skip(n_first);
            rest.all(|value| fits(value, want, document))
        }
        "properties" => members(value).all(|(name, value)| {
            let property = want.get(name);
            property.is_none_or(|schema| fits(value, schema, document))
        }),
        "additionalProperties" => members(value).all(|(name, value)| {
            let named = keys.get("properties").and_then(|p| p.get(name)).is_some();
            named || fits(value, want, document)
        }),
        _ => true,
    }
}
