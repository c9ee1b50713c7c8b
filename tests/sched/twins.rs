//! Two CPU backends with weights and caches of their own that run one graph.

use llama_rs::arch::CacheShape;
use llama_rs::backend::cpu::{Buffer, CpuBackend, Storage};
use llama_rs::backend::sched::{compile, split};
use llama_rs::backend::{Backend, Executable};
use llama_rs::graph::builder::Width;
use llama_rs::graph::{CacheId, Count, Graph, Input, Origin};
use llama_rs::model::{Model, Wanted};
use llama_rs::quant::DType;
use std::collections::HashMap;
use std::sync::Arc;

const N_CTX: usize = 64;
/// Cells of sliding-window layers; no fixture is evaluated that far here.
const N_CELLS_SWA: usize = 64;

struct Store {
    model: Arc<Model>,
    caches: HashMap<CacheId, Buffer>,
}

impl Storage for Store {
    fn weight(&self, name: &str) -> Option<&[u8]> {
        self.model.weight_data(name)
    }

    fn cache(&self, id: CacheId) -> Option<&Buffer> {
        self.caches.get(&id)
    }
}

/// The graph of `n` tokens, all of whose logits are wanted.
pub fn graph(model: &Model, n: usize) -> Graph {
    let shape = CacheShape {
        k_type: DType::F16,
        v_type: DType::F16,
        n_ctx: N_CTX,
        n_cells: N_CTX,
        n_cells_swa: N_CELLS_SWA,
        n_slots: 1,
    };
    let width = Width::of(n, n);
    let graph = model.graph(Wanted::Logits, width, &shape);
    graph.expect("the graph is built")
}

/// What a run gave.
pub struct Twins {
    pub bits: Vec<u32>,
    pub n_segments: usize,
}

/// Device of each tensor, and of each cache that is not on device 0.
pub type Place<'a> = &'a dyn Fn(&Graph) -> (Vec<usize>, HashMap<CacheId, usize>);

impl Twins {
    /// Evaluates all but the last token in a batch wider than they are, then
    /// the last one, and gives the bits of all logits.
    pub fn run(model: &Arc<Model>, tokens: &[u32], place: Place<'_>) -> Twins {
        let (prompt, last) = tokens.split_at(tokens.len() - 1);
        let (wide, narrow) = (graph(model, prompt.len() + 3), graph(model, 1));
        let (_, cache_of) = place(&wide);
        let backends: Vec<Box<dyn Backend>> = (0..2)
            .map(|device| -> Box<dyn Backend> {
                let caches = wide.tensors.iter().filter_map(|t| match t.origin {
                    Origin::Cache(id) if *cache_of.get(&id).unwrap_or(&0) == device => {
                        Some((id, Buffer::new(t.bytes(), "a cache").expect("memory")))
                    }
                    _ => None,
                });
                let store = Store {
                    model: model.clone(),
                    caches: caches.collect(),
                };
                Box::new(CpuBackend::new(Arc::new(store), 1, false).expect("threads"))
            })
            .collect();
        let mut twins = Twins {
            bits: Vec::new(),
            n_segments: 0,
        };
        for (graph, first, tokens) in [(wide, 0, prompt), (narrow, prompt.len(), last)] {
            let (device_of, _) = place(&graph);
            let mut split = split(&graph, &device_of).expect("splits");
            twins.n_segments = split.segments.len();
            split.lower(&backends);
            let mut run = compile(split, &backends).expect("compiles");
            step(&mut *run, tokens, first);
            let n_values = tokens.len() * model.n_vocab();
            let logits = run.output(0)[..n_values].iter();
            twins.bits.extend(logits.map(|v| v.to_bits()));
        }
        twins
    }
}

/// Evaluates `tokens` at positions from `first` on, each in the cell of its position.
fn step(run: &mut dyn Executable, tokens: &[u32], first: usize) {
    let n = tokens.len();
    let ids: Vec<i32> = tokens.iter().map(|&t| t as i32).collect();
    let pos: Vec<i32> = (first..first + n).map(|p| p as i32).collect();
    let out: Vec<i32> = (0..n as i32).collect();
    let cells: Vec<i32> = (0..(first + n) as i32).collect();
    let mut set = |input, data: &[i32]| run.set_input(input, data).expect("fits");
    set(Input::Tokens, &ids);
    set(Input::Pos, &pos);
    set(Input::Seq, &vec![0; n]);
    set(Input::OutIds, &out);
    set(Input::SeqRows, &[0, n as i32]);
    // The state of a text that begins starts from zeros.
    set(Input::StateSlots, &[if first == 0 { -1 } else { 0 }]);
    for swa in [false, true] {
        set(Input::Slots { swa }, &pos);
        set(Input::CellPos { swa }, &cells);
        set(Input::CellSeq { swa }, &vec![0; cells.len()]);
    }
    run.set_count(Count::Tokens, n);
    run.set_count(Count::Outputs, n);
    for swa in [false, true] {
        run.set_count(Count::Cells { swa }, cells.len());
    }
    run.run().expect("runs");
}
