//! Runs of a case: the reference, the backend under test, and their comparison.

use super::case::{Case, F16_NMSE, Problem};
use super::compare::{Outcome, compare_all, live_indices, within};
use super::store::{Setup, Store};
use crate::backend::cpu::{CpuBackend, Simd};
use crate::backend::cuda::{Context, CudaBackend};
use crate::backend::{Backend, Executable};
use crate::error::{Error, Result};
use crate::graph::{CacheId, Graph, Plan};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs of one executable on CUDA, which must give equal bits.
const RUNS: usize = 3;

/// Products with 8-bit activations, as the CPU has them: a step of 1/127 of a block's
/// largest value is an NMSE of 1.5e-5 of the terms, and a case of few sums that cancel
/// shows up to 2e-4. A wrong scale or a lost block costs 1e-2 and more.
const Q8_NMSE: f64 = 1e-3;

/// What comparing a backend with the reference says; an error says what differs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// The largest normalised mean squared error of all that was compared.
    Close(f64),
    /// The backend has no kernel for a node of the case.
    NotSupported,
}

/// A backend that is compared with the reference.
pub enum Target {
    Cpu(CpuTarget),
    Cuda(CudaTarget),
}

impl Target {
    /// Runs a case on the backend and on its reference.
    ///
    /// # Errors
    /// The backend fails, or its result is not close enough: the reason.
    pub fn check(&self, case: &Case) -> Result<Verdict> {
        match self {
            Target::Cpu(cpu) => cpu.check(case),
            Target::Cuda(gpu) => gpu.check(case),
        }
    }
}

fn outputs(exe: &dyn Executable, n: usize) -> Vec<Vec<u32>> {
    let of = |i| exe.output(i).iter().map(|v| v.to_bits()).collect();
    (0..n).map(of).collect()
}

