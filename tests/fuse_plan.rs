//! Fusion keeps results, the plan keeps tensors apart, shape rules say no.

#[path = "ops/harness.rs"]
#[allow(dead_code)] // shared with `ops.rs`, which uses all of it
mod harness;
#[path = "fuse_plan/shapes.rs"]
mod shapes;

use harness::*;
use llama_rs::backend::Backend;
use llama_rs::backend::cpu::CpuBackend;
use llama_rs::graph::builder::Width;
use llama_rs::graph::{Builder, GluKind, Graph, Op, Origin, Plan, TensorId, UnaryKind};
use llama_rs::quant::DType;
use proptest::prelude::*;
use std::sync::Arc;

const ONE: Width = Width {
    n_tokens: 1,
    n_outputs: 1,
    n_seqs: 1,
};
const K: usize = 64;
const N: usize = 5;

/// An activation, norm weights and square matrices.
fn store(seed: u64) -> Arc<Store> {
    let mut random = Random(seed | 1);
    let mut store = Store::default();
    store.f32("x", &[K, N], &random.units(K * N));
    for i in 0..3 {
        store.f32(&format!("norm{i}"), &[K], &random.units(K));
        store.f32(&format!("w{i}"), &[K, K], &random.units(K * K));
        let mut q8_0 = Vec::new();
        for _ in 0..K * K / 32 {
            q8_0.extend(half::f16::from_f32(random.unit() * 0.02).to_le_bytes());
            q8_0.extend((0..32).map(|_| (random.bits() >> 40) as u8));
        }
        store.bytes(&format!("q{i}"), DType::Q8_0, &[K, K], &q8_0);
    }
    Arc::new(store)
}

/// A random graph of norms, shared activations, products, views and outputs;
/// `matrix` names the weights of its products.
fn random_graph(store: &Store, matrix: &str, seed: u64, n_ops: usize) -> Graph {
    let mut random = Random(seed | 1);
    let mut b = Builder::new(store, ONE);
    let mut made = vec![operand(&mut b, store, "x")];
    for _ in 0..n_ops {
        let x = made[random.below(made.len())];
        let y = made[random.below(made.len())];
        let i = random.below(3);
        let next = match random.below(7) {
            0 | 1 => {
                let norm = b.op(Op::RmsNorm { eps: 1e-6 }, &[x]).expect("shape");
                // Sometimes the bare norm is read as well, so it must stay.
                if random.below(4) == 0 {
                    made.push(norm);
                }
                let weight = operand(&mut b, store, &format!("norm{i}"));
                b.mul(norm, weight).expect("shape")
            }
            2 | 3 => {
                let w = operand(&mut b, store, &format!("{matrix}{i}"));
                let product = b.mul_mat(w, x).expect("shape");
                b.scale(product, 0.2).expect("shape")
            }
            4 => b.add(x, y).expect("shape"),
            5 => b.glu(GluKind::Swiglu, x, y).expect("shape"),
            _ => {
                let low = b.slice(x, 0, 0, K / 2).expect("inside");
                let tanh = b.unary(UnaryKind::Tanh, low).expect("shape");
                let flat = b.reshape(tanh, &[K / 2 * N]).expect("contiguous");
                let back = b.reshape(flat, &[K / 2, N]).expect("contiguous");
                let up = b.slice(y, 0, K / 2, K / 2).expect("inside");
                let half = b.glu(GluKind::Reglu, back, up).expect("shape");
                let sum = b.op(Op::SumRows, &[half]).expect("shape");
                b.add(x, sum).expect("shape")
            }
        };
        made.push(next);
    }
    let last = *made.last().expect("not empty");
    b.output(last);
    let other = made[random.below(made.len())];
    if b.graph.get(other).is_computed() && other != last {
        b.output(other);
    }
    b.graph
}

/// First tensor that reads `id`'s data last; graph outputs are read at the end.
fn last_reader(graph: &Graph, id: TensorId) -> usize {
    if graph.outputs.iter().any(|&o| graph.owner(o) == id) {
        return graph.tensors.len();
    }
    let reads = |r: &TensorId| graph.get(*r).src.iter().any(|&s| graph.owner(s) == id);
    let last = graph.ids().filter(reads).map(TensorId::at).max();
    last.unwrap_or(id.at())
}

