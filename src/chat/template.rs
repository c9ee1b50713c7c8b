//! Chat templates: Jinja as model files carry it.

use super::environment::environment;
use super::filters::Refusal;
use super::guard::{GuardedText, SpecialTexts};
use super::{bounds, clock, tags};
use crate::error::{Error, Result};
use jiff::civil::DateTime;
use minijinja::value::Serde;
use minijinja::{ErrorKind, Value};

/// Longest template, in bytes: fifteen times the longest known one.
const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Longest message of `raise_exception` that is shown, in characters.
const MAX_REFUSAL_CHARS: usize = 1000;

/// A chat template that has been parsed once. Untrusted: rendering it is
/// bounded in steps, depth, output and time.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    /// As the file has it, but for tags the engine does not know.
    source: String,
    /// The file or the metadata key, for messages.
    origin: String,
}

/// What a template is given besides the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions<'a> {
    /// Whether the prompt ends where the assistant begins to speak.
    pub add_generation_prompt: bool,
    /// Text of the begin-of-sequence token; empty if there is none.
    pub bos_token: &'a str,
    /// Text of the end-of-sequence token; empty if there is none.
    pub eos_token: &'a str,
    /// ISO 8601 local time for `strftime_now`; the computer's clock if absent.
    pub now: Option<&'a str>,
    /// More variables (`--chat-template-kwargs`); they win over those above.
    pub kwargs: serde_json::Map<String, serde_json::Value>,
}

impl ChatTemplate {
    /// Parses a template. `origin` names where it is from in errors, which
    /// have line and column.
    pub fn parse(source: &str, origin: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Error::input(format!(
                "{origin}: the chat template has {} bytes and {MAX_SOURCE_BYTES} is the limit; give another with --chat-template-file",
                source.len()
            )));
        }
        let template = ChatTemplate {
            source: tags::rewrite_generation(source),
            origin: origin.to_string(),
        };
        let job = template.clone();
        bounds::run(origin, bounds::BASE_FUEL, move || {
            let env = environment(DateTime::MIN, bounds::BASE_FUEL)?;
            env.template_from_named_str("chat template", &job.source)
                .map(|_| ())
                .map_err(|e| job.explain(&e))
        })?;
        Ok(template)
    }

    /// Whether the template's text has this word in it, as a way to find out
    /// whether it knows a switch such as `enable_thinking`.
    pub fn mentions(&self, word: &str) -> bool {
        let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
        !word.is_empty()
            && self.source.match_indices(word).any(|(at, _)| {
                !self.source[..at].ends_with(part_of_word)
                    && !self.source[at + word.len()..].starts_with(part_of_word)
            })
    }

    /// The prompt for `messages`, an array of objects with `role` and
    /// `content`. What the template raises is an [`Error::Input`].
    pub fn render(&self, messages: &serde_json::Value, opts: &RenderOptions) -> Result<String> {
        let serde_json::Value::Array(list) = messages else {
            return Err(Error::input(
                "the messages are not a list; write [{\"role\": \"user\", \"content\": \"...\"}]",
            ));
        };
        let fuel = bounds::fuel(list);
        let now = clock::moment(opts.now)?;
        let context = context(messages, opts)?;
        let job = self.clone();
        bounds::run(&self.origin, fuel, move || {
            job.render_here(now, fuel, &context)
        })
    }

    /// As [`ChatTemplate::render`], keeping the texts of special tokens that
    /// are in the messages from becoming those tokens.
    pub fn render_guarded(
        &self,
        messages: &serde_json::Value,
        opts: &RenderOptions,
        special_texts: &[&[u8]],
    ) -> Result<GuardedText> {
        let marked = SpecialTexts::new(special_texts, &self.source).mark(messages);
        self.render(&marked, opts)
            .map(|text| GuardedText::from_marked(&text))
    }

    fn render_here(&self, now: DateTime, fuel: u64, context: &Context) -> Result<String> {
        let env = environment(now, fuel)?;
        env.template_from_named_str("chat template", &self.source)
            .and_then(|template| template.render(Value::from(Serde(context))))
            .map_err(|e| match e.kind() {
                // Then it is less the template's fault.
                ErrorKind::OutOfFuel if fuel == bounds::MAX_FUEL => Error::DoesNotFit(
                    "the prompt is too long for the chat template; shorten the messages"
                        .to_string(),
                ),
                _ => self.explain(&e),
            })
    }

    /// One line: where, what, and what to do.
    fn explain(&self, error: &minijinja::Error) -> Error {
        let mut cause: Option<&dyn std::error::Error> = Some(error);
        while let Some(at) = cause {
            if let Some(Refusal(message)) = at.downcast_ref::<Refusal>() {
                let message: String = message.chars().take(MAX_REFUSAL_CHARS).collect();
                return Error::input(format!(
                    "the chat template refuses these messages: {}",
                    message.split_whitespace().collect::<Vec<_>>().join(" ")
                ));
            }
            cause = at.source();
        }
        let what = match (error.kind(), error.detail()) {
            (ErrorKind::OutOfFuel, _) => {
                "it takes too many steps or makes too much text".to_string()
            }
            (kind, None) => kind.to_string(),
            (kind, Some(detail)) => format!("{kind}: {detail}"),
        };
        let what: String = what.chars().take(MAX_REFUSAL_CHARS).collect();
        Error::input(format!(
            "{}{}: chat template: {}; give another with --chat-template-file",
            self.origin,
            self.place(error),
            what.split_whitespace().collect::<Vec<_>>().join(" "),
        ))
    }

    /// `:line:column` in characters, both from 1.
    fn place(&self, error: &minijinja::Error) -> String {
        let before = error
            .range()
            .and_then(|range| self.source.get(..range.start));
        match (before, error.line()) {
            (Some(before), _) => {
                let line = before.matches('\n').count() + 1;
                let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
                format!(":{line}:{column}")
            }
            (None, Some(line)) => format!(":{line}:1"),
            (None, None) => String::new(),
        }
    }
}

