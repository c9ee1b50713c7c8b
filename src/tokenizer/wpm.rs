//! WPM (`bert`): normalized words, cut greedily into their longest pieces.

use super::spm::SPACE;
use super::vocab::Vocab;
use crate::error::Result;
use crate::gguf::Metadata;
use fancy_regex::Regex;
use std::sync::OnceLock;
use unicode_normalization::UnicodeNormalization;

/// The normalizer's settings.
pub(super) struct Wpm {
    lowercase: bool,
    strip_accents: bool,
    unknown: Option<u32>,
    classes: OnceLock<Box<Classes>>,
}

struct Classes {
    mark: Regex,
    punctuation: Regex,
    control: Regex,
}

impl Wpm {
    /// Reads `tokenizer.ggml.normalizer.*`; both are on unless the file says.
    pub fn new(meta: &Metadata, unknown: Option<u32>) -> Result<Wpm> {
        let flag = |name: &str| meta.get_bool(&format!("tokenizer.ggml.normalizer.{name}"));
        let lowercase = flag("lowercase")?.unwrap_or(true);
        Ok(Wpm {
            lowercase,
            strip_accents: flag("strip_accents")?.unwrap_or(lowercase),
            unknown,
            classes: OnceLock::new(),
        })
    }

    /// Appends the tokens of a text; a word that has no pieces is the unknown
    /// token. Bytes that are not UTF-8 are dropped, as U+FFFD is.
    pub fn encode(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<u32>) {
        for word in self.words(&String::from_utf8_lossy(text)) {
            let before = out.len();
            let spelled = [SPACE, word.as_bytes()].concat();
            if !pieces(vocab, &spelled, out) {
                out.truncate(before);
                out.extend(self.unknown);
            }
        }
    }

    fn words(&self, text: &str) -> Vec<String> {
        let classes = self.classes.get_or_init(|| Box::new(Classes::new()));
        let mut words = vec![String::new()];
        let mut add = |c: char| {
            if c.is_whitespace() {
                words.push(String::new());
            } else if c == '\0' || c == char::REPLACEMENT_CHARACTER || classes.is_control(c) {
                // Neither a word nor a border.
            } else if classes.is_punctuation(c) || is_chinese(c) {
                words.extend([c.to_string(), String::new()]);
            } else if let Some(word) = words.last_mut() {
                match self.lowercase {
                    true => word.extend(c.to_lowercase()),
                    false => word.push(c),
                }
            }
        };
        match self.strip_accents {
            true => text
                .nfd()
                .filter(|&c| !classes.is_mark(c))
                .for_each(&mut add),
            false => text.chars().for_each(&mut add),
        }
        words.retain(|word| !word.is_empty());
        words
    }
}

/// Longer pieces are not looked for, which bounds the work at each position;
/// the longest of BERT's have some 20 bytes.
const MAX_PIECE_BYTES: usize = 256;

/// Appends the longest pieces of a word from its start; false when they do not
/// cover it.
fn pieces(vocab: &Vocab, word: &[u8], out: &mut Vec<u32>) -> bool {
    let mut at = 0;
    while at < word.len() {
        let most = at + vocab.max_len_bytes().min(MAX_PIECE_BYTES);
        let most = most.min(word.len());
        let found = (at + 1..=most)
            .rev()
            .find_map(|end| Some((vocab.id(&word[at..end])?, end)));
        let Some((id, end)) = found else {
            return false;
        };
        out.push(id);
        at = end;
    }
    true
}

impl Classes {
    fn new() -> Classes {
        let compile =
            |pattern: &str| Regex::new(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        Classes {
            mark: compile(r"\p{M}"),
            punctuation: compile(r"\p{P}"),
            control: compile(r"[\p{Cc}\p{Cf}\p{Co}]"),
        }
    }

    fn is_mark(&self, c: char) -> bool {
        !c.is_ascii() && matches(&self.mark, c)
    }

    fn is_control(&self, c: char) -> bool {
        c.is_ascii_control() || (!c.is_ascii() && matches(&self.control, c))
    }

    fn is_punctuation(&self, c: char) -> bool {
        c.is_ascii_punctuation() || (!c.is_ascii() && matches(&self.punctuation, c))
    }
}

fn matches(class: &Regex, c: char) -> bool {
    class.is_match(c.encode_utf8(&mut [0; 4])).unwrap_or(false)
}

/// BERT's CJK blocks: each character is a word.
fn is_chinese(c: char) -> bool {
    matches!(u32::from(c),
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B81F
        | 0x2B920..=0x2CEAF | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F)
}