/// Computed tensors as (born, dies, first byte, end).
fn placed(graph: &Graph, plan: &Plan) -> Vec<(usize, usize, usize, usize)> {
    let computed = graph.ids().filter(|&id| graph.get(id).is_computed());
    computed
        .map(|id| {
            let at = plan.offset[id.at()].expect("computed tensors have a place");
            let end = at + graph.get(id).bytes();
            (id.at(), last_reader(graph, id), at, end)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tensors_alive_together_never_overlap(seed: u64, n_ops in 1usize..40) {
        let store = store(7);
        let backend = CpuBackend::new(store.clone(), 1, false).expect("threads");
        let plain = random_graph(&store, "q", seed, n_ops);
        for graph in [backend.lower(&plain), plain] {
            let plan = Plan::new(&graph);
            let places = placed(&graph, &plan);
            for (i, a) in places.iter().enumerate() {
                prop_assert!(a.2 % 64 == 0 && a.3 <= plan.bytes);
                for b in &places[i + 1..] {
                    let together = b.0 <= a.1;
                    let apart = a.3 <= b.2 || b.3 <= a.2;
                    prop_assert!(!together || apart, "{a:?} and {b:?}");
                }
            }
            // Nothing is planned that no tensor uses.
            let end = places.iter().map(|p| p.3.next_multiple_of(64)).max();
            prop_assert_eq!(end, Some(plan.bytes));
        }
    }
}

#[test]
fn what_is_read_late_stays_and_every_result_is_its_own() {
    // Poison: a second graph in the same buffer leaves its values behind, and
    // the first must not see them.
    for seed in 1..40u64 {
        let store = store(seed);
        let backend = CpuBackend::new(store.clone(), 2, true).expect("threads");
        let small = random_graph(&store, "w", seed * 77, 12);
        let first = execute(&backend, &small, &Setup::default());
        execute(
            &backend,
            &random_graph(&store, "w", seed * 99, 30),
            &Setup::default(),
        );
        assert!(
            first == execute(&backend, &small, &Setup::default()),
            "seed {seed}"
        );
    }
}

/// The arithmetic of a fused norm is the same: x * scale is rounded, then
/// multiplied with the weight. F32 weights have no 8-bit form. So: equal bits.
#[test]
fn fusing_norms_keeps_the_bits() {
    let mut fused_norms = 0;
    for seed in 1..60u64 {
        let store = store(seed);
        let plain = random_graph(&store, "w", seed * 31, 20);
        for simd in paths() {
            let backend = CpuBackend::with_simd(store.clone(), 2, false, simd);
            let backend = backend.expect("available path");
            let lowered = backend.lower(&plain);
            let is_fused = |t: &&llama_rs::graph::Tensor| {
                matches!(t.origin, Origin::Op(Op::RmsNorm { .. })) && t.src.len() == 2
            };
            fused_norms += lowered.tensors.iter().filter(is_fused).count();
            assert!(lowered.tensors.len() <= plain.tensors.len());
            assert!(
                execute(&backend, &lowered, &Setup::default())
                    == execute(&backend, &plain, &Setup::default()),
                "seed {seed}, {simd:?}"
            );
        }
    }
    assert!(fused_norms > 100, "{fused_norms} fused");
}

/// The 8-bit form of a shared activation is made once, and its products are
/// within its rounding: half a step of max / 127 a value.
#[test]
fn shared_activations_are_quantized_once() {
    let store = store(3);
    let mut b = Builder::new(&*store, ONE);
    let x = operand(&mut b, &store, "x");
    for name in ["q0", "q1", "q2"] {
        let w = operand(&mut b, &store, name);
        let product = b.mul_mat(w, x).expect("shape");
        b.output(product);
    }
    let plain = b.graph;
    let backend = CpuBackend::new(store.clone(), 2, false).expect("threads");
    let lowered = backend.lower(&plain);
    let is_q8 =
        |t: &&llama_rs::graph::Tensor| matches!(t.origin, Origin::Op(Op::QuantizeQ8 { .. }));
    assert_eq!(lowered.tensors.iter().filter(is_q8).count(), 1);
    let [got, want] = [&lowered, &plain].map(|g| execute(&backend, g, &Setup::default()));
    // Weights are below 0.02 * 128, values below 1; 1 % for the step's rounding.
    let bound = K as f32 * 0.02 * 128.0 / 254.0 * 1.01;
    for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
        let (got, want) = (f32::from_bits(*got), f32::from_bits(*want));
        assert!((got - want).abs() < bound, "{got} {want}");
    }
    assert!(got != want, "8-bit values were used");
}

/// `[K, K]` times `[1, K]` repeats over columns: no norm weight, no fusion.
#[test]
fn a_factor_for_each_row_is_not_a_norm_weight() {
    let mut store = Store::default();
    let mut random = Random(5);
    store.f32("x", &[K, K], &random.units(K * K));
    store.f32("rows", &[1, K], &random.units(K));
    let store = Arc::new(store);
    let mut b = Builder::new(&*store, ONE);
    let operands = ["x", "rows"].map(|name| operand(&mut b, &store, name));
    let norm = b.op(Op::RmsNorm { eps: 1e-6 }, &operands[..1]);
    let y = b.mul(norm.expect("shape"), operands[1]).expect("shape");
    b.output(y);
    let backend = CpuBackend::new(store.clone(), 1, true).expect("threads");
    let lowered = backend.lower(&b.graph);
    assert!(
        execute(&backend, &lowered, &Setup::default())
            == execute(&backend, &b.graph, &Setup::default())
    );
}

/// Products on CUDA take the norm before them only when they read its very rows:
/// its sum runs over `k`, its weight has `k` values.
#[test]
fn products_take_no_norm_of_other_rows() {
    let mut store = Store::default();
    let mut random = Random(7);
    store.f32("x", &[K, N], &random.units(K * N));
    store.f32("heads", &[K / 2, 2, N], &random.units(K * N));
    store.f32("row", &[K, 1], &random.units(K));
    for k in [K, K / 2] {
        store.f32(&format!("norm{k}"), &[k], &random.units(k));
        store.f32(&format!("w{k}"), &[k, K], &random.units(k * K));
    }
    let norms = |x: &str, k_norm: usize, view: &dyn Fn(&mut Builder<'_>, TensorId) -> TensorId| {
        let mut b = Builder::new(&store, ONE);
        let [x, weight] = [x, &format!("norm{k_norm}")].map(|n| operand(&mut b, &store, n));
        let norm = b.op(Op::RmsNorm { eps: 1e-6 }, &[x]).expect("shape");
        let normed = b.mul(norm, weight).expect("shape");
        let x = view(&mut b, normed);
        let w = format!("w{}", b.graph.get(x).ne[0]);
        let w = operand(&mut b, &store, &w);
        let y = b.mul_mat(w, x).expect("shape");
        b.output(y);
        let lowered = llama_rs::backend::cuda::lower(&b.graph, true);
        let is_norm =
            |t: &&llama_rs::graph::Tensor| matches!(t.origin, Origin::Op(Op::RmsNorm { .. }));
        lowered.tensors.iter().filter(is_norm).count()
    };
    let whole = norms("x", K, &|b, x| b.reshape(x, &[K, N, 1]).expect("whole"));
    assert_eq!(whole, 0, "taken along");
    let joined = norms("heads", K / 2, &|b, x| {
        b.reshape(x, &[K, N]).expect("whole")
    });
    assert_eq!(joined, 1, "heads side by side");
    let part = norms("row", K, &|b, x| b.slice(x, 0, 0, K / 2).expect("a window"));
    assert_eq!(part, 1, "half a row");
}

#[test]
fn a_chain_needs_two_buffers() {
    let store = store(1);
    let mut b = Builder::new(&*store, ONE);
    let mut x = operand(&mut b, &store, "x");
    for _ in 0..50 {
        x = b.unary(UnaryKind::Tanh, x).expect("shape");
    }
    b.output(x);
    let plan = Plan::new(&b.graph);
    assert_eq!(plan.bytes, 2 * (K * N * 4).next_multiple_of(64));
    let backend = CpuBackend::new(store.clone(), 1, true).expect("threads");
    let exe = backend.compile(b.graph, plan.clone()).expect("compiles");
    assert_eq!(exe.compute_bytes(), plan.bytes);
}
