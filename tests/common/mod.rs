//! What several test files need.

use llama_rs::gguf::Gguf;
use llama_rs::memory::Placement;
use llama_rs::model::{Model, Overrides};
use llama_rs::quant::DType;
use llama_rs::session::{Session, SessionParams};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Committed fixtures: here, or where a test that was carried elsewhere has them.
pub fn data() -> PathBuf {
    match std::env::var_os("LLAMA_RS_TEST_DATA") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"),
    }
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
