//! Many sets of operands of one sample, so that inputs do not come from a cache.

use super::random::{Random, random_weights};
use super::sample::{Operand, Sample};
use crate::backend::cpu::{Buffer, Storage};
use crate::error::{Error, Result};
use crate::graph::{CacheId, Catalog};
use crate::quant::DType;
use rayon::prelude::*;
use std::collections::HashMap;

/// Where operands start: a cache line, and what vector loads of the GPU want.
const ALIGN_BYTES: usize = 64;
/// Random bytes that are made one by one; longer stretches repeat them, turned.
const PATTERN_BYTES: usize = 1 << 20;
/// How far apart the sets of a shared stretch start: operands of different sets begin
/// with different values.
const SLACK_BYTES: usize = 8 << 20;

/// Random bytes of one type.
struct Stretch {
    bytes: Vec<u8>,
    /// Index of the first aligned byte.
    start: usize,
}

/// A multiple of both.
fn common(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

impl Stretch {
    /// At least `n_bytes` random values of a type, made quickly: a short pattern,
    /// copied by all threads, each copy turned by another number of blocks.
    fn new(dtype: DType, n_bytes: usize) -> Stretch {
        let step = common(ALIGN_BYTES, dtype.block_bytes());
        let n_bytes = n_bytes.next_multiple_of(step);
        let pattern_bytes = n_bytes.min(PATTERN_BYTES.next_multiple_of(step));
        let n_values = pattern_bytes / dtype.block_bytes() * dtype.block_len();
        let pattern = random_weights(dtype, n_values, &mut Random(0x2545_F491_4F6C_DD1D));
        let mut bytes = vec![0; n_bytes + ALIGN_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        let copies = bytes[start..start + n_bytes].par_chunks_mut(pattern_bytes.max(1));
        copies.enumerate().for_each(|(i, copy)| {
            let turn = i * 37 * step % pattern_bytes;
            let head = copy.len().min(pattern_bytes - turn);
            let (first, second) = copy.split_at_mut(head);
            first.copy_from_slice(&pattern[turn..turn + head]);
            let rest = second.len();
            second.copy_from_slice(&pattern[..rest]);
        });
        Stretch { bytes, start }
    }
}

/// A weight: which stretch, and where in it.
struct Place {
    dtype: DType,
    ne: [usize; 4],
    /// A random stretch, or one of fixed bytes.
    of: Source,
    at: usize,
    n_bytes: usize,
}

enum Source {
    Random(DType),
    Fixed(usize),
}

/// Operands of `n` sets of a sample in host memory.
pub struct Sets {
    places: HashMap<String, Place>,
    random: HashMap<DType, Stretch>,
    fixed: Vec<Stretch>,
    /// Caches that the CPU works on.
    caches: Vec<Buffer>,
}

impl Sets {
    /// Makes the operands. `apart` gives each its own memory, and caches to the CPU;
    /// for a device, which copies weights to memory of its own, they overlap.
    ///
    /// # Errors
    /// There is no memory for the caches.
    pub fn new(sample: &Sample, n: usize, apart: bool) -> Result<Sets> {
        let mut sets = Sets {
            places: HashMap::new(),
            random: HashMap::new(),
            fixed: Vec::new(),
            caches: Vec::new(),
        };
        let fixed = sets.fixed_stretches(sample);
        let mut ends: HashMap<DType, usize> = HashMap::new();
        for set in 0..n {
            for (at, x) in sample.operands.iter().enumerate().filter(|(_, x)| !x.cache) {
                let step = common(ALIGN_BYTES, x.dtype.block_bytes());
                let end = ends.entry(x.dtype).or_default();
                let (of, start) = match (fixed[at], apart) {
                    (Some(i), false) => (Source::Fixed(i), 0),
                    (Some(i), true) => {
                        // The first set has it; others get a copy of their own.
                        let own = if set == 0 { i } else { sets.copy_of(i) };
                        (Source::Fixed(own), 0)
                    }
                    (None, true) => (Source::Random(x.dtype), *end),
                    (None, false) => {
                        let turns = (SLACK_BYTES / step).max(1);
                        let turn = (set * sample.operands.len() + at) * 97 % turns;
                        (Source::Random(x.dtype), turn * step)
                    }
                };
                if matches!(of, Source::Random(_)) {
                    *end = (*end).max((start + x.bytes()).next_multiple_of(step));
                }
                sets.places.insert(
                    Sample::name(set, at),
                    Place {
                        dtype: x.dtype,
                        ne: x.ne,
                        of,
                        at: start,
                        n_bytes: x.bytes(),
                    },
                );
            }
        }
        for x in sample.operands.iter().filter(|x| x.cache) {
            let end = ends.entry(x.dtype).or_default();
            *end = (*end).max(x.bytes());
        }
        let stretches = ends.into_iter().map(|(d, n)| (d, Stretch::new(d, n)));
        sets.random = stretches.collect();
        if apart {
            for _ in 0..n {
                for x in sample.operands.iter().filter(|x| x.cache) {
                    let mut cache = Buffer::new(x.bytes(), "a cache")?;
                    let bytes = sets.cache_bytes(x);
                    cache.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
                    sets.caches.push(cache);
                }
            }
        }
        Ok(sets)
    }

    /// Stretches of the operands that are not random, by number of the operand.
    fn fixed_stretches(&mut self, sample: &Sample) -> Vec<Option<usize>> {
        let mut all = Vec::new();
        for x in &sample.operands {
            all.push(x.fixed().map(|bytes| self.add_fixed(&bytes)));
        }
        all
    }

    fn add_fixed(&mut self, content: &[u8]) -> usize {
        let mut bytes = vec![0; content.len() + ALIGN_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        bytes[start..start + content.len()].copy_from_slice(content);
        self.fixed.push(Stretch { bytes, start });
        self.fixed.len() - 1
    }

    fn copy_of(&mut self, fixed: usize) -> usize {
        let stretch = &self.fixed[fixed];
        let end = stretch.bytes.len() - (ALIGN_BYTES - stretch.start);
        let content = stretch.bytes[stretch.start..end].to_vec();
        self.add_fixed(&content)
    }

    /// What a cache operand holds before the first run.
    pub fn cache_bytes(&self, x: &Operand) -> &[u8] {
        let stretch = self.random.get(&x.dtype);
        let bytes = stretch.map(|s| &s.bytes[s.start..s.start + x.bytes()]);
        bytes.unwrap_or_default()
    }
}

impl Catalog for Sets {
    fn weight(&self, name: &str) -> Option<(DType, [usize; 4])> {
        self.places.get(name).map(|p| (p.dtype, p.ne))
    }

    fn weight_error(&self, name: &str, want: &[usize], have: Option<[usize; 4]>) -> Error {
        Error::input(format!("operand {name}: {want:?}, {have:?}"))
    }
}

impl Storage for Sets {
    fn weight(&self, name: &str) -> Option<&[u8]> {
        let place = self.places.get(name)?;
        let stretch = match place.of {
            Source::Random(dtype) => self.random.get(&dtype)?,
            Source::Fixed(i) => self.fixed.get(i)?,
        };
        let start = stretch.start + place.at;
        stretch.bytes.get(start..start + place.n_bytes)
    }

    fn cache(&self, id: CacheId) -> Option<&Buffer> {
        self.caches.get(id.0)
    }
}