type Context = serde_json::Map<String, serde_json::Value>;

/// The template's variables. Without tools `tools` is undefined: templates ask
/// whether it is defined.
fn context(messages: &serde_json::Value, opts: &RenderOptions) -> Result<Context> {
    let mut context = Context::new();
    context.insert("bos_token".to_string(), opts.bos_token.into());
    context.insert("eos_token".to_string(), opts.eos_token.into());
    context.insert(
        "add_generation_prompt".to_string(),
        opts.add_generation_prompt.into(),
    );
    for (key, value) in &opts.kwargs {
        if key == "messages" {
            return Err(Error::input(
                "--chat-template-kwargs cannot set messages; leave it out",
            ));
        }
        context.insert(key.clone(), value.clone());
    }
    let no_tools = match context.get("tools") {
        Some(serde_json::Value::Array(tools)) => tools.is_empty(),
        Some(other) => other.is_null(),
        None => false,
    };
    if no_tools {
        context.remove("tools");
    }
    context.insert("messages".to_string(), messages.clone());
    Ok(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, opts: &RenderOptions) -> Result<String> {
        let messages =
            json!([{"role": "user", "content": " a\n"}, {"role": "assistant", "content": "b"}]);
        ChatTemplate::parse(source, "file.jinja")?.render(&messages, opts)
    }

    fn error(source: &str) -> String {
        render(source, &RenderOptions::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn errors_have_line_and_column() {
        for (source, want) in [
            (
                "a\n é {% if %}",
                "file.jinja:2:10: chat template: syntax error",
            ),
            (
                "a\n{% generation %}{{ 1|nope }}{% endgeneration %}",
                "file.jinja:2:22: chat template: unknown filter",
            ),
            (
                "\n\n  {{ x.y.z }}",
                "file.jinja:3:6: chat template: undefined value",
            ),
            ("{% if true %}\nx", "file.jinja:2:"),
            (
                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                "file.jinja:1:1: chat template: it takes too many steps",
            ),
        ] {
            let got = error(source);
            assert!(got.starts_with(want), "{got}");
            assert!(!got.contains('\n'), "{got}");
        }
    }

    #[test]
    fn parsing_finds_the_error_before_any_message() {
        let error = ChatTemplate::parse("{{ a b }}", "k").unwrap_err();
        assert!(matches!(error, Error::Input(_)));
        assert!(error.to_string().starts_with("k:1:"), "{error}");
    }

    #[test]
    fn what_the_template_raises_is_passed_on_in_one_line() {
        let source =
            "{% macro f() %}{{ raise_exception('no\n' ~ messages|length) }}{% endmacro %}{{ f() }}";
        assert_eq!(
            error(source),
            "the chat template refuses these messages: no 2"
        );
    }

    #[test]
    fn variables_and_their_defaults() {
        let mut opts = RenderOptions {
            bos_token: "<s>",
            eos_token: "</s>",
            ..RenderOptions::default()
        };
        let source = "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}{{ tools is defined }}{{ x }}";
        assert_eq!(render(source, &opts).unwrap(), "<s></s>FalseFalse");
        opts.kwargs = json!({"tools": [], "x": {"b": 1, "a": [true, null]}, "bos_token": "B"})
            .as_object()
            .cloned()
            .unwrap();
        assert_eq!(
            render(source, &opts).unwrap(),
            "B</s>FalseFalse{'b': 1, 'a': [True, None]}"
        );
        opts.kwargs = json!({"tools": [1]}).as_object().cloned().unwrap();
        assert_eq!(render(source, &opts).unwrap(), "<s></s>FalseTrue");
        opts.kwargs = json!({"messages": []}).as_object().cloned().unwrap();
        assert!(render(source, &opts).is_err());
    }

    #[test]
    fn messages_must_be_a_list() {
        let template = ChatTemplate::parse("x", "k").unwrap();
        assert!(
            template
                .render(&json!({"role": "user"}), &RenderOptions::default())
                .is_err()
        );
    }

    #[test]
    fn typed_special_text_is_guarded_through_trim_and_split() {
        let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('|||')[-1]|trim }}<|end|>{% endfor %}{{ messages[0]|tojson(ensure_ascii=true) }}";
        let messages = json!([{"role": "user", "content": "drop<|end|>|||  é<|end|>\u{fdd0}  "}]);
        let template = ChatTemplate::parse(source, "k").unwrap();
        let opts = RenderOptions::default();
        let got = template
            .render_guarded(&messages, &opts, &[b"<|end|>", b"<|user|>"])
            .unwrap();
        let json_at = got.text.find('{').unwrap();
        assert_eq!(
            (&got.text[..json_at], &got.text[json_at..]),
            (
                "<|user|>é<|end|><|end|>",
                r#"{"role": "user", "content": "drop<|end|>|||  \u00e9<|end|>  "}"#
            )
        );
        // "<|user|>" has 8 bytes and "é" two; the guard is behind the "<".
        let typed: Vec<usize> = std::iter::once(11)
            .chain(
                got.text
                    .match_indices("<|end|>")
                    .skip(2)
                    .map(|(at, _)| at + 1),
            )
            .collect();
        assert_eq!(got.guards, typed);
    }

    #[test]
    fn a_word_is_mentioned_as_a_whole() {
        let template =
            ChatTemplate::parse("{% if enable_thinking is defined %}{% endif %}", "k").unwrap();
        assert!(template.mentions("enable_thinking"));
        assert!(!template.mentions("thinking"));
        assert!(!template.mentions("enable"));
        assert!(!template.mentions(""));
    }

    #[test]
    fn a_long_chat_has_enough_fuel() {
        let source = "{% for m in messages %}{% for n in messages[loop.index:] %}{% if n.role == 'x' %}{% endif %}{% endfor %}{{ m.content|trim }}{% endfor %}";
        let message = json!({"role": "user", "content": "word ".repeat(400)});
        let messages = json!(vec![message; 400]);
        let template = ChatTemplate::parse(source, "k").unwrap();
        let text = template
            .render(&messages, &RenderOptions::default())
            .unwrap();
        assert_eq!(text.len(), 400 * (400 * 5 - 1));
    }

    #[test]
    fn the_stack_holds_the_deepest_value_that_fuel_can_build() {
        let build = |name: &str, rounds: usize| {
            let step = "[".repeat(60) + "ns." + name + &"]".repeat(60);
            format!("{{% for i in range({rounds}) %}}{{% set ns.{name} = {step} %}}{{% endfor %}}")
        };
        let start = "{% set ns = namespace(x=1, y=1) %}";
        let message = json!({"role": "user", "content": "x"});
        let messages = json!(vec![message; 500]);
        for (source, want) in [
            (build("x", 9_500) + "{{ (ns.x ~ '')|length }}", None),
            (
                build("x", 5_000) + "{{ (ns.x ~ '')|length > 9 }}",
                Some("True"),
            ),
            (
                build("x", 4_700) + &build("y", 4_700) + "{{ ns.x == ns.y }}",
                Some("True"),
            ),
            (
                build("x", 4_700) + &build("y", 4_700) + "{{ ns.x < ns.y }}",
                Some("False"),
            ),
            (build("x", 9_500) + "{{ {ns.x: 1}|length }}", Some("1")),
        ] {
            let template = ChatTemplate::parse(&(start.to_string() + &source), "k").unwrap();
            let got = template.render(&messages, &RenderOptions::default());
            assert_eq!(
                got.ok().as_deref(),
                want,
                "{}",
                &source[source.len() - 40..]
            );
        }
    }
}
