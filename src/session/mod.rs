//! Evaluates token sequences: prefill and decode in ubatches over one cache.

mod batch;
mod devices;
pub mod lookup;
mod saved;
mod state;
mod threads;

pub use devices::Load;

use crate::arch::CacheShape;
use crate::backend::{Executable, Held};
use crate::error::{Error, Result};
use crate::graph::builder::Width;
use crate::memory::planner::{Evaluation, MARGIN_BYTES, Plan, Setup};
use crate::memory::{CacheSizes, Cells, LayerRows, Placement};
use crate::model::{Model, Wanted};
use crate::quant::DType;
use devices::Devices;
use state::Checkpoint;
use std::collections::HashMap;
use std::sync::Arc;

/// Logits of a ubatch may take this much; wider ubatches are cut when every
/// token's logits are wanted.
const MOST_LOGITS_BYTES: usize = 256 << 20;

/// How a session evaluates.
#[derive(Debug, Clone)]
pub struct SessionParams {
    /// Tokens the context holds, or with `fit.least_ctx` should hold.
    pub n_ctx: usize,
    /// What the planner may choose.
    pub fit: Fit,
    /// Most tokens evaluated at once.
    pub n_ubatch: usize,
    /// Sequences that a batch may hold; each has its own context.
    pub n_seqs: usize,
    pub n_threads: usize,
    pub kv_type_k: DType,
    pub kv_type_v: DType,
    /// No 8-bit activations.
    pub exact_activations: bool,
    /// Which devices take part, and who holds what.
    pub placement: Placement,
}

/// What the planner may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// The context is what fits, but not shorter; `None`: it is as long as asked for.
    pub least_ctx: Option<usize>,
    /// Left free on each device where the planner chooses.
    pub margin_bytes: usize,
    /// Room is made for [`Session::eval_all`]; without it that takes its own.
    pub all_logits: bool,
}

impl Default for Fit {
    fn default() -> Self {
        Fit {
            least_ctx: None,
            margin_bytes: MARGIN_BYTES,
            all_logits: false,
        }
    }
}

/// What an executable was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    wanted: Wanted,
    width: Width,
}

/// Sequences of tokens and what is kept of them. Most calls are about the first.
pub struct Session {
    model: Arc<Model>,
    params: SessionParams,
    shape: CacheShape,
    devices: Devices,
    compiled: HashMap<Key, Box<dyn Executable>>,
    cells: Cells,
    cells_swa: Cells,
    /// Tokens evaluated so far, by sequence.
    n_past: Vec<usize>,
    /// States of models that cannot forget single tokens.
    checkpoints: Vec<Checkpoint>,
    layers: Vec<LayerRows>,
    sizes: CacheSizes,
    argmax_on_device: bool,
}

impl Session {
    /// Allocates the caches, starts the threads and brings the weights to
    /// their devices.
    ///
    /// # Errors
    /// A device cannot be used, or has no room for what it is to hold.
    pub fn new(model: Arc<Model>, params: SessionParams) -> Result<Session> {
        Self::with_progress(model, params, &|_, _| ())
    }

