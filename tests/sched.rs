//! Graphs on several devices: two CPU backends that share one graph give the
//! bits that one of them gives alone, whatever the placement.

#[allow(dead_code)] // shared with tests that open files
mod common;
#[path = "sched/fit.rs"]
mod fit;
#[path = "sched/twins.rs"]
mod twins;

use common::{all_logits, arch_models, data, params};
use llama_rs::backend::Device;
use llama_rs::backend::sched::{HOST, Placed, Rules, cache_devices, place, split};
use llama_rs::gguf::Gguf;
use llama_rs::graph::{CacheId, Graph, Op, Origin, Tensor, TensorId};
use llama_rs::memory::{GpuLayers, Placement, TensorOverride};
use llama_rs::model::{Model, Overrides, RopeOverrides};
use llama_rs::session::Session;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use twins::Twins;

const TOKENS: &[u32] = &[1, 5, 9, 2, 7, 7, 30, 11, 4, 8, 15, 3];

/// Every model of the fixtures.
fn models() -> Vec<(String, Arc<Model>)> {
    let files = arch_models().into_iter().filter_map(|(_, file)| file);
    let named = |file: PathBuf| {
        let name = file.file_stem().expect("a name").to_string_lossy();
        let gguf = Gguf::open(&file, true).expect("the file opens");
        let model = Model::load(gguf, &Overrides::default()).expect("the model loads");
        (name.to_string(), Arc::new(model))
    };
    files.map(named).collect()
}

fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// All on device 1 except what the three rules say.
struct Case {
    name: &'static str,
    weight: fn(&str, &Op) -> usize,
    cache: fn(CacheId) -> usize,
    /// What device 1 has no kernel for.
    lacks: fn(&Op) -> bool,
}

const CASES: &[Case] = &[
    Case {
        name: "alternate layers",
        weight: |name, _| layer_of(name).map_or(1, |il| il % 2),
        cache: |id| id.layer() % 2,
        lacks: |_| false,
    },
    Case {
        name: "head only",
        weight: |name, op| usize::from(layer_of(name).is_none() && !matches!(op, Op::GetRows)),
        cache: |_| HOST,
        lacks: |_| false,
    },
    Case {
        name: "feed-forward on the host",
        weight: |name, _| usize::from(!name.contains("ffn")),
        cache: |_| 1,
        lacks: |_| false,
    },
    Case {
        name: "queries on the host",
        weight: |name, _| usize::from(!name.contains("attn_q")),
        cache: |_| 1,
        lacks: |_| false,
    },
    Case {
        name: "no MOE_ROUTE",
        weight: |_, _| 1,
        cache: |_| 1,
        lacks: |op| matches!(op, Op::MoeRoute { .. }),
    },
    Case {
        name: "no ATTN",
        weight: |_, _| 1,
        cache: |_| 1,
        lacks: |op| matches!(op, Op::Attn(..)),
    },
    Case {
        name: "no ROPE, no GLU",
        weight: |_, _| 1,
        cache: |_| 1,
        lacks: |op| matches!(op, Op::Rope(_) | Op::Glu(_)),
    },
    Case {
        name: "no GET_ROWS",
        weight: |_, _| 1,
        cache: |_| 1,
        lacks: |op| matches!(op, Op::GetRows),
    },
];

fn placed(graph: &Graph, case: &Case) -> (Placed, HashMap<CacheId, usize>) {
    let runs = |device: usize, graph: &Graph, id: TensorId| {
        let Origin::Op(op) = graph.get(id).origin else {
            return true;
        };
        device == HOST || !(case.lacks)(&op)
    };
    let mut refused = Default::default();
    let caches = cache_devices(&[graph], &case.cache, &runs, &mut refused);
    let rules = Rules {
        weight: &case.weight,
        cache: &|id| caches[&id],
        runs: &runs,
    };
    let mut placed = place(graph, &rules);
    placed.refused.extend(refused);
    (placed, caches)
}

