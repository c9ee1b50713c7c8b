//! Drafts by prompt lookup: what followed the last time that the text said the same.
//!
//! A draft is evaluated in one batch with the token before it, which costs little more
//! than that token alone where the weights' bytes are what takes time. Whoever samples
//! keeps as much of it as he would have said anyway. [`Lookup`] finds drafts, and stops
//! looking for a while when they cost more than they gain.

use std::collections::HashMap;
use std::time::Duration;

/// Most tokens evaluated at once, the one before the draft included: up to here a batch
/// has a graph of exactly its width.
pub const MOST_TOKENS: usize = 8;
/// Tokens that have to be the same, longest first.
const GRAMS: [usize; 2] = [3, 2];
/// Time that drafts may lose before a pause, in single tokens.
const MOST_LOST: f64 = 2.0;
/// Time gained that is remembered, in single tokens: text changes its nature.
const MOST_GAINED: f64 = 8.0;
/// Tokens without drafts after a loss; twice as many after the next, up to the most.
const PAUSE: usize = 32;
const MOST_PAUSE: usize = 1024;
/// Single tokens whose time is averaged, about.
const AVERAGED: f64 = 8.0;
/// Single tokens that are timed before there are drafts.
const TIMED: usize = 4;

/// How many drafted tokens were evaluated, and how many of them kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drafted {
    pub n_drafted: usize,
    pub n_kept: usize,
}

/// The tokens so far, and where each short run of them was last seen.
pub struct Lookup {
    tokens: Vec<u32>,
    /// From [`GRAMS`] tokens (padded with 0) to the place after their last occurrence
    /// that has something after it.
    after: [HashMap<[u32; 3], usize>; 2],
    /// Tokens of the next batch: 2, 4, or 8, so that few graphs are compiled.
    width: usize,
    pace: Option<Pace>,
    drafted: Drafted,
}

/// Whether drafts pay.
struct Pace {
    /// Seconds of a token by itself, and how many have been timed.
    single: f64,
    n_timed: usize,
    /// Seconds gained, less those lost.
    balance: f64,
    /// Tokens until drafts are tried again, and how many the last pause had.
    pause: usize,
    last_pause: usize,
    /// Widths that have been evaluated: the first time includes compiling.
    known: [bool; MOST_TOKENS + 1],
}

impl Lookup {
    /// No tokens yet; `watched`: drafts stop when they do not pay.
    pub fn new(watched: bool) -> Lookup {
        let pace = Pace {
            single: 0.0,
            n_timed: 0,
            balance: 0.0,
            pause: 0,
            last_pause: 0,
            known: [false; MOST_TOKENS + 1],
        };
        Lookup {
            tokens: Vec::new(),
            after: Default::default(),
            width: MOST_TOKENS / 2,
            pace: watched.then_some(pace),
            drafted: Drafted::default(),
        }
    }

    /// What has been drafted so far.
    pub fn drafted(&self) -> Drafted {
        self.drafted
    }

    /// Makes the text be `tokens`.
    pub fn follow(&mut self, tokens: &[u32]) {
        if !tokens.starts_with(&self.tokens) {
            self.tokens.clear();
            self.after.iter_mut().for_each(HashMap::clear);
        }
        let known = self.tokens.len();
        tokens[known..].iter().for_each(|&id| self.push(id));
    }

    /// Adds a token to the text.
    pub fn push(&mut self, id: u32) {
        let end = self.tokens.len();
        for (after, n) in self.after.iter_mut().zip(GRAMS) {
            if let Some(gram) = gram(&self.tokens, n) {
                after.insert(gram, end);
            }
        }
        self.tokens.push(id);
        if let Some(pace) = &mut self.pace {
            pace.pause = pace.pause.saturating_sub(1);
        }
    }

    /// What may follow the text, at most `most` tokens; often nothing.
    pub fn draft(&self, most: usize) -> Vec<u32> {
        let paused = self
            .pace
            .as_ref()
            .is_some_and(|p| p.pause > 0 || p.n_timed < TIMED);
        // With the token before it a draft makes a batch of 2, 4 or 8.
        let room = self.width.min(most.saturating_add(1));
        let n = (1 << room.ilog2()) - 1;
        let found = || {
            let mut grams = self.after.iter().zip(GRAMS);
            grams.find_map(|(after, n)| after.get(&gram(&self.tokens, n)?).copied())
        };
        match found() {
            Some(from) if !paused => self.from(from, n),
            _ => Vec::new(),
        }
    }

    /// `n` tokens from a place on; where the text ends, the draft itself goes on.
    fn from(&self, from: usize, n: usize) -> Vec<u32> {
        let len = self.tokens.len();
        let mut draft: Vec<u32> = Vec::with_capacity(n);
        for at in from..from + n {
            draft.push(if at < len {
                self.tokens[at]
            } else {
                draft[at - len]
            });
        }
        draft
    }

    /// A token was evaluated by itself.
    pub fn single(&mut self, time: Duration) {
        let Some(pace) = &mut self.pace else {
            return;
        };
        let seconds = time.as_secs_f64();
        // The first time includes compiling.
        if pace.known[1] {
            pace.n_timed += 1;
            let weight = 1.0 / (pace.n_timed as f64).min(AVERAGED);
            pace.single += (seconds - pace.single) * weight;
        }
        pace.known[1] = true;
    }

    /// A draft of `n_drafted` tokens was evaluated with the token before it, and
    /// `n_kept` of it were what the sampler chose.
    pub fn settle(&mut self, n_drafted: usize, n_kept: usize, time: Duration) {
        self.drafted.n_drafted += n_drafted;
        self.drafted.n_kept += n_kept;
        if n_kept == n_drafted {
            self.width = (2 * self.width).min(MOST_TOKENS);
        } else if 2 * n_kept < n_drafted {
            self.width = (self.width / 2).max(2);
        }
        if let Some(pace) = &mut self.pace {
            pace.settle(n_drafted + 1, n_kept + 1, time.as_secs_f64());
        }
    }
}

