//! Planning for large files, which are holes here: only their headers hold anything, so
//! whoever reads weights reads gigabytes of zeros, and is late.

#[path = "cli/sandbox.rs"]
#[allow(dead_code)] // shared with `cli.rs`, which uses all of it
mod sandbox;
#[path = "cli/tiny.rs"]
#[allow(dead_code)] // as above
mod tiny;

use sandbox::{Sandbox, json};
use serde_json::Value as Json;
use std::path::Path;
use std::time::{Duration, Instant};

const Q4_K: u32 = 12;
const F32: u32 = 0;

/// Numbers of a model; tensors are those of `llama` or `qwen3moe`.
struct Sizes {
    arch: &'static str,
    n_layer: u64,
    n_embd: u64,
    n_ff: u64,
    n_head: u64,
    n_head_kv: u64,
    n_vocab: u64,
    n_expert: u64,
    n_ctx: u32,
}

/// Those of an 8B llama.
const DENSE: Sizes = Sizes {
    arch: "llama",
    n_layer: 32,
    n_embd: 4096,
    n_ff: 14_336,
    n_head: 32,
    n_head_kv: 8,
    n_vocab: 128_256,
    n_expert: 0,
    n_ctx: 131_072,
};
/// Those of a 30B mixture of experts.
const MIXTURE: Sizes = Sizes {
    arch: "qwen3moe",
    n_layer: 48,
    n_embd: 2048,
    n_ff: 768,
    n_head: 32,
    n_head_kv: 4,
    n_vocab: 151_936,
    n_expert: 128,
    n_ctx: 40_960,
};
const HEAD_DIM: u64 = 128;

impl Sizes {
    /// Name, type and shape of every tensor.
    fn tensors(&self) -> Vec<(String, u32, Vec<u64>)> {
        let (embd, ff) = (self.n_embd, self.n_ff);
        let (q, kv) = (self.n_head * HEAD_DIM, self.n_head_kv * HEAD_DIM);
        let mut all = vec![
            ("token_embd".to_string(), Q4_K, vec![embd, self.n_vocab]),
            ("output".to_string(), Q4_K, vec![embd, self.n_vocab]),
            ("output_norm".to_string(), F32, vec![embd]),
        ];
        for il in 0..self.n_layer {
            let mut add = |name: &str, dtype, shape: &[u64]| {
                all.push((format!("blk.{il}.{name}"), dtype, shape.to_vec()));
            };
            add("attn_norm", F32, &[embd]);
            add("ffn_norm", F32, &[embd]);
            add("attn_q", Q4_K, &[embd, q]);
            add("attn_k", Q4_K, &[embd, kv]);
            add("attn_v", Q4_K, &[embd, kv]);
            add("attn_output", Q4_K, &[q, embd]);
            if self.n_expert == 0 {
                add("ffn_gate", Q4_K, &[embd, ff]);
                add("ffn_up", Q4_K, &[embd, ff]);
                add("ffn_down", Q4_K, &[ff, embd]);
                continue;
            }
            add("attn_q_norm", F32, &[HEAD_DIM]);
            add("attn_k_norm", F32, &[HEAD_DIM]);
            add("ffn_gate_inp", F32, &[embd, self.n_expert]);
            add("ffn_gate_exps", Q4_K, &[embd, ff, self.n_expert]);
            add("ffn_up_exps", Q4_K, &[embd, ff, self.n_expert]);
            add("ffn_down_exps", Q4_K, &[ff, embd, self.n_expert]);
        }
        all
    }

    fn keys(&self) -> tiny::Gguf {
        let mut file = tiny::Gguf::default();
        file.text("general.architecture", self.arch);
        file.text("tokenizer.ggml.model", "no_vocab");
        for (key, value) in [
            ("vocab_size", self.n_vocab as u32),
            ("context_length", self.n_ctx),
            ("embedding_length", self.n_embd as u32),
            ("block_count", self.n_layer as u32),
            ("feed_forward_length", self.n_ff as u32),
            ("attention.head_count", self.n_head as u32),
            ("attention.head_count_kv", self.n_head_kv as u32),
            ("attention.key_length", HEAD_DIM as u32),
            ("attention.value_length", HEAD_DIM as u32),
            ("rope.dimension_count", HEAD_DIM as u32),
        ] {
            file.u32(&format!("{}.{key}", self.arch), value);
        }
        file.f32(
            &format!("{}.attention.layer_norm_rms_epsilon", self.arch),
            1e-5,
        );
        if self.n_expert > 0 {
            for (key, value) in [
                ("expert_count", self.n_expert),
                ("expert_used_count", 8),
                ("expert_feed_forward_length", self.n_ff),
            ] {
                file.u32(&format!("{}.{key}", self.arch), value as u32);
            }
        }
        file
    }

