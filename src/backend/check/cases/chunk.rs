//! SSM_SCAN over so many tokens that CUDA computes it in chunks.

use crate::backend::check::case::{Case, Operand, Problem, x};
use crate::backend::check::store::{Random, Setup, Store};
use crate::graph::{CacheId, Count, Input, Op, SsmScan};
use crate::quant::DType;

/// Up to seven roundings to F16 lie between inputs and results, each an NMSE of some 4e-8
/// whatever the size of the values; 3.3e-7 was the most that a model of the kernels
/// showed. The rest is room for sums whose terms cancel. (1e-5 is promised.)
const CHUNK_NMSE: f64 = 2e-6;

/// Operands besides states, ids and rows.
#[derive(Clone)]
struct Scan {
    params: SsmScan,
    x: Operand,
    dt: Operand,
    a: Operand,
    b: Operand,
    c: Operand,
}

/// Sequences of a batch.
#[derive(Clone)]
struct Batch {
    /// Tokens at full width.
    width: usize,
    lengths: Vec<usize>,
    /// Which start from zeros.
    fresh: Vec<bool>,
}

#[derive(Clone, Copy)]
struct Heads {
    d_state: usize,
    head_dim: usize,
    n_head: usize,
    n_group: usize,
}

/// How operands lie in memory.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    Packed,
    /// Rows have a gap behind them, in whole fours.
    Gaps,
    /// Addresses and strides are no multiples of 8 bytes.
    Unaligned,
}

impl Batch {
    /// One sequence of all tokens.
    fn one(n: usize, fresh: bool) -> Batch {
        Batch {
            width: n,
            lengths: vec![n],
            fresh: vec![fresh],
        }
    }

    fn n_live(&self) -> usize {
        self.lengths.iter().sum()
    }

    fn setup(&self) -> Setup {
        let n_seqs = self.lengths.len();
        let mut rows = vec![0];
        for len in &self.lengths {
            rows.push(rows[rows.len() - 1] + *len as i32);
        }
        let slots = self.fresh.iter().enumerate().map(|(i, fresh)| {
            let slot = (n_seqs - i) as i32;
            if *fresh { -1 - slot } else { slot }
        });
        Setup {
            width: self.width,
            n_seqs,
            inputs: vec![(Input::SeqRows, rows), (Input::StateSlots, slots.collect())],
            counts: vec![(Count::Tokens, self.n_live())],
            ..Setup::default()
        }
    }

    /// Slots, one more than sequences; what a fresh sequence finds is no number.
    fn states(&self, state: usize, random: &mut Random) -> Vec<u8> {
        let n_seqs = self.lengths.len();
        let mut values = random.units(state * (n_seqs + 1));
        for i in (0..n_seqs).filter(|&i| self.fresh[i]) {
            values[state * (n_seqs - i)..][..state].fill(f32::NAN);
        }
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }
}

/// Values `[k, rows, n]` of tokens.
fn tokens(layout: Layout, k: usize, rows: usize, n: usize) -> Operand {
    match layout {
        Layout::Packed => x(&[k, rows, n]),
        Layout::Gaps => x(&[k, rows + 2, n]).window(1, 1, rows),
        Layout::Unaligned => x(&[k + 5, rows, n]).window(0, 3, k),
    }
    .live(2)
}

const ALL: SsmScan = SsmScan {
    dt_bias: true,
    skip: true,
    gate: true,
};

impl Scan {
    /// Decays of a head from 0.9 to 1e-4 a token.
    fn new(heads: Heads, n: usize, params: SsmScan, layout: Layout) -> Scan {
        let Heads {
            d_state,
            head_dim,
            n_head,
            n_group,
        } = heads;
        Scan {
            params,
            x: tokens(layout, head_dim, n_head, n),
            dt: match layout {
                Layout::Packed => x(&[n_head, n]).live(1),
                _ => x(&[n_head + 3, n]).window(0, 1, n_head).live(1),
            },
            a: x(&[1, n_head]).values(|random, _| -4.1 + 4.0 * random.unit()),
            b: tokens(layout, d_state, n_group, n),
            c: tokens(layout, d_state, n_group, n),
        }
    }

