//! What the planner says before a session is what the session then has allocated, to the
//! byte, on each device: for dense models, mixtures of experts, sliding windows, recurrent
//! and hybrid ones. A second CPU plays the GPU where there is one.

#[allow(dead_code)] // shared with tests that need more
mod common;

use common::{arch_models, params};
use llama_rs::backend::{Device, Held};
use llama_rs::gguf::Gguf;
use llama_rs::memory::planner::Need;
use llama_rs::memory::{GpuLayers, Placement};
use llama_rs::model::{Model, Overrides};
use llama_rs::quant::DType;
use llama_rs::session::{Fit, Session, SessionParams};
use std::path::Path;
use std::sync::Arc;

/// What widths that were not planned may take, as `MOST_OWN_BYTES` of the session.
const SPARE: usize = 8 << 20;

/// One way to run a model.
struct Setting {
    n_ctx: usize,
    n_ubatch: usize,
    exact: bool,
    n_threads: usize,
    /// Layers on a second device, and layers whose experts stay behind.
    offload: Option<(usize, usize)>,
}

const SETTINGS: [Setting; 5] = [
    Setting {
        n_ctx: 64,
        n_ubatch: 16,
        exact: false,
        n_threads: 2,
        offload: None,
    },
    Setting {
        n_ctx: 1000,
        n_ubatch: 128,
        exact: true,
        n_threads: 3,
        offload: None,
    },
    Setting {
        n_ctx: 300,
        n_ubatch: 512,
        exact: false,
        n_threads: 1,
        offload: None,
    },
    Setting {
        n_ctx: 256,
        n_ubatch: 32,
        exact: false,
        n_threads: 2,
        offload: Some((99, 1)),
    },
    Setting {
        n_ctx: 256,
        n_ubatch: 32,
        exact: false,
        n_threads: 2,
        offload: Some((2, 0)),
    },
];

fn model(file: &Path) -> Arc<Model> {
    let gguf = Gguf::open(file, true).expect("the file opens");
    Arc::new(Model::load(gguf, &Overrides::default()).expect("the model loads"))
}

fn session(model: &Arc<Model>, setting: &Setting) -> Session {
    let placement = match setting.offload {
        None => Placement::cpu(),
        Some((n_layers, n_cpu_moe)) => Placement {
            offload: Some(Device::Cpu),
            layers: GpuLayers::Count(n_layers),
            overrides: Vec::new(),
            n_cpu_moe: Some(n_cpu_moe),
        },
    };
    let params = SessionParams {
        n_threads: setting.n_threads,
        placement,
        ..params(setting.n_ctx, setting.n_ubatch, setting.exact)
    };
    Session::new(model.clone(), params).expect("a session")
}

fn parts(need: &Need) -> [usize; 3] {
    [need.weights, need.kv, need.compute]
}

fn held(held: &Held) -> [usize; 3] {
    [held.weights, held.kv, held.compute]
}

#[test]
fn planned_bytes_are_allocated_bytes() {
    let mut n_checked = 0;
    for (name, file) in arch_models() {
        let Some(file) = file else { continue };
        let model = model(&file);
        for (number, setting) in SETTINGS.iter().enumerate() {
            let mut session = session(&model, setting);
            // A whole ubatch, then a single token: every executable there is.
            let width = setting.n_ubatch.min(setting.n_ctx);
            let whole: Vec<u32> = (0..width as u32).map(|i| 1 + i % 20).collect();
            session
                .eval(&whole[..width.min(setting.n_ctx - 1)])
                .expect("evaluates");
            session.truncate(0).expect("forgets");
            session.eval(&whole[..1]).expect("evaluates");
            let planned: Vec<_> = session
                .plan()
                .shares
                .iter()
                .map(|s| parts(&s.need))
                .collect();
            let held: Vec<_> = session.held().iter().map(held).collect();
            assert_eq!(planned, held, "{name}: setting {number}");
            n_checked += 1;
        }
    }
    assert!(n_checked >= 50, "{n_checked}");
}

