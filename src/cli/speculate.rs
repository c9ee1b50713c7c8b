//! Decoding ahead: drafts are evaluated together with the token before them, and the
//! sampler, run on each position in order, decides how much of a draft was right.
//!
//! The text is that of decoding token by token, random numbers included: the sampler sees
//! the same logits in the same order, and what follows its first other choice is thrown
//! away. That the logits are the same to the bit is up to the session.

use crate::Result;
use crate::sampling::Chain;
use crate::session::Session;
use crate::session::lookup::{Drafted, Lookup};
use clap::ValueEnum;
use std::time::{Duration, Instant};

/// When drafts are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LookupMode {
    /// Where the text stays the same to the bit, and while it pays
    Auto,
    /// Always; with --exact on a GPU the text may differ where two tokens are nearly equal
    On,
    Off,
}

/// What a model predicts after each of some tokens.
enum Predictions {
    /// Logits `[n_vocab, n_tokens]`.
    Logits { all: Vec<f32>, n_vocab: usize },
    /// As [`Session::eval_greedy`] gives them.
    Argmax(Vec<Option<u32>>),
}

impl Predictions {
    fn evaluate(tokens: &[u32], session: &mut Session, chain: &Chain) -> Result<Predictions> {
        if chain.is_argmax() && session.argmax_on_device() {
            return session.eval_all_greedy(tokens).map(Predictions::Argmax);
        }
        let (mut all, mut n_vocab) = (Vec::new(), 0);
        session.eval_all(tokens, &mut |_, logits| {
            n_vocab = logits.len();
            all.extend_from_slice(logits);
            Ok(())
        })?;
        Ok(Predictions::Logits { all, n_vocab })
    }

    /// The choice after token `at`.
    fn choose(&self, at: usize, chain: &mut Chain) -> Result<u32> {
        match self {
            Predictions::Logits { all, n_vocab } => chain.sample(&all[at * n_vocab..][..*n_vocab]),
            Predictions::Argmax(ids) => chain.choice(ids[at]),
        }
    }
}

/// A draft in the cache, of which the first `n_kept` tokens have been chosen.
struct Draft {
    tokens: Vec<u32>,
    n_kept: usize,
    /// After the token before the draft, and after each of it.
    predictions: Predictions,
    time: Duration,
}

/// Finds drafts, and keeps the one that is in the cache.
pub struct Ahead {
    mode: LookupMode,
    /// `None` before the first start, and where there are no drafts.
    lookup: Option<Lookup>,
    draft: Option<Draft>,
}

impl Ahead {
    /// Nothing is drafted before [`Ahead::start`].
    pub fn new(mode: LookupMode) -> Ahead {
        Ahead {
            mode,
            lookup: None,
            draft: None,
        }
    }

    /// A reply begins after `cached`, the tokens in the session's cache.
    pub fn start(&mut self, session: &Session, cached: &[u32]) {
        if self.lookup.is_none() {
            let wanted = match self.mode {
                LookupMode::Auto => session.batches_keep_bits(),
                LookupMode::On => true,
                LookupMode::Off => false,
            };
            if wanted && session.needs_checkpoints() {
                if self.mode == LookupMode::On {
                    tracing::warn!(
                        "--lookup on: recurrent states cannot be cut back, so nothing is drafted"
                    );
                }
                self.mode = LookupMode::Off;
            } else if wanted {
                self.lookup = Some(Lookup::new(self.mode == LookupMode::Auto));
            }
        }
        if let Some(lookup) = &mut self.lookup {
            lookup.follow(cached);
        }
    }

    /// Looks for a draft of at most `most` tokens after `next`, and evaluates both;
    /// gives the choice after `next`. `None`: there is none, evaluate `next` by itself.
    pub fn evaluate(
        &mut self,
        next: u32,
        most: usize,
        session: &mut Session,
        chain: &mut Chain,
    ) -> Result<Option<u32>> {
        let Some(lookup) = &mut self.lookup else {
            return Ok(None);
        };
        lookup.push(next);
        let tokens = lookup.draft(most);
        if tokens.is_empty() {
            return Ok(None);
        }
        let started = Instant::now();
        let predictions = Predictions::evaluate(&[&[next], &tokens[..]].concat(), session, chain)?;
        let draft = self.draft.insert(Draft {
            tokens,
            n_kept: 0,
            predictions,
            time: started.elapsed(),
        });
        draft.predictions.choose(0, chain).map(Some)
    }

    /// The choice after `next`, where that is the next token of the draft.
    pub fn follow(&mut self, next: u32, chain: &mut Chain) -> Result<Option<u32>> {
        let Some(draft) = &mut self.draft else {
            return Ok(None);
        };
        if draft.tokens.get(draft.n_kept) != Some(&next) {
            return Ok(None);
        }
        draft.n_kept += 1;
        if let Some(lookup) = &mut self.lookup {
            lookup.push(next);
        }
        draft.predictions.choose(draft.n_kept, chain).map(Some)
    }

    /// Cuts what was not kept of a draft off the cache, which then holds `n_cached` tokens.
    pub fn settle(&mut self, session: &mut Session, n_cached: usize) -> Result<()> {
        let Some(draft) = self.draft.take() else {
            return Ok(());
        };
        if let Some(lookup) = &mut self.lookup {
            lookup.settle(draft.tokens.len(), draft.n_kept, draft.time);
        }
        session.truncate(n_cached)
    }

    /// A token was evaluated by itself.
    pub fn single(&mut self, time: Duration) {
        if let Some(lookup) = &mut self.lookup {
            lookup.single(time);
        }
    }

    /// `; lookup kept 12 of 21 drafted tokens`, or nothing.
    pub fn describe(&self) -> String {
        match self.lookup.as_ref().map(Lookup::drafted) {
            Some(Drafted { n_drafted, n_kept }) if n_drafted > 0 => {
                format!("; lookup kept {n_kept} of {n_drafted} drafted tokens")
            }
            _ => String::new(),
        }
    }
}
