//! `llama-rs chat`: turns with the model's template.

mod act;
mod args;
mod careful;
mod commands;
#[cfg(unix)]
mod echo;
mod helpers;
mod history;
mod identity;
mod input;
mod keys;
mod line_helper;
mod lines;
mod lock;
mod one_shot;
mod saved;
mod session_file;
mod show;
mod state_file;
mod turn;

pub use args::ChatArgs;

use super::fit_params::MIN_CTX;
use super::generate::{Finish, Generator};
use super::interrupt::Interrupt;
use super::output::describe;
use super::sampling_flags::hold_to;
use super::{grammar_flags, load, prompt, template_source};
use crate::chat::RenderOptions;
use crate::gguf::{Gguf, Metadata};
use crate::model::Model;
use crate::sampling::{Chain, SamplingParams};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use act::Next;
use commands::Turn;
use identity::Identity;
use input::Input;
use saved::Saved;
use session_file::SessionFile;
use show::Think;
use turn::{Chat, OnFull};

/// Runs the command.
pub fn run(mut args: ChatArgs, interrupt: &Interrupt) -> anyhow::Result<()> {
    interrupt.watch_for_end()?;
    let question = one_shot::question(&args.prompt)?;
    let system_prompt = system_prompt(&mut args)?;
    let given = template_source::given(&args.template)?;
    let gguf = load::open(&args.model)?;
    load::need_tensors(&gguf)?;
    let tokenizer = load::tokenizer(&gguf.meta)?;
    let template = match given {
        Some(template) => template,
        None => template_source::of_model(&gguf.meta)?,
    };
    let (session_file, saved) = session_file(&args, &gguf)?;
    let (sampling, chain) = sampling(&args, saved.as_ref(), &gguf.meta, &tokenizer)?;
    let model = load::model(gguf, &args.eval)?;
    load::need_rows(&tokenizer, &model)?;
    let fitted = load::fitted(&model, MIN_CTX.min(model.n_ctx_train().max(1)));
    let context = &args.eval.context;
    let wish = load::wish(context, &model, fitted);
    let (bos, eos) = template_source::texts(&tokenizer);
    let options = RenderOptions {
        add_generation_prompt: true,
        bos_token: &bos,
        eos_token: &eos,
        ..RenderOptions::default()
    };
    let generator = Generator::new(
        &tokenizer,
        load::session(&model, &args.eval, wish, false)?,
        chain,
        interrupt,
        std::mem::take(&mut args.sampling.stop),
        context.ubatch_size.min(context.batch_size),
        args.drafts.lookup,
    );
    let mut chat = Chat::new(generator, template, options, sampling, &args);
    chat.session_file = session_file;
    chat.resume(saved, args.think)?;
    if let Some(text) = system_prompt {
        chat.transcript.set_system(text);
    }
    let result = match question {
        Some(text) => chat.ask(&text, &model),
        None => chat.talk(&model),
    };
    chat.leave(result)
}

/// Settings of the file, over them those of a saved session, over them the flags; with the
/// seed that is in use.
fn sampling(
    args: &ChatArgs,
    saved: Option<&Saved>,
    meta: &Metadata,
    tokenizer: &Tokenizer,
) -> Result<(SamplingParams, Chain)> {
    let mut base = SamplingParams::chat_defaults().from_meta(meta)?;
    if let Some(saved) = saved {
        base = saved.sampling(base)?;
        if saved.ignore_eos {
            base.banned = tokenizer.eog_ids();
        }
        // A bad one must not stand in the way of one that is given.
        let kept = saved.grammar.clone();
        if let Some(source) = kept.filter(|_| !args.sampling.grammar.is_given()) {
            let file = args.session.clone().unwrap_or_default();
            let remedy = "give another --grammar, or --grammar \"\" for none";
            hold_to(&mut base, "grammar", source, tokenizer)
                .map_err(|e| Error::file(&file, e.to_string(), remedy))?;
        }
    }
    let mut params = args.sampling.over(base, tokenizer)?;
    let chain = Chain::new(&params)?;
    params.seed = params.seed.or(chain.seed());
    Ok((params, chain))
}

/// What `-sys` or `--system-prompt-file` gives.
fn system_prompt(args: &mut ChatArgs) -> Result<Option<String>> {
    match &args.system_prompt_file {
        Some(file) => {
            let text = String::from_utf8_lossy(&prompt::read_file(file)?).into_owned();
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_string()))
        }
        None => Ok(args.system_prompt.take()),
    }
}

/// The file of `--session`, and what it holds already.
fn session_file(args: &ChatArgs, gguf: &Gguf) -> Result<(Option<SessionFile>, Option<Saved>)> {
    let Some(path) = &args.session else {
        return Ok((None, None));
    };
    let (file, saved) = SessionFile::open(path, Identity::of(gguf)?)?;
    Ok((Some(file), saved))
}