    /// The case over `batch`; z is laid out like x.
    fn case(self, label: &str, heads: Heads, batch: Batch) -> Case {
        let Heads {
            d_state,
            head_dim,
            n_head,
            n_group,
        } = heads;
        let name = format!(
            "SSM_SCAN/chunked/{label}/{d_state}x{head_dim}x{n_head}/{n_group}/{:?} of {}/{}",
            batch.lengths,
            batch.width,
            self.x.name()
        );
        let make = move || {
            let mut random = Random(0x9E37_79B9_7F4A_7C15);
            let mut store = Store::default();
            let n_live = batch.n_live();
            let mut operands = vec![&self.x, &self.dt, &self.a, &self.b, &self.c];
            let (p, vector) = (self.params, x(&[n_head]));
            let optional = [(p.dt_bias, &vector), (p.skip, &vector), (p.gate, &self.x)];
            operands.extend(optional.iter().filter(|o| o.0).map(|o| o.1));
            for (i, operand) in operands.iter().enumerate() {
                operand.put(&mut store, &i.to_string(), n_live, &mut random);
            }
            let state = d_state * head_dim * n_head;
            store.cache(&batch.states(state, &mut random));
            let slots = batch.lengths.len() + 1;
            let operands: Vec<Operand> = operands.into_iter().cloned().collect();
            Problem {
                store,
                setup: batch.setup(),
                build: Box::new(move |b, store| {
                    let cache = b.cache(CacheId(0), DType::F32, state, slots);
                    let mut src = vec![b.reshape(cache, &[d_state, head_dim, n_head, slots])?];
                    for (i, operand) in operands.iter().enumerate() {
                        if i == 5 {
                            src.push(b.input(Input::StateSlots, 0));
                            src.push(b.input(Input::SeqRows, 0));
                        }
                        src.push(operand.take(b, store, &i.to_string())?);
                    }
                    if operands.len() == 5 {
                        src.push(b.input(Input::StateSlots, 0));
                        src.push(b.input(Input::SeqRows, 0));
                    }
                    Ok(vec![b.op(Op::SsmScan(p), &src)?])
                }),
            }
        };
        Case {
            name,
            exact: false,
            nmse: CHUNK_NMSE,
            make: Box::new(make),
        }
    }
}

/// `d_state`, `head_dim`, heads, groups.
fn heads(d_state: usize, head_dim: usize, n_head: usize, n_group: usize) -> Heads {
    Heads {
        d_state,
        head_dim,
        n_head,
        n_group,
    }
}

/// Heads of models, on both sides of whole chunks and pieces.
fn shapes(cases: &mut Vec<Case>) {
    let models = [
        (heads(128, 64, 64, 8), 1000),
        (heads(128, 64, 80, 1), 512),
        (heads(128, 64, 48, 1), 512),
        (heads(128, 80, 128, 1), 200),
    ];
    for (heads, n) in models {
        let scan = Scan::new(heads, n, ALL, Layout::Packed);
        cases.push(scan.case("model", heads, Batch::one(n, false)));
    }
    for (d_state, head_dim) in [
        (64, 64),
        (64, 128),
        (128, 48),
        (128, 64),
        (128, 80),
        (128, 128),
        (112, 80),
        (256, 64),
        (256, 128),
        (160, 80),
    ] {
        for (n_head, n_group) in [(2, 1), (4, 2), (8, 8)] {
            for n in [130, 200] {
                let heads = heads(d_state, head_dim, n_head, n_group);
                let scan = Scan::new(heads, n, SsmScan::default(), Layout::Packed);
                cases.push(scan.case("plain", heads, Batch::one(n, n == 130)));
            }
        }
    }
}

/// So many tokens that blocks go through the chunks of a piece in turn.
fn long(cases: &mut Vec<Case>) {
    for (d_state, head_dim) in [(64, 64), (128, 48), (128, 64), (128, 80), (256, 64)] {
        let heads = heads(d_state, head_dim, 2, 1);
        for batch in [
            Batch::one(2200, false),
            Batch {
                width: 2304,
                lengths: vec![1500, 1, 700],
                fresh: vec![true, false, false],
            },
        ] {
            let scan = Scan::new(heads, batch.width, ALL, Layout::Gaps);
            cases.push(scan.case("long", heads, batch));
        }
    }
}

