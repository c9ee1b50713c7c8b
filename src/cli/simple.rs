//! `llama-rs simple`: a prompt and its continuation.

use super::args::SimpleArgs;
use super::generate::{Finish, Generator};
use super::interrupt::Interrupt;
use super::output::Product;
use super::{grammar_flags, load, prompt};
use crate::Error;
use crate::sampling::Chain;
use crate::tokenizer::EncodeOptions;
use std::time::Instant;

/// Least context for `-n -1`, where neither `-c` nor `-n` says how much is needed.
const OPEN_END_CTX: usize = 4096;
/// Room that an open-ended continuation has at least, training context permitting.
const OPEN_END_ROOM: usize = 1024;

/// Runs the command.
pub fn run(args: SimpleArgs, interrupt: &Interrupt) -> anyhow::Result<()> {
    let text = prompt::required(&args.prompt)?;
    let started = Instant::now();
    let gguf = load::open(&args.model)?;
    load::need_tensors(&gguf)?;
    let tokenizer = load::tokenizer(&gguf.meta)?;
    let sampling = args.sampling.greedy_by_default(&gguf.meta, &tokenizer)?;
    let options = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    let tokens = tokenizer.encode(&text, options);
    if tokens.is_empty() {
        return Err(prompt::empty(&args.prompt).into());
    }
    let model = load::model(gguf, &args.eval)?;
    load::need_rows(&tokenizer, &model)?;
    let limit = usize::try_from(args.n_predict).ok();
    let wanted = match limit {
        Some(limit) => load::exactly(tokens.len().saturating_add(limit)),
        None => {
            let least = (tokens.len() + OPEN_END_ROOM).max(OPEN_END_CTX);
            load::fitted(&model, least.min(model.n_ctx_train()).max(tokens.len()))
        }
    };
    let wish = load::wish(&args.eval.context, &model, wanted);
    load::need_room(tokens.len(), wish.n_ctx)?;
    let session = load::session(&model, &args.eval, wish, false)?;
    let context = load::describe_context(&session, &model);
    let n_ctx = session.n_ctx();
    let load_seconds = started.elapsed().as_secs_f64();
    interrupt.second_leaves()?;
    interrupt.defer();
    let context_args = &args.eval.context;
    let mut generator = Generator::new(
        &tokenizer,
        session,
        Chain::new(&sampling)?,
        interrupt,
        args.sampling.stop,
        context_args.ubatch_size.min(context_args.batch_size),
        args.drafts.lookup,
    );
    let finish = print_continuation(&mut generator, &text, &tokens, limit)?;
    tracing::info!("{}", statistics(&generator, load_seconds, &context));
    match finish {
        Finish::Length if !generator.chain.is_whole() => {
            Err(grammar_flags::cut(limit.unwrap_or_default()).into())
        }
        Finish::End | Finish::Stop | Finish::Length => Ok(()),
        Finish::Interrupted => Err(Error::Interrupted.into()),
        Finish::ContextFull => Err(Error::DoesNotFit(format!(
            "the context of {n_ctx} tokens is full, so the continuation stops here; \
             raise -c or lower -n"
        ))
        .into()),
    }
}

/// Nothing reaches stdout before the prompt has been evaluated without error.
fn print_continuation(
    generator: &mut Generator,
    text: &[u8],
    tokens: &[u32],
    limit: Option<usize>,
) -> anyhow::Result<Finish> {
    let Some(next) = generator.prefill(tokens, None)? else {
        return Ok(Finish::Interrupted);
    };
    let mut product = Product::stdout();
    product.stream(text)?;
    let finish = generator.generate(next, limit, &mut |piece| product.stream(piece.as_bytes()))?;
    product.stream(b"\n")?;
    Ok(finish)
}

fn statistics(generator: &Generator, load_seconds: f64, context: &str) -> String {
    format!(
        "load {load_seconds:.2} s; prefill {}; decode {}{}; {context}; {}",
        generator.prefill.describe(),
        generator.decode.describe(),
        generator.ahead.describe(),
        generator.chain.describe(),
    )
}
