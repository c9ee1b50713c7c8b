//! Evaluates token sequences: prefill and decode in ubatches over one cache.

use crate::arch::CacheShape;
use crate::backend::cpu::{Buffer, CpuBackend, Storage};
use crate::backend::{Backend, Executable};
use crate::error::{Error, Result};
use crate::graph::builder::Width;
use crate::graph::{CacheId, Count, Input, Plan};
use crate::memory::{Cells, KvStore, LayerRows};
use crate::model::Model;
use crate::quant::DType;
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
}

/// What the backend reads besides the graph's own buffers.
struct SessionStorage {
    model: Arc<Model>,
    kv: KvStore,
}

impl Storage for SessionStorage {
    fn weight(&self, name: &str) -> Option<&[u8]> {
        self.model.weight_data(name)
    }

    fn cache(&self, id: CacheId) -> Option<&Buffer> {
        self.kv.get(id)
    }
}

/// One sequence of tokens and its cache.
pub struct Session {
    model: Arc<Model>,
    params: SessionParams,
    shape: CacheShape,
    storage: Arc<SessionStorage>,
    backend: CpuBackend,
    /// One compiled graph a width.
    compiled: HashMap<Width, Box<dyn Executable>>,
    cells: Cells,
    cells_swa: Cells,
    n_past: usize,
}

impl Session {
    /// Allocates the cache and starts the threads.
    pub fn new(model: Arc<Model>, params: SessionParams) -> Result<Session> {
        let hp = model.hparams();
        if params.n_ctx == 0 || params.n_ubatch == 0 {
            return Err(Error::input(
                "the context and the ubatch hold at least one token; raise -c or -ub",
            ));
        }
        // A sliding layer needs its window and the tokens of one ubatch.
        let n_cells_swa = match hp.window {
            Some(w) => params.n_ctx.min(w as usize + params.n_ubatch),
            None => 1,
        };
        let shape = CacheShape {
            k_type: params.kv_type_k,
            v_type: params.kv_type_v,
            n_ctx: params.n_ctx,
            n_cells: params.n_ctx,
            n_cells_swa,
        };
        let layers: Vec<LayerRows> = (0..hp.n_layer)
            .map(|il| LayerRows {
                k: hp.n_embd_k(il),
                v: hp.n_embd_v(il),
                swa: hp.swa[il],
            })
            .collect();
        let types = [params.kv_type_k, params.kv_type_v];
        let kv = KvStore::new(&layers, types, [params.n_ctx, n_cells_swa])?;
        let cells = Cells::new(params.n_ctx, None);
        let cells_swa = Cells::new(n_cells_swa, hp.window);
        let storage = Arc::new(SessionStorage {
            model: model.clone(),
            kv,
        });
        let backend = CpuBackend::new(storage.clone(), params.n_threads, params.exact_activations)?;
        Ok(Session {
            model,
            params,
            shape,
            storage,
            backend,
            compiled: HashMap::new(),
            cells,
            cells_swa,
            n_past: 0,
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

    /// Bytes of the KV cache.
    pub fn kv_bytes(&self) -> usize {
        self.storage.kv.bytes()
    }

    /// Evaluates `tokens` after what is in the cache; gives the logits
    /// `[n_vocab]` after the last one.
    pub fn eval(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.check(tokens)?;
        let mut last = Width {
            n_tokens: 0,
            n_outputs: 1,
        };
        for chunk in tokens.chunks(self.params.n_ubatch) {
            last = self.step(chunk, false)?;
        }
        let n_vocab = self.model.n_vocab();
        let run = self.compiled.get(&last).ok_or_else(nothing_to_evaluate)?;
        Ok(&run.output(0)[..n_vocab])
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
            let width = self.step(chunk, true)?;
            let run = self.compiled.get(&width).ok_or_else(nothing_to_evaluate)?;
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

    /// Physical cores this process may use.
    pub fn default_threads() -> usize {
        let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
        allowed.min(physical_cores().unwrap_or(allowed)).max(1)
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
        Width {
            n_tokens,
            n_outputs: if all_outputs { n_tokens } else { 1 },
        }
    }

    /// Evaluates one ubatch.
    fn step(&mut self, tokens: &[u32], all_outputs: bool) -> Result<Width> {
        let n = tokens.len();
        let width = self.width(n, all_outputs);
        self.compile(width)?;
        let first = self.n_past as i32;
        let full = || Error::DoesNotFit("the KV cache has no free cell; raise -c".to_string());
        let slots = self.cells.place(0, first, n).ok_or_else(full)?;
        let slots_swa = match self.model.hparams().window {
            Some(_) => self.cells_swa.place(0, first, n).ok_or_else(full)?,
            None => Vec::new(),
        };
        let run = self
            .compiled
            .get_mut(&width)
            .ok_or_else(nothing_to_evaluate)?;
        let ids: Vec<i32> = tokens.iter().map(|&t| t as i32).collect();
        let pos: Vec<i32> = (first..first + n as i32).collect();
        let out: Vec<i32> = match all_outputs {
            true => (0..n as i32).collect(),
            false => vec![n as i32 - 1],
        };
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
        run.run()?;
        self.n_past += n;
        Ok(width)
    }

    fn compile(&mut self, width: Width) -> Result<()> {
        if self.compiled.contains_key(&width) {
            return Ok(());
        }
        let (graph, _) = self.model.graph(width, &self.shape)?;
        let graph = self.backend.lower(&graph);
        let plan = Plan::new(&graph);
        let run = self.backend.compile(graph, plan)?;
        self.compiled.insert(width, run);
        Ok(())
    }
}

fn nothing_to_evaluate() -> Error {
    Error::input("there are no tokens to evaluate; give a prompt")
}

/// Cores as the kernel lists them: processors that share a core count once.
fn physical_cores() -> Option<usize> {
    let mut cores = std::collections::HashSet::new();
    for cpu in std::fs::read_dir("/sys/devices/system/cpu").ok()? {
        let path = cpu.ok()?.path().join("topology/thread_siblings_list");
        if let Ok(siblings) = std::fs::read_to_string(path) {
            cores.insert(siblings);
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}
