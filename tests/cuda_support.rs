//! What CUDA says it can run, without a GPU: every node of every architecture's graphs
//! has kernels, their launches are within the limits, and the kernels exist.

#[allow(dead_code, reason = "shared with tests that evaluate")]
mod common;
#[path = "common/kernel_sources.rs"]
mod kernel_sources;

use common::arch_models;
use llama_rs::arch::CacheShape;
use llama_rs::backend::cuda::kernel::{Kernel, Node};
use llama_rs::backend::cuda::{layout, lower, ops};
use llama_rs::gguf::Gguf;
use llama_rs::graph::builder::Width;
use llama_rs::graph::{Graph, Op, Origin};
use llama_rs::model::{Model, Overrides, Wanted};
use llama_rs::quant::DType;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Most shared memory that a block of every GPU from sm_80 on may ask for (sm_86).
const MOST_SHARED_BYTES: u32 = 99 << 10;

fn models() -> Vec<(String, Model)> {
    let files = arch_models().into_iter().filter_map(|(_, file)| file);
    let load = |file: PathBuf| {
        let name = file.file_stem().expect("a name").to_string_lossy();
        let gguf = Gguf::open(&file, true).expect("the file opens");
        let model = Model::load(gguf, &Overrides::default()).expect("the model loads");
        (name.to_string(), model)
    };
    files.map(load).collect()
}

/// Graphs of decode and prefill, lowered, with the flag they were lowered for.
fn graphs(model: &Model) -> Vec<(String, bool, Graph)> {
    let mut all = Vec::new();
    for (n_tokens, n_outputs) in [(1, 1), (3, 1), (8, 8), (64, 1), (64, 64), (512, 1)] {
        for exact in [false, true] {
            let kv = if exact { DType::F32 } else { DType::F16 };
            let cache = CacheShape {
                k_type: kv,
                v_type: kv,
                n_ctx: 4096,
                n_cells: 4096,
                n_cells_swa: 1024,
                n_slots: 1,
            };
            for wanted in [Wanted::Logits, Wanted::Argmax] {
                let width = Width::of(n_tokens, n_outputs);
                let graph = model.graph(wanted, width, &cache).expect("a graph");
                let name = format!("{n_tokens} tokens, {n_outputs} outputs, exact {exact}");
                all.push((name, exact, lower::lower(&graph, exact)));
            }
        }
    }
    all
}

fn check_limits(what: &str, kernel: &Kernel) {
    let [x, y, z] = kernel.grid;
    assert!(x >= 1 && y >= 1 && z >= 1, "{what}: grid {:?}", kernel.grid);
    assert!(x <= i32::MAX as u32 && y <= 65_535 && z <= 65_535, "{what}");
    assert!((1..=1024).contains(&kernel.block), "{what}");
    assert!(kernel.shared_bytes <= MOST_SHARED_BYTES, "{what}");
}

#[test]
fn every_node_of_every_architecture_has_kernels() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda-kernels");
    let entries = kernel_sources::entries(&sources);
    let mut faults = BTreeSet::new();
    for (name, model) in models() {
        for (width, exact, graph) in graphs(&model) {
            for id in graph.ids() {
                let Some(node) = Node::of(&graph, id, exact) else {
                    continue;
                };
                let what = format!("{name}, {width}: {} {}", node.op.name(), node.dst.name);
                let Some(answer) = ops::kernels(&node) else {
                    faults.insert(format!("{what}: no kernel"));
                    continue;
                };
                for kernel in &answer.kernels {
                    check_limits(&what, kernel);
                    for entry in kernel
                        .on_clusters
                        .iter()
                        .map(|k| &k.entry)
                        .chain([&kernel.entry])
                    {
                        if !entries.contains(entry) {
                            faults.insert(format!("{what}: {entry} is in no source"));
                        }
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// `attn_split.cu` and `attn_token.cu` look at them before the kernels ahead of it are done.
#[test]
fn where_tokens_and_cells_are_is_an_input_of_attention() {
    let mut n_seen = 0;
    for (name, model) in models() {
        for (_, _, graph) in graphs(&model) {
            for id in graph.ids() {
                let tensor = graph.get(id);
                if !matches!(tensor.origin, Origin::Op(Op::Attn(..))) {
                    continue;
                }
                n_seen += 1;
                for &at in &tensor.src[3..7] {
                    let origin = &graph.get(at).origin;
                    assert!(matches!(origin, Origin::Input(_)), "{name}: {origin:?}");
                }
            }
        }
    }
    assert!(n_seen > 0);
}

/// `tests/launches.rs` holds launches of several against each alone: it would hold nothing
/// against nothing if no tiny model had them. Experts of them are too short for theirs.
#[test]
fn tiny_models_have_launches_that_are_taken_in() {
    let attention = ["head_rows", "head_rows", "head_rows", "attn_token_"];
    let product = "mul_mat_vec_mixed_1";
    let mut found = [0, 0];
    for (_, model) in models() {
        for (width, exact, graph) in graphs(&model) {
            if exact || !width.starts_with("1 ") {
                continue;
            }
            let nodes = graph.ids().filter_map(|id| Node::of(&graph, id, false));
            let answers = nodes.filter_map(|node| ops::kernels(&node));
            let kernels: Vec<String> = answers
                .flat_map(|answer| answer.kernels)
                .map(|kernel| kernel.entry)
                .collect();
            let has = |wanted: &[&str]| {
                kernels
                    .windows(wanted.len())
                    .any(|some| some.iter().zip(wanted).all(|(k, w)| k.starts_with(w)))
            };
            for (n, wanted) in found.iter_mut().zip([&attention[..], &[product; 2]]) {
                *n += usize::from(has(wanted));
            }
        }
    }
    assert!(found.iter().all(|&n| n > 0), "{found:?}");
}

#[test]
fn every_type_of_weights_has_kernels() {
    for &dtype in DType::ALL.iter().filter(|&&d| d != DType::I32) {
        assert!(layout::has_type(dtype), "{dtype:?} has no .cuh");
    }
    assert!(!layout::has_type(DType::I32));
}

#[test]
fn kernels_are_found_in_the_sources() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda-kernels");
    let entries = kernel_sources::entries(&sources);
    for name in ["mul_mat_Q4_K", "get_rows_F32", "head_rows", "rms_norm_warp"] {
        assert!(entries.contains(name), "{name}: {entries:?}");
    }
    assert!(!entries.iter().any(|e| e.contains('#')), "{entries:?}");
}
