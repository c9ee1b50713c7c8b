//! Operands in memory, and runs of small graphs on every path and thread count.

#[path = "../common/random.rs"]
mod random;

use llama_rs::Error;
use llama_rs::backend::cpu::{Buffer, CpuBackend, Simd, Storage};
use llama_rs::backend::{Backend, Executable};
use llama_rs::graph::builder::Width;
use llama_rs::graph::{Builder, CacheId, Catalog, Count, Graph, Input, Live, Plan, TensorId};
use llama_rs::quant::DType;
use std::collections::HashMap;
use std::sync::Arc;

#[allow(unused_imports, reason = "not every test has random weights")]
pub use random::{Random, random_weights};

/// Half a unit in the last place of f32, relative: what one rounding may lose.
pub const ROUNDING: f64 = 1.0 / (1u64 << 24) as f64;

/// A weight; its data starts at a 64-byte border of `data`, as in a file's map.
struct Weight {
    dtype: DType,
    ne: [usize; 4],
    data: Vec<u8>,
    start: usize,
}

/// Weights and cache tensors of a test.
#[derive(Default)]
pub struct Store {
    weights: HashMap<String, Weight>,
    caches: Vec<Buffer>,
}

/// A shape padded with 1.
pub fn padded(ne: &[usize]) -> [usize; 4] {
    std::array::from_fn(|i| ne.get(i).copied().unwrap_or(1))
}

impl Store {
    pub fn bytes(&mut self, name: &str, dtype: DType, ne: &[usize], bytes: &[u8]) {
        let mut data = vec![0; bytes.len() + 64];
        let start = data.as_ptr().align_offset(64);
        data.truncate(start);
        data.extend_from_slice(bytes);
        let ne = padded(ne);
        let weight = Weight {
            dtype,
            ne,
            data,
            start,
        };
        self.weights.insert(name.to_string(), weight);
    }

    pub fn f32(&mut self, name: &str, ne: &[usize], values: &[f32]) {
        assert_eq!(values.len(), ne.iter().product::<usize>());
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(name, DType::F32, ne, &bytes);
    }

    pub fn i32(&mut self, name: &str, ne: &[usize], values: &[i32]) {
        assert_eq!(values.len(), ne.iter().product::<usize>());
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(name, DType::I32, ne, &bytes);
    }

    /// A cache tensor with this content.
    pub fn cache(&mut self, bytes: &[u8]) -> CacheId {
        let mut data = Buffer::new(bytes.len(), "a cache").expect("memory");
        data.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        self.caches.push(data);
        CacheId(self.caches.len() - 1)
    }

    /// Content of all caches, in the order of their ids.
    #[allow(dead_code, reason = "for tests that compare backends")]
    pub fn cache_bytes(&mut self) -> Vec<Vec<u8>> {
        let caches = self.caches.iter_mut();
        caches.map(|c| c.as_mut_slice().to_vec()).collect()
    }
}

impl Catalog for Store {
    fn weight(&self, name: &str) -> Option<(DType, [usize; 4])> {
        self.weights.get(name).map(|w| (w.dtype, w.ne))
    }
    fn weight_error(&self, name: &str, want: &[usize], have: Option<[usize; 4]>) -> Error {
        Error::input(format!("{name}: {want:?}, {have:?}"))
    }
}

impl Storage for Store {
    fn weight(&self, name: &str) -> Option<&[u8]> {
        let weight = self.weights.get(name)?;
        Some(&weight.data[weight.start..])
    }
    fn cache(&self, id: CacheId) -> Option<&Buffer> {
        self.caches.get(id.0)
    }
}

/// A weight of whatever shape the store has.
pub fn operand(b: &mut Builder<'_>, store: &Store, name: &str) -> TensorId {
    let (_, ne) = Catalog::weight(store, name).expect("an operand of the test");
    b.weight(name, &ne).expect("its own shape")
}

/// Marks the dimension that is cut to the number of live tokens.
pub fn live(b: &mut Builder<'_>, id: TensorId, dim: usize) -> TensorId {
    b.graph.tensors[id.at()].live = Some(Live {
        dim,
        count: Count::Tokens,
    });
    id
}

/// How a graph is run.
pub struct Setup {
    pub width: usize,
    /// Sequences that may share the batch.
    pub n_seqs: usize,
    pub exact: bool,
    pub inputs: Vec<(Input, Vec<i32>)>,
    pub counts: Vec<(Count, usize)>,
    /// Runs of the executable; all must give equal bits.
    pub runs: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            width: 1,
            n_seqs: 1,
            exact: true,
            inputs: Vec::new(),
            counts: Vec::new(),
            runs: 1,
        }
    }
}