#[test]
fn every_placement_gives_the_same_bits() {
    for (name, model) in models() {
        let alone = Twins::run(&model, TOKENS, &|graph| {
            let device_of = vec![HOST; graph.tensors.len()];
            (device_of, HashMap::new())
        });
        assert_eq!(alone.n_segments, 1, "{name}");
        for case in CASES {
            let together = Twins::run(&model, TOKENS, &|graph| {
                let (placed, caches) = placed(graph, case);
                (placed.device_of, caches)
            });
            assert_eq!(alone.bits, together.bits, "{name}: {}", case.name);
        }
    }
}

#[test]
fn nodes_anywhere_give_the_same_bits() {
    for (name, model) in models() {
        let alone = Twins::run(&model, TOKENS, &|graph| {
            let device_of = vec![HOST; graph.tensors.len()];
            (device_of, HashMap::new())
        });
        for seed in 1..6u64 {
            let scattered = Twins::run(&model, TOKENS, &|graph| {
                // Caches of a layer stay together, everything else is thrown.
                let cache = |id: CacheId| (id.layer() + seed as usize) % 2;
                let mut state = seed;
                let mut device_of = Vec::new();
                for id in graph.ids() {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let owners = graph.get(id).src.iter().map(|&s| graph.owner(s));
                    let held = owners
                        .filter_map(|o| match graph.get(o).origin {
                            Origin::Cache(id) => Some(cache(id)),
                            _ => None,
                        })
                        .next();
                    device_of.push(held.unwrap_or((state >> 60) as usize % 2));
                }
                let caches = graph.tensors.iter().filter_map(|t| match t.origin {
                    Origin::Cache(id) => Some((id, cache(id))),
                    _ => None,
                });
                (device_of, caches.collect())
            });
            assert!(scattered.n_segments > 4, "{name}");
            assert_eq!(alone.bits, scattered.bits, "{name}: seed {seed}");
        }
    }
}

/// Segments of a graph of several tokens under a case.
fn segments(model: &Model, case: &Case) -> (usize, usize, Placed) {
    let graph = twins::graph(model, TOKENS.len());
    let (placed, _) = placed(&graph, case);
    let split = split(&graph, &placed.device_of).expect("splits");
    (split.segments.len(), split.borders.len(), placed)
}

#[test]
fn glue_does_not_bounce() {
    for (name, model) in models() {
        let hp = model.hparams();
        let layers = 0..hp.n_layer;
        // Some layers have no attention, or no feed-forward part.
        let with_attn = layers.clone().filter(|&il| hp.n_head_kv[il] > 0).count();
        let with = |kind: &str| {
            let has = |il: &usize| {
                let prefix = format!("blk.{il}.{kind}");
                model.weight_names().any(|name| name.starts_with(&prefix))
            };
            layers.clone().filter(has).count()
        };
        let (n_layer, with_ffn, with_q) = (hp.n_layer, with("ffn_up"), with("attn_q"));
        let ops = twins::graph(&model, TOKENS.len()).tensors;
        let routes = |t: &Tensor| matches!(t.origin, Origin::Op(Op::MoeRoute { .. }));
        let dense = !ops.iter().any(routes);
        for case in CASES {
            let (n, n_borders, placed) = segments(&model, case);
            let refused = placed.refused.len();
            match case.name {
                // The embedding is on device 1, layer 0 on the host.
                "alternate layers" => {
                    assert_eq!((n, n_borders), (n_layer + 1 + n_layer % 2, n - 1), "{name}")
                }
                // One residual stream crosses, before its norm.
                "head only" => assert_eq!((n, n_borders), (2, 1), "{name}"),
                "feed-forward on the host" => assert_eq!(n, 2 * with_ffn + 1, "{name}"),
                "queries on the host" => assert_eq!(n, 2 * with_q + 1, "{name}"),
                "no MOE_ROUTE" if dense => assert_eq!((n, refused), (1, 0), "{name}"),
                "no MOE_ROUTE" => {
                    // Logits go, ids and weights come; the residual stream and its
                    // norm wait for the segment after it.
                    assert_eq!((n, n_borders), (2 * n_layer + 1, 4 * n_layer), "{name}");
                    assert!(placed.refused.contains("MOE_ROUTE"));
                }
                "no ATTN" => {
                    assert_eq!(n, 2 * with_attn + 1, "{name}");
                    assert_eq!(placed.refused.contains("ATTN"), with_attn > 0);
                }
                _ => assert!(n > 1 && refused > 0, "{name}: {}", case.name),
            }
        }
    }
}

