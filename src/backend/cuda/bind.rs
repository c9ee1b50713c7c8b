//! From symbolic launches to launches with addresses; neighbours that may share a
//! launch are joined.

use super::clusters;
use super::context::{Context, Function};
use super::kernel::{Arg, Kernel, View};
use super::stream::{Start, Stream};
use crate::error::{Error, Result};
use crate::graph::RopeParams;
use std::ffi::c_void;
use std::ops::Range;

/// Jobs in one launch, as `cuda-kernels/jobs.cuh` has it.
const MAX_JOBS: usize = 4;

/// Kernels of graphs call `start` of `cuda-kernels/common.cuh`.
const DEPENDENT: bool = true;

/// A tensor on the device: how a kernel sees it, and the bytes it may touch.
#[derive(Debug, Clone)]
pub struct Place {
    pub view: View,
    pub range: Range<u64>,
}

/// A launch ready to go. Parameter values lie in `values`, each 8-byte aligned.
pub struct Launch {
    function: Function,
    entry: String,
    grid: [u32; 3],
    block: u32,
    shared_bytes: u32,
    values: Vec<u64>,
    /// Where each parameter starts in `values`.
    params: Vec<usize>,
    /// Jobs joined so far: first block and arguments; empty for other kernels.
    jobs: Vec<(u32, Vec<u64>)>,
    reads: Vec<Range<u64>>,
    writes: Vec<Range<u64>>,
    /// All blocks run at once, or the launch fails.
    cooperative: bool,
}

/// Addresses that arguments may ask for besides operands.
pub struct Addresses<'a> {
    pub scratch: u64,
    pub table: &'a mut dyn FnMut(&[u8]) -> Result<u64>,
    /// The state of a kernel, of this many bytes.
    pub state: &'a mut dyn FnMut(&Kernel, usize) -> Result<u64>,
}

/// One argument's bytes as 8-byte words, and whether it takes only four bytes.
enum Value {
    Words(Vec<u64>),
    Word32(u32),
}

fn view_words(view: &View) -> Vec<u64> {
    let pair = |low: i32, high: i32| u64::from(low as u32) | u64::from(high as u32) << 32;
    let mut words = vec![view.data, view.live];
    words.extend(view.nb.map(|n| n as u64));
    words.push(pair(view.ne[0], view.ne[1]));
    words.push(pair(view.ne[2], view.ne[3]));
    words.push(pair(view.live_dim, view.dtype));
    words
}

const NO_VIEW: View = View {
    data: 0,
    live: 0,
    nb: [0; 4],
    ne: [0; 4],
    live_dim: -1,
    dtype: -1,
};

fn value(
    kernel: &Kernel,
    arg: &Arg,
    dst: &Place,
    src: &[Place],
    at: &mut Addresses<'_>,
) -> Result<Value> {
    Ok(match arg {
        Arg::Dst => Value::Words(view_words(&dst.view)),
        Arg::Src(i) => Value::Words(view_words(&src[*i].view)),
        Arg::NoView => Value::Words(view_words(&NO_VIEW)),
        Arg::I32(x) => Value::Word32(*x as u32),
        Arg::F32(x) => Value::Word32(x.to_bits()),
        Arg::Rope(params) => Value::Words(vec![(at.table)(&rope_table(params.as_ref()))?]),
        Arg::State { bytes } => Value::Words(vec![(at.state)(kernel, *bytes)?]),
        Arg::Scratch { offset_bytes } => Value::Words(vec![at.scratch + *offset_bytes as u64]),
    })
}

/// Coefficients as kernels read them, f64.
fn rope_table(params: Option<&RopeParams>) -> Vec<u8> {
    let mut coefficients = params.map_or_else(Vec::new, RopeParams::coefficients);
    if coefficients.is_empty() {
        coefficients.push(0.0);
    }
    coefficients
        .into_iter()
        .flat_map(f64::to_ne_bytes)
        .collect()
}

/// Values as the fields of a C struct whose size is a multiple of 8.
fn packed(values: &[Value]) -> Vec<u64> {
    let mut words: Vec<u64> = Vec::new();
    let mut half_full = false;
    for value in values {
        match value {
            Value::Words(w) => {
                words.extend(w);
                half_full = false;
            }
            Value::Word32(low) if !half_full => {
                words.push(u64::from(*low));
                half_full = true;
            }
            Value::Word32(high) => {
                if let Some(last) = words.last_mut() {
                    *last |= u64::from(*high) << 32;
                }
                half_full = false;
            }
        }
    }
    words
}

fn meet(a: &[Range<u64>], b: &[Range<u64>]) -> bool {
    a.iter()
        .any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
}

impl Launch {
    /// Resolves a kernel of a node whose result is `dst` and operands `src`, of which it
    /// changes `kept`.
    pub fn new(
        context: &Context,
        kernel: &Kernel,
        dst: &Place,
        src: &[Place],
        kept: Option<&Place>,
        at: &mut Addresses<'_>,
    ) -> Result<Launch> {
        let kernel = clusters::choose(context, kernel);
        let function = context.function(&kernel.entry)?;
        // 48 KiB go without leave, but what a kernel has statically counts too.
        if kernel.shared_bytes > 0 {
            context.allow_shared(function, kernel.shared_bytes)?;
        }
        let values = kernel.args.iter().map(|a| value(kernel, a, dst, src, at));
        let values = values.collect::<Result<Vec<_>>>()?;
        let mut launch = Launch {
            function,
            entry: kernel.entry.clone(),
            grid: kernel.grid,
            block: kernel.block,
            shared_bytes: kernel.shared_bytes,
            values: Vec::new(),
            params: Vec::new(),
            jobs: Vec::new(),
            reads: src.iter().map(|p| p.range.clone()).collect(),
            writes: [dst]
                .into_iter()
                .chain(kept)
                .map(|p| p.range.clone())
                .collect(),
            cooperative: false,
        };
        if kernel.job {
            launch.jobs.push((0, packed(&values)));
            launch.pack_jobs();
            return Ok(launch);
        }
        if kernel.packed {
            launch.values = packed(&values);
            launch.params = vec![0];
            return Ok(launch);
        }
        for value in &values {
            launch.params.push(launch.values.len());
            launch.values.extend(packed(std::slice::from_ref(value)));
        }
        Ok(launch)
    }

