//! Every supported architecture against exact logits (tiny models with random weights;
//! see `tests/data/README.md`), on the CPU and, where there is a GPU, with all layers, one
//! and half of them on it, within the same bounds.

#[allow(dead_code, reason = "shared with other tests")]
mod common;
#[path = "common/cuda.rs"]
mod cuda;

use common::{all_logits, arch_models, params};
use cuda::{Layers, Trials};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::path::Path;

type Check = fn(&Case, Layers) -> Result<(), Failed>;

struct Case {
    file: std::path::PathBuf,
    tokens: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
    /// Of the peer; files that it has not seen say null.
    peer_nmse_median: Option<f64>,
}

/// Most median error with 8-bit activations where there is no peer's: each product
/// rounds to 1 part in 250, some 1e-5 of the square, which layers and states add up to
/// 1e-3 (what mamba2's peer has, with Q8_0 weights too); twice that, as of a peer.
const NO_PEER: f64 = 2e-3;

fn numbers<T>(value: &Value, cast: impl Fn(f64) -> T) -> Vec<T> {
    let list = value.as_array().expect("an array");
    list.iter()
        .map(|v| cast(v.as_f64().expect("a number")))
        .collect()
}

fn read(json: &Path) -> Case {
    let text = std::fs::read_to_string(json).expect("the expectation file");
    let v: Value = serde_json::from_str(&text).expect("JSON");
    Case {
        file: json.with_extension("gguf"),
        tokens: numbers(&v["tokens"], |t| t as u32),
        positions: numbers(&v["positions"], |p| p as usize),
        logits: v["logits"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|row| numbers(row, |x| x as f32))
            .collect(),
        peer_nmse_median: v["peer_nmse_median"].as_f64(),
    }
}

/// Normalised mean squared error: sum (a - b)^2 / sum b^2.
fn nmse(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let err: f64 = a
        .iter()
        .zip(b)
        .map(|(&a, &b)| square(f64::from(a) - f64::from(b)))
        .sum();
    err / b.iter().map(|&b| square(f64::from(b))).sum::<f64>()
}

fn wanted(case: &Case, all: &[Vec<f32>]) -> Vec<Vec<f32>> {
    case.positions.iter().map(|&p| all[p].clone()).collect()
}

/// `--exact`: f32 throughout, so only the order of sums differs from the exact
/// values: 1e-5 is what the project promises, some 1e-10 what is seen.
fn exact(case: &Case, layers: Layers) -> Result<(), Failed> {
    let mut s = layers.session(&case.file, params(320, 512, true))?;
    let got = wanted(case, &all_logits(&mut s, &case.tokens)).concat();
    let err = nmse(&got, &case.logits.concat());
    check(err <= 1e-5, format!("NMSE {err:.2e}"))
}

/// 8-bit activations: at most twice the peer's median error, or [`NO_PEER`].
fn default(case: &Case, layers: Layers) -> Result<(), Failed> {
    let mut s = layers.session(&case.file, params(320, 512, false))?;
    let got = wanted(case, &all_logits(&mut s, &case.tokens));
    let mut errors: Vec<f64> = got
        .iter()
        .zip(&case.logits)
        .map(|(a, b)| nmse(a, b))
        .collect();
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    let most = case.peer_nmse_median.map_or(NO_PEER, |peer| 2.0 * peer);
    check(
        median <= most,
        format!("median NMSE {median:.2e}, at most {most:.2e}"),
    )
}

/// Widths 1, 7 and 512 give the same logits: 1e-8 with an f32 cache; 1e-6 with
/// an F16 cache, where a last-bit difference may round to another half.
fn widths(case: &Case, layers: Layers, exact: bool) -> Result<(), Failed> {
    let run = |n_ubatch| -> llama_rs::Result<Vec<f32>> {
        let mut p = params(320, n_ubatch, exact);
        p.exact_activations = true;
        let mut s = layers.session(&case.file, p)?;
        Ok(all_logits(&mut s, &case.tokens).concat())
    };
    let whole = run(512)?;
    let bound = if exact { 1e-8 } else { 1e-6 };
    for n_ubatch in [1, 7] {
        let err = nmse(&run(n_ubatch)?, &whole);
        check(err <= bound, format!("-ub {n_ubatch}: NMSE {err:.2e}"))?;
    }
    Ok(())
}

fn check(ok: bool, text: String) -> Result<(), Failed> {
    if std::env::var_os("LLAMA_RS_TEST_VERBOSE").is_some() {
        eprintln!("{text}");
    }
    if ok { Ok(()) } else { Err(text.into()) }
}

fn main() {
    let args = Arguments::from_args();
    let gpu = Trials::new();
    let mut trials = Vec::new();
    let kinds: [(&str, Check); 4] = [
        ("exact", exact),
        ("default", default),
        ("widths_exact", |case, layers| widths(case, layers, true)),
        ("widths_f16_cache", |case, layers| {
            widths(case, layers, false)
        }),
    ];
    for (name, file) in arch_models() {
        let case = file.map(|file| std::sync::Arc::new(read(&file.with_extension("json"))));
        for (layers, place) in Layers::ALL {
            for (kind, check) in kinds {
                let name = format!("{name}::{place}{kind}");
                let Some(case) = case.clone() else {
                    let missing = || Err(Failed::from("the model's file is missing"));
                    trials.push(Trial::test(name, missing).with_ignored_flag(true));
                    continue;
                };
                trials.push(gpu.trial(name, layers, move || check(&case, layers)));
            }
        }
    }
    assert!(trials.len() >= 16 * 12, "the fixtures are there");
    libtest_mimic::run(&args, trials).exit();
}