impl Pace {
    /// A batch of `width` tokens gave `n` tokens of text.
    fn settle(&mut self, width: usize, n: usize, seconds: f64) {
        let known = self.known.get_mut(width);
        if !known.is_some_and(|known| std::mem::replace(known, true)) {
            return;
        }
        let gained = n as f64 * self.single - seconds;
        self.balance = (self.balance + gained).min(MOST_GAINED * self.single);
        if self.balance < -MOST_LOST * self.single {
            self.balance = 0.0;
            self.last_pause = (2 * self.last_pause).clamp(PAUSE, MOST_PAUSE);
            self.pause = self.last_pause;
        } else if self.balance > 0.0 {
            self.last_pause = 0;
        }
    }
}

/// The last `n` tokens.
fn gram(tokens: &[u32], n: usize) -> Option<[u32; 3]> {
    let last = &tokens[tokens.len().checked_sub(n)?..];
    let mut gram = [0; 3];
    gram[..n].copy_from_slice(last);
    Some(gram)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// That has said `tokens`.
    fn lookup(watched: bool, tokens: &[u32]) -> Lookup {
        let mut lookup = Lookup::new(watched);
        lookup.follow(tokens);
        lookup
    }

    #[test]
    fn a_draft_is_what_followed_last() {
        assert_eq!(
            lookup(false, &[5, 6, 7, 8, 9, 4, 5, 6, 7]).draft(7),
            [8, 9, 4]
        );
        // The later of two occurrences.
        assert_eq!(lookup(false, &[5, 6, 1, 5, 6, 2, 5, 6]).draft(1), [2]);
        // Three tokens before two: after 4, 5, 6 came 1.
        assert_eq!(
            lookup(false, &[4, 5, 6, 1, 9, 5, 6, 2, 4, 5, 6]).draft(1),
            [1]
        );
        for nothing in [&[][..], &[1], &[1, 2], &[1, 2, 3, 4], &[7, 1, 8, 1]] {
            assert!(lookup(false, nothing).draft(7).is_empty(), "{nothing:?}");
        }
    }

    #[test]
    fn a_draft_that_reaches_the_end_goes_on_with_itself() {
        assert_eq!(lookup(false, &[1, 2, 1, 2]).draft(3), [1, 2, 1]);
        assert_eq!(lookup(false, &[3, 3, 3]).draft(3), [3, 3, 3]);
    }

    #[test]
    fn batches_have_few_widths() {
        let mut lookup = lookup(false, &[1, 2, 1, 2]);
        let lens = |lookup: &Lookup| [0, 1, 2, 3, 6, 7, 100].map(|most| lookup.draft(most).len());
        assert_eq!(lens(&lookup), [0, 1, 1, 3, 3, 3, 3]);
        lookup.settle(3, 3, MS);
        assert_eq!(lens(&lookup), [0, 1, 1, 3, 3, 7, 7]);
        lookup.settle(7, 1, MS);
        lookup.settle(3, 1, MS);
        assert_eq!(lens(&lookup), [0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(
            lookup.drafted(),
            Drafted {
                n_drafted: 13,
                n_kept: 5
            }
        );
    }

    #[test]
    fn another_text_is_not_remembered() {
        let mut lookup = lookup(false, &[1, 2, 3, 4, 1, 2]);
        assert_eq!(lookup.draft(1), [3]);
        lookup.follow(&[1, 2, 3, 4, 1, 2, 3]);
        assert_eq!(lookup.draft(1), [4]);
        lookup.follow(&[1, 2, 9, 1, 2]);
        assert_eq!(lookup.draft(1), [9]);
        lookup.follow(&[1, 2]);
        assert!(lookup.draft(1).is_empty());
    }

    #[test]
    fn drafts_that_do_not_pay_pause_for_longer_and_longer() {
        let mut lookup = lookup(true, &[1, 2, 1, 2]);
        assert!(lookup.draft(7).is_empty(), "nothing has been timed");
        (0..=TIMED).for_each(|_| lookup.single(10 * MS));
        assert_eq!(lookup.draft(7).len(), 3);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let mut n_drafts = 0;
            while !lookup.draft(1).is_empty() {
                // Twice as long as alone, and nothing was kept.
                lookup.settle(1, 0, 20 * MS);
                n_drafts += 1;
                // The first is not counted, two are allowed.
                assert!(n_drafts <= 4);
            }
            let start = lookup.tokens.len();
            while lookup.draft(1).is_empty() {
                lookup.push(1 + (lookup.tokens.len() % 2) as u32);
            }
            pauses.push(lookup.tokens.len() - start);
        }
        assert_eq!(pauses, [32, 64, 128, 256, 512, 1024, 1024, 1024]);
        // The same without an eye on time goes on.
        let mut always = self::lookup(false, &[1, 2, 1, 2]);
        (0..100).for_each(|_| always.settle(1, 0, 20 * MS));
        assert!(!always.draft(1).is_empty());
    }

    #[test]
    fn drafts_that_pay_go_on() {
        let mut lookup = lookup(true, &[1, 2, 1, 2]);
        (0..=TIMED).for_each(|_| lookup.single(10 * MS));
        for i in 0..100 {
            // Every third is kept, for a fifth more time: one and a third token for 1.2.
            lookup.settle(1, usize::from(i % 3 == 0), 12 * MS);
            assert!(!lookup.draft(1).is_empty(), "{i}");
        }
    }
}
