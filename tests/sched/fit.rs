//! What the planner says about CUDA, of which it asks sizes only: no GPU needed.

use super::models;
use llama_rs::Error;
use llama_rs::backend::Device;
use llama_rs::graph::CacheKind;
use llama_rs::memory::placement::OFFLOAD;
use llama_rs::memory::planner::{Budget, Evaluation, Need, Plan, Planner, Point, Setup, Wish};
use llama_rs::memory::{GpuLayers, Placement};
use llama_rs::model::Model;
use llama_rs::quant::DType;

/// Left free in what follows, and what a GPU has to itself.
const MARGIN: usize = 1 << 20;
const OVERHEAD: usize = 1 << 16;

fn gpu(layers: GpuLayers) -> Placement {
    Placement {
        offload: Some(Device::Cuda(0)),
        layers,
        overrides: Vec::new(),
        n_cpu_moe: Some(0),
    }
}

fn setup<'a>(model: &'a Model, placement: &'a Placement, n_ctx: usize) -> Setup<'a> {
    let how = Evaluation {
        kv_types: [DType::F16; 2],
        n_ctx,
        n_ubatch: 32,
        n_seqs: 1,
        n_all_logits: 0,
        n_threads: 1,
        exact: false,
    };
    Setup::new(model, placement, how).expect("no overrides")
}

/// What the GPU needs, overhead aside.
fn need(setup: &Setup<'_>, n_layers: usize, n_cpu_moe: usize) -> Need {
    let schedule = setup.schedule(n_layers, n_cpu_moe);
    setup.needs(&schedule).expect("sizes")[OFFLOAD]
}

/// A plan with `free` bytes on the GPU, and the error that would be told if it does not fit.
fn plan(setup: Setup<'_>, free: usize, wish: Wish) -> (Plan, Option<Error>) {
    let budget = Budget::new(None, Some((Some(free), OVERHEAD)), MARGIN);
    let mut planner = Planner::new(setup, budget);
    let plan = planner.plan(wish).expect("sizes");
    let error = (!plan.fits).then(|| planner.error(&plan, wish));
    (plan, error)
}

fn exactly(n_ctx: usize) -> Wish {
    Wish {
        n_ctx,
        least: n_ctx,
    }
}

#[test]
fn needs_grow_with_layers_up_to_one_segment() {
    for (name, model) in models() {
        let placement = gpu(GpuLayers::Auto);
        let setup = setup(&model, &placement, 64);
        let most = model.n_layer() + 1;
        let mut before = 0;
        for n in 0..=most {
            let schedule = setup.schedule(n, 0);
            assert!(schedule.refused(setup.graphs()).is_empty(), "{name}");
            let need = need(&setup, n, 0);
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
        let all = setup(&model, &auto, 64);
        let free = |n| match need(&all, n, 0).total() {
            0 => 0,
            total => MARGIN + OVERHEAD + total,
        };
        let most = model.n_layer() + 1;
        for n in 0..=most {
            let (plan, _) = plan(setup(&model, &auto, 64), free(n), exactly(64));
            assert_eq!((plan.fits, plan.point.n_layers), (true, n), "{name}");
            let shares = plan.shares[OFFLOAD];
            assert_eq!(shares.need.total() > 0, n > 0, "{name}");
            assert_eq!(plan.reductions.len(), usize::from(n < most), "{name}");
        }
        let given = gpu(GpuLayers::Count(most));
        let (fits, _) = plan(setup(&model, &given, 64), free(most), exactly(64));
        assert!(
            fits.fits && fits.shares[OFFLOAD].left() == Some(0),
            "{name}"
        );
        let (_, error) = plan(setup(&model, &given, 64), free(most) - 1, exactly(64));
        let error = error.expect("too large");
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
    let most = model.n_layer() + 1;
    let free = |n_ctx| MARGIN + OVERHEAD + need(&setup(&model, &given, n_ctx), most, 0).total();
    let long = setup(&model, &given, 1 << 17);
    let (_, error) = plan(long, free(8192), exactly(1 << 17));
    let text = error.expect("too large").to_string();
    assert!(text.ends_with(" or -c 8192"), "{text}");

    let long = setup(&model, &given, 1 << 17);
    let wish = Wish {
        n_ctx: 1 << 17,
        least: 4096,
    };
    let (plan, _) = plan(long, free(8192) + 100, wish);
    let fitted = Point {
        n_layers: most,
        n_ctx: 8192,
        n_cpu_moe: 0,
    };
    assert_eq!((plan.fits, plan.point), (true, fitted));
    let [why] = &plan.reductions[..] else {
        panic!("{:?}", plan.reductions);
    };
    assert!(why.starts_with("a context of 8192 tokens, not 131072: -ngl"));
    assert_eq!(plan.shares[OFFLOAD].left(), Some(100));
}

#[test]
fn experts_move_before_layers() {
    let mixtures = models()
        .into_iter()
        .filter(|(name, _)| name.contains("-moe"));
    for (name, model) in mixtures {
        let auto = Placement {
            n_cpu_moe: None,
            ..gpu(GpuLayers::Auto)
        };
        let most = model.n_layer() + 1;
        let all = setup(&model, &auto, 64);
        let mut before = need(&all, most, 0).total();
        for n in 1..=all.most_moe() {
            let total = need(&all, most, n).total();
            if total >= before {
                continue; // what crosses over is larger than the experts of so small a model
            }
            before = total;
            let free = MARGIN + OVERHEAD + total;
            let (plan, _) = plan(setup(&model, &auto, 64), free, exactly(64));
            let point = plan.point;
            assert!(plan.fits, "{name}");
            assert!((1..=n).contains(&point.n_cpu_moe), "{name}: {point:?}");
            assert_eq!(point.n_layers, most, "{name}");
            assert_eq!(plan.reductions.len(), 1, "{name}");
        }
    }
}
