//! DRY, "don't repeat yourself": the longer the repetition that a token would carry
//! on, the more is taken from its logit.

use super::{Candidates, Sampler, SamplingParams, Vocabulary};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Settings; names as in llama.cpp.
#[derive(Clone, Debug, PartialEq)]
pub struct DryParams {
    /// Taken for the shortest repetition that counts; 0 is off.
    pub multiplier: f32,
    /// Factor for each token that a repetition is longer, from 1.
    pub base: f32,
    /// The shortest repetition that counts, in tokens.
    pub allowed_length: usize,
    /// Accepted tokens that are looked at; 0 is off, -1 all.
    pub penalty_last_n: i32,
    /// Texts over which no repetition reaches.
    pub sequence_breakers: Vec<String>,
}

impl Default for DryParams {
    fn default() -> DryParams {
        DryParams {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            penalty_last_n: -1,
            sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
        }
    }
}

pub(super) struct Dry {
    params: DryParams,
    vocabulary: Arc<Vocabulary>,
    /// Accepted tokens, the last at the end; at least those that are looked at.
    tokens: Vec<u32>,
    /// Tokens since the last breaker.
    n_unbroken: usize,
    /// The last bytes of the text: a breaker may lie over several tokens.
    tail: Vec<u8>,
}

impl Dry {
    /// `None` when the settings change nothing.
    ///
    /// # Errors
    /// Sequence breakers without a vocabulary to find them in.
    pub(super) fn new(params: &SamplingParams) -> Result<Option<Dry>> {
        let dry = &params.dry;
        if dry.multiplier == 0.0 || dry.penalty_last_n == 0 {
            return Ok(None);
        }
        let vocabulary = match &params.vocabulary {
            Some(vocabulary) => vocabulary.clone(),
            None if dry.sequence_breakers.is_empty() => Arc::default(),
            None => {
                return Err(Error::input(
                    "sampling: DRY's sequence breakers are texts, which a model of ids has none of; \
                     give --dry-sequence-breaker none",
                ));
            }
        };
        Ok(Some(Dry {
            params: dry.clone(),
            vocabulary,
            tokens: Vec::new(),
            n_unbroken: 0,
            tail: Vec::new(),
        }))
    }

    /// The tokens that are looked at, the last at the end.
    fn window(&self) -> &[u32] {
        let last_n = usize::try_from(self.params.penalty_last_n).unwrap_or(usize::MAX);
        &self.tokens[self.tokens.len().saturating_sub(last_n)..]
    }

    /// Tokens that would carry on a repetition, and the length of the longest.
    fn repetitions(&self) -> BTreeMap<u32, usize> {
        let window = self.window();
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        if self.n_unbroken < self.params.allowed_length {
            return longest;
        }
        let lengths = common_suffixes(window);
        for (&length, &next) in lengths.iter().zip(window.iter().skip(1)) {
            let length = length.min(self.n_unbroken);
            if length >= self.params.allowed_length {
                let entry = longest.entry(next).or_default();
                *entry = length.max(*entry);
            }
        }
        longest
    }

    /// Whether one of the breakers ends within the token that `tail` ends with.
    fn breaks(&self, n_new_bytes: usize) -> bool {
        let breakers = self.params.sequence_breakers.iter();
        breakers.filter(|b| !b.is_empty()).any(|breaker| {
            let start = (self.tail.len() + 1).saturating_sub(n_new_bytes + breaker.len());
            let mut places = self.tail[start..].windows(breaker.len());
            n_new_bytes > 0 && places.any(|place| place == breaker.as_bytes())
        })
    }
}

impl Sampler for Dry {
    fn describe(&self) -> String {
        let p = &self.params;
        format!(
            "dry {} base {} allowed length {} last {}",
            p.multiplier, p.base, p.allowed_length, p.penalty_last_n
        )
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        let (multiplier, base) = (self.params.multiplier, f64::from(self.params.base));
        let allowed = self.params.allowed_length;
        let repetitions = self.repetitions();
        candidates.adjust(repetitions.into_iter(), |logit, length| {
            let penalty = f64::from(multiplier) * base.powf((length - allowed) as f64);
            (f64::from(logit) - penalty) as f32
        });
    }

    fn accept(&mut self, id: u32) {
        self.tokens.push(id);
        if let Ok(last_n) = usize::try_from(self.params.penalty_last_n)
            && self.tokens.len() / 2 > last_n
        {
            let old = self.tokens.len() - last_n;
            self.tokens.drain(..old);
        }
        let piece = self.vocabulary.piece(id);
        self.tail.extend(piece);
        let breaks = self.breaks(piece.len());
        self.n_unbroken = if breaks { 0 } else { self.n_unbroken + 1 };
        let longest = self.params.sequence_breakers.iter().map(String::len).max();
        let spare = self.tail.len().saturating_sub(longest.unwrap_or_default());
        self.tail.drain(..spare);
    }

    fn forget(&mut self) {
        self.tokens.clear();
        self.tail.clear();
        self.n_unbroken = 0;
    }
}

