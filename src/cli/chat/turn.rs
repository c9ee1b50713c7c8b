//! One turn: the prompt that the messages make, what of it is evaluated, and the reply.

use super::args::ChatArgs;
#[cfg(unix)]
use super::echo::NoEcho;
use super::saved::Saved;
use super::session_file::SessionFile;
use super::show::{Shown, Think};
use super::state_file;
use crate::chat::{ChatTemplate, RenderOptions, Transcript};
use crate::cli::flags::JsonObject;
use crate::cli::generate::{Finish, Generator, Reply, Speed};
use crate::sampling::{Chain, SamplingParams};
use crate::{Error, Result};
use clap::ValueEnum;
use std::path::PathBuf;

/// A state of at most so many bytes is saved after each turn, a larger one when leaving.
const SAVED_EACH_TURN_BYTES: usize = 16 << 20;

/// Variables by which templates switch thinking off.
const THINK_SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// What happens when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnFull {
    /// The reply ends there, and stays
    Stop,
    /// The model forgets the oldest turns, not the system prompt
    Shift,
    /// The reply is not kept, and the program ends
    Error,
}

/// A chat that is under way.
pub struct Chat<'a> {
    pub generator: Generator<'a>,
    pub template: ChatTemplate,
    pub options: RenderOptions<'a>,
    /// Of the options, those that the user gave.
    pub kwargs: JsonObject,
    /// Tokens a reply may have.
    pub limit: Option<usize>,
    pub on_full: OnFull,
    pub think: Think,
    /// Nothing is shown while it comes.
    pub silent: bool,
    /// Somebody types at a terminal, where this process ends only by itself.
    pub with_person: bool,
    pub transcript: Transcript,
    /// Turns at the start that the model does not see any more.
    pub n_forgotten: usize,
    pub sampling: SamplingParams,
    /// Replies drawn so far.
    pub n_replies: u64,
    pub session_file: Option<SessionFile>,
    /// Files of `/save`, which may be written again.
    pub written: Vec<PathBuf>,
    pub last: LastTurn,
}

/// The newest turn in numbers, and how it ended.
#[derive(Debug, Clone, Default)]
pub struct LastTurn {
    pub n_prompt: usize,
    /// Tokens of the prompt that were not in the cache.
    pub n_evaluated: usize,
    pub n_reply: usize,
    pub prefill: Speed,
    pub decode: Speed,
    pub thinking: String,
    pub answer: String,
}

/// What the model is to read.
struct Prompt {
    ids: Vec<u32>,
    text: String,
    /// Tokens up to where the next prompt may begin to differ.
    border: usize,
}