impl Setup {
    /// Only `n` of `width` tokens are live.
    pub fn tokens(width: usize, n: usize) -> Setup {
        Setup {
            width,
            counts: vec![(Count::Tokens, n)],
            ..Setup::default()
        }
    }
}

pub fn paths() -> impl Iterator<Item = Simd> {
    Simd::ALL.into_iter().filter(|s| s.available())
}

/// Bits of all outputs.
fn bits(exe: &dyn Executable, n: usize) -> Vec<Vec<u32>> {
    let of = |i| exe.output(i).iter().map(|v| v.to_bits()).collect();
    (0..n).map(of).collect()
}

/// Compiles `graph` as it is (lowered or not) and runs it.
pub fn execute(backend: &CpuBackend, graph: &Graph, setup: &Setup) -> Vec<Vec<u32>> {
    let plan = Plan::new(graph);
    let mut exe = backend.compile(graph.clone(), plan).expect("compiles");
    for (input, data) in &setup.inputs {
        exe.set_input(*input, data).expect("input fits");
    }
    for (count, n) in &setup.counts {
        exe.set_count(*count, *n);
    }
    exe.run().expect("runs");
    let first = bits(&*exe, graph.outputs.len());
    for _ in 1..setup.runs {
        exe.run().expect("runs");
        assert_eq!(bits(&*exe, graph.outputs.len()), first, "runs again");
    }
    first
}

/// Builds a graph of one output and runs it, lowered, on every path; gives the
/// bits of each path. The thread count must not change them.
pub fn run(
    store: &Arc<Store>,
    setup: &Setup,
    build: impl Fn(&mut Builder<'_>) -> llama_rs::Result<TensorId>,
) -> Vec<(Simd, Vec<u32>)> {
    let width = Width::of(setup.width, setup.width);
    let mut b = Builder::new(&**store, width);
    let out = build(&mut b).expect("builds");
    b.output(out);
    let graph = b.graph;
    let one = |simd, n_threads| {
        let backend = CpuBackend::with_simd(store.clone(), n_threads, setup.exact, simd);
        let backend = backend.expect("available path");
        let lowered = backend.lower(&graph);
        execute(&backend, &lowered, setup).remove(0)
    };
    paths()
        .map(|simd| {
            let bits = one(simd, 1);
            assert!(bits == one(simd, 3), "{simd:?}: threads change the bits");
            (simd, bits)
        })
        .collect()
}

/// Compares the first values of every path with `want`; `tolerance(i)` is absolute.
pub fn close(what: &str, got: &[(Simd, Vec<u32>)], want: &[f64], tolerance: impl Fn(usize) -> f64) {
    for (simd, bits) in got {
        assert!(bits.len() >= want.len(), "{what}: {} values", bits.len());
        for (i, (&bits, &want)) in bits.iter().zip(want).enumerate() {
            let got = f64::from(f32::from_bits(bits));
            let same = got == want || (got.is_nan() && want.is_nan());
            assert!(
                same || (got - want).abs() <= tolerance(i),
                "{what}, {simd:?}, value {i}: {got:e}, want {want:e} within {:e}",
                tolerance(i)
            );
        }
    }
}

/// Compares the first i32 values of every path.
pub fn equal_ints(what: &str, got: &[(Simd, Vec<u32>)], want: &[i32]) {
    for (simd, bits) in got {
        let ints: Vec<i32> = bits[..want.len()].iter().map(|&b| b as i32).collect();
        assert!(ints == want, "{what}, {simd:?}");
    }
}

/// f32 to f64.
pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

/// The nearest number of `digits` fraction bits, ties to even, with subnormals
/// below 2^`e_min` and infinity above `max`.
pub fn nearest(x: f64, digits: i32, e_min: i32, max: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let step = 2f64.powi((x.abs().log2().floor() as i32).max(e_min) - digits);
    let rounded = (x / step).round_ties_even() * step;
    match rounded.abs() > max {
        true => f64::INFINITY.copysign(x),
        false => rounded,
    }
}

/// The nearest F16 number.
pub fn f16(x: f64) -> f64 {
    nearest(x, 10, -14, 65504.0)
}

/// The nearest BF16 number.
pub fn bf16(x: f64) -> f64 {
    nearest(x, 7, -126, f64::from(f32::MAX))
}