/// A lowered graph with its weights and inputs in place.
fn prepared(backend: &dyn Backend, graph: &Graph, setup: &Setup) -> Result<Box<dyn Executable>> {
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

/// How the CPU runs a graph.
#[derive(Clone, Copy)]
struct CpuRun {
    simd: Simd,
    n_threads: usize,
    /// F32 activations.
    exact: bool,
}

impl CpuRun {
    /// What CUDA is held to: F32 on the fastest path.
    fn reference() -> Result<CpuRun> {
        Ok(CpuRun {
            simd: Simd::detect()?,
            n_threads: 1,
            exact: true,
        })
    }
}

/// The CPU's answer; changes the store's caches.
fn run_on_cpu(
    store: &mut Arc<Store>,
    graph: &Graph,
    setup: &Setup,
    how: CpuRun,
) -> Result<Outcome> {
    let backend = CpuBackend::with_simd(store.clone(), how.n_threads, how.exact, how.simd)?;
    let mut exe = prepared(&backend, &backend.lower(graph), setup)?;
    exe.run()?;
    let outputs = outputs(&*exe, graph.outputs.len());
    drop((exe, backend));
    Ok(Outcome {
        outputs,
        caches: own(store)?.cache_bytes(),
    })
}

/// The store, which no backend holds any more.
fn own(store: &mut Arc<Store>) -> Result<&mut Store> {
    Arc::get_mut(store).ok_or_else(|| Error::input("the case's operands are still in use"))
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

fn answer(case: &Case, reference: CpuRun) -> Result<Answered> {
    let mut problem = (case.make)();
    let before = problem.store.cache_bytes();
    let graph = problem.graph()?;
    let Problem { store, setup, .. } = problem;
    let mut store = Arc::new(store);
    let want = run_on_cpu(&mut store, &graph, &setup, reference)?;
    Ok(Answered {
        graph,
        setup,
        store,
        before,
        want,
    })
}

impl Answered {
    /// The error of an outcome, at most `nmse`.
    fn compare(&self, nmse: f64, graph: &Graph, got: &Outcome) -> Result<f64> {
        compare_all(nmse, graph, &self.setup, &self.before, &self.want, got)
    }
}

/// The CPU's half of a case: the graph can be built and run; gives 0.
///
/// # Errors
/// It cannot, or CUDA would run another op than the case's name says.
pub fn check_reference(case: &Case) -> Result<f64> {
    let answered = answer(case, CpuRun::reference()?)?;
    case.lowered(&answered.graph)?;
    answered.compare(case.nmse, &answered.graph, &answered.want)
}

/// That an outcome with one wrong value is refused, whichever it is.
///
/// # Errors
/// One was accepted.
pub fn check_refusal(case: &Case) -> Result<()> {
    let answered = answer(case, CpuRun::reference()?)?;
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
        .filter(|got| answered.compare(case.nmse, &answered.graph, got).is_ok());
    match accepted.next() {
        Some(_) => Err(Error::input(format!("{} takes a wrong outcome", case.name))),
        None => Ok(()),
    }
}

/// The CPU's fast paths and its threads, held to its scalar path on one thread with
/// F32 activations.
pub struct CpuTarget {
    n_threads: usize,
}

impl CpuTarget {
    /// Runs cases with one and with `n_threads` threads.
    pub fn new(n_threads: usize) -> CpuTarget {
        CpuTarget { n_threads }
    }

    fn check(&self, case: &Case) -> Result<Verdict> {
        let reference = CpuRun {
            simd: Simd::Scalar,
            n_threads: 1,
            exact: true,
        };
        let mut answered = answer(case, reference)?;
        let lowers = CpuBackend::new(answered.store.clone(), 1, case.exact)?;
        if !case.is_of(&lowers.lower(&answered.graph)) {
            return Ok(Verdict::NotSupported);
        }
        drop(lowers);
        let mut most = 0.0f64;
        for simd in Simd::ALL.into_iter().filter(|simd| simd.available()) {
            let error = self.check_path(case, &mut answered, simd);
            most = most.max(error.map_err(within(simd.name().to_string()))?);
        }
        Ok(Verdict::Close(most))
    }

    /// The error of one path, whose bits the thread count may not change.
    fn check_path(&self, case: &Case, answered: &mut Answered, simd: Simd) -> Result<f64> {
        let mut run = |n_threads| {
            let exact = case.exact;
            let how = CpuRun {
                simd,
                n_threads,
                exact,
            };
            own(&mut answered.store)?.set_caches(&answered.before);
            run_on_cpu(&mut answered.store, &answered.graph, &answered.setup, how)
        };
        let one = run(1)?;
        if self.n_threads > 1 {
            let all = run(self.n_threads)?;
            let same = one.same_bits(&all, &answered.graph, &answered.setup);
            same.map_err(within(format!("{} threads", self.n_threads)))?;
        }
        // As many roundings as the case allows for, each to 8 bits here.
        let roundings = case.nmse / F16_NMSE;
        let rounded = roundings >= 1.0;
        let nmse = if rounded {
            roundings * Q8_NMSE
        } else {
            case.nmse
        };
        answered.compare(nmse, &answered.graph, &one)
    }
}

/// A GPU, one case at a time, held to the CPU's answer in F32.
pub struct CudaTarget {
    context: Arc<Context>,
    /// The case that broke it: after a fault the driver refuses everything.
    lost_in: Mutex<Option<String>>,
}

impl CudaTarget {
    /// The GPU of this index.
    ///
    /// # Errors
    /// There is none to use: why.
    pub fn open(index: usize) -> Result<CudaTarget> {
        Ok(CudaTarget {
            context: Context::open(index)?,
            lost_in: Mutex::new(None),
        })
    }

    fn check(&self, case: &Case) -> Result<Verdict> {
        let answered = answer(case, CpuRun::reference()?)?;
        let graphs = case.lowered(&answered.graph)?;
        if !graphs.iter().all(|(_, graph)| case.has_kernels(graph)) {
            return Ok(Verdict::NotSupported);
        }
        let all = self.run(case, &answered, &graphs)?;
        let mut most = 0.0f64;
        for ((form, graph), got) in graphs.iter().zip(&all) {
            let error = answered.compare(case.nmse, graph, got);
            most = most.max(error.map_err(within(form.to_string()))?);
        }
        Ok(Verdict::Close(most))
    }

    /// Runs the graphs of a case on the GPU, each from the same caches.
    fn run(
        &self,
        case: &Case,
        answered: &Answered,
        graphs: &[(&'static str, Graph)],
    ) -> Result<Vec<Outcome>> {
        let mut lost_in = self.lost_in.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = &*lost_in {
            return Err(Error::input(format!("not run: {name} broke the GPU")));
        }
        let outcomes = self.outcomes(case, answered, graphs);
        // A fault shows in whatever is asked next, too.
        if outcomes.is_err() && self.context.mem_info().is_err() {
            *lost_in = Some(case.name.clone());
        }
        outcomes
    }

    fn outcomes(
        &self,
        case: &Case,
        answered: &Answered,
        graphs: &[(&'static str, Graph)],
    ) -> Result<Vec<Outcome>> {
        let sizes = answered.before.iter().enumerate();
        let sizes: Vec<_> = sizes.map(|(i, c)| (CacheId(i), c.len())).collect();
        let store = answered.store.clone();
        let backend = CudaBackend::new(self.context.clone(), store, &sizes, case.exact)?;
        let one = |(form, graph): &(&'static str, Graph)| {
            run_graph(&backend, answered, graph).map_err(within(form.to_string()))
        };
        graphs.iter().map(one).collect()
    }
}

/// Runs a lowered graph several times, each from the caches as they were.
fn run_graph(backend: &CudaBackend, answered: &Answered, graph: &Graph) -> Result<Outcome> {
    let mut exe = prepared(backend, graph, &answered.setup)?;
    let mut first: Option<Outcome> = None;
    for run in 1..=RUNS {
        for (i, cache) in answered.before.iter().enumerate() {
            backend.write_cache(CacheId(i), 0, cache)?;
        }
        exe.run()?;
        let mut outcome = Outcome {
            outputs: outputs(&*exe, graph.outputs.len()),
            caches: answered.before.clone(),
        };
        for (i, cache) in outcome.caches.iter_mut().enumerate() {
            backend.read_cache(CacheId(i), 0, cache)?;
        }
        let first = first.get_or_insert_with(|| outcome.clone());
        let same = first.same_bits(&outcome, graph, &answered.setup);
        same.map_err(within(format!("run {run}")))?;
    }
    first.ok_or_else(|| Error::input("not run"))
}
