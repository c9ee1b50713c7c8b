//! The GPU of all trials, runs on it and on the CPU, and their comparison.

use super::case::{Case, Problem};
use super::harness::{Setup, Store};
use llama_rs::backend::cpu::CpuBackend;
use llama_rs::backend::cuda::{Context, CudaBackend};
use llama_rs::backend::{Backend, Executable};
use llama_rs::graph::{CacheId, Graph, Op, Origin, Plan, Tensor};
use llama_rs::quant::DType;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Runs of one executable, which must give equal bits.
const RUNS: usize = 3;

/// The GPU, one trial at a time.
pub struct Gpu {
    context: Arc<Context>,
    /// The trial that broke it: after a fault the driver refuses everything.
    lost_in: Mutex<Option<String>>,
}

/// The first GPU, or why there is none to use.
pub fn gpu() -> &'static Result<Gpu, String> {
    static GPU: OnceLock<Result<Gpu, String>> = OnceLock::new();
    GPU.get_or_init(|| {
        let context = Context::open(0).map_err(|e| e.to_string())?;
        Ok(Gpu {
            context,
            lost_in: Mutex::new(None),
        })
    })
}

/// Bits of the outputs, and the caches after the run.
#[derive(Clone)]
pub struct Outcome {
    outputs: Vec<Vec<u32>>,
    caches: Vec<Vec<u8>>,
}

fn outputs(exe: &dyn Executable, n: usize) -> Vec<Vec<u32>> {
    let of = |i| exe.output(i).iter().map(|v| v.to_bits()).collect();
    (0..n).map(of).collect()
}

fn prepared(
    backend: &dyn Backend,
    graph: &Graph,
    setup: &Setup,
) -> llama_rs::Result<Box<dyn Executable>> {
    backend.prepare(&[graph], &|_| ())?;
    let mut exe = backend.compile(graph.clone(), Plan::new(graph))?;
    for (input, data) in &setup.inputs {
        exe.set_input(*input, data)?;
    }
    for (count, n) in &setup.counts {
        exe.set_count(*count, *n);
    }
    Ok(exe)
}

/// The CPU's answer in F32, on its fastest path; changes the store's caches.
pub fn reference(
    store: &mut Arc<Store>,
    graph: &Graph,
    setup: &Setup,
) -> llama_rs::Result<Outcome> {
    let backend = CpuBackend::new(store.clone(), 1, true)?;
    let mut exe = prepared(&backend, &backend.lower(graph), setup)?;
    exe.run()?;
    let outputs = outputs(&*exe, graph.outputs.len());
    drop((exe, backend));
    let store = Arc::get_mut(store).expect("nobody else holds the store");
    Ok(Outcome {
        outputs,
        caches: store.cache_bytes(),
    })
}

