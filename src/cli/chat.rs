//! `llama-rs chat`: turns with the model's template.

use super::args::ChatArgs;
use super::chat_input::{Input, Turn};
use super::fit_params::MIN_CTX;
use super::generate::{Finish, Generator, Speed};
use super::interrupt::Interrupt;
use super::output::{Product, describe};
use super::speculate::Ahead;
use super::{load, template_source};
use crate::Error;
use crate::chat::{ChatTemplate, RenderOptions, Transcript};
use crate::model::Model;
use crate::sampling::Chain;
use crate::tokenizer::Tokenizer;

const HELP: &str = "/clear starts over, /exit or Ctrl-D leaves, Ctrl-C stops a reply; \
                    \"\"\" opens and closes a message of several lines, a backslash at \
                    the end of a line continues it";

/// Runs the command.
pub fn run(args: ChatArgs, interrupt: &Interrupt) -> anyhow::Result<()> {
    let given = template_source::given(&args.template)?;
    let gguf = load::open(&args.model)?;
    load::need_tensors(&gguf)?;
    let tokenizer = load::tokenizer(&gguf.meta)?;
    let template = match given {
        Some(template) => template,
        None => template_source::of_model(&gguf.meta)?,
    };
    let sampling = args.sampling.sampled(&gguf.meta, &tokenizer)?;
    let model = load::model(gguf, &args.eval)?;
    load::need_rows(&tokenizer, &model)?;
    let fitted = load::fitted(&model, MIN_CTX.min(model.n_ctx_train().max(1)));
    let wish = load::wish(&args.eval.context, &model, fitted);
    let context = &args.eval.context;
    let (bos, eos) = template_source::texts(&tokenizer);
    let mut chat = Chat {
        generator: Generator {
            tokenizer: &tokenizer,
            session: load::session(&model, &args.eval, wish, false)?,
            chain: Chain::new(&sampling)?,
            interrupt,
            stops: args.sampling.stop,
            n_batch: context.ubatch_size.min(context.batch_size),
            cached: Vec::new(),
            ahead: Ahead::new(args.drafts.lookup),
            prefill: Speed::default(),
            decode: Speed::default(),
        },
        template,
        options: RenderOptions {
            add_generation_prompt: true,
            bos_token: &bos,
            eos_token: &eos,
            now: None,
            kwargs: args.template.chat_template_kwargs.unwrap_or_default(),
        },
        limit: usize::try_from(args.n_predict).ok(),
        transcript: Transcript::new(),
        system_prompt: args.system_prompt,
    };
    chat.clear();
    let mut input = Input::open()?;
    chat.introduce(&model, input.is_terminal());
    let result = chat.turns(&mut input);
    if chat.generator.prefill.n_tokens > 0 {
        tracing::info!(
            "prefill {}; decode {}{}; {}",
            chat.generator.prefill.describe(),
            chat.generator.decode.describe(),
            chat.generator.ahead.describe(),
            chat.generator.chain.describe(),
        );
    }
    result
}

struct Chat<'a> {
    generator: Generator<'a>,
    template: ChatTemplate,
    options: RenderOptions<'a>,
    /// Tokens a reply may have.
    limit: Option<usize>,
    transcript: Transcript,
    system_prompt: Option<String>,
}

impl Chat<'_> {
    fn clear(&mut self) {
        self.transcript = Transcript::new();
        if let Some(text) = &self.system_prompt {
            self.transcript.set_system(text);
        }
    }

    fn introduce(&self, model: &Model, to_person: bool) {
        tracing::info!(
            "{}: {}; {}",
            model.path().display(),
            load::describe_context(&self.generator.session, model),
            self.generator.chain.describe(),
        );
        if to_person {
            tracing::info!("/help lists the commands, /exit leaves");
        }
    }

    /// Until the input ends. At a terminal an error costs the turn, in a pipe
    /// it ends the chat.
    fn turns(&mut self, input: &mut Input) -> anyhow::Result<()> {
        loop {
            match input.next(self.generator.interrupt)? {
                Turn::Leave => return Ok(()),
                Turn::Clear => self.clear(),
                Turn::Help => tracing::info!("{HELP}"),
                Turn::Message(text) => {
                    let result = self.reply(&text);
                    match result {
                        Err(error) if input.is_terminal() && error.is::<Error>() => {
                            tracing::error!("{}", describe(&error));
                        }
                        result => result?,
                    }
                }
            }
        }
    }

    /// Answers a message on stdout. Without an answer the message is forgotten,
    /// so that turns keep alternating.
    fn reply(&mut self, text: &str) -> anyhow::Result<()> {
        self.transcript.push_user(text);
        let mut answer = String::new();
        let result = self.answer(&mut answer);
        if answer.is_empty() && !matches!(result, Ok(Finish::End)) {
            self.transcript.pop_last();
        } else {
            self.transcript.push_assistant(answer);
        }
        match result? {
            Finish::ContextFull => {
                let session = &self.generator.session;
                let n_ctx = session.n_ctx();
                // Beyond what it was trained with, a model's answers fall apart.
                let longer = match n_ctx < session.n_ctx_train() {
                    true => " or raise -c",
                    false => "",
                };
                Err(Error::DoesNotFit(format!(
                    "the context of {n_ctx} tokens is full, so the reply stops here; \
                     start over with /clear{longer}"
                ))
                .into())
            }
            Finish::End | Finish::Length | Finish::Interrupted => Ok(()),
        }
    }

    fn answer(&mut self, answer: &mut String) -> anyhow::Result<Finish> {
        let prompt = self.prompt()?;
        self.generator.interrupt.defer();
        let Some(next) = self.generator.prefill(&prompt)? else {
            return Ok(Finish::Interrupted);
        };
        let mut product = Product::stdout();
        // The next turn may write the reply differently, and goes on from here then.
        self.generator.session.checkpoint(0)?;
        let finish = self.generator.generate(next, self.limit, &mut |piece| {
            answer.push_str(piece);
            product.stream(piece.as_bytes())
        })?;
        product.stream(b"\n")?;
        Ok(finish)
    }

    /// The conversation's ids. Special text that a user typed stays text; BOS
    /// comes from the template or is added where the file wants it, once.
    fn prompt(&self) -> crate::Result<Vec<u32>> {
        let tokenizer: &Tokenizer = self.generator.tokenizer;
        let messages = self.transcript.to_json();
        let special_texts: Vec<&[u8]> = tokenizer.special_texts().collect();
        let rendered = self
            .template
            .render_guarded(&messages, &self.options, &special_texts)?;
        let mut ids = tokenizer.encode_guarded(rendered.text.as_bytes(), &rendered.guards, false);
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        if let Some(bos) = bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }
}
