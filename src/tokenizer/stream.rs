//! Ids to text as they come: whole characters only.

use super::Tokenizer;

/// Turns a stream of tokens into text; bytes wait here until their character
/// is complete.
#[derive(Default)]
pub struct StreamDecoder {
    pending: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder with nothing pending.
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that `id` completes. Control tokens print nothing; bytes that
    /// can no longer become UTF-8 print as U+FFFD.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if !tokenizer.is_control(id) {
            self.pending.extend(tokenizer.piece(id));
        }
        self.take_whole()
    }

    /// The end of the stream: an incomplete character prints as one U+FFFD.
    pub fn finish(&mut self) -> String {
        let mut text = self.take_whole();
        if !self.pending.is_empty() {
            self.pending.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
        text
    }

    fn take_whole(&mut self) -> String {
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if done + invalid.len() == self.pending.len() && may_grow(invalid) {
                break;
            }
            if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                done += invalid.len();
            }
        }
        self.pending.drain(..done);
        text
    }
}

/// Whether more bytes could make this a character.
fn may_grow(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => false,
        Err(e) => e.valid_up_to() == 0 && e.error_len().is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(parts: &[&[u8]]) -> Vec<String> {
        let mut decoder = StreamDecoder::new();
        let mut texts = Vec::new();
        for part in parts {
            decoder.pending.extend_from_slice(part);
            texts.push(decoder.take_whole());
        }
        texts.push(decoder.finish());
        texts
    }

    #[test]
    fn characters_come_whole() {
        assert_eq!(
            feed(&[b"a\xF0\x9F", b"\x98", b"\x80b"]),
            ["a", "", "\u{1F600}b", ""]
        );
    }

    #[test]
    fn a_dangling_tail_is_one_replacement() {
        assert_eq!(feed(&[b"x\xF0\x9F\x98"]), ["x", "\u{FFFD}"]);
    }

    #[test]
    fn invalid_bytes_show_at_once() {
        assert_eq!(feed(&[b"\xFF", b"a"]), ["\u{FFFD}", "a", ""]);
        assert_eq!(feed(&[b"\xE4\xB8", b"a"]), ["", "\u{FFFD}a", ""]);
        assert_eq!(feed(&[b"\xC0\x80"]), ["\u{FFFD}\u{FFFD}", ""]);
    }
}