/// Options by themselves, and every layout, over sequences of different lengths.
fn batches(cases: &mut Vec<Case>) {
    let few = Batch {
        width: 512,
        lengths: vec![150, 1, 37, 0],
        fresh: vec![false, true, false, true],
    };
    let many = Batch {
        width: 4096,
        lengths: (0..40).map(|i| i * 37 % 101).collect(),
        fresh: (0..40).map(|i| i % 3 == 0).collect(),
    };
    let none = Batch {
        width: 256,
        lengths: vec![0, 0],
        fresh: vec![true, false],
    };
    let options = [
        ("dt_bias", [true, false, false]),
        ("skip", [false, true, false]),
        ("gate", [false, false, true]),
        ("all", [true; 3]),
    ];
    for (label, [dt_bias, skip, gate]) in options {
        let params = SsmScan {
            dt_bias,
            skip,
            gate,
        };
        for layout in [Layout::Packed, Layout::Gaps, Layout::Unaligned] {
            for heads in [heads(128, 64, 4, 2), heads(128, 80, 2, 1)] {
                let scan = Scan::new(heads, few.width, params, layout);
                cases.push(scan.case(label, heads, few.clone()));
            }
        }
    }
    for (d_state, head_dim) in [(64, 64), (128, 64), (256, 64)] {
        let heads = heads(d_state, head_dim, 2, 1);
        for batch in [&many, &none] {
            let scan = Scan::new(heads, batch.width, ALL, Layout::Packed);
            cases.push(scan.case("all", heads, batch.clone()));
        }
    }
}

/// Steps and sizes that leave the range of F16, or of decays that can be told apart.
fn values(cases: &mut Vec<Case>) {
    let heads = heads(128, 64, 4, 2);
    let n = 300;
    let new = || Scan::new(heads, n, SsmScan::default(), Layout::Packed);
    let dt = |value: fn(&mut Random, usize) -> f32| x(&[4, n]).values(value).live(1);
    let a = |value: f32| x(&[1, 4]).values(move |_, _| value);
    let scaled = |factor: f32| move |random: &mut Random, _: usize| factor * random.unit();
    let mut push = |label: &str, scan: Scan| {
        cases.push(scan.case(label, heads, Batch::one(n, false)));
    };
    let mut scan = new();
    (scan.a, scan.dt) = (a(-30.0), dt(|_, _| 0.54)); // softplus(0.54) is 1
    push("decay e^-30", scan);
    let mut scan = new();
    (scan.a, scan.dt) = (a(-1e4), dt(|random, _| 8.0 * random.unit()));
    push("decay e^-10000", scan);
    let mut scan = new();
    scan.a = a(0.0);
    push("no decay", scan);
    let mut scan = new();
    (scan.a, scan.dt) = (a(0.01), dt(|random, _| random.unit() - 1.0));
    push("growth", scan);
    let mut scan = new();
    scan.dt = dt(|random, _| 30.0 * random.unit());
    push("dt above 20", scan);
    let mut scan = new();
    (scan.x, scan.b) = (scan.x.values(scaled(1e5)), scan.b.values(scaled(1e5)));
    scan.c = scan.c.values(scaled(1e5));
    push("1e5", scan);
    let mut scan = new();
    (scan.x, scan.b) = (scan.x.values(scaled(1e-6)), scan.b.values(scaled(1e-6)));
    push("1e-6", scan);
    // Tokens of very different sizes in one chunk.
    let mut scan = new();
    let per_token = |values: usize| {
        move |random: &mut Random, i: usize| {
            let sizes = [1e5, 1.0, 1e-6, 1e3];
            sizes[i / values % 4] * random.unit()
        }
    };
    (scan.x, scan.b) = (
        scan.x.values(per_token(64 * 4)),
        scan.b.values(per_token(3 * 128 * 2)),
    );
    push("sizes", scan);
    let long = 1000;
    let scan = Scan::new(heads, long, ALL, Layout::Packed);
    cases.push(scan.case("long", heads, Batch::one(long, false)));
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    shapes(&mut cases);
    long(&mut cases);
    batches(&mut cases);
    values(&mut cases);
    cases
}
