//! What the planner says about CUDA, of which it asks sizes only: no GPU needed.

use super::models;
use llama_rs::Error;
use llama_rs::backend::Device;
use llama_rs::graph::CacheKind;
use llama_rs::memory::planner::{Evaluation, MARGIN_BYTES, Setup};
use llama_rs::memory::{GpuLayers, Placement};
use llama_rs::model::Model;
use llama_rs::quant::DType;

fn gpu(layers: GpuLayers) -> Placement {
    Placement {
        offload: Some(Device::Cuda(0)),
        layers,
        overrides: Vec::new(),
    }
}

fn setup<'a>(model: &'a Model, placement: &'a Placement, n_ctx: usize) -> Setup<'a> {
    let how = Evaluation {
        kv_types: [DType::F16; 2],
        n_ctx,
        n_ubatch: 32,
        n_seqs: 1,
        exact: false,
    };
    Setup::new(model, placement, how).expect("no overrides")
}

#[test]
fn needs_grow_with_layers_up_to_one_segment() {
    for (name, model) in models() {
        let placement = gpu(GpuLayers::Auto);
        let setup = setup(&model, &placement, 64);
        let most = model.n_layer() + 1;
        let mut before = 0;
        for n in 0..=most {
            let schedule = setup.schedule(n);
            assert_eq!(schedule.refused().next(), None, "{name}");
            let need = setup.need(&schedule).expect("sizes");
            assert!(need.total() > before || n == 0, "{name}: {n} layers");
            before = need.total();
            let caches = setup.cache_bytes();
            let held =
                caches.len() - CacheKind::ALL.len() * n.saturating_sub(1).min(model.n_layer());
            assert_eq!(need.kv, caches[held..].iter().sum::<usize>(), "{name}");
            for graph in setup.graphs() {
                let split = schedule.split(graph).expect("splits");
                let wanted = if n == 0 || n == most { 1 } else { 2 };
                assert_eq!(split.segments.len(), wanted, "{name}: {n} layers");
            }
        }
    }
}

#[test]
fn auto_takes_what_fits_and_numbers_are_errors_beyond_it() {
    for (name, model) in models() {
        let auto = gpu(GpuLayers::Auto);
        let auto = setup(&model, &auto, 64);
        let need = |n| {
            let schedule = auto.schedule(n);
            auto.need(&schedule).expect("sizes").total()
        };
        let most = model.n_layer() + 1;
        let (schedule, _) = auto.fit(None).expect("no limit");
        assert_eq!(schedule.n_offloaded(), most, "{name}");
        for n in 0..=most {
            let free = MARGIN_BYTES + need(n);
            let (schedule, fitted) = auto.fit(Some(free)).expect("falls back");
            assert_eq!(schedule.n_offloaded(), n, "{name}");
            assert_eq!(fitted.total(), need(n), "{name}");
        }
        let (schedule, _) = auto.fit(Some(0)).expect("falls back");
        assert_eq!(schedule.n_offloaded(), 0, "{name}");

        let given = gpu(GpuLayers::Count(most));
        let given = setup(&model, &given, 64);
        assert!(given.fit(Some(need(most))).is_ok(), "{name}");
        let error = given.fit(Some(need(most) - 1));
        let error = error.expect_err("too large");
        assert!(matches!(error, Error::DoesNotFit(_)));
        let text = error.to_string();
        let flag = format!("give -ngl {}", most - 1);
        assert!(text.ends_with(&flag), "{name}: {text}");
    }
}

#[test]
fn a_shorter_context_is_proposed_where_it_helps() {
    let (_, model) = models().swap_remove(2);
    let given = gpu(GpuLayers::All);
    let total = |n_ctx| {
        let setup = setup(&model, &given, n_ctx);
        let schedule = setup.schedule(usize::MAX);
        setup.need(&schedule).expect("sizes").total()
    };
    let long = setup(&model, &given, 1 << 17);
    let error = long.fit(Some(total(8192))).expect_err("too large");
    let text = error.to_string();
    assert!(text.ends_with(" or -c 8192"), "{text}");
}