/// A session whose GPU is played by a second CPU backend.
fn twin(layers: GpuLayers, overrides: &[&str]) -> Placement {
    let rule = |regex: &&str| TensorOverride {
        regex: fancy_regex::Regex::new(regex).expect("a regex"),
        device: Device::Cpu,
    };
    Placement {
        offload: Some(Device::Cpu),
        layers,
        overrides: overrides.iter().map(rule).collect(),
        n_cpu_moe: None,
    }
}

#[test]
fn sessions_offload_as_asked_and_give_the_same_bits() {
    for (name, model) in models() {
        let mut p = params(64, 5, false);
        let mut alone = Session::new(model.clone(), p.clone()).expect("a session");
        assert_eq!(alone.load(), None);
        assert!(!alone.argmax_on_device());
        let want = all_logits(&mut alone, TOKENS);
        let most = model.n_layer() + 1;
        for (layers, overrides, n) in [
            (GpuLayers::Count(0), &[][..], 0),
            (GpuLayers::Count(1), &[], 1),
            (GpuLayers::Count(2), &["attn_k", "blk.0.ffn"], 2),
            (GpuLayers::Count(99), &[], most),
            (GpuLayers::All, &[], most),
            (GpuLayers::Auto, &[], most),
        ] {
            p.placement = twin(layers, overrides);
            let mut session = Session::new(model.clone(), p.clone()).expect("a session");
            let load = session.load().expect("a second device");
            assert_eq!((load.n_layers, load.most_layers), (n, most), "{name}");
            assert_eq!(session.argmax_on_device(), n > 0, "{name}");
            assert_eq!(session.kv_bytes(), alone.kv_bytes(), "{name}");
            let got = all_logits(&mut session, TOKENS);
            assert_eq!(want, got, "{name}: {layers:?}");
        }
    }
}

#[test]
fn greedy_ids_are_those_of_the_logits() {
    for (name, model) in models() {
        for placement in [Placement::cpu(), twin(GpuLayers::Count(1), &[])] {
            let mut p = params(64, 5, false);
            p.placement = placement;
            let mut by_logits = Session::new(model.clone(), p.clone()).expect("a session");
            let mut by_id = Session::new(model.clone(), p).expect("a session");
            let mut next = TOKENS.to_vec();
            for _ in 0..4 {
                let logits = by_logits.eval(&next).expect("evaluates");
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let best = logits.iter().position(|&l| l == max).expect("one") as u32;
                let id = by_id.eval_greedy(&next).expect("evaluates");
                assert_eq!(id, Some(best), "{name}");
                next = vec![best];
            }
        }
    }
}

#[test]
fn without_a_finite_logit_there_is_no_greedy_id() {
    let file = data().join("arch/llama-dense-Q4_K_M.gguf");
    let gguf = Gguf::open(&file, true).expect("the file opens");
    let overrides = Overrides {
        rope: RopeOverrides {
            // Scores overflow, and every logit is NaN.
            attn_factor: Some(1e38),
            ..RopeOverrides::default()
        },
        kv: Vec::new(),
    };
    let model = Arc::new(Model::load(gguf, &overrides).expect("the model loads"));
    let mut session = Session::new(model, params(64, 5, false)).expect("a session");
    assert_eq!(session.eval_greedy(&[1, 2]).expect("evaluates"), None);
}