impl Gpu {
    /// Runs the graphs of a case on the GPU, each from the same caches.
    fn run(
        &self,
        case: &Case,
        store: &Arc<Store>,
        caches: &[Vec<u8>],
        graphs: &[(&'static str, Graph)],
        setup: &Setup,
    ) -> Result<Vec<Outcome>, String> {
        let mut lost_in = self.lost_in.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = &*lost_in {
            return Err(format!("not run: {name} broke the GPU"));
        }
        let outcomes = self.outcomes(case, store, caches, graphs, setup);
        // A fault shows in whatever is asked next, too.
        if outcomes.is_err() && self.context.mem_info().is_err() {
            *lost_in = Some(case.name.clone());
        }
        outcomes
    }

    fn outcomes(
        &self,
        case: &Case,
        store: &Arc<Store>,
        caches: &[Vec<u8>],
        graphs: &[(&'static str, Graph)],
        setup: &Setup,
    ) -> Result<Vec<Outcome>, String> {
        let sizes = caches.iter().enumerate();
        let sizes: Vec<_> = sizes.map(|(i, c)| (CacheId(i), c.len())).collect();
        let backend = CudaBackend::new(self.context.clone(), store.clone(), &sizes, case.exact)
            .map_err(|e| e.to_string())?;
        let one = |(form, graph): &(&'static str, Graph)| {
            run_graph(&backend, caches, graph, setup).map_err(|e| format!("{form}: {e}"))
        };
        graphs.iter().map(one).collect()
    }
}

fn run_graph(
    backend: &CudaBackend,
    caches: &[Vec<u8>],
    graph: &Graph,
    setup: &Setup,
) -> Result<Outcome, String> {
    let text = |e: llama_rs::Error| e.to_string();
    for (i, cache) in caches.iter().enumerate() {
        backend.write_cache(CacheId(i), 0, cache).map_err(text)?;
    }
    let mut exe = prepared(backend, graph, setup).map_err(text)?;
    let mut first = None;
    for run in 1..=RUNS {
        exe.run().map_err(text)?;
        let mut outcome = Outcome {
            outputs: outputs(&*exe, graph.outputs.len()),
            caches: caches.to_vec(),
        };
        for (i, cache) in outcome.caches.iter_mut().enumerate() {
            backend.read_cache(CacheId(i), 0, cache).map_err(text)?;
        }
        let first = first.get_or_insert_with(|| Outcome {
            outputs: outcome.outputs.clone(),
            caches: outcome.caches.clone(),
        });
        for (at, &id) in graph.outputs.iter().enumerate() {
            let live = live_indices(graph.get(id), setup);
            let (a, b) = (&first.outputs[at], &outcome.outputs[at]);
            if let Some(i) = live.into_iter().find(|&i| a[i] != b[i]) {
                return Err(format!("run {run} gives other bits, value {i} first"));
            }
        }
        if first.caches != outcome.caches {
            return Err(format!("run {run} gives other bits in the cache"));
        }
    }
    first.ok_or_else(|| "not run".to_string())
}

/// Indices of the values of a contiguous tensor that are not cut off.
fn live_indices(t: &Tensor, setup: &Setup) -> Vec<usize> {
    let n = t.n_values();
    let Some(live) = t.live else {
        return (0..n).collect();
    };
    let count = setup.counts.iter().find(|c| c.0 == live.count);
    let count = count.map_or(0, |c| c.1);
    let stride: usize = t.ne[..live.dim].iter().product();
    (0..n)
        .filter(|i| i / stride % t.ne[live.dim] < count)
        .collect()
}

/// Normalised mean squared error: sum (a - b)^2 / sum b^2, with the worst value.
fn close(pairs: impl Iterator<Item = (usize, f64, f64)>, most: f64) -> Result<f64, String> {
    let (mut error, mut size) = (0.0, 0.0);
    let mut worst = (0.0, String::new());
    for (i, want, got) in pairs {
        let equal = match most == 0.0 {
            true => want.to_bits() == got.to_bits(),
            false => want == got,
        };
        if equal || (want.is_nan() && got.is_nan()) {
            size += if want.is_finite() { want * want } else { 0.0 };
            continue;
        }
        let off = (want - got).abs();
        // Not a number where there should be one, or the wrong infinity.
        if !off.is_finite() || most == 0.0 {
            return Err(format!("value {i} is {got:e}, want {want:e}"));
        }
        error += off * off;
        size += want * want;
        if off > worst.0 {
            worst = (off, format!("value {i} is {got:e}, want {want:e}"));
        }
    }
    let nmse = if error == 0.0 { 0.0 } else { error / size };
    match nmse <= most {
        true => Ok(nmse),
        false => Err(format!(
            "NMSE {nmse:.2e}, at most {most:.0e}; worst: {}",
            worst.1
        )),
    }
}

fn float(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits))
}

/// Compares live values of one output.
fn compare(t: &Tensor, setup: &Setup, nmse: f64, want: &[u32], got: &[u32]) -> Result<f64, String> {
    // Ids first, then bits of weights.
    let ids = match t.origin {
        Origin::Op(Op::MoeRoute { n_used, .. }) => n_used,
        _ if t.dtype == DType::I32 => t.ne[0],
        _ => 0,
    };
    let live = live_indices(t, setup);
    for &i in live.iter().filter(|&&i| i % t.ne[0] < ids) {
        if want[i] != got[i] {
            let (got, want) = (got[i] as i32, want[i] as i32);
            return Err(format!("value {i} is {got}, want {want}"));
        }
    }
    let floats = live.into_iter().filter(|i| i % t.ne[0] >= ids);
    close(floats.map(|i| (i, float(want[i]), float(got[i]))), nmse)
}

/// Values of a cache.
fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes()];
    dtype
        .dequantize_row(bytes, &mut values)
        .expect("whole values");
    values.into_iter().map(f64::from).collect()
}