impl<'a> Chat<'a> {
    /// A chat in which nothing has been said.
    pub fn new(
        generator: Generator<'a>,
        template: ChatTemplate,
        options: RenderOptions<'a>,
        sampling: SamplingParams,
        args: &ChatArgs,
    ) -> Chat<'a> {
        let kwargs = args.template.chat_template_kwargs.clone();
        Chat {
            generator,
            template,
            options,
            kwargs: kwargs.unwrap_or_default(),
            limit: usize::try_from(args.n_predict).ok(),
            on_full: args.on_full,
            think: Think::Show,
            silent: args.json,
            with_person: false,
            transcript: Transcript::new(),
            n_forgotten: 0,
            sampling,
            n_replies: 0,
            session_file: None,
            written: Vec::new(),
            last: LastTurn::default(),
        }
    }

    /// Answers a message. Without an answer the message is forgotten, so that turns keep
    /// alternating.
    pub fn say(&mut self, text: &str) -> anyhow::Result<Finish> {
        self.transcript.push_user(text);
        let result = self.respond();
        if self.transcript.last_reply().is_none() {
            self.transcript.pop_turn();
            if matches!(result, Ok(Finish::Interrupted)) {
                tracing::info!("stopped before the reply began; the message is not kept");
            }
        }
        result
    }

    /// Answers the newest message, which has no reply yet.
    pub fn respond(&mut self) -> anyhow::Result<Finish> {
        self.draw_anew()?;
        let mut answer = String::new();
        let result = self.answer(&mut answer);
        let dropped = match &result {
            Ok(Finish::End | Finish::Stop) => false,
            Ok(Finish::ContextFull) if self.on_full == OnFull::Error => true,
            _ => answer.is_empty(),
        };
        if !dropped {
            self.transcript.push_assistant(answer);
        }
        result
    }

    /// Each reply draws from a seed of its own, so that it does not depend on how the one
    /// before was drawn, nor on whether the chat was resumed in between.
    fn draw_anew(&mut self) -> Result<()> {
        let seed = self.sampling.seed.map(|s| s.wrapping_add(self.n_replies));
        self.n_replies = self.n_replies.wrapping_add(1);
        self.generator.chain = Chain::new(&SamplingParams {
            seed,
            ..self.sampling.clone()
        })?;
        Ok(())
    }

    fn answer(&mut self, answer: &mut String) -> anyhow::Result<Finish> {
        let before = (self.generator.prefill, self.generator.decode);
        self.last = LastTurn::default();
        self.generator.interrupt.defer();
        #[cfg(unix)]
        let _no_echo = self.with_person.then(NoEcho::new);
        let mut prompt = self.fitting_prompt(0)?;
        let mut shown = Shown::new(&prompt.text, self.think, self.silent);
        let mut reply = self.generator.reply();
        let finish = self.write_reply(&mut prompt, &mut reply, &mut shown, answer);
        let prefill = self.generator.prefill.since(&before.0);
        self.last = LastTurn {
            n_prompt: prompt.ids.len(),
            n_evaluated: prefill.n_tokens,
            n_reply: reply.ids.len(),
            prefill,
            decode: self.generator.decode.since(&before.1),
            thinking: shown.texts().0.to_string(),
            answer: shown.texts().1.to_string(),
        };
        finish
    }

    /// Evaluates the prompt and writes the reply; in a full context the oldest turns may
    /// make room for the rest of it.
    fn write_reply(
        &mut self,
        prompt: &mut Prompt,
        reply: &mut Reply,
        shown: &mut Shown,
        answer: &mut String,
    ) -> anyhow::Result<Finish> {
        let finish = loop {
            let read = [&prompt.ids[..], &reply.ids].concat();
            let Some(next) = self.generator.prefill(&read, Some(prompt.border))? else {
                break Finish::Interrupted;
            };
            if reply.ids.is_empty() {
                // A template that drops thinking looks for both tags.
                answer.push_str(shown.opened());
                shown.begin()?;
            }
            let limit = self.limit;
            let finish = self.generator.go_on(next, limit, reply, &mut |piece| {
                answer.push_str(piece);
                shown.push(piece)
            })?;
            if finish != Finish::ContextFull || self.on_full != OnFull::Shift {
                break finish;
            }
            let n_forgotten = self.n_forgotten;
            let shorter = self.fitting_prompt(reply.ids.len())?;
            let fits = shorter.ids.len() + reply.ids.len() <= self.generator.session.n_ctx();
            if self.n_forgotten == n_forgotten || !fits {
                break finish;
            }
            *prompt = shorter;
        };
        reply.finish(finish, &mut |piece| {
            answer.push_str(piece);
            shown.push(piece)
        })?;
        if !answer.is_empty() || finish != Finish::Interrupted {
            shown.end()?;
        }
        Ok(finish)
    }

    /// The prompt. Where oldest turns may be left out and it, with `n_reply` tokens of a
    /// reply, leaves no room, it is made to leave a quarter of the context, so that not every
    /// turn has to be evaluated anew.
    fn fitting_prompt(&mut self, n_reply: usize) -> Result<Prompt> {
        let n_ctx = self.generator.session.n_ctx();
        let mut prompt = self.prompt()?;
        if self.on_full != OnFull::Shift || prompt.ids.len() + n_reply < n_ctx {
            return Ok(prompt);
        }
        let before = self.n_forgotten;
        let enough = n_ctx - n_ctx / 4;
        while prompt.ids.len() + n_reply > enough
            && self.n_forgotten + 1 < self.transcript.n_turns()
        {
            self.n_forgotten += 1;
            prompt = self.prompt()?;
        }
        match self.n_forgotten - before {
            0 => {}
            1 => tracing::info!("the context is full: the model forgets the oldest turn"),
            n => tracing::info!("the context is full: the model forgets the {n} oldest turns"),
        }
        Ok(prompt)
    }

    /// What the messages make, as the model does not see those that are forgotten.
    fn prompt(&self) -> Result<Prompt> {
        let messages = self.transcript.without_first(self.n_forgotten);
        let (ids, text) = self.encode(&messages, &self.options)?;
        let mut border = ids.len();
        if self.generator.session.needs_checkpoints() {
            // How the assistant's turn begins is written otherwise once it has spoken.
            let options = RenderOptions {
                add_generation_prompt: false,
                ..self.options.clone()
            };
            let (said, _) = self.encode(&messages, &options)?;
            border = ids.iter().zip(&said).take_while(|(a, b)| a == b).count();
        }
        Ok(Prompt { ids, text, border })
    }

    /// Ids and text of messages. Special text that a user typed stays text; BOS
    /// comes from the template or is added where the file wants it, once.
    fn encode(
        &self,
        messages: &serde_json::Value,
        options: &RenderOptions,
    ) -> Result<(Vec<u32>, String)> {
        let tokenizer = self.generator.tokenizer;
        let special_texts: Vec<&[u8]> = tokenizer.special_texts().collect();
        let rendered = self
            .template
            .render_guarded(messages, options, &special_texts)?;
        let mut ids = tokenizer.encode_guarded(rendered.text.as_bytes(), &rendered.guards, false);
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        if let Some(bos) = bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok((ids, rendered.text))
    }

    /// Tokens that the model would read now, without a reply to come.
    pub fn n_used(&self) -> Result<usize> {
        let messages = self.transcript.without_first(self.n_forgotten);
        let options = RenderOptions {
            add_generation_prompt: false,
            ..self.options.clone()
        };
        match self.transcript.n_turns() {
            0 => Ok(0),
            _ => Ok(self.encode(&messages, &options)?.0.len()),
        }
    }

    /// Decides what becomes of thinking. Where a template has no switch for it, thinking that
    /// is off is hidden.
    pub fn set_think(&mut self, think: Think) {
        let known = THINK_SWITCHES.iter().filter(|s| self.template.mentions(s));
        let off = known.map(|name| (name.to_string(), false.into()));
        let off: JsonObject = off.collect();
        self.options.kwargs = self.kwargs.clone();
        self.think = think;
        if think == Think::Off {
            if off.is_empty() {
                tracing::info!("the chat template cannot switch thinking off; it is hidden");
            }
            self.options.kwargs.extend(off);
        }
    }

    /// What a full context means to the one who asked.
    pub fn context_full(&self) -> Error {
        let session = &self.generator.session;
        let n_ctx = session.n_ctx();
        let mut remedies = Vec::new();
        if self.with_person {
            remedies.push("start over with /clear");
        }
        // Beyond what it was trained with, a model's answers fall apart.
        if n_ctx < session.n_ctx_train() {
            remedies.push("raise -c");
        }
        // One turn alone leaves nothing to forget.
        if self.on_full != OnFull::Shift && self.transcript.n_turns() > 1 {
            remedies.push("go on with --on-full shift");
        }
        if remedies.is_empty() {
            remedies.push("ask for less");
        }
        let ends = match self.on_full {
            OnFull::Stop | OnFull::Shift => "so the reply stops here",
            OnFull::Error => "so the reply is not kept",
        };
        Error::DoesNotFit(format!(
            "the context of {n_ctx} tokens is full, {ends}; {}",
            remedies.join(" or ")
        ))
    }

    /// Saves the session, if there is one; the state too when `leaving`, or while it is small.
    pub fn save(&mut self, leaving: bool) -> Result<()> {
        let Some(file) = &mut self.session_file else {
            return Ok(());
        };
        let mut saved = Saved::new(file.model(), &self.transcript, &self.sampling, self.think);
        saved.n_replies = self.n_replies;
        saved.n_forgotten = self.n_forgotten;
        // After an error the session may keep less.
        let cached = &self.generator.cached;
        let cached = &cached[..cached.len().min(self.generator.session.n_past())];
        saved.n_cached = Some(cached.len());
        let changed = file.write(&saved)?;
        let session = &self.generator.session;
        let small = session.saved_bytes(0) <= SAVED_EACH_TURN_BYTES;
        if !(leaving || changed && small) {
            return Ok(());
        }
        state_file::write(&file.state_path(), &file.model().digest, session, cached)
    }
}
