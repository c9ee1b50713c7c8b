//! Mamba of sizes for which the GPU has launches of one token's own
//! (`cuda-kernels/ssm_token.cu`): no file of `tests/data` has them. A sequence must have the
//! logits alone, where they run, that it has beside others, where they do not.

#[allow(dead_code, reason = "shared with other tests")]
mod common;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "common/cuda.rs"]
mod cuda;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "gguf/build.rs"]
mod gguf;

use common::params;
use cuda::{Layers, Trials};
use gguf::{F32, File, STRING, U32, string};
use half::f16;
use libtest_mimic::{Arguments, Failed};
use llama_rs::quant::DType;
use llama_rs::session::{Session, SessionParams};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

const N_EMBD: usize = 256;
const N_VOCAB: usize = 128;
const N_LAYER: usize = 2;
const D_INNER: usize = 1024;
const D_STATE: usize = 16;
const DT_RANK: usize = 64;

/// A file with tensors of random numbers.
struct Model {
    file: File,
    seed: u32,
}

impl Model {
    fn random(&mut self) -> u32 {
        self.seed = self.seed.wrapping_mul(1_664_525);
        self.seed = self.seed.wrapping_add(1_013_904_223);
        self.seed >> 8
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f32 {
        self.random() as f32 / (1 << 23) as f32 - 1.0
    }

    fn add(&mut self, name: &str, ne: &[usize], dtype: DType, bytes: &[u8]) {
        let at = self.file.data.len().next_multiple_of(32);
        self.file.data.resize(at, 0);
        self.file.data.extend(bytes);
        let dims: Vec<u64> = ne.iter().map(|&n| n as u64).collect();
        let file = std::mem::replace(&mut self.file, File::new());
        self.file = file.tensor(name, &dims, dtype.id(), at as u64);
    }

    /// Random blocks; what scales them keeps weights within some 0.1.
    fn matrix(&mut self, name: &str, ne: [usize; 2], dtype: DType) {
        let (scales, scale): (&[usize], f32) = match dtype {
            DType::Q4K => (&[0, 2], 0.000_2),
            DType::Q6K => (&[208], 0.000_02),
            _ => (&[0], 0.006),
        };
        let n_blocks = ne[0] * ne[1] / dtype.block_len();
        let mut bytes = Vec::new();
        for _ in 0..n_blocks {
            let mut block: Vec<u8> = (0..dtype.block_bytes())
                .map(|_| self.random() as u8)
                .collect();
            for &at in scales {
                block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            }
            bytes.extend(block);
        }
        self.add(name, &ne, dtype, &bytes);
    }

    /// Values around `middle`.
    fn floats(&mut self, name: &str, ne: &[usize], middle: f32, spread: f32) {
        let n: usize = ne.iter().product();
        let values: Vec<f32> = (0..n).map(|_| middle + spread * self.unit()).collect();
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        self.add(name, ne, DType::F32, &bytes);
    }
}

/// The file's bytes, its product for dt of type `dt`.
fn model(dt: DType) -> Vec<u8> {
    let sizes = [
        ("vocab_size", N_VOCAB),
        ("context_length", 512),
        ("embedding_length", N_EMBD),
        ("block_count", N_LAYER),
        ("feed_forward_length", 0),
        ("attention.head_count", 0),
        ("ssm.inner_size", D_INNER),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", D_STATE),
        ("ssm.time_step_rank", DT_RANK),
    ];
    let mut file = File::new()
        .data(0)
        .key("general.architecture", STRING, string("mamba"))
        .key("tokenizer.ggml.model", STRING, string("no_vocab"))
        .key(
            "mamba.attention.layer_norm_rms_epsilon",
            F32,
            1e-5f32.to_le_bytes(),
        );
    for (key, value) in sizes {
        file = file.key(format!("mamba.{key}"), U32, (value as u32).to_le_bytes());
    }
    let mut m = Model { file, seed: 1 };
    m.matrix("token_embd.weight", [N_EMBD, N_VOCAB], DType::Q4K);
    m.floats("output_norm.weight", &[N_EMBD], 1.0, 0.1);
    m.matrix("output.weight", [N_EMBD, N_VOCAB], DType::Q6K);
    for il in 0..N_LAYER {
        let name = |part: &str| format!("blk.{il}.{part}");
        let of_x = [DType::Q4K, DType::Q6K][il % 2];
        m.floats(&name("attn_norm.weight"), &[N_EMBD], 1.0, 0.1);
        m.matrix(&name("ssm_in.weight"), [N_EMBD, 2 * D_INNER], DType::Q4K);
        m.floats(&name("ssm_conv1d.weight"), &[4, D_INNER], 0.0, 0.5);
        m.floats(&name("ssm_conv1d.bias"), &[D_INNER], 0.0, 0.1);
        let rows = DT_RANK + 2 * D_STATE;
        m.matrix(&name("ssm_x.weight"), [D_INNER, rows], of_x);
        m.matrix(&name("ssm_dt.weight"), [DT_RANK, D_INNER], dt);
        m.floats(&name("ssm_dt.bias"), &[D_INNER], -3.0, 1.0);
        m.floats(&name("ssm_a"), &[D_STATE, D_INNER], -8.0, 7.0);
        m.floats(&name("ssm_d"), &[D_INNER], 1.0, 0.1);
        m.matrix(&name("ssm_out.weight"), [D_INNER, N_EMBD], DType::Q4K);
    }
    m.file.bytes()
}

/// A file that is gone with it.
struct Kept(PathBuf);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn written(dt: DType) -> Result<Kept, Failed> {
    // Trials run side by side and drop their files.
    static N: AtomicUsize = AtomicUsize::new(0);
    let n = N.fetch_add(1, Ordering::Relaxed);
    let name = format!("llama-rs-mamba-{}-{n}.gguf", std::process::id());
    let kept = Kept(std::env::temp_dir().join(name));
    std::fs::write(&kept.0, model(dt))?;
    Ok(kept)
}

/// Token `step` of sequence `seq`.
fn token(seq: usize, step: usize) -> u32 {
    ((37 * seq + 11 * step * step + 5 * step) % N_VOCAB) as u32
}

const N_SEQS: usize = 3;
const N_STEPS: usize = 6;

/// Logits of each step of sequence `seq` in a session of its own, a token at a time.
fn alone(mut session: Session, seq: usize) -> Result<Vec<Vec<f32>>, Failed> {
    let steps = (0..N_STEPS).map(|step| Ok(session.eval(&[token(seq, step)])?.to_vec()));
    steps.collect()
}

fn same_bits(dt: DType) -> Result<(), Failed> {
    let file = written(dt)?;
    let open = |layers: Layers, n_seqs, exact| {
        let params = SessionParams {
            n_seqs,
            ..params(64, 48, exact)
        };
        layers.session(&file.0, params)
    };
    let mut together = open(Layers::CudaAll, N_SEQS, false)?;
    let alone_there: Vec<_> = (0..N_SEQS)
        .map(|seq| alone(open(Layers::CudaAll, 1, false)?, seq))
        .collect::<Result<_, _>>()?;
    for step in 0..N_STEPS {
        let ids: Vec<[u32; 1]> = (0..N_SEQS).map(|seq| [token(seq, step)]).collect();
        let batch: Vec<(usize, &[u32])> = ids.iter().map(|id| &id[..]).enumerate().collect();
        for (seq, got) in together.eval_batch(&batch)?.iter().enumerate() {
            if Some(got) != alone_there[seq].get(step) {
                return Err(format!("step {step}, sequence {seq}: other bits").into());
            }
        }
    }
    // Rounding x and dt's weights to 11 bits adds some 1e-7 of the square a product; whatever
    // is wrong adds far more than a thousand times that.
    let want = alone(open(Layers::Cpu, 1, true)?, 0)?.concat();
    let got = alone_there[0].concat();
    let square = |x: f32| f64::from(x) * f64::from(x);
    let err: f64 = got.iter().zip(&want).map(|(a, b)| square(a - b)).sum();
    let nmse = err / want.iter().map(|&b| square(b)).sum::<f64>();
    if nmse <= 1e-4 {
        Ok(())
    } else {
        Err(format!("NMSE {nmse:.2e} to the CPU").into())
    }
}

/// The file is one that runs, also without a GPU.
fn runs_on_the_cpu() -> Result<(), Failed> {
    let file = written(DType::Q5_0)?;
    let session = Layers::Cpu.session(&file.0, params(64, 48, true))?;
    let logits = alone(session, 0)?.concat();
    match logits.iter().all(|x| x.is_finite()) && logits.iter().any(|&x| x != 0.0) {
        true => Ok(()),
        false => Err("no numbers".into()),
    }
}

fn main() {
    let args = Arguments::from_args();
    let gpu = Trials::new();
    let mut trials = vec![gpu.trial("cpu".to_string(), Layers::Cpu, runs_on_the_cpu)];
    for dt in [DType::Q5_0, DType::Q8_0] {
        let name = format!("{}::same_bits", dt.name());
        trials.push(gpu.trial(name, Layers::CudaAll, move || same_bits(dt)));
    }
    libtest_mimic::run(&args, trials).exit();
}
