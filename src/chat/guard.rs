//! Keeps what a person typed from becoming control tokens.

use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashMap;

/// Marks a place inside the text of a special token while a template runs: a
/// Unicode noncharacter, which no text has a use for.
pub(super) const SENTINEL: char = '\u{fdd0}';

/// A rendered prompt and the places that no special token may span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedText {
    pub text: String,
    /// Byte positions in `text`, ascending. A special token whose text begins
    /// before and ends after one of them was typed, not written by the template.
    pub guards: Vec<usize>,
}

impl GuardedText {
    /// Removes the sentinels and remembers where they were.
    pub(super) fn from_marked(marked: &str) -> GuardedText {
        let mut text = String::with_capacity(marked.len());
        let mut guards = Vec::new();
        for (index, part) in marked.split(SENTINEL).enumerate() {
            if index > 0 && guards.last() != Some(&text.len()) {
                guards.push(text.len());
            }
            text.push_str(part);
        }
        GuardedText { text, guards }
    }
}

/// The texts of special tokens, ready to be looked for.
pub(super) struct SpecialTexts<'a> {
    by_first_byte: HashMap<u8, Vec<&'a str>>,
    /// Texts that the template itself looks for in what the assistant said.
    parsed_by_template: Vec<&'a str>,
}

impl<'a> SpecialTexts<'a> {
    /// Texts of one character have no inside to be marked and are left out.
    pub(super) fn new(texts: &[&'a [u8]], source: &str) -> SpecialTexts<'a> {
        let mut by_first_byte: HashMap<u8, Vec<&str>> = HashMap::new();
        let mut parsed_by_template = Vec::new();
        for text in texts {
            let Ok(text) = std::str::from_utf8(text) else {
                continue;
            };
            let Some(&first) = text.as_bytes().first() else {
                continue;
            };
            if text.chars().nth(1).is_none() {
                continue;
            }
            by_first_byte.entry(first).or_default().push(text);
            if is_parsed(source, text) {
                parsed_by_template.push(text);
            }
        }
        SpecialTexts {
            by_first_byte,
            parsed_by_template,
        }
    }

    /// The messages with a sentinel after the first character of each special
    /// text in them, whatever key it is under. Sentinels that were there are
    /// dropped. In what the assistant said, texts that the template takes
    /// apart (`content.split('</think>')`) stay whole: the model wrote them.
    pub(super) fn mark(&self, messages: &Value) -> Value {
        match messages {
            Value::Array(list) => list.iter().map(|m| self.mark_message(m)).collect(),
            other => self.mark_value(other, &[]),
        }
    }

    fn mark_message(&self, message: &Value) -> Value {
        let assistant = message.get("role").and_then(Value::as_str) == Some("assistant");
        let exempt = match assistant {
            true => self.parsed_by_template.as_slice(),
            false => &[],
        };
        match message {
            Value::Object(fields) => fields
                .iter()
                .map(|(key, value)| match key.as_str() {
                    "role" => (key.clone(), value.clone()),
                    _ => (key.clone(), self.mark_value(value, exempt)),
                })
                .collect(),
            other => self.mark_value(other, exempt),
        }
    }

    fn mark_value(&self, value: &Value, exempt: &[&str]) -> Value {
        match value {
            Value::String(text) => Value::String(self.mark_text(text, exempt)),
            Value::Array(list) => list.iter().map(|v| self.mark_value(v, exempt)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(key, value)| (self.mark_text(key, exempt), self.mark_value(value, exempt)))
                .collect(),
            other => other.clone(),
        }
    }

    fn mark_text(&self, text: &str, exempt: &[&str]) -> String {
        let text = match text.contains(SENTINEL) {
            true => Cow::Owned(text.replace(SENTINEL, "")),
            false => Cow::Borrowed(text),
        };
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            out.push(c);
            let here = &text[at..];
            let special = self
                .by_first_byte
                .get(&here.as_bytes()[0])
                .is_some_and(|texts| {
                    texts
                        .iter()
                        .any(|special| here.starts_with(special) && !exempt.contains(special))
                });
            if special {
                out.push(SENTINEL);
            }
        }
        out
    }
}

/// Whether the template looks for `text` in contents: splits at it or asks
/// whether it is in there.
fn is_parsed(source: &str, text: &str) -> bool {
    ['\'', '"'].iter().any(|quote| {
        let literal = format!("{quote}{text}{quote}");
        source.match_indices(&literal).any(|(at, _)| {
            source[..at].trim_end().ends_with("split(")
                || source[at + literal.len()..].trim_start().starts_with("in ")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXTS: [&[u8]; 5] = [b"<|im_end|>", b"<|im", b"</think>", b"x", b"\xff\xfe"];

    fn marked(source: &str, messages: Value) -> String {
        let marked = SpecialTexts::new(&TEXTS, source).mark(&messages);
        serde_json::to_string(&marked)
            .unwrap()
            .replace(SENTINEL, "^")
    }

    #[test]
    fn special_texts_are_marked_inside() {
        assert_eq!(
            marked(
                "",
                json!([{"role": "<|im_end|>", "content": "a<|im_end|><|im é x\u{fdd0}"}])
            ),
            r#"[{"role":"<|im_end|>","content":"a<^|im_end|><^|im é x"}]"#
        );
        assert_eq!(
            marked(
                "",
                json!([{"role": "user", "content": [{"text": "<|\u{fdd0}im_end|>"}]}])
            ),
            r#"[{"role":"user","content":[{"text":"<^|im_end|>"}]}]"#
        );
    }

    #[test]
    fn the_assistants_own_thinking_stays_whole() {
        let said = |role: &str| json!([{"role": role, "content": "a</think><|im_end|>"}]);
        let source = "{{ m.content.split('</think>')[-1] }}{{ '<|im_end|>' }}";
        assert!(marked(source, said("assistant")).contains("a</think><^|im_end|>"));
        assert!(marked(source, said("user")).contains("a<^/think><^|im_end|>"));
        assert!(marked("{{ x }}", said("assistant")).contains("a<^/think>"));
    }

    #[test]
    fn guards_are_byte_positions_without_sentinels() {
        assert_eq!(
            GuardedText::from_marked("é<\u{fdd0}\u{fdd0}|x|>\u{fdd0}"),
            GuardedText {
                text: "é<|x|>".to_string(),
                guards: vec![3, 7]
            }
        );
        assert!(GuardedText::from_marked("").guards.is_empty());
    }
}