/// Widths besides the planned ones stay within what they are allowed.
#[test]
fn other_widths_take_little() {
    for (name, file) in arch_models() {
        let Some(file) = file else { continue };
        let model = model(&file);
        let mut session = session(&model, &SETTINGS[3]);
        for n in [32, 17, 9, 8, 5, 3, 2, 1, 20] {
            session.clear();
            session.eval(&vec![1; n]).expect("evaluates");
            session.clear();
            session.eval_greedy(&vec![1; n]).expect("evaluates");
            let shares = session.plan().shares.iter();
            for (share, held) in shares.zip(session.held()) {
                let most = share.need.compute + SPARE;
                assert!(
                    held.compute <= most,
                    "{name}: {n} tokens on {}",
                    share.device
                );
                let compute = held.compute - held.own;
                assert!(
                    compute <= share.need.compute,
                    "{name}: the buffer has grown"
                );
            }
        }
    }
}

/// What experts on the CPU and the rest of a layer hand each other is as wide as the batch:
/// other widths give up theirs.
#[test]
fn wide_borders_of_other_widths_are_given_up() {
    let setting = Setting {
        n_ctx: 4096,
        n_ubatch: 4096,
        exact: false,
        n_threads: 2,
        offload: Some((99, 99)),
    };
    let files = arch_models()
        .into_iter()
        .filter(|(name, _)| name.contains("qwen3moe"));
    let mut n_checked = 0;
    for (name, file) in files {
        let Some(file) = file else { continue };
        let mut session = session(&model(&file), &setting);
        let compute = |session: &Session| session.held().iter().map(|h| h.compute).sum::<usize>();
        let shares = session.plan().shares.iter();
        let planned: usize = shares.map(|share| share.need.compute).sum();
        let mut wide = 0;
        for n in [4096, 1, 2000, 1000, 4096] {
            session.clear();
            session.eval(&vec![1; n]).expect("evaluates");
            let own: usize = session.held().iter().map(|held| held.own).sum();
            wide = wide.max(own);
            assert!(compute(&session) <= planned + SPARE, "{name}: {n} tokens");
        }
        // Else nothing was given up.
        assert!(wide / 2 > SPARE, "{name}: {wide} bytes of inputs");
        n_checked += 1;
    }
    assert!(n_checked > 0);
}

/// The sizes of a cache, from the model's numbers alone.
#[test]
fn kv_bytes_are_those_of_the_formula() {
    for (name, file) in arch_models() {
        let Some(file) = file else { continue };
        let model = model(&file);
        let hp = model.hparams();
        let (n_ctx, n_ubatch) = (1000, 128);
        for (types, bytes) in [(DType::F16, 2), (DType::F32, 4)] {
            let params = SessionParams {
                kv_type_k: types,
                kv_type_v: types,
                ..params(n_ctx, n_ubatch, false)
            };
            let session = Session::new(model.clone(), params).expect("a session");
            let window = hp.window.map_or(n_ctx, |w| w as usize + n_ubatch);
            let layers = (0..hp.n_layer).map(|il| {
                let cells = if hp.swa[il] { window.min(n_ctx) } else { n_ctx };
                let kv = bytes * cells * (hp.n_embd_k(il) + hp.n_embd_v(il));
                let state = hp.recurrent[il].map_or(0, |r| r.n_conv() + r.n_state());
                kv + 4 * state
            });
            assert_eq!(session.kv_bytes(), layers.sum::<usize>(), "{name}");
        }
    }
}

/// The context is what fits, and what is then allocated is what was planned.
#[test]
fn a_session_with_a_free_context_has_what_was_planned() {
    let files = arch_models().into_iter().filter_map(|(_, file)| file);
    let model = model(&files.into_iter().next().expect("a model"));
    let params = SessionParams {
        fit: Fit {
            least_ctx: Some(256),
            ..Fit::default()
        },
        ..params(2048, 64, false)
    };
    let session = Session::new(model, params).expect("a session");
    // These models are tiny: all of it fits.
    assert_eq!((session.n_ctx(), session.plan().point.n_ctx), (2048, 2048));
    assert_eq!(session.kv_bytes(), session.plan().shares[0].need.kv);
}
