//! What several test files need.

use llama_rs::gguf::Gguf;
use llama_rs::memory::Placement;
use llama_rs::model::{Model, Overrides};
use llama_rs::quant::DType;
use llama_rs::session::{Fit, Session, SessionParams};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Committed fixtures: here, or where a test that was carried elsewhere has them.
pub fn data() -> PathBuf {
    match std::env::var_os("LLAMA_RS_TEST_DATA") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"),
    }
}

/// Tiny models that are not committed, for their size; they lie in the data that may
/// stand beside the project.
const BESIDE: [&str; 6] = [
    "gemma2-dense-Q6_K",
    "llama-moe-Q4_0",
    "llama-ropefreqs-Q8_0",
    "llama-yarn-Q4_0",
    "phi3-longrope-Q4_K_M",
    "qwen3next-moe-Q4_K_M",
];

/// Every tiny model by name, with its file; `None` when it lies in no place.
pub fn arch_models() -> Vec<(String, Option<PathBuf>)> {
    let committed = data().join("arch");
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/arch");
    let entries = std::fs::read_dir(&committed).expect("the fixtures are there");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let models = files.filter(|file| file.extension().is_some_and(|e| e == "gguf"));
    let name = |file: PathBuf| {
        file.file_stem()
            .expect("a name")
            .to_string_lossy()
            .to_string()
    };
    let mut names: Vec<String> = models.map(name).chain(BESIDE.map(String::from)).collect();
    names.sort();
    names.dedup();
    let found = |name: String| {
        let places = [&committed, &beside].map(|folder| folder.join(format!("{name}.gguf")));
        let file = places.into_iter().find(|file| file.exists());
        if file.is_none() {
            eprintln!("skipped: {name} is neither committed nor in ../shared/data/arch");
        }
        (name, file)
    };
    names.into_iter().map(found).collect()
}

/// A session over a file, as the commands make one.
pub fn session(file: &Path, params: SessionParams) -> Session {
    let gguf = Gguf::open(file, true).expect("the file opens");
    let model = Model::load(gguf, &Overrides::default()).expect("the model loads");
    Session::new(Arc::new(model), params).expect("a session")
}

/// `--exact` or the default.
pub fn params(n_ctx: usize, n_ubatch: usize, exact: bool) -> SessionParams {
    let kv = if exact { DType::F32 } else { DType::F16 };
    SessionParams {
        n_ctx,
        n_ubatch,
        n_seqs: 1,
        n_threads: 2,
        kv_type_k: kv,
        kv_type_v: kv,
        exact_activations: exact,
        placement: Placement::cpu(),
        fit: Fit::default(),
    }
}

/// Logits after every token.
pub fn all_logits(session: &mut Session, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    session
        .eval_all(tokens, &mut |_, row| {
            all.push(row.to_vec());
            Ok(())
        })
        .expect("evaluation");
    all
}
