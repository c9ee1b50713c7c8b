//! The real models against exact values (`tests/data/golden`): token ids,
//! log-probabilities, greedy choice. The model files are fetched by
//! `scripts/get-model.sh`; a missing one is reported as ignored. Where there is a GPU,
//! the same with all layers, one and half of them on it.

#[allow(dead_code, reason = "shared with other tests")]
mod common;
#[path = "common/cuda.rs"]
mod cuda;

use common::{all_logits, data, params};
use cuda::{Layers, Trials};
use libtest_mimic::{Arguments, Failed};
use llama_rs::gguf::Gguf;
use llama_rs::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A prompt's figure may be this much above the peer's on the same file; the
/// pooled one less, as chance evens out.
const ONE_PROMPT: f64 = 1.5;
const POOLED: f64 = 1.1;
/// With f32 activations only sums in another order differ.
const EXACT: f64 = 0.002;
/// Logit margin above which the greedy choice must agree.
const CLEAR_GAP: f64 = 0.5;

type Check = fn(&Golden, Layers) -> Result<(), Failed>;

struct Golden {
    model: PathBuf,
    values: Value,
}

fn ids(v: &Value) -> Vec<u32> {
    let list = v.as_array().expect("an array");
    list.iter()
        .map(|t| t.as_u64().expect("an id") as u32)
        .collect()
}

fn floats(v: &Value) -> Vec<f64> {
    let list = v.as_array().expect("an array");
    list.iter().map(|t| t.as_f64().expect("a number")).collect()
}

/// Natural-log probability of `id`; fails when it is not among the best 50.
fn logprob(row: &[f32], id: u32) -> Result<f64, Failed> {
    let own = row[id as usize];
    let above = row.iter().filter(|&&x| x > own).count();
    if above >= 50 {
        return Err(format!("token {id} is only number {}", above + 1).into());
    }
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    Ok(f64::from(own) - max - sum.ln())
}

/// Differences of the exact top-3 log-probabilities over a prompt's positions.
fn differences(
    g: &Golden,
    layers: Layers,
    prompt: &Value,
    exact: bool,
) -> Result<Vec<f64>, Failed> {
    let tokens = ids(&prompt["tokens"]);
    let mut s = layers.session(&g.model, params(tokens.len(), 512, exact))?;
    let rows = all_logits(&mut s, &tokens);
    let positions = ids(&prompt["positions"]);
    let mut diffs = Vec::new();
    for (at, top) in positions
        .iter()
        .zip(prompt["top10"].as_array().expect("rows"))
    {
        let exact = ids(&top["id"]).into_iter().zip(floats(&top["logprob"]));
        for (id, want) in exact.take(3) {
            diffs.push((logprob(&rows[*at as usize], id)? - want).abs());
        }
    }
    Ok(diffs)
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn prompts(g: &Golden) -> impl Iterator<Item = (&String, &Value)> {
    g.values["prompts"].as_object().expect("prompts").iter()
}

fn tokens(g: &Golden, _: Layers) -> Result<(), Failed> {
    let gguf = Gguf::open(&g.model, true)?;
    let tokenizer = Tokenizer::from_meta(&gguf.meta)?;
    let opts = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    for (name, p) in prompts(g) {
        let text = p["text"].as_str().expect("text");
        if tokenizer.encode(text.as_bytes(), opts) != ids(&p["tokens"]) {
            return Err(format!("{name}: other token ids").into());
        }
    }
    Ok(())
}

fn default(g: &Golden, layers: Layers) -> Result<(), Failed> {
    let mut pooled = Vec::new();
    for (name, p) in prompts(g) {
        let diffs = differences(g, layers, p, false)?;
        let peer = p["peer_mean_abs_dlogprob_top3"].as_f64().expect("a number");
        check(name, mean(&diffs), ONE_PROMPT * peer)?;
        pooled.extend(diffs);
    }
    let peer = g.values["peer_pooled_mean_abs_dlogprob_top3"]
        .as_f64()
        .expect("a number");
    check("pooled", mean(&pooled), POOLED * peer)
}

fn exact(g: &Golden, layers: Layers) -> Result<(), Failed> {
    for (name, p) in prompts(g) {
        check(name, mean(&differences(g, layers, p, true)?), EXACT)?;
    }
    Ok(())
}

fn check(name: &str, got: f64, bound: f64) -> Result<(), Failed> {
    if std::env::var_os("LLAMA_RS_TEST_VERBOSE").is_some() {
        eprintln!("{name}: {got:.5}, bound {bound:.5}");
    }
    match got <= bound {
        true => Ok(()),
        false => Err(format!("{name}: {got:.5} is above {bound:.5}").into()),
    }
}

/// Fed the exact continuation, the top choice agrees at every clear step.
fn greedy(g: &Golden, layers: Layers) -> Result<(), Failed> {
    for (name, p) in prompts(g) {
        let prompt = ids(&p["tokens"]);
        let (greedy, gaps) = (ids(&p["greedy"]), floats(&p["greedy_gap"]));
        let all = [prompt.as_slice(), &greedy].concat();
        let mut s = layers.session(&g.model, params(all.len(), 512, false))?;
        let rows = all_logits(&mut s, &all);
        for (i, (&want, &gap)) in greedy.iter().zip(&gaps).enumerate() {
            let row = &rows[prompt.len() - 1 + i];
            let top = (0..row.len())
                .rev()
                .max_by(|&a, &b| row[a].total_cmp(&row[b]));
            if gap >= CLEAR_GAP && top != Some(want as usize) {
                return Err(format!("{name}: step {i} gives {top:?}, not {want}").into());
            }
        }
    }
    Ok(())
}

fn main() {
    let args = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dirs = [
        std::env::var_os("LLAMA_RS_TEST_MODELS").map(PathBuf::from),
        Some(root.join("models")),
    ];
    let gpu = Trials::new();
    let mut trials = Vec::new();
    for entry in std::fs::read_dir(data().join("golden")).expect("tests/data/golden") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("the expectation file");
        let values: Value = serde_json::from_str(&text).expect("JSON");
        let file = values["model"].as_str().expect("a name").to_string();
        let model = dirs
            .iter()
            .flatten()
            .map(|d| d.join(&file))
            .find(|p| p.exists());
        let missing = model.is_none();
        let golden = Arc::new(Golden {
            model: model.unwrap_or_default(),
            values,
        });
        let kinds: [(&str, Check); 4] = [
            ("tokens", tokens),
            ("default", default),
            ("exact", exact),
            ("greedy", greedy),
        ];
        for (layers, place) in Layers::ALL {
            for (kind, check) in kinds {
                // Token ids are no matter of devices.
                if kind == "tokens" && layers != Layers::Cpu {
                    continue;
                }
                let golden = golden.clone();
                let name = format!("{file}::{place}{kind}");
                let trial = gpu.trial(name, layers, move || check(&golden, layers));
                // Without this, the trial says itself whether it is ignored.
                trials.push(match missing {
                    true => trial.with_ignored_flag(true),
                    false => trial,
                });
            }
        }
    }
    libtest_mimic::run(&args, trials).exit();
}