/// For each place but the last, how many tokens up to it equal those up to the end.
///
/// The Z algorithm from the end: what is known of an earlier match tells the length
/// of those inside it, so that every token is compared about once.
fn common_suffixes(tokens: &[u32]) -> Vec<usize> {
    let n = tokens.len();
    let from_end = |i: usize| tokens[n - 1 - i];
    // z[i]: length of the match that ends i tokens before the end.
    let mut z = vec![0; n];
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut len = match i < right {
            true => z[i - left].min(right - i),
            false => 0,
        };
        while i + len < n && from_end(len) == from_end(i + len) {
            len += 1;
        }
        z[i] = len;
        if i + len > right {
            (left, right) = (i, i + len);
        }
    }
    z.reverse();
    z.pop();
    z
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::list;
    use super::*;

    /// Tokens 0 to 5 are `a` to `d`, `:`, `\n`.
    fn dry(change: impl FnOnce(&mut DryParams)) -> Dry {
        let pieces = ["a", "b", "c", "d", ":", "\n"].map(|p| p.as_bytes().to_vec());
        let mut params = SamplingParams {
            vocabulary: Some(Arc::new(Vocabulary::new(pieces.into_iter(), vec![]))),
            ..SamplingParams::greedy()
        };
        params.dry.multiplier = 2.0;
        params.dry.base = 3.0;
        change(&mut params.dry);
        Dry::new(&params).unwrap().unwrap()
    }

    fn penalties(mut dry: Dry, accepted: &[u32]) -> Vec<f32> {
        accepted.iter().for_each(|&id| dry.accept(id));
        let mut candidates = list(&[0.0; 6]);
        dry.apply(&mut candidates);
        candidates.items.iter().map(|c| -c.logit).collect()
    }

    #[test]
    fn grows_with_the_length_of_the_repetition() {
        // abc abc d abc: three tokens came before, followed by a once and d once:
        // 2 * 3^(3 - 2) = 6 each.
        let text = [0, 1, 2, 0, 1, 2, 3, 0, 1, 2];
        assert_eq!(penalties(dry(|_| ()), &text), [6., 0., 0., 6., 0., 0.]);
        // d abc d abc: four tokens and d would be five; abc alone was followed by d.
        let text = [3, 0, 1, 2, 3, 0, 1, 2];
        // 2 * 3^(4 - 2) = 18.
        assert_eq!(penalties(dry(|_| ()), &text), [0., 0., 0., 18., 0., 0.]);
        // 2 * 3^(3 - 3) = 2 where three are allowed, nothing where four are.
        let text = [0, 1, 2, 3, 0, 1, 2];
        let allowed = |n| penalties(dry(|p| p.allowed_length = n), &text)[3];
        assert_eq!([allowed(2), allowed(3), allowed(4)], [6.0, 2.0, 0.0]);
    }

    #[test]
    fn no_repetition_reaches_over_a_breaker() {
        // ab:cd ab:c: only `c` is unbroken, which is too short.
        let text = [0, 1, 4, 2, 3, 0, 1, 4, 2];
        assert_eq!(penalties(dry(|_| ()), &text), [0.0; 6]);
        let none = dry(|p| p.sequence_breakers.clear());
        // Four tokens: 2 * 3^2.
        assert_eq!(penalties(none, &text)[3], 18.0);
        // Over two tokens, `b:`; one that is inside no text; an empty one.
        let with = |text: &str| {
            let text = text.to_string();
            dry(|p| p.sequence_breakers = vec![text])
        };
        assert_eq!(penalties(with("b:"), &text)[3], 0.0);
        assert_eq!(penalties(with("b:d"), &text)[3], 18.0);
        assert_eq!(penalties(with(""), &text)[3], 18.0);
    }

    #[test]
    fn looks_at_the_last_n_only() {
        let text = [0, 1, 2, 3, 3, 3, 0, 1];
        let last = |n| penalties(dry(|p| p.penalty_last_n = n), &text)[2];
        // The first `ab` is seven and eight tokens back, its `c` six.
        assert_eq!([last(-1), last(8), last(7)], [2.0, 2.0, 0.0]);
        let mut params = SamplingParams::greedy();
        assert!(Dry::new(&params).unwrap().is_none());
        params.dry.multiplier = 1.0;
        assert!(Dry::new(&params).is_err(), "breakers without a vocabulary");
        params.dry.penalty_last_n = 0;
        assert!(Dry::new(&params).unwrap().is_none());
    }

    #[test]
    fn suffixes_equal_a_plain_search() {
        let mut rng = crate::sampling::rng::Rng::new(2);
        for n in 0..60 {
            let tokens: Vec<u32> = (0..n).map(|_| (rng.next_u64() % 2) as u32).collect();
            let plain = (1..n).map(|end| {
                let before = tokens[..end].iter().rev();
                before.zip(tokens.iter().rev()).take_while(|(a, b)| a == b)
            });
            let plain: Vec<usize> = plain.map(Iterator::count).collect();
            assert_eq!(common_suffixes(&tokens), plain, "{tokens:?}");
        }
    }

    #[test]
    fn long_repetitions_stay_numbers() {
        let logits = penalties(dry(|_| ()), &[0; 3000]);
        assert_eq!(logits[0], f32::MAX);
    }
}