impl Chat<'_> {
    /// Goes on where a session was left. Without its state the messages are evaluated again.
    fn resume(&mut self, saved: Option<Saved>, think: Option<Think>) -> Result<()> {
        let mut saved_think = None;
        if let Some(saved) = saved {
            self.transcript = saved.transcript()?;
            self.n_replies = saved.n_replies;
            self.n_forgotten = saved.n_forgotten;
            saved_think = Some(saved.think()?);
            if self.transcript.n_turns() > 0 {
                self.load_state(saved.n_cached);
            }
        }
        self.set_think(think.or(saved_think).unwrap_or(Think::Show));
        Ok(())
    }

    /// `n_cached`: tokens that the state held when the messages were saved.
    fn load_state(&mut self, n_cached: Option<usize>) {
        let Some(file) = &self.session_file else {
            return;
        };
        let digest = &file.model().digest;
        match state_file::read(&file.state_path(), digest, &mut self.generator.session) {
            Ok(tokens) => self.generator.cached = tokens,
            Err(error) => return tracing::warn!("{error}"),
        }
        if n_cached.is_some_and(|n| n != self.generator.cached.len()) {
            tracing::warn!(
                "{}: is not as new as the messages; {}",
                file.state_path().display(),
                state_file::EVALUATED_AGAIN
            );
        }
    }

    /// Turns until the input ends.
    fn talk(&mut self, model: &Model) -> anyhow::Result<()> {
        let mut input = Input::open()?;
        self.with_person = input.is_terminal();
        self.introduce(model, input.is_terminal());
        loop {
            let turn = input.next(self.generator.interrupt)?;
            let result = match turn {
                Turn::Leave => return Ok(()),
                Turn::Wrong(why) => Err(Error::input(why).into()),
                Turn::Command(command) => self.act(command),
                Turn::Message(text) => self.say(&text).map(Next::Replied),
            };
            let told = result.and_then(|next| self.told(next));
            match &told {
                Ok(Next::Leave) => return Ok(()),
                // One of many replies, so only told.
                Ok(Next::Replied(finish)) => {
                    if let Some(error) = self.cut(*finish) {
                        tracing::warn!("{error}");
                    }
                }
                _ => {}
            }
            let saved = self.save(false).map_err(anyhow::Error::from);
            for result in [told.map(|_| ()), saved] {
                match result {
                    Err(error) if self.goes_on_after(&error, &input) => {
                        tracing::error!("{}", describe(&error));
                    }
                    result => result?,
                }
            }
            if self.generator.interrupt.ending().is_some() {
                return Ok(());
            }
        }
    }

    /// At a terminal an error costs the turn, in a pipe it ends the chat.
    fn goes_on_after(&self, error: &anyhow::Error, input: &Input) -> bool {
        let full = matches!(error.downcast_ref(), Some(Error::DoesNotFit(_)));
        let ends = full && self.on_full == OnFull::Error;
        input.is_terminal() && error.is::<Error>() && !ends
    }

    /// Tells what there is to tell of a reply.
    fn told(&self, next: Next) -> anyhow::Result<Next> {
        if let Next::Replied(finish) = next {
            let full = finish == Finish::ContextFull;
            if self.silent && !(full && self.on_full == OnFull::Error) {
                one_shot::print_json(self, finish)?;
            }
            if full {
                return Err(self.context_full().into());
            }
        }
        Ok(next)
    }

    /// The error of a reply that `-n` ended before its grammar lets it end.
    fn cut(&self, finish: Finish) -> Option<Error> {
        let whole = finish != Finish::Length || self.generator.chain.is_whole();
        (!whole).then(|| grammar_flags::cut(self.limit.unwrap_or_default()))
    }

    fn introduce(&self, model: &Model, to_person: bool) {
        tracing::info!(
            "{}: {}; {}",
            model.path().display(),
            load::describe_context(&self.generator.session, model),
            self.generator.chain.describe(),
        );
        if let n_turns @ 1.. = self.transcript.n_turns() {
            tracing::info!("going on after {}", act::turns(n_turns));
        }
        if to_person {
            tracing::info!("/help lists the commands, /exit leaves");
        }
    }

    /// The end: saves, whatever happened before.
    fn leave(&mut self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        let saved = self.save(true);
        let generator = &self.generator;
        if generator.prefill.n_tokens > 0 {
            tracing::info!(
                "prefill {}; decode {}{}; {}",
                generator.prefill.describe(),
                generator.decode.describe(),
                generator.ahead.describe(),
                generator.chain.describe(),
            );
        }
        if let (Some(code), Ok(())) = (generator.interrupt.ending(), &saved) {
            // With its lock.
            drop(self.session_file.take());
            std::process::exit(code);
        }
        result?;
        Ok(saved?)
    }
}
