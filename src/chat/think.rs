//! Thinking that a model writes before its answer, between two tags.

use super::StopMatcher;

/// Tags of the families: what opens and what closes the thinking.
const TAGS: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Thinking, its tags included.
    Thinking(String),
    Answer(String),
}

/// Where the reply stands.
#[derive(Debug, Clone)]
enum State {
    /// Only white space so far: thinking may begin. Holds all text so far.
    Start(String),
    Thinking {
        close: &'static str,
        matcher: StopMatcher,
    },
    /// White space between the thinking and the answer belongs to neither.
    Between,
    Answer,
}

/// Tells thinking and answer apart in a stream, however it is cut into pieces. Only a reply
/// that begins with a tag thinks: a tag that is quoted later is text.
#[derive(Debug, Clone)]
pub struct ThinkSplitter {
    state: State,
}

impl ThinkSplitter {
    /// Of a reply to `prompt`, which may have opened the thinking already; gives also what
    /// it opened with, empty when it did not: the end of the prompt, from the tag on.
    pub fn after(prompt: &str) -> (ThinkSplitter, String) {
        for (open, close) in TAGS {
            let trimmed = prompt.trim_end();
            if trimmed.ends_with(open) {
                let opened = prompt[trimmed.len() - open.len()..].to_string();
                let state = State::thinking(close);
                return (ThinkSplitter { state }, opened);
            }
        }
        let state = State::Start(String::new());
        (ThinkSplitter { state }, String::new())
    }

    /// Takes the next piece; gives what is clear now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut rest = text.to_string();
        while !rest.is_empty() {
            rest = self.step(rest, &mut parts);
        }
        parts
    }

    /// The reply has ended: what was held back.
    pub fn finish(&mut self) -> Option<Part> {
        match std::mem::replace(&mut self.state, State::Answer) {
            State::Start(held) if !held.is_empty() => Some(Part::Answer(held)),
            State::Thinking { mut matcher, .. } => {
                let held = matcher.finish();
                (!held.is_empty()).then_some(Part::Thinking(held))
            }
            State::Start(_) | State::Between | State::Answer => None,
        }
    }

    /// Handles `text` up to where the state changes; gives what is left of it.
    fn step(&mut self, text: String, parts: &mut Vec<Part>) -> String {
        match &mut self.state {
            State::Start(held) => {
                held.push_str(&text);
                let begin = held.trim_start();
                let opened = TAGS.iter().find(|(open, _)| begin.starts_with(open));
                if let Some((open, close)) = opened {
                    let rest = begin[open.len()..].to_string();
                    parts.push(Part::Thinking(open.to_string()));
                    self.state = State::thinking(close);
                    return rest;
                }
                if !TAGS.iter().any(|(open, _)| open.starts_with(begin)) {
                    parts.push(Part::Answer(std::mem::take(held)));
                    self.state = State::Answer;
                }
                String::new()
            }
            State::Thinking { close, matcher } => {
                // After the tag the matcher swallows text, so it sees one character at a time.
                for (at, c) in text.char_indices() {
                    let result = matcher.push(c.encode_utf8(&mut [0; 4]));
                    if result.stopped {
                        parts.push(Part::Thinking(result.emit + close));
                        self.state = State::Between;
                        return text[at + c.len_utf8()..].to_string();
                    }
                    if !result.emit.is_empty() {
                        push_thinking(parts, &result.emit);
                    }
                }
                String::new()
            }
            State::Between => {
                let begin = text.trim_start();
                if !begin.is_empty() {
                    self.state = State::Answer;
                }
                begin.to_string()
            }
            State::Answer => {
                parts.push(Part::Answer(text));
                String::new()
            }
        }
    }
}

impl State {
    fn thinking(close: &'static str) -> State {
        State::Thinking {
            close,
            matcher: StopMatcher::new(vec![close.to_string()]),
        }
    }
}

fn push_thinking(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        Some(Part::Thinking(last)) => last.push_str(text),
        _ => parts.push(Part::Thinking(text.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, ThinkSplitter};
    use proptest::prelude::*;

    /// Thinking and answer of a reply that comes in `pieces`.
    fn split(prompt: &str, pieces: &[&str]) -> (String, String) {
        let (mut splitter, _) = ThinkSplitter::after(prompt);
        let (mut thinking, mut answer) = (String::new(), String::new());
        let mut parts: Vec<Part> = pieces.iter().flat_map(|p| splitter.push(p)).collect();
        parts.extend(splitter.finish());
        for part in parts {
            match part {
                Part::Thinking(text) => thinking.push_str(&text),
                Part::Answer(text) => answer.push_str(&text),
            }
        }
        (thinking, answer)
    }

    fn pair(thinking: &str, answer: &str) -> (String, String) {
        (thinking.to_string(), answer.to_string())
    }

    #[test]
    fn thinking_and_answer_are_told_apart() {
        for (reply, thinking, answer) in [
            ("<think>\na</think>\n\nb", "<think>\na</think>", "b"),
            ("\n<think>a</think>b", "<think>a</think>", "b"),
            ("[THINK]a[/THINK]b", "[THINK]a[/THINK]", "b"),
            ("<think>a <b> </thin", "<think>a <b> </thin", ""),
            ("b <think>no</think>", "", "b <think>no</think>"),
            ("<thin", "", "<thin"),
            (" b", "", " b"),
            ("<think></think>", "<think></think>", ""),
            ("", "", ""),
        ] {
            assert_eq!(split("user: x\n", &[reply]), pair(thinking, answer));
        }
    }

    #[test]
    fn a_template_may_open_the_thinking() {
        let (_, opened) = ThinkSplitter::after("<|im_start|>assistant\n<think>\n");
        assert_eq!(opened, "<think>\n");
        let got = split("assistant\n<think>\n", &["a</th", "ink>", "\n", "\nb"]);
        assert_eq!(got, pair("a</think>", "b"));
        // Opened and closed by the template: thinking is off.
        let (_, opened) = ThinkSplitter::after("assistant\n<think>\n\n</think>\n\n");
        assert_eq!(opened, "");
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(reply in "(<think>)?[a</think> é]{0,12}(</think>)?[a\n]{0,4}", cut in 0usize..30) {
            let at = reply.char_indices().nth(cut).map_or(reply.len(), |(at, _)| at);
            let (one, two) = reply.split_at(at);
            prop_assert_eq!(split("", &[one, two]), split("", &[&reply]));
        }
    }
}
