//! Prefill, then token by token: what `simple` and `chat` share.

use super::interrupt::Interrupt;
use super::load;
use super::output::progress;
use super::speculate::Ahead;
use crate::Result;
use crate::chat::StopMatcher;
use crate::sampling::Chain;
use crate::session::Session;
use crate::tokenizer::{StreamDecoder, Tokenizer};
use indicatif::ProgressBar;
use std::time::{Duration, Instant};

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-generation token, or one of the stop texts.
    End,
    /// As many tokens as asked for.
    Length,
    /// No room for another token.
    ContextFull,
    /// Ctrl-C.
    Interrupted,
}

/// Tokens evaluated and the time it took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Speed {
    pub n_tokens: usize,
    pub time: Duration,
}

impl Speed {
    fn add(&mut self, n_tokens: usize, started: Instant) {
        self.n_tokens += n_tokens;
        self.time += started.elapsed();
    }

    /// `12 tokens in 0.34 s (35.3 tok/s)`.
    pub fn describe(&self) -> String {
        let seconds = self.time.as_secs_f64();
        let per_second = if seconds > 0.0 {
            self.n_tokens as f64 / seconds
        } else {
            0.0
        };
        let n = self.n_tokens;
        format!("{n} tokens in {seconds:.2} s ({per_second:.1} tok/s)")
    }
}

/// What the next token is chosen from.
enum Prediction<'a> {
    Logits(&'a [f32]),
    /// The device has chosen already; see [`Session::eval_greedy`].
    Argmax(Option<u32>),
}

impl Prediction<'_> {
    /// Evaluates `tokens`. A chain that takes the highest logit whatever the
    /// others are leaves the logits on the device that has them.
    fn after<'a>(
        tokens: &[u32],
        session: &'a mut Session,
        chain: &Chain,
    ) -> Result<Prediction<'a>> {
        if chain.is_argmax() && session.argmax_on_device() {
            return session.eval_greedy(tokens).map(Prediction::Argmax);
        }
        session.eval(tokens).map(Prediction::Logits)
    }

    fn choose(self, chain: &mut Chain) -> Result<u32> {
        match self {
            Prediction::Logits(logits) => chain.sample(logits),
            Prediction::Argmax(id) => chain.choice(id),
        }
    }
}

/// A session with the tokens it has seen, and the way to choose the next.
pub struct Generator<'a> {
    pub tokenizer: &'a Tokenizer,
    pub session: Session,
    pub chain: Chain,
    pub interrupt: &'a Interrupt,
    /// Texts that end a generation.
    pub stops: Vec<String>,
    /// Tokens of a prompt between two looks at Ctrl-C.
    pub n_batch: usize,
    /// Tokens whose state is in the cache.
    pub cached: Vec<u32>,
    /// Drafts of what comes next.
    pub ahead: Ahead,
    pub prefill: Speed,
    pub decode: Speed,
}

