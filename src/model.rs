//! An opened file as a model: architecture, hyperparameters, weights.

use crate::arch::{self, Arch, CacheShape, Hparams, Keys};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, Metadata, Value};
use crate::graph::builder::Width;
use crate::graph::{Builder, Catalog, Graph, Op, TensorId};
use crate::quant::DType;
use std::collections::HashMap;
use std::path::Path;

pub use crate::arch::{RopeOverrides, RopeScaling};

/// What a graph gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// Logits `[n_vocab, n_outputs]`.
    Logits,
    /// The id of each output's highest logit `[1, n_outputs]` (i32), and that
    /// logit `[1, 1, n_outputs]`.
    Argmax,
}

/// What the user sets in place of the file's own values.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--override-kv`, with full key names.
    pub kv: Vec<(String, Value)>,
    pub rope: RopeOverrides,
}

/// A model ready to be evaluated; weights stay in the file's bytes.
pub struct Model {
    gguf: Gguf,
    arch: Box<dyn Arch>,
    arch_name: String,
    weights: Weights,
}

/// Where each weight lies: index into the file's tensors.
struct Weights {
    path: std::path::PathBuf,
    by_name: HashMap<String, (usize, DType, [usize; 4])>,
}

impl Catalog for Weights {
    fn weight(&self, name: &str) -> Option<(DType, [usize; 4])> {
        self.by_name.get(name).map(|&(_, dtype, ne)| (dtype, ne))
    }

    fn weight_error(&self, name: &str, want: &[usize], have: Option<[usize; 4]>) -> Error {
        let cause = match have {
            None => format!("tensor {name} {want:?} is missing"),
            Some(ne) => {
                let ne = &ne[..want.len().max(1)];
                format!("tensor {name} has shape {ne:?}, its keys say {want:?}")
            }
        };
        Error::file(
            &self.path,
            cause,
            "the file is damaged or of a variant that is not supported; fetch it again",
        )
    }
}

impl Weights {
    fn read(gguf: &Gguf) -> Result<Weights> {
        let mut by_name = HashMap::new();
        for (at, tensor) in gguf.tensors.iter().enumerate() {
            let Some(dtype) = tensor.dtype() else {
                let weights = DType::ALL.iter().filter(|&&d| d != DType::I32);
                let known: Vec<&str> = weights.map(|d| d.name()).collect();
                return Err(Error::file(
                    &gguf.path,
                    format!(
                        "tensor {} has type {}, which cannot be computed with",
                        tensor.name,
                        tensor.type_name()
                    ),
                    format!("fetch the model in one of {}", known.join(", ")),
                ));
            };
            let mut ne = [1usize; 4];
            for (n, &len) in ne.iter_mut().zip(&tensor.shape) {
                *n = len as usize; // the parser has bounded the product
            }
            by_name.insert(tensor.name.clone(), (at, dtype, ne));
        }
        Ok(Weights {
            path: gguf.path.clone(),
            by_name,
        })
    }
}

impl Model {
    /// Reads keys and checks every weight's type and shape; touches no data.
    pub fn load(mut gguf: Gguf, overrides: &Overrides) -> Result<Model> {
        for (key, value) in &overrides.kv {
            gguf.meta.set(key, value.clone());
        }
        if gguf.tensors.is_empty() {
            return Err(Error::file(
                &gguf.path,
                "no tensors: this file holds only a vocabulary and cannot generate",
                "it serves `tokenize` and `inspect`; give a file with weights",
            ));
        }
        let arch_name = match gguf.meta.get_str("general.architecture")? {
            Some(name) => name.to_string(),
            None => {
                return Err(Error::file(
                    &gguf.path,
                    "metadata key general.architecture is missing",
                    "the file is damaged or no language model; fetch it again",
                ));
            }
        };
        let weights = Weights::read(&gguf)?;
        let keys = Keys {
            meta: &gguf.meta,
            arch: &arch_name,
        };
        let arch = arch::read(&keys, &weights, &overrides.rope)?;
        let model = Model {
            gguf,
            arch,
            arch_name,
            weights,
        };
        // Building the smallest graph looks at every weight.
        let graph = model.graph(
            Wanted::Logits,
            Width::of(1, 1),
            &CacheShape {
                k_type: DType::F16,
                v_type: DType::F16,
                n_ctx: 1,
                n_cells: 1,
                n_cells_swa: 1,
            },
        );
        match graph {
            Err(error @ Error::Shape { .. }) => Err(Error::file(
                model.path(),
                error.to_string(),
                "the file is damaged or of a variant that is not supported; fetch it again",
            )),
            graph => graph.map(|_| model),
        }
    }

    /// The graph of one batch width.
    pub fn graph(&self, wanted: Wanted, width: Width, cache: &CacheShape) -> Result<Graph> {
        let mut g = Builder::new(&self.weights, width);
        let logits = self.arch.graph(&mut g, cache)?;
        match wanted {
            Wanted::Logits => g.output(logits),
            Wanted::Argmax => argmax(&mut g, logits)?,
        }
        Ok(g.graph)
    }

    /// Names of all weights.
    pub fn weight_names(&self) -> impl Iterator<Item = &str> {
        self.weights.by_name.keys().map(String::as_str)
    }

    /// Bytes of a weight.
    pub fn weight_data(&self, name: &str) -> Option<&[u8]> {
        let &(at, ..) = self.weights.by_name.get(name)?;
        Some(self.gguf.data(&self.gguf.tensors[at]))
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> usize {
        self.gguf.tensors.iter().map(|t| t.bytes).sum()
    }

    pub fn hparams(&self) -> &Hparams {
        self.arch.hparams()
    }

    pub fn meta(&self) -> &Metadata {
        &self.gguf.meta
    }

    pub fn path(&self) -> &Path {
        &self.gguf.path
    }

    pub fn arch_name(&self) -> &str {
        &self.arch_name
    }

    pub fn n_vocab(&self) -> usize {
        self.hparams().n_vocab
    }

    pub fn n_layer(&self) -> usize {
        self.hparams().n_layer
    }

    pub fn n_ctx_train(&self) -> usize {
        self.hparams().n_ctx_train
    }
}

/// Outputs of [`Wanted::Argmax`].
fn argmax(g: &mut Builder<'_>, logits: TensorId) -> Result<()> {
    let [n_vocab, n_outputs, ..] = g.graph.get(logits).ne;
    let ids = g.op(Op::Argmax, &[logits])?;
    let ids = g.reshape(ids, &[1, n_outputs])?;
    // Rows of one value: GET_ROWS picks each output's own.
    let values = g.reshape(logits, &[1, n_vocab, n_outputs])?;
    let best = g.op(Op::GetRows, &[values, ids])?;
    g.output(ids);
    g.output(best);
    Ok(())
}