    /// Writes the header; the rest of the file is a hole.
    fn write(&self, folder: &Path, name: &str) {
        let mut out = self.keys().bytes();
        let tensors = self.tensors();
        // After the magic and the version.
        out[8..16].copy_from_slice(&(tensors.len() as u64).to_le_bytes());
        out.truncate(self.keys().header_len());
        let mut at = 0;
        for (name, dtype, shape) in &tensors {
            let name = format!("{name}.weight");
            out.extend((name.len() as u64).to_le_bytes());
            out.extend(name.as_bytes());
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(dtype.to_le_bytes());
            out.extend(u64::to_le_bytes(at));
            let n: u64 = shape.iter().product();
            let bytes = if *dtype == Q4_K { n / 256 * 144 } else { 4 * n };
            at += bytes.next_multiple_of(32);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        let path = folder.join(name);
        std::fs::write(&path, &out).expect("written");
        let file = std::fs::OpenOptions::new().write(true).open(path);
        let hole = file.and_then(|file| file.set_len(out.len() as u64 + at));
        hole.expect("a file with a hole");
    }
}

/// The plan for a GPU with `gib` free, and no lack of host memory.
fn plan(sandbox: &Sandbox, file: &str, gib: f64, flags: &str) -> Json {
    let started = Instant::now();
    let memory = format!("--device-memory cuda0={gib}GiB,cpu=256GiB");
    let line = format!("fit-params -m {file} --json {memory} {flags}");
    let text = sandbox.good(line.trim_end());
    // A build for tests takes 0.1 s; reading 5 or 17 GB takes longer than this.
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    json(&text)
}

fn number(plan: &Json, key: &str) -> u64 {
    plan[key].as_u64().expect("a number")
}

#[test]
fn an_8b_model_goes_where_there_is_room() {
    let sandbox = Sandbox::new();
    DENSE.write(sandbox.path(), "8b.gguf");
    let of = |plan: &Json| ["n_gpu_layers", "n_ctx"].map(|key| number(plan, key));
    let (mut before, mut partial) = ([0, 0], 0);
    for gib in [1.0, 2.0, 4.0, 6.0, 8.0, 16.0, 24.0, 80.0] {
        let plan = plan(&sandbox, "8b.gguf", gib, "");
        let [n_layers, n_ctx] = of(&plan);
        let gpu = &plan["devices"][1];
        let left = gpu["left_bytes"].as_i64().expect("bytes");
        assert!(left >= 0, "{gib} GiB: {plan}");
        assert!(n_layers >= before[0], "{gib} GiB: {n_layers} layers");
        if n_layers < 33 && n_layers > 1 {
            partial += 1;
            // One layer more is 110 MB and its cache.
            assert!(left < 200 << 20, "{gib} GiB: {left} bytes are left");
        } else if n_layers == 33 && n_ctx < 131_072 {
            // 256 tokens are 32 MiB, and a MiB of what else grows.
            assert!(left < 33 << 20, "{gib} GiB: {left} bytes are left");
            assert!(n_ctx >= 4096 && n_ctx.is_multiple_of(256), "{n_ctx}");
        }
        before = [n_layers, n_ctx];
    }
    assert_eq!(before, [33, 131_072]);
    assert!(partial >= 2, "{partial}");
    // 32 layers, K and V, 8 heads of 128 F16 values.
    let whole = plan(&sandbox, "8b.gguf", 80.0, "");
    assert_eq!(
        whole["devices"][1]["kv_bytes"],
        131_072_u64 * 32 * 2 * 8 * 128 * 2
    );
}

#[test]
fn experts_stay_behind_before_layers_do() {
    let sandbox = Sandbox::new();
    MIXTURE.write(sandbox.path(), "30b.gguf");
    let mut before = u64::MAX;
    for gib in [6.0, 8.0, 12.0, 16.0, 20.0, 40.0] {
        let plan = plan(&sandbox, "30b.gguf", gib, "");
        let (layers, experts) = (number(&plan, "n_gpu_layers"), number(&plan, "n_cpu_moe"));
        assert_eq!(layers, 49, "{gib} GiB: {plan}");
        assert!(experts < before || experts == 0, "{gib} GiB: {experts}");
        before = experts;
        let args = plan["args"].as_str().expect("a line");
        assert_eq!(args.contains("--n-cpu-moe"), experts > 0, "{args}");
        let gpu = &plan["devices"][1];
        assert!(gpu["left_bytes"].as_i64().expect("bytes") >= 0, "{plan}");
    }
    assert_eq!(before, 0);
    // Given, they stay; the rest is solved.
    let plan = plan(&sandbox, "30b.gguf", 8.0, "--n-cpu-moe 48 -c 8192");
    assert_eq!(plan["args"], "-ngl 49 -c 8192 --n-cpu-moe 48");
}