impl Generator<'_> {
    /// Makes the cache hold `prompt`, evaluating only what follows the prefix
    /// it already holds, and chooses the next token. `None`: interrupted.
    ///
    /// Errors: the prompt is longer than the context.
    pub fn prefill(&mut self, prompt: &[u32]) -> Result<Option<u32>> {
        load::need_room(prompt.len(), self.session.n_ctx())?;
        // At least one token is evaluated: its logits are what we want.
        let keep = common_prefix(&self.cached, prompt).min(prompt.len().saturating_sub(1));
        self.session.truncate(keep)?;
        // Less is left where a sliding window has moved on.
        let keep = self.session.n_past();
        if keep < self.cached.len() {
            // Penalties count what the conversation holds now, once.
            self.chain.forget();
            prompt[..keep].iter().for_each(|&id| self.chain.accept(id));
        }
        self.cached.truncate(keep);
        let started = Instant::now();
        let n_new = prompt.len() - keep;
        // A single batch has no progress to show.
        let bar = if n_new > self.n_batch {
            progress(n_new, "prefill")
        } else {
            ProgressBar::hidden()
        };
        let mut next = None;
        for batch in prompt[keep..].chunks(self.n_batch) {
            if self.interrupt.is_set() {
                break;
            }
            let prediction = Prediction::after(batch, &mut self.session, &self.chain)?;
            batch.iter().for_each(|&id| self.chain.accept(id));
            self.cached.extend(batch);
            bar.inc(batch.len() as u64);
            if self.cached.len() == prompt.len() {
                next = Some(prediction.choose(&mut self.chain)?);
            }
        }
        bar.finish_and_clear();
        self.prefill.add(self.cached.len() - keep, started);
        Ok(next)
    }

    /// Emits the text of `next` and of the tokens that follow it, at most
    /// `limit`, in whole characters; neither end tokens nor stop texts are emitted.
    pub fn generate(
        &mut self,
        next: u32,
        limit: Option<usize>,
        emit: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> anyhow::Result<Finish> {
        self.ahead.start(&self.session, &self.cached);
        let finish = self.generate_from(next, limit, emit);
        // Also after an error the cache holds what was said, no draft.
        self.ahead.settle(&mut self.session, self.cached.len())?;
        finish
    }

    fn generate_from(
        &mut self,
        mut next: u32,
        limit: Option<usize>,
        emit: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> anyhow::Result<Finish> {
        let started = Instant::now();
        let mut decoder = StreamDecoder::new();
        let mut stops = StopMatcher::new(self.stops.clone());
        let mut n_emitted = 0;
        let mut n_evaluated = 0;
        let finish = loop {
            if limit == Some(n_emitted) {
                break Finish::Length;
            }
            if self.tokenizer.is_eog(next) {
                break Finish::End;
            }
            self.chain.accept(next);
            n_emitted += 1;
            let result = stops.push(&decoder.push(self.tokenizer, next));
            emit(&result.emit)?;
            if result.stopped {
                self.decode.add(n_evaluated, started);
                return Ok(Finish::End);
            }
            if limit == Some(n_emitted) {
                break Finish::Length;
            }
            if self.interrupt.is_set() {
                break Finish::Interrupted;
            }
            let room = self.session.n_ctx().saturating_sub(self.cached.len());
            if room == 0 {
                break Finish::ContextFull;
            }
            let wanted = limit.map_or(room, |limit| room.min(limit - n_emitted));
            next = self.step(next, wanted)?;
            n_evaluated += 1;
        };
        let tail = stops.push(&decoder.finish());
        emit(&tail.emit)?;
        if !tail.stopped {
            emit(&stops.finish())?;
        }
        self.decode.add(n_evaluated, started);
        Ok(finish)
    }

    /// The choice after `next`, which goes to the cache; at most `wanted` tokens are
    /// evaluated.
    fn step(&mut self, next: u32, wanted: usize) -> Result<u32> {
        let followed = self.ahead.follow(next, &mut self.chain);
        if let Some(choice) = followed? {
            self.cached.push(next);
            return Ok(choice);
        }
        self.ahead.settle(&mut self.session, self.cached.len())?;
        // A draft that took several ubatches could push what is still seen out of a window.
        let most = wanted.min(self.n_batch).saturating_sub(1);
        let (session, chain) = (&mut self.session, &mut self.chain);
        if let Some(choice) = self.ahead.evaluate(next, most, session, chain)? {
            self.cached.push(next);
            return Ok(choice);
        }
        let started = Instant::now();
        let prediction = Prediction::after(&[next], session, chain)?;
        self.ahead.single(started.elapsed());
        self.cached.push(next);
        prediction.choose(chain)
    }
}

/// Tokens that both sequences start with.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::common_prefix;

    #[test]
    fn the_common_prefix_ends_at_the_first_difference() {
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 4, 5]), 2);
        assert_eq!(common_prefix(&[1, 2], &[1, 2, 3]), 2);
        assert_eq!(common_prefix(&[], &[1]), 0);
    }
}
