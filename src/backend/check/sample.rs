//! An op with operands of one shape: what is timed, or checked at a shape that a user
//! gives.

use super::case::{Case, F16_NMSE, F32_NMSE, Problem};
use super::random::{Random, random_weights};
use super::store::{Setup, Store, padded};
use crate::error::{Error, Result};
use crate::graph::{Builder, CacheId, Op, Origin, Tensor, TensorId};
use crate::quant::DType;
use std::sync::Arc;

/// What an operand holds.
#[derive(Clone)]
pub enum Fill {
    /// Random numbers between -1 and 1, or random blocks; other ones in each set.
    Random,
    /// Values by their number, as 4 bytes, the same in each set: ids, offsets,
    /// parameters of one sign.
    Fixed(Arc<dyn Fn(usize) -> [u8; 4] + Send + Sync>),
}

/// One operand.
#[derive(Clone)]
pub struct Operand {
    pub dtype: DType,
    pub ne: [usize; 4],
    pub fill: Fill,
    /// A cache tensor, which the op may write, instead of a weight.
    pub cache: bool,
}

impl Operand {
    /// A random weight; shape in GGUF order.
    pub fn weight(dtype: DType, ne: &[usize]) -> Operand {
        Operand {
            dtype,
            ne: padded(ne),
            fill: Fill::Random,
            cache: false,
        }
    }

    /// Random F32 values.
    pub fn f32(ne: &[usize]) -> Operand {
        Self::weight(DType::F32, ne)
    }

    /// A random cache tensor.
    pub fn cache(dtype: DType, ne: &[usize]) -> Operand {
        Operand {
            cache: true,
            ..Self::weight(dtype, ne)
        }
    }

    /// I32 values by their number: ids, positions, offsets.
    pub fn ints(ne: &[usize], value: impl Fn(usize) -> i32 + Send + Sync + 'static) -> Operand {
        Operand {
            fill: Fill::Fixed(Arc::new(move |i| value(i).to_le_bytes())),
            ..Self::weight(DType::I32, ne)
        }
    }

    /// F32 values between `low` and `high`, the same in each set.
    pub fn between(ne: &[usize], low: f32, high: f32) -> Operand {
        let value = move |i: usize| {
            // Scattered over 2^16 steps (multiplicative hashing).
            let step = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
            low + (high - low) * step as f32 / 65_535.0
        };
        Operand {
            fill: Fill::Fixed(Arc::new(move |i| value(i).to_le_bytes())),
            ..Self::f32(ne)
        }
    }

    /// The bytes that [`Fill::Fixed`] operands have.
    pub fn fixed(&self) -> Option<Vec<u8>> {
        match &self.fill {
            Fill::Random => None,
            Fill::Fixed(value) => {
                let n = self.ne.iter().product();
                Some((0..n).flat_map(|i| value(i)).collect())
            }
        }
    }

    /// Bytes of the whole operand.
    pub fn bytes(&self) -> usize {
        let rows = [1, 2, 3].iter().map(|&i| self.ne[i]);
        let rows = rows.fold(1, usize::saturating_mul);
        let blocks = self.ne[0] / self.dtype.block_len();
        blocks
            .saturating_mul(self.dtype.block_bytes())
            .saturating_mul(rows)
    }
}

