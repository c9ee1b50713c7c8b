//! From a path to a model, a tokenizer and a session.

use super::device_choice::Choice;
use super::flags::{ContextArgs, CtxSize, EvalArgs, RopeArgs};
use super::model_flags::ModelArgs;
use super::output::{human_bytes, progress_bytes};
use super::{device_choice, model_path};
use crate::gguf::{Gguf, Metadata};
use crate::memory::planner::Wish;
use crate::model::{Model, Overrides};
use crate::session::{Fit, Load, Session, SessionParams};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use std::sync::Arc;

/// Longer contexts are not taken because a file says so, only where -c does: also of
/// models that keep little for a token there is a list of them.
pub const MOST_FITTED_CTX: usize = 4 << 20;

/// Opens the chosen model and applies `--override-kv`.
pub fn open(args: &ModelArgs) -> Result<Gguf> {
    let mut gguf = model_path::open(args.model.as_deref(), &args.hub, !args.no_mmap)?;
    for (key, value) in &args.override_kv {
        gguf.meta.set(key, value.clone());
    }
    Ok(gguf)
}

/// True when the file holds a vocabulary, not only a model of ids.
pub fn has_vocabulary(meta: &Metadata) -> Result<bool> {
    let kind = meta.get_str("tokenizer.ggml.model")?;
    Ok(kind.is_some_and(|kind| kind != "no_vocab" && kind != "none"))
}

/// The file's tokenizer; a file of ids only names the commands it can serve.
pub fn tokenizer(meta: &Metadata) -> Result<Tokenizer> {
    if !has_vocabulary(meta)? {
        return Err(Error::file(
            meta.path(),
            "no vocabulary: this file understands token ids only, not text",
            "it can serve `logits --tokens`, `bench` and `inspect`",
        ));
    }
    Tokenizer::from_meta(meta)
}

/// An error unless the file holds tensors.
pub fn need_tensors(gguf: &Gguf) -> Result<()> {
    if gguf.tensors.is_empty() {
        return Err(Error::file(
            &gguf.path,
            "no tensors: this file holds only a vocabulary and cannot generate",
            "it can serve `tokenize`, `template` and `inspect`; fetch the whole model for the rest",
        ));
    }
    Ok(())
}

/// The model of an opened file.
pub fn model(gguf: Gguf, eval: &EvalArgs) -> Result<Arc<Model>> {
    model_with(gguf, &eval.rope)
}

/// As [`model`], where nothing else is known of how it is evaluated.
pub fn model_with(gguf: Gguf, rope: &RopeArgs) -> Result<Arc<Model>> {
    need_tensors(&gguf)?;
    let overrides = Overrides {
        rope: rope.overrides(),
        // `open` has applied them, for the tokenizer reads keys too.
        kv: Vec::new(),
    };
    Model::load(gguf, &overrides).map(Arc::new)
}

/// An error when the vocabulary has ids that the model has no row for.
pub fn need_rows(tokenizer: &Tokenizer, model: &Model) -> Result<()> {
    let (ids, rows) = (tokenizer.n_vocab(), model.n_vocab());
    if ids > rows {
        return Err(Error::file(
            model.path(),
            format!("the vocabulary has {ids} tokens, the embedding {rows} rows"),
            "the file is damaged; fetch it again",
        ));
    }
    Ok(())
}

/// A context of exactly `n_ctx` tokens.
pub fn exactly(n_ctx: usize) -> Wish {
    Wish {
        n_ctx,
        least: n_ctx,
    }
}

/// A context of what the model was trained with or what fits, but of `least` tokens at
/// least.
pub fn fitted(model: &Model, least: usize) -> Wish {
    Wish {
        n_ctx: model.n_ctx_train().min(MOST_FITTED_CTX).max(least),
        least,
    }
}