    /// As [`Session::new`]; `progress` hears of the bytes of weights uploaded
    /// so far, and of all that have to be.
    pub fn with_progress(
        model: Arc<Model>,
        params: SessionParams,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Session> {
        if params.n_ctx == 0 || params.n_ubatch == 0 || params.n_seqs == 0 {
            return Err(Error::input(
                "the context and the ubatch hold at least one token; raise -c or -ub",
            ));
        }
        let base = Setup::new(&model, &params.placement, evaluation(&model, &params))?;
        let (devices, setup) = Devices::new(&model, &params, base, progress)?;
        let params = SessionParams {
            n_ctx: setup.how().n_ctx,
            n_ubatch: setup.how().n_ubatch,
            ..params.clone()
        };
        let shape = setup.cache_shape();
        let one = Width::of(1, 1);
        let greedy = model.graph(Wanted::Argmax, one, &shape)?;
        Ok(Session {
            argmax_on_device: devices.computes_output(&greedy),
            cells: Cells::new(shape.n_cells, params.n_seqs, None),
            cells_swa: Cells::new(shape.n_cells_swa, params.n_seqs, model.hparams().window),
            shape,
            devices,
            compiled: HashMap::new(),
            n_past: vec![0; params.n_seqs],
            checkpoints: Vec::new(),
            layers: setup.layer_rows(),
            sizes: setup.cache_sizes(),
            model,
            params,
        })
    }

    /// Tokens the context holds.
    pub fn n_ctx(&self) -> usize {
        self.params.n_ctx
    }

    /// Tokens that the model was trained with; 0: the file does not say.
    pub fn n_ctx_train(&self) -> usize {
        self.model.n_ctx_train()
    }

    /// Tokens evaluated so far.
    pub fn n_past(&self) -> usize {
        self.n_past[0]
    }

    /// Bytes of the KV cache, on all devices together.
    pub fn kv_bytes(&self) -> usize {
        self.devices.kv_bytes
    }

    /// What was planned before anything was allocated.
    pub fn plan(&self) -> &Plan {
        &self.devices.plan
    }

    /// Bytes allocated so far, by device number as in [`Session::plan`].
    pub fn held(&self) -> Vec<Held> {
        self.devices.held()
    }

    /// What the device beside the CPU holds; `None` without one.
    pub fn load(&self) -> Option<Load> {
        self.devices.load
    }

    /// Whether [`Session::eval_greedy`] saves copying logits from a device.
    pub fn argmax_on_device(&self) -> bool {
        self.argmax_on_device
    }

    /// Evaluates `tokens` after what is in the cache; gives the logits
    /// `[n_vocab]` after the last one.
    pub fn eval(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        let last = self.eval_chunks(tokens, Wanted::Logits)?;
        let n_vocab = self.model.n_vocab();
        let run = self.compiled.get(&last).ok_or_else(nothing_to_evaluate)?;
        Ok(&run.output(0)[..n_vocab])
    }

    /// As [`Session::eval`], but gives the id of the highest logit, of equal ones
    /// the lowest; it is found where the logits are. `None` when that logit is
    /// not finite. (A NaN beside a finite logit goes unseen.)
    pub fn eval_greedy(&mut self, tokens: &[u32]) -> Result<Option<u32>> {
        let last = self.eval_chunks(tokens, Wanted::Argmax)?;
        let run = self.compiled.get(&last).ok_or_else(nothing_to_evaluate)?;
        Ok(highest(run.as_ref(), 0))
    }

    fn eval_chunks(&mut self, tokens: &[u32], wanted: Wanted) -> Result<Key> {
        self.check(0, tokens)?;
        let mut last = Err(nothing_to_evaluate());
        for chunk in tokens.chunks(self.params.n_ubatch) {
            last = Ok(self.step(&[(0, chunk)], wanted, false)?);
        }
        last
    }

    /// As [`Session::eval`], giving `each` the logits after every token.
    pub fn eval_all(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.check(0, tokens)?;
        let n_vocab = self.model.n_vocab();
        let step = self.params.n_ubatch.min(most_all_logits(n_vocab));
        for (at, chunk) in tokens.chunks(step).enumerate() {
            let key = self.step(&[(0, chunk)], Wanted::Logits, true)?;
            let run = self.compiled.get(&key).ok_or_else(nothing_to_evaluate)?;
            let logits = run.output(0).chunks_exact(n_vocab);
            for (i, row) in logits.take(chunk.len()).enumerate() {
                each(at * step + i, row)?;
            }
        }
        Ok(())
    }

    /// As [`Session::eval_all`], giving ids as [`Session::eval_greedy`] does.
    pub fn eval_all_greedy(&mut self, tokens: &[u32]) -> Result<Vec<Option<u32>>> {
        self.check(0, tokens)?;
        let mut ids = Vec::new();
        for chunk in tokens.chunks(self.params.n_ubatch) {
            let key = self.step(&[(0, chunk)], Wanted::Argmax, true)?;
            let run = self.compiled.get(&key).ok_or_else(nothing_to_evaluate)?;
            ids.extend((0..chunk.len()).map(|row| highest(run.as_ref(), row)));
        }
        Ok(ids)
    }

    /// Whether [`lookup::MOST_TOKENS`] tokens evaluated at once have the logits, to the
    /// bit, that they have one after another. The kernels for few tokens see to it; those
    /// of GPUs for F32 activations do not yet.
    pub fn batches_keep_bits(&self) -> bool {
        self.load().is_none() || !self.params.exact_activations
    }

    fn check(&self, seq: usize, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(nothing_to_evaluate());
        }
        let n_vocab = self.model.n_vocab();
        if let Some(bad) = tokens.iter().find(|&&t| t as usize >= n_vocab) {
            return Err(Error::input(format!(
                "token id {bad} is outside the vocabulary of {n_vocab}; give ids below {n_vocab}"
            )));
        }
        let total = self.n_past[seq] + tokens.len();
        if total > self.params.n_ctx {
            return Err(Error::DoesNotFit(format!(
                "{total} tokens do not fit the context of {}; raise -c or shorten the prompt",
                self.params.n_ctx
            )));
        }
        Ok(())
    }
}

/// What a graph for [`Wanted::Argmax`] has found for an output; `None` when it is not
/// finite.
fn highest(run: &dyn Executable, row: usize) -> Option<u32> {
    let value = |index| run.output(index).get(row).copied();
    let (id, logit) = (value(0)?, value(1)?);
    logit.is_finite().then(|| id.to_bits())
}

/// Most tokens of a batch all of whose logits are wanted.
fn most_all_logits(n_vocab: usize) -> usize {
    let most = (MOST_LOGITS_BYTES / (4 * n_vocab)).max(1);
    1 << most.ilog2()
}

/// What the planner has to know of `params`.
fn evaluation(model: &Model, params: &SessionParams) -> Evaluation {
    Evaluation {
        kv_types: [params.kv_type_k, params.kv_type_v],
        n_ctx: params.n_ctx,
        n_ubatch: params.n_ubatch,
        n_seqs: params.n_seqs,
        n_all_logits: match params.fit.all_logits {
            true => most_all_logits(model.n_vocab()),
            false => 0,
        },
        n_threads: params.n_threads,
        exact: params.exact_activations,
    }
}

fn nothing_to_evaluate() -> Error {
    Error::input("there are no tokens to evaluate; give a prompt")
}
