//! Prefill, then token by token: what `simple` and `chat` share.

use super::interrupt::Interrupt;
use super::load;
use super::output::progress_tokens;
use super::speculate::{Ahead, LookupMode};
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
    /// An end-of-generation token.
    End,
    /// One of the stop texts.
    Stop,
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

    /// What came after `before`, an earlier stand of the same.
    pub fn since(&self, before: &Speed) -> Speed {
        Speed {
            n_tokens: self.n_tokens - before.n_tokens,
            time: self.time.saturating_sub(before.time),
        }
    }

    /// Tokens a second; 0 of none.
    pub fn per_second(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 {
            self.n_tokens as f64 / seconds
        } else {
            0.0
        }
    }

    /// `12 tokens in 0.34 s (35.3 tok/s)`.
    pub fn describe(&self) -> String {
        let (n, seconds) = (self.n_tokens, self.time.as_secs_f64());
        let per_second = self.per_second();
        format!("{n} tokens in {seconds:.2} s ({per_second:.1} tok/s)")
    }
}

/// What the next token is chosen from.
enum Prediction {
    /// `[n_vocab]`
    Logits(Vec<f32>),
    /// The device has chosen already; see [`Session::eval_greedy`].
    Argmax(Option<u32>),
}

/// A reply in the making.
pub struct Reply {
    decoder: StreamDecoder,
    stops: StopMatcher,
    /// Its tokens so far; the last one may not be in the cache yet.
    pub ids: Vec<u32>,
}

/// Where text goes as it comes.
pub type Emit<'a> = &'a mut dyn FnMut(&str) -> std::io::Result<()>;

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
    /// A turn's prompt and what followed it, for another reply to it.
    again: Option<(Vec<u32>, Prediction)>,
}

