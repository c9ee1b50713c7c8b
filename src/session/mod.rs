//! Evaluates token sequences: prefill and decode in ubatches over one cache.

mod devices;
mod threads;

pub use devices::Load;

use crate::arch::CacheShape;
use crate::backend::Executable;
use crate::error::{Error, Result};
use crate::graph::builder::Width;
use crate::graph::{Count, Input};
use crate::memory::planner::Setup;
use crate::memory::{Cells, Placement};
use crate::model::{Model, Wanted};
use crate::quant::DType;
use devices::Devices;
use std::collections::HashMap;
use std::sync::Arc;

/// Logits of a ubatch may take this much; wider ubatches are cut when every
/// token's logits are wanted.
const MOST_LOGITS_BYTES: usize = 256 << 20;

/// How a session evaluates.
#[derive(Debug, Clone)]
pub struct SessionParams {
    /// Tokens the context holds.
    pub n_ctx: usize,
    /// Most tokens evaluated at once.
    pub n_ubatch: usize,
    pub n_threads: usize,
    pub kv_type_k: DType,
    pub kv_type_v: DType,
    /// No 8-bit activations.
    pub exact_activations: bool,
    /// Which devices take part, and who holds what.
    pub placement: Placement,
}

/// What an executable was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    wanted: Wanted,
    width: Width,
}