    /// A launch of `kernel`; each of `args` is the words of one argument. With `cooperative`
    /// all its blocks run at once.
    pub fn of_words(
        context: &Context,
        kernel: &Kernel,
        args: &[&[u64]],
        cooperative: bool,
    ) -> Result<Launch> {
        let function = context.function(&kernel.entry)?;
        context.allow_shared(function, kernel.shared_bytes)?;
        let mut at = 0;
        let params = args.iter().map(|words| {
            at += words.len();
            at - words.len()
        });
        Ok(Launch {
            function,
            entry: kernel.entry.clone(),
            grid: kernel.grid,
            block: kernel.block,
            shared_bytes: kernel.shared_bytes,
            params: params.collect(),
            values: args.concat(),
            jobs: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            cooperative,
        })
    }

    /// The launch, said to do the work of `others`.
    pub fn in_place_of(mut self, others: &[&Launch]) -> Launch {
        for other in others {
            self.reads.extend(other.reads.iter().cloned());
            self.writes.extend(other.writes.iter().cloned());
        }
        self
    }

    /// Name of the kernel.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// The arguments of each job.
    pub fn jobs(&self) -> impl Iterator<Item = &[u64]> {
        self.jobs.iter().map(|job| job.1.as_slice())
    }

    /// Where it writes.
    pub fn writes(&self) -> &[Range<u64>] {
        &self.writes
    }

    /// Its arguments as words.
    pub fn values(&self) -> &[u64] {
        &self.values
    }

    /// Whether it writes anything that `other` reads, but for what `by` writes.
    pub fn disturbs(&self, other: &Launch, by: Option<&Launch>) -> bool {
        let passed = by.map_or(&[][..], |by| by.writes());
        let reads = other.reads.iter().filter(|r| !passed.contains(r));
        meet(&self.writes, &reads.cloned().collect::<Vec<_>>())
    }

    /// Does the work of `ahead` as well, which its arguments say when they begin with `words`.
    pub fn take_in(&mut self, ahead: Launch, words: &[u64]) {
        self.values[..words.len()].copy_from_slice(words);
        self.reads.extend(ahead.reads);
        self.writes.extend(ahead.writes);
    }

    /// `Jobs` of `cuda-kernels/jobs.cuh` as the one parameter.
    fn pack_jobs(&mut self) {
        let mut head = vec![Value::Word32(self.jobs.len() as u32)];
        head.extend((0..MAX_JOBS).map(|j| Value::Word32(self.jobs.get(j).map_or(0, |job| job.0))));
        head.push(Value::Word32(0)); // `pad`
        self.values = packed(&head);
        let words = self.jobs.first().map_or(0, |job| job.1.len());
        for j in 0..MAX_JOBS {
            match self.jobs.get(j) {
                Some(job) => self.values.extend(&job.1),
                None => self.values.extend(std::iter::repeat_n(0, words)),
            }
        }
        self.params = vec![0];
    }

    /// Takes the jobs of `next` into this launch when they may run side by side;
    /// gives `next` back when not.
    pub fn join(&mut self, next: Launch) -> Option<Launch> {
        let fits = !self.jobs.is_empty()
            && self.jobs.len() + next.jobs.len() <= MAX_JOBS
            && self.entry == next.entry
            && self.grid[1..] == next.grid[1..]
            && (self.block, self.shared_bytes) == (next.block, next.shared_bytes)
            && !meet(&self.writes, &next.reads)
            && !meet(&self.writes, &next.writes)
            && !meet(&self.reads, &next.writes);
        if !fits {
            return Some(next);
        }
        let first = self.grid[0];
        self.jobs
            .extend(next.jobs.into_iter().map(|(b, words)| (first + b, words)));
        self.grid[0] += next.grid[0];
        self.reads.extend(next.reads);
        self.writes.extend(next.writes);
        self.pack_jobs();
        None
    }

    /// Puts the launch on `stream`.
    ///
    /// # Safety
    /// The memory that operands lie in is allocated until the stream is past it.
    pub unsafe fn run(&self, stream: &Stream) -> Result<()> {
        let mut params: Vec<*mut c_void> = self
            .params
            .iter()
            .map(|&at| self.values[at..].as_ptr().cast_mut().cast())
            .collect();
        // SAFETY: `params` follow the kernel's own argument list; memory is the
        // caller's promise.
        let done = unsafe {
            stream.launch(
                self.function,
                self.grid,
                (self.block, self.shared_bytes),
                Start {
                    dependent: DEPENDENT,
                    cooperative: self.cooperative,
                },
                &mut params,
            )
        };
        done.map_err(|e| match e {
            Error::Input(text) => Error::Input(format!("{}: {text}", self.entry)),
            other => other,
        })
    }
}