/// Compares the content of a cache: close where the CPU wrote, else not touched.
fn compare_cache(t: &Tensor, nmse: f64, [before, want, got]: [&[u8]; 3]) -> Result<f64, String> {
    let row_bytes = t.nb[1];
    let rows = |bytes| <[u8]>::chunks_exact(bytes, row_bytes);
    for (r, ((before, want), got)) in rows(before).zip(rows(want)).zip(rows(got)).enumerate() {
        if before == want && got != want {
            return Err(format!("cell {r} was written"));
        }
    }
    let (want, got) = (decoded(t.dtype, want), decoded(t.dtype, got));
    let values = want.into_iter().zip(got).enumerate();
    close(values.map(|(i, (want, got))| (i, want, got)), nmse)
}

/// Compares an outcome with the reference; gives the largest error.
fn compare_all(
    case: &Case,
    graph: &Graph,
    setup: &Setup,
    before: &[Vec<u8>],
    want: &Outcome,
    got: &Outcome,
) -> Result<f64, String> {
    let mut most = 0.0f64;
    for (at, &id) in graph.outputs.iter().enumerate() {
        let t = graph.get(id);
        let (want, got) = (&want.outputs[at], &got.outputs[at]);
        let error = compare(t, setup, case.nmse, want, got);
        most = most.max(error.map_err(|e| format!("output {at}: {e}"))?);
    }
    for t in &graph.tensors {
        if let Origin::Cache(CacheId(c)) = t.origin {
            let contents = [&before[c], &want.caches[c], &got.caches[c]];
            let error = compare_cache(t, case.nmse, contents.map(Vec::as_slice));
            most = most.max(error.map_err(|e| format!("cache {c}: {e}"))?);
        }
    }
    Ok(most)
}

/// A case with the CPU's answer.
struct Answered {
    graph: Graph,
    setup: Setup,
    store: Arc<Store>,
    /// The caches before the run.
    before: Vec<Vec<u8>>,
    want: Outcome,
}

fn answer(case: &Case) -> Result<Answered, String> {
    let mut problem = (case.make)();
    let before = problem.store.cache_bytes();
    let graph = problem.graph();
    let Problem { store, setup, .. } = problem;
    let mut store = Arc::new(store);
    let want = reference(&mut store, &graph, &setup).map_err(|e| e.to_string())?;
    Ok(Answered {
        graph,
        setup,
        store,
        before,
        want,
    })
}

impl Answered {
    fn compare(&self, case: &Case, graph: &Graph, got: &Outcome) -> Result<f64, String> {
        compare_all(case, graph, &self.setup, &self.before, &self.want, got)
    }
}

/// The CPU's half of a case: the graph can be built and run.
pub fn check_reference(case: &Case) -> Result<f64, String> {
    let answered = answer(case)?;
    case.lowered(&answered.graph)?;
    answered.compare(case, &answered.graph, &answered.want)
}

/// That an outcome with one wrong value is refused, whichever it is.
pub fn check_refusal(case: &Case) -> Result<(), String> {
    let answered = answer(case)?;
    let mut wrong = Vec::new();
    for (at, &id) in answered.graph.outputs.iter().enumerate() {
        let live = live_indices(answered.graph.get(id), &answered.setup);
        for i in [live.first(), live.last()].into_iter().flatten() {
            let bits = answered.want.outputs[at][*i];
            // Off by a quarter or more, then no number.
            for changed in [bits ^ 1 << 22, f32::NAN.to_bits()] {
                let mut got = answered.want.clone();
                got.outputs[at][*i] = changed;
                wrong.push(got);
            }
        }
    }
    for c in 0..answered.want.caches.len() {
        for i in [0, answered.want.caches[c].len() - 1] {
            let mut got = answered.want.clone();
            got.caches[c][i] ^= 1;
            wrong.push(got);
        }
    }
    let mut accepted = wrong
        .iter()
        .filter(|got| answered.compare(case, &answered.graph, got).is_ok());
    match accepted.next() {
        Some(_) => Err(format!("{} takes a wrong outcome", case.name)),
        None => Ok(()),
    }
}

/// Runs a case on both; gives the largest error.
pub fn check(gpu: &Gpu, case: &Case) -> Result<f64, String> {
    let answered = answer(case)?;
    let graphs = case.lowered(&answered.graph)?;
    let Answered {
        store,
        before,
        setup,
        ..
    } = &answered;
    let all = gpu.run(case, store, before, &graphs, setup)?;
    let mut most = 0.0f64;
    for ((form, graph), got) in graphs.iter().zip(&all) {
        let error = answered.compare(case, graph, got);
        most = most.max(error.map_err(|e| format!("{form}: {e}"))?);
    }
    Ok(most)
}