/// One sequence of tokens and its cache.
pub struct Session {
    model: Arc<Model>,
    params: SessionParams,
    shape: CacheShape,
    devices: Devices,
    compiled: HashMap<Key, Box<dyn Executable>>,
    cells: Cells,
    cells_swa: Cells,
    n_past: usize,
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
        if params.n_ctx == 0 || params.n_ubatch == 0 {
            return Err(Error::input(
                "the context and the ubatch hold at least one token; raise -c or -ub",
            ));
        }
        let kv_types = [params.kv_type_k, params.kv_type_v];
        let setup = Setup::new(
            &model,
            &params.placement,
            kv_types,
            params.n_ctx,
            params.n_ubatch,
            params.exact_activations,
        )?;
        let shape = setup.cache_shape();
        let devices = Devices::new(&model, &params, &setup, progress)?;
        let one = Width::of(1, 1);
        let greedy = model.graph(Wanted::Argmax, one, &shape)?;
        Ok(Session {
            argmax_on_device: devices.computes_output(&greedy),
            cells: Cells::new(shape.n_cells, None),
            cells_swa: Cells::new(shape.n_cells_swa, model.hparams().window),
            shape,
            devices,
            compiled: HashMap::new(),
            n_past: 0,
            model,
            params,
        })
    }

    /// Tokens the context holds.
    pub fn n_ctx(&self) -> usize {
        self.params.n_ctx
    }

    /// Tokens evaluated so far.
    pub fn n_past(&self) -> usize {
        self.n_past
    }

    /// Bytes of the KV cache, on all devices together.
    pub fn kv_bytes(&self) -> usize {
        self.devices.kv_bytes
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
        let first = |index| run.output(index).first().copied();
        let (Some(id), Some(logit)) = (first(0), first(1)) else {
            return Ok(None);
        };
        Ok(logit.is_finite().then(|| id.to_bits()))
    }

    fn eval_chunks(&mut self, tokens: &[u32], wanted: Wanted) -> Result<Key> {
        self.check(tokens)?;
        let mut last = Err(nothing_to_evaluate());
        for chunk in tokens.chunks(self.params.n_ubatch) {
            last = Ok(self.step(chunk, wanted, false)?);
        }
        last
    }

    /// As [`Session::eval`], giving `each` the logits after every token.
    pub fn eval_all(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.check(tokens)?;
        let n_vocab = self.model.n_vocab();
        let most = (MOST_LOGITS_BYTES / (4 * n_vocab)).max(1);
        let step = self.params.n_ubatch.min(1 << most.ilog2());
        for (at, chunk) in tokens.chunks(step).enumerate() {
            let key = self.step(chunk, Wanted::Logits, true)?;
            let run = self.compiled.get(&key).ok_or_else(nothing_to_evaluate)?;
            let logits = run.output(0).chunks_exact(n_vocab);
            for (i, row) in logits.take(chunk.len()).enumerate() {
                each(at * step + i, row)?;
            }
        }
        Ok(())
    }

    /// Keeps the first `n_past` tokens. A cache whose sliding windows are gone
    /// is emptied instead: [`Session::n_past`] says what is left.
    pub fn truncate(&mut self, n_past: usize) {
        if n_past >= self.n_past {
            return;
        }
        let from = n_past as i32;
        let whole = self.cells.truncate(0, from) & self.cells_swa.truncate(0, from);
        // Without sliding layers the second set of cells is never filled.
        if whole || self.model.hparams().window.is_none() {
            self.n_past = n_past;
        } else {
            self.clear();
        }
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.cells.truncate(0, 0);
        self.cells_swa.truncate(0, 0);
        self.n_past = 0;
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(nothing_to_evaluate());
        }
        let n_vocab = self.model.n_vocab();
        if let Some(bad) = tokens.iter().find(|&&t| t as usize >= n_vocab) {
            return Err(Error::input(format!(
                "token id {bad} is outside the vocabulary of {n_vocab}; give ids below {n_vocab}"
            )));
        }
        let total = self.n_past + tokens.len();
        if total > self.params.n_ctx {
            return Err(Error::DoesNotFit(format!(
                "{total} tokens do not fit the context of {}; raise -c or shorten the prompt",
                self.params.n_ctx
            )));
        }
        Ok(())
    }

    /// The width that serves `n` tokens: exact up to 8, then powers of two.
    fn width(&self, n: usize, all_outputs: bool) -> Width {
        let n_tokens = match n {
            0..=8 => n,
            _ => n.next_power_of_two().min(self.params.n_ubatch.max(n)),
        };
        Width::of(n_tokens, if all_outputs { n_tokens } else { 1 })
    }

    /// Evaluates one ubatch.
    fn step(&mut self, tokens: &[u32], wanted: Wanted, all_outputs: bool) -> Result<Key> {
        let n = tokens.len();
        let width = self.width(n, all_outputs);
        let key = Key { wanted, width };
        self.compile(key)?;
        let first = self.n_past;
        let done = self.place_and_run(key, tokens);
        // A step that failed leaves no cells behind that later tokens would see.
        self.n_past += n;
        if done.is_err() {
            self.truncate(first);
        }
        done.map(|()| key)
    }

    /// Gives each token its cell and runs the graph.
    fn place_and_run(&mut self, key: Key, tokens: &[u32]) -> Result<()> {
        let n = tokens.len();
        let first = self.n_past as i32;
        let full = || Error::DoesNotFit("the KV cache has no free cell; raise -c".to_string());
        let slots = self.cells.place(0, first, n).ok_or_else(full)?;
        let slots_swa = match self.model.hparams().window {
            Some(_) => self.cells_swa.place(0, first, n).ok_or_else(full)?,
            None => Vec::new(),
        };
        let run = self
            .compiled
            .get_mut(&key)
            .ok_or_else(nothing_to_evaluate)?;
        let ids: Vec<i32> = tokens.iter().map(|&t| t as i32).collect();
        let pos: Vec<i32> = (first..first + n as i32).collect();
        let n_outputs = key.width.n_outputs.min(n) as i32;
        let out: Vec<i32> = (n as i32 - n_outputs..n as i32).collect();
        run.set_input(Input::Tokens, &ids)?;
        run.set_input(Input::Pos, &pos)?;
        run.set_input(Input::Seq, &vec![0; n])?;
        run.set_input(Input::OutIds, &out)?;
        run.set_count(Count::Tokens, n);
        run.set_count(Count::Outputs, out.len());
        for (swa, slots, cells) in [
            (false, &slots, &self.cells),
            (true, &slots_swa, &self.cells_swa),
        ] {
            run.set_input(Input::Slots { swa }, slots)?;
            run.set_input(Input::CellPos { swa }, cells.pos())?;
            run.set_input(Input::CellSeq { swa }, cells.seq())?;
            run.set_count(Count::Cells { swa }, cells.pos().len());
        }
        run.run()
    }

    fn compile(&mut self, key: Key) -> Result<()> {
        if !self.compiled.contains_key(&key) {
            let graph = self.model.graph(key.wanted, key.width, &self.shape)?;
            let run = self.devices.compile(&graph)?;
            self.compiled.insert(key, run);
        }
        Ok(())
    }
}

fn nothing_to_evaluate() -> Error {
    Error::input("there are no tokens to evaluate; give a prompt")
}