impl<'a> Generator<'a> {
    /// A generator that has seen nothing.
    pub fn new(
        tokenizer: &'a Tokenizer,
        session: Session,
        chain: Chain,
        interrupt: &'a Interrupt,
        stops: Vec<String>,
        n_batch: usize,
        lookup: LookupMode,
    ) -> Generator<'a> {
        Generator {
            tokenizer,
            session,
            chain,
            interrupt,
            stops,
            n_batch,
            cached: Vec::new(),
            ahead: Ahead::new(lookup),
            prefill: Speed::default(),
            decode: Speed::default(),
            again: None,
        }
    }

    /// Makes the cache hold `prompt`, evaluating only what follows the prefix
    /// it already holds, and chooses the next token. `None`: interrupted.
    ///
    /// `border`, in tokens, is where a chat's next prompt may begin to differ: caches that
    /// cannot be cut back anywhere can be cut back to there, and to the end of the prompt.
    ///
    /// Errors: the prompt is longer than the context.
    pub fn prefill(&mut self, prompt: &[u32], border: Option<usize>) -> Result<Option<u32>> {
        load::need_room(prompt.len(), self.session.n_ctx())?;
        let asked_again = (self.again.take()).filter(|(asked, _)| asked == prompt);
        let most = match asked_again {
            Some(_) => prompt.len(),
            // At least one token is evaluated: its logits are what we want.
            None => prompt.len().saturating_sub(1),
        };
        let keep = self.cut_back(prompt, most)?;
        let last = match asked_again {
            // The last token alone might be rounded otherwise than in its batch.
            Some((_, prediction)) if keep == prompt.len() && self.can_use(&prediction) => {
                Some(prediction)
            }
            _ => {
                let keep = self.cut_back(prompt, prompt.len().saturating_sub(1))?;
                self.evaluate(prompt, keep, border)?
            }
        };
        let Some(last) = last else {
            return Ok(None);
        };
        let next = match &last {
            Prediction::Logits(logits) => self.chain.sample(logits)?,
            Prediction::Argmax(id) => self.chain.choice(*id)?,
        };
        if border.is_some() {
            self.again = Some((prompt.to_vec(), last));
        }
        Ok(Some(next))
    }

    /// Keeps at most `most` tokens of the cache, those that `prompt` begins with; gives how
    /// many are left.
    fn cut_back(&mut self, prompt: &[u32], most: usize) -> Result<usize> {
        let keep = common_prefix(&self.cached, prompt).min(most);
        self.session.truncate(keep)?;
        // Less is left where a recurrent state or a sliding window has moved on.
        let keep = self.session.n_past();
        self.cached.truncate(keep);
        // Samplers count what the conversation holds now, once.
        self.chain.forget();
        prompt[..keep].iter().for_each(|&id| self.chain.accept(id));
        Ok(keep)
    }

    /// Evaluates `prompt` from `keep` on; `None`: interrupted.
    fn evaluate(
        &mut self,
        prompt: &[u32],
        keep: usize,
        border: Option<usize>,
    ) -> Result<Option<Prediction>> {
        let started = Instant::now();
        let n_new = prompt.len() - keep;
        // A single batch has no progress to show.
        let bar = if n_new > self.n_batch {
            progress_tokens(n_new, "prefill")
        } else {
            ProgressBar::hidden()
        };
        let checkpoints = border.is_some() && self.session.needs_checkpoints();
        let border = border.filter(|at| checkpoints && (keep + 1..prompt.len()).contains(at));
        let border = border.unwrap_or(keep);
        let mut last = None;
        for part in [&prompt[keep..border], &prompt[border..]] {
            for batch in part.chunks(self.n_batch) {
                if self.interrupt.is_set() {
                    bar.finish_and_clear();
                    self.prefill.add(self.cached.len() - keep, started);
                    return Ok(None);
                }
                last = Some(self.predict(batch)?);
                batch.iter().for_each(|&id| self.chain.accept(id));
                bar.inc(batch.len() as u64);
            }
            if checkpoints {
                self.session.checkpoint(0)?;
            }
        }
        bar.finish_and_clear();
        self.prefill.add(n_new, started);
        Ok(last)
    }

    /// Evaluates `tokens`. A chain that takes the highest logit whatever the
    /// others are leaves the logits on the device that has them.
    fn predict(&mut self, tokens: &[u32]) -> Result<Prediction> {
        let prediction = if self.chain.is_argmax() && self.session.argmax_on_device() {
            Prediction::Argmax(self.session.eval_greedy(tokens)?)
        } else {
            Prediction::Logits(self.session.eval(tokens)?.to_vec())
        };
        self.cached.extend(tokens);
        Ok(prediction)
    }

    /// Whether the chain, which may be another now, can choose from this.
    fn can_use(&self, prediction: &Prediction) -> bool {
        matches!(prediction, Prediction::Logits(_)) || self.chain.is_argmax()
    }

    /// A reply without tokens.
    pub fn reply(&self) -> Reply {
        Reply {
            decoder: StreamDecoder::new(),
            stops: StopMatcher::new(self.stops.clone()),
            ids: Vec::new(),
        }
    }

    /// Emits the text of `next` and of the tokens that follow it, at most
    /// `limit`, in whole characters; neither end tokens nor stop texts are emitted.
    pub fn generate(
        &mut self,
        next: u32,
        limit: Option<usize>,
        emit: Emit,
    ) -> anyhow::Result<Finish> {
        let mut reply = self.reply();
        let finish = self.go_on(next, limit, &mut reply, emit)?;
        reply.finish(finish, emit)?;
        Ok(finish)
    }

    /// As [`Generator::generate`], for a reply that may go on after it: at the end
    /// [`Reply::finish`] emits what was held back.
    pub fn go_on(
        &mut self,
        next: u32,
        limit: Option<usize>,
        reply: &mut Reply,
        emit: Emit,
    ) -> anyhow::Result<Finish> {
        self.ahead.start(&self.session, &self.cached);
        let finish = self.decode(next, limit, reply, emit);
        // Also after an error the cache holds what was said, no draft.
        self.ahead.settle(&mut self.session, self.cached.len())?;
        finish
    }

    fn decode(
        &mut self,
        mut next: u32,
        limit: Option<usize>,
        reply: &mut Reply,
        emit: Emit,
    ) -> anyhow::Result<Finish> {
        let started = Instant::now();
        let mut n_evaluated = 0;
        let finish = loop {
            if limit == Some(reply.ids.len()) {
                break Finish::Length;
            }
            if self.tokenizer.is_eog(next) {
                break Finish::End;
            }
            self.chain.accept(next);
            reply.ids.push(next);
            let result = reply.stops.push(&reply.decoder.push(self.tokenizer, next));
            emit(&result.emit)?;
            if result.stopped {
                break Finish::Stop;
            }
            if limit == Some(reply.ids.len()) {
                break Finish::Length;
            }
            if self.interrupt.is_set() {
                break Finish::Interrupted;
            }
            let room = self.session.n_ctx().saturating_sub(self.cached.len());
            if room == 0 {
                break Finish::ContextFull;
            }
            let wanted = limit.map_or(room, |limit| room.min(limit - reply.ids.len()));
            next = self.step(next, wanted)?;
            n_evaluated += 1;
        };
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
        self.single(next)
    }

    /// Evaluates one token and chooses the next. The logits are not copied.
    fn single(&mut self, token: u32) -> Result<u32> {
        let started = Instant::now();
        let choice = if self.chain.is_argmax() && self.session.argmax_on_device() {
            let id = self.session.eval_greedy(&[token])?;
            self.ahead.single(started.elapsed());
            self.chain.choice(id)?
        } else {
            let logits = self.session.eval(&[token])?;
            self.ahead.single(started.elapsed());
            self.chain.sample(logits)?
        };
        self.cached.push(token);
        Ok(choice)
    }
}

impl Reply {
    /// Emits what was held back until it was clear that nothing follows.
    pub fn finish(&mut self, finish: Finish, emit: Emit) -> std::io::Result<()> {
        if finish == Finish::Stop {
            return Ok(());
        }
        let tail = self.stops.push(&self.decoder.finish());
        emit(&tail.emit)?;
        if !tail.stopped {
            emit(&self.stops.finish())?;
        }
        Ok(())
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