/// Appends the op to a graph in which its operands are; gives its result.
pub type Append = Arc<dyn Fn(&mut Builder<'_>, &[TensorId]) -> Result<TensorId> + Send + Sync>;

/// One op at one shape.
#[derive(Clone)]
pub struct Sample {
    /// ggml's name of the op.
    pub op: &'static str,
    /// The shape as text that [`super::shapes::OpRow::sample`] reads.
    pub shape: String,
    pub operands: Vec<Operand>,
    /// Bytes of the result.
    pub result_bytes: usize,
    /// Bytes that one run moves: each operand read once, the result written once.
    pub bytes: usize,
    /// Floating-point operations of one run; 0 where only bytes count.
    pub flops: usize,
    /// How close a backend must come.
    pub nmse: f64,
    pub append: Append,
}

impl Sample {
    /// `op` over `operands`. Bytes follow from the shapes, and so does the result's
    /// size.
    ///
    /// # Errors
    /// The operands take more than `most_bytes`, or the op does not take them.
    pub fn new(op: Op, shape: &str, operands: Vec<Operand>, most_bytes: usize) -> Result<Sample> {
        let read = operands.iter().map(Operand::bytes);
        let read = read.fold(0, usize::saturating_add);
        let too_large = |bytes: usize| {
            Error::DoesNotFit(format!(
                "{}: shape {shape:?} takes {} MiB, {} MiB at most; give a smaller one",
                op.name(),
                bytes >> 20,
                most_bytes >> 20
            ))
        };
        if read > most_bytes {
            return Err(too_large(read));
        }
        let mut sample = Sample {
            op: op.name(),
            shape: shape.to_string(),
            operands,
            result_bytes: 0,
            bytes: 0,
            flops: 0,
            nmse: F32_NMSE,
            append: Arc::new(move |b, src| b.op(op, src)),
        };
        let names = Names(&sample.operands);
        let mut b = Builder::new(&names, crate::graph::builder::Width::of(1, 1));
        let out = sample.append_to(&mut b, 0, 0)?;
        if op.writes_in_place().is_none() {
            sample.result_bytes = b.graph.get(out).bytes();
        }
        sample.bytes = read.saturating_add(sample.result_bytes);
        match sample.bytes > most_bytes {
            true => Err(too_large(sample.bytes)),
            false => Ok(sample),
        }
    }

    /// Bytes a run where not every operand is read once.
    pub fn moving(self, bytes: usize) -> Sample {
        Sample { bytes, ..self }
    }

    /// An op whose arithmetic counts, too.
    pub fn flops(self, flops: usize) -> Sample {
        Sample { flops, ..self }
    }

    /// A product with F16 or 8-bit activations, if the weight is not F32.
    pub fn rounded(self, dtype: DType) -> Sample {
        match dtype {
            DType::F32 => self,
            _ => self.nmse(F16_NMSE),
        }
    }

    /// Held to another error.
    pub fn nmse(self, nmse: f64) -> Sample {
        Sample { nmse, ..self }
    }

    /// Bytes of operands and result: what a set takes.
    pub fn set_bytes(&self) -> usize {
        let operands = self.operands.iter().map(Operand::bytes).sum::<usize>();
        operands + self.result_bytes
    }

    /// Name of operand `at` of a set.
    pub fn name(set: usize, at: usize) -> String {
        format!("{set}.{at}")
    }

    /// Number of the cache that operand `at` of a set is.
    pub fn cache_id(&self, set: usize, at: usize) -> CacheId {
        let caches = |operands: &[Operand]| operands.iter().filter(|x| x.cache).count();
        CacheId(set * caches(&self.operands) + caches(&self.operands[..at]))
    }

    /// Appends the op over the operands of a set, and over the caches of another one
    /// or the same.
    ///
    /// # Errors
    /// The op does not take them.
    pub fn append_to(&self, b: &mut Builder<'_>, set: usize, caches_of: usize) -> Result<TensorId> {
        let mut src = Vec::new();
        for (at, x) in self.operands.iter().enumerate() {
            if !x.cache {
                src.push(b.weight(&Self::name(set, at), &x.ne)?);
                continue;
            }
            let id = b.cache(self.cache_id(caches_of, at), x.dtype, x.ne[0], x.ne[1]);
            let tensor = &mut b.graph.tensors[id.at()];
            tensor.ne = x.ne;
            tensor.nb = Tensor::packed(x.dtype, x.ne);
            src.push(id);
        }
        (self.append)(b, &src)
    }

    /// A case that checks the op at this shape.
    pub fn case(self) -> Case {
        Case {
            name: format!("{}/{}", self.op, self.shape),
            exact: false,
            nmse: self.nmse,
            make: Box::new(move || {
                let sample = self.clone();
                let store = sample.store();
                Problem {
                    store,
                    setup: Setup::default(),
                    build: Box::new(move |b, _| {
                        let out = sample.append_to(b, 0, 0)?;
                        // What is written in place is compared as a cache.
                        let owner = &b.graph.get(b.graph.owner(out)).origin;
                        match owner {
                            Origin::Cache(_) => Ok(Vec::new()),
                            _ => Ok(vec![out]),
                        }
                    }),
                }
            }),
        }
    }

    /// The operands of the first set.
    fn store(&self) -> Store {
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        let mut store = Store::default();
        for (at, x) in self.operands.iter().enumerate() {
            let n = x.ne.iter().product();
            let random = || random_weights(x.dtype, n, &mut random);
            let bytes = x.fixed().unwrap_or_else(random);
            match x.cache {
                true => drop(store.cache(&bytes)),
                false => store.bytes(&Self::name(0, at), x.dtype, &x.ne, &bytes),
            }
        }
        store
    }
}

/// Operands by name, without data.
struct Names<'a>(&'a [Operand]);

impl crate::graph::Catalog for Names<'_> {
    fn weight(&self, name: &str) -> Option<(DType, [usize; 4])> {
        let (_, at) = name.split_once('.')?;
        let x = self.0.get(at.parse::<usize>().ok()?)?;
        Some((x.dtype, x.ne))
    }

    fn weight_error(&self, name: &str, want: &[usize], have: Option<[usize; 4]>) -> Error {
        Error::input(format!("operand {name}: {want:?}, {have:?}"))
    }
}