/// The context as `-c` says, else `default`.
pub fn wish(args: &ContextArgs, model: &Model, default: Wish) -> Wish {
    match args.ctx_size {
        Some(CtxSize::Tokens(n)) => exactly(n),
        Some(CtxSize::Trained) => exactly(model.n_ctx_train()),
        Some(CtxSize::Auto) => fitted(model, default.least),
        None => default,
    }
}

/// Says so when a context is longer than what the model has seen.
pub fn warn_of_long(n_ctx: usize, model: &Model) {
    let n_ctx_train = model.n_ctx_train();
    if n_ctx_train > 0 && n_ctx > n_ctx_train {
        tracing::warn!(
            "the context of {n_ctx} tokens is longer than the {n_ctx_train} the model was \
             trained with; its answers may get worse"
        );
    }
}

/// `context 4096 tokens (the model was trained with 32768), KV cache 512.0 MiB`.
pub fn describe_context(session: &Session, model: &Model) -> String {
    let (n_ctx, n_ctx_train) = (session.n_ctx(), model.n_ctx_train());
    let below = match n_ctx < n_ctx_train {
        true => format!(" (the model was trained with {n_ctx_train}; -c raises it)"),
        false => String::new(),
    };
    let size = human_bytes(session.kv_bytes());
    format!("context {n_ctx} tokens{below}, KV cache {size}")
}

/// A session of one sequence, as [`session_of`].
pub fn session(
    model: &Arc<Model>,
    eval: &EvalArgs,
    wish: Wish,
    all_logits: bool,
) -> Result<Session> {
    let choice = device_choice::choose(&eval.devices)?;
    session_of(1, &choice, model, eval, wish, all_logits)
}

/// A session of `n_seqs` sequences, each with such a context, on the devices that were
/// chosen; `all_logits`: with room for [`Session::eval_all`].
pub fn session_of(
    n_seqs: usize,
    choice: &Choice,
    model: &Arc<Model>,
    eval: &EvalArgs,
    wish: Wish,
    all_logits: bool,
) -> Result<Session> {
    warn_of_long(wish.least, model);
    let (kv_type_k, kv_type_v) = eval.numerics.kv_types();
    let context = &eval.context;
    let params = SessionParams {
        n_ctx: wish.n_ctx,
        fit: Fit {
            least_ctx: (wish.least < wish.n_ctx).then_some(wish.least),
            margin_bytes: eval.devices.place.margin,
            all_logits,
        },
        n_ubatch: context.ubatch_size.min(context.batch_size),
        n_seqs,
        n_threads: n_threads(context),
        kv_type_k,
        kv_type_v,
        exact_activations: eval.numerics.exact_activations(),
        placement: choice.placement.clone(),
    };
    let bar = progress_bytes("upload");
    let session = Session::with_progress(model.clone(), params, &|done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let session = session?;
    for reduction in &session.plan().reductions {
        tracing::info!("{reduction}");
    }
    if let (Some(load), Some(gpu)) = (session.load(), &choice.gpu) {
        tracing::info!("{}", describe(&load, &gpu.description));
    }
    Ok(session)
}

/// `cuda0 (NVIDIA H200): 33/33 layers, 4.6 GiB weights, 64.0 MiB KV`.
fn describe(load: &Load, gpu: &str) -> String {
    format!(
        "{} ({gpu}): {}/{} layers, {} weights, {} KV",
        load.device,
        load.n_layers,
        load.most_layers,
        human_bytes(load.need.weights),
        human_bytes(load.need.kv),
    )
}

/// Threads: as `-t` says, else the machine's.
pub fn n_threads(args: &ContextArgs) -> usize {
    args.threads.unwrap_or_else(Session::default_threads)
}

/// An error when a prompt does not fit its context; names both counts.
pub fn need_room(n_prompt: usize, n_ctx: usize) -> Result<()> {
    if n_prompt > n_ctx {
        return Err(Error::DoesNotFit(format!(
            "the prompt has {n_prompt} tokens, the context holds {n_ctx}; \
             shorten it (a chat with /undo or /clear) or raise -c"
        )));
    }
    Ok(())
}
