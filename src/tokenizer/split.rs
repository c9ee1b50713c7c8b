//! Cuts text into words before BPE merges them.
//!
//! A pre-tokenizer is a list of stages; each cuts the fragments of the stage
//! before it. Patterns here have no look-around, so `fancy-regex` hands them
//! whole to an automaton: linear time, no stack. What needs to look ahead
//! (`\s+(?!\S)`, digit groups counted from the right) is done by hand.

use fancy_regex::Regex;

/// One stage of a pre-tokenizer.
pub(super) enum Stage {
    /// Matches of a pattern, and the gaps between them.
    Pattern(&'static str),
    /// As `Pattern`, then the white space that the pattern leaves: `\s+(?!\S)`
    /// (all but the last character before a word), then `\s+`.
    Words(&'static str),
    /// As `Words`, but white space comes in lengths of 512, 256, ... 4, 2, 1.
    WordsCascade(&'static str),
    /// Groups of three digits, counted from the right.
    Digits(DigitGroups),
}

/// How digit groups meet their surroundings.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum DigitGroups {
    /// ASCII digits; a short first group stays with what is before it.
    Ascii,
    /// ASCII digits of runs that a word does not continue; the first group
    /// stands alone.
    AsciiNumbers,
    /// Numbers of any script; the first group stays with what is before it.
    Unicode,
}

enum Compiled {
    Pattern(Regex),
    Words(Regex, fn(&str, usize) -> usize),
    Digits(Regex, DigitGroups),
}

/// Compiled stages.
pub(super) struct Splitter(Vec<Compiled>);

impl Splitter {
    /// Compiles the stages of one of our own tables.
    pub fn new(stages: &[Stage]) -> Splitter {
        let compile = |pattern: &str| {
            Regex::new(pattern).unwrap_or_else(|e| panic!("pre-tokenizer {pattern}: {e}"))
        };
        let stages = stages.iter().map(|stage| match *stage {
            Stage::Pattern(pattern) => Compiled::Pattern(compile(pattern)),
            Stage::Words(head) => Compiled::Words(compile(head), space_run),
            Stage::WordsCascade(head) => Compiled::Words(compile(head), space_cascade),
            Stage::Digits(DigitGroups::Unicode) => {
                Compiled::Digits(compile(r"\p{N}+"), DigitGroups::Unicode)
            }
            Stage::Digits(groups) => Compiled::Digits(compile("[0-9]+"), groups),
        });
        Splitter(stages.collect())
    }

    /// Ends of the words of `text`, ascending; the last is its length.
    pub fn cuts(&self, text: &str) -> Vec<usize> {
        let mut cuts = vec![text.len()];
        for stage in &self.0 {
            let mut next = Vec::with_capacity(cuts.len());
            let mut from = 0;
            for &to in &cuts {
                let mut cut = |at: usize| {
                    if next.last().copied().unwrap_or(0) < from + at {
                        next.push(from + at);
                    }
                };
                stage.cut(&text[from..to], &mut cut);
                cut(to - from);
                from = to;
            }
            cuts = next;
        }
        cuts
    }
}

impl Compiled {
    fn cut(&self, text: &str, cut: &mut impl FnMut(usize)) {
        match self {
            Compiled::Pattern(regex) => {
                let mut at = 0;
                while let Some((start, end)) = find(regex, text, at) {
                    cut(start);
                    cut(end);
                    at = end;
                }
            }
            Compiled::Words(regex, spaces) => cut_words(regex, *spaces, text, cut),
            Compiled::Digits(regex, groups) => {
                let mut at = 0;
                while let Some((start, end)) = find(regex, text, at) {
                    cut_digits(*groups, text, start, end, cut);
                    at = end;
                }
            }
        }
    }
}

/// The leftmost non-empty match from `at` on.
fn find(regex: &Regex, text: &str, at: usize) -> Option<(usize, usize)> {
    // An automaton without look-around has no limits to run into: never Err.
    let found = regex.find_from_pos(text, at).ok().flatten()?;
    (found.end() > found.start()).then(|| (found.start(), found.end()))
}

fn cut_words(
    regex: &Regex,
    spaces: fn(&str, usize) -> usize,
    text: &str,
    cut: &mut impl FnMut(usize),
) {
    let mut at = 0;
    let mut word = find(regex, text, 0);
    while at < text.len() {
        // The match stands until white space has run past its start.
        if word.is_some_and(|(start, _)| start < at) {
            word = find(regex, text, at);
        }
        let (start, end) = word.unwrap_or((text.len(), text.len()));
        if start == at {
            at = end;
        } else {
            let rest = &text[at..start];
            let gap = rest.find(char::is_whitespace).unwrap_or(rest.len());
            at = match gap {
                0 => spaces(text, at),
                gap => at + gap,
            };
        }
        cut(at);
    }
}

/// End and number of characters of the white space at `at`, and its last
/// character's start.
fn white_space(text: &str, at: usize) -> (usize, usize, usize) {
    let (mut end, mut count, mut last) = (at, 0, at);
    for (offset, c) in text[at..].char_indices() {
        if !c.is_whitespace() {
            break;
        }
        last = at + offset;
        end = last + c.len_utf8();
        count += 1;
    }
    (end, count, last)
}

/// `\s+(?!\S)|\s+` at white space: where the match ends.
fn space_run(text: &str, at: usize) -> usize {
    let (end, count, last) = white_space(text, at);
    match count > 1 && end < text.len() {
        true => last,
        false => end,
    }
}

/// `\s{512}(?!\S)|\s{256}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s` at white space.
fn space_cascade(text: &str, at: usize) -> usize {
    // Longer runs than 513 only need to be known as such.
    let spaces = text[at..].chars().take_while(|c| c.is_whitespace());
    let (count, mut free) = (spaces.clone().take(514).count(), 0);
    let bytes = |n: usize| spaces.clone().take(n).map(char::len_utf8).sum::<usize>();
    if count > 0 {
        // One is kept back for the word that follows.
        let at_end = at + bytes(count) == text.len();
        free = count - usize::from(!at_end);
    }
    let lengths = [512, 256, 128, 64, 32, 16, 8, 4, 2];
    let length = lengths.into_iter().find(|&n| n <= free).unwrap_or(1);
    at + bytes(length)
}

fn cut_digits(
    groups: DigitGroups,
    text: &str,
    start: usize,
    end: usize,
    cut: &mut impl FnMut(usize),
) {
    let alone = groups == DigitGroups::AsciiNumbers;
    let next = text[end..].bytes().next();
    if alone && next.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return;
    }
    if alone {
        cut(start);
    }
    let digits = text[start..end].chars().count();
    for (index, (offset, _)) in text[start..end].char_indices().enumerate() {
        // Cut where a multiple of three is left.
        let inside = index > 0 || groups == DigitGroups::Ascii;
        if inside && (digits - index).is_multiple_of(3) {
            cut(start + offset);
        }
    }
    if groups != DigitGroups::Ascii {
        cut(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'a>(stages: &[Stage], text: &'a str) -> Vec<&'a str> {
        let mut from = 0;
        let cuts = Splitter::new(stages).cuts(text);
        let words = cuts.into_iter().map(|to| {
            let word = &text[from..to];
            from = to;
            word
        });
        words.collect()
    }

    #[test]
    fn white_space_leaves_one_for_the_word() {
        let gpt2 = [Stage::Words(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+")];
        assert_eq!(words(&gpt2, "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words(&gpt2, "a\t\tb\tc"), ["a", "\t", "\t", "b", "\t", "c"]);
        assert_eq!(
            words(&gpt2, "\u{3000}\u{3000}x"),
            ["\u{3000}", "\u{3000}", "x"]
        );
        assert!(words(&gpt2, "").is_empty());
    }

    #[test]
    fn white_space_cascades() {
        let jais = [Stage::WordsCascade(r" ?\p{L}+")];
        let text = format!("{}x", " ".repeat(8));
        assert_eq!(words(&jais, &text), ["    ", "  ", " ", " x"]);
        let text = "\t".repeat(513);
        let lens: Vec<_> = words(&jais, &text).iter().map(|w| w.len()).collect();
        assert_eq!(lens, [512, 1]);
    }

    #[test]
    fn digits_group_from_the_right() {
        let cut = |groups, text| words(&[Stage::Digits(groups)], text);
        assert_eq!(cut(DigitGroups::Ascii, "a1234567b"), ["a1", "234", "567b"]);
        let numbers = DigitGroups::AsciiNumbers;
        assert_eq!(cut(numbers, "a 1234, 567b"), ["a ", "1", "234", ", 567b"]);
        assert_eq!(cut(DigitGroups::Unicode, "a1234b"), ["a1", "234", "b"]);
    }
}
