//! Operands of a case in memory, and how its graph is run.

pub use super::random::{Random, random_weights};
use crate::backend::cpu::{Buffer, Storage};
use crate::error::Error;
use crate::graph::builder::Width;
use crate::graph::{Builder, CacheId, Catalog, Count, Input, Live, TensorId};
use crate::quant::DType;
use std::collections::HashMap;

/// A weight; its data starts at a 64-byte border of `data`, as in a file's map.
struct Weight {
    dtype: DType,
    ne: [usize; 4],
    data: Vec<u8>,
    start: usize,
}

/// Weights and cache tensors of a case.
#[derive(Default)]
pub struct Store {
    weights: HashMap<String, Weight>,
    caches: Vec<Buffer>,
}

/// A shape padded with 1.
pub fn padded(ne: &[usize]) -> [usize; 4] {
    std::array::from_fn(|i| ne.get(i).copied().unwrap_or(1))
}

impl Store {
    /// A weight of this type and shape (GGUF order), as bytes of a file.
    pub fn bytes(&mut self, name: &str, dtype: DType, ne: &[usize], bytes: &[u8]) {
        let mut data = vec![0; bytes.len() + 64];
        let start = data.as_ptr().align_offset(64);
        data.truncate(start);
        data.extend_from_slice(bytes);
        let ne = padded(ne);
        let weight = Weight {
            dtype,
            ne,
            data,
            start,
        };
        self.weights.insert(name.to_string(), weight);
    }

    /// An F32 weight.
    ///
    /// # Panics
    /// `values` are not as many as `ne` says: a mistake in the case.
    pub fn f32(&mut self, name: &str, ne: &[usize], values: &[f32]) {
        assert_eq!(values.len(), ne.iter().product::<usize>());
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(name, DType::F32, ne, &bytes);
    }

    /// An I32 weight, as ids are.
    ///
    /// # Panics
    /// `values` are not as many as `ne` says: a mistake in the case.
    pub fn i32(&mut self, name: &str, ne: &[usize], values: &[i32]) {
        assert_eq!(values.len(), ne.iter().product::<usize>());
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(name, DType::I32, ne, &bytes);
    }

    /// A cache tensor with this content.
    ///
    /// # Panics
    /// There is no memory for it, as wherever a case has vectors.
    pub fn cache(&mut self, bytes: &[u8]) -> CacheId {
        let mut data = Buffer::new(bytes.len(), "a cache").expect("memory");
        data.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        self.caches.push(data);
        CacheId(self.caches.len() - 1)
    }

    /// Content of all caches, in the order of their ids.
    pub fn cache_bytes(&mut self) -> Vec<Vec<u8>> {
        let caches = self.caches.iter_mut();
        caches.map(|c| c.as_mut_slice().to_vec()).collect()
    }

    /// Overwrites all caches with what [`Store::cache_bytes`] gave.
    pub fn set_caches(&mut self, contents: &[Vec<u8>]) {
        for (cache, bytes) in self.caches.iter_mut().zip(contents) {
            cache.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        }
    }
}

impl Catalog for Store {
    fn weight(&self, name: &str) -> Option<(DType, [usize; 4])> {
        self.weights.get(name).map(|w| (w.dtype, w.ne))
    }
    fn weight_error(&self, name: &str, want: &[usize], have: Option<[usize; 4]>) -> Error {
        Error::input(format!("{name}: {want:?}, {have:?}"))
    }
}

impl Storage for Store {
    fn weight(&self, name: &str) -> Option<&[u8]> {
        let weight = self.weights.get(name)?;
        Some(&weight.data[weight.start..])
    }
    fn cache(&self, id: CacheId) -> Option<&Buffer> {
        self.caches.get(id.0)
    }
}

/// A weight of whatever shape the store has.
///
/// # Panics
/// The store has no such weight: a mistake in the case.
pub fn operand(b: &mut Builder<'_>, store: &Store, name: &str) -> TensorId {
    let (_, ne) = Catalog::weight(store, name).expect("an operand of the case");
    b.weight(name, &ne).expect("its own shape")
}

/// Marks the dimension that is cut to the number of live tokens.
pub fn live(b: &mut Builder<'_>, id: TensorId, dim: usize) -> TensorId {
    b.graph.tensors[id.at()].live = Some(Live {
        dim,
        count: Count::Tokens,
    });
    id
}

/// How a graph is run.
pub struct Setup {
    /// Tokens and outputs of the graph at full width.
    pub width: usize,
    /// Sequences of a batch.
    pub n_seqs: usize,
    /// F32 activations on the CPU.
    pub exact: bool,
    pub inputs: Vec<(Input, Vec<i32>)>,
    pub counts: Vec<(Count, usize)>,
    /// Runs of the executable; all must give equal bits.
    pub runs: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            width: 1,
            n_seqs: 1,
            exact: true,
            inputs: Vec::new(),
            counts: Vec::new(),
            runs: 1,
        }
    }
}

impl Setup {
    /// Width of the graph.
    pub fn width(&self) -> Width {
        Width {
            n_tokens: self.width,
            n_outputs: self.width,
            n_seqs: self.n_seqs,
        }
    }

    /// Only `n` of `width` tokens are live.
    pub fn tokens(width: usize, n: usize) -> Setup {
        Setup {
            width,
            counts: vec![(Count::Tokens, n)],
            ..Setup::default()
        }
    }
}
