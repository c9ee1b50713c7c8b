//! SSM_SCAN: sequences of all lengths in one batch, states in any order.

use super::sequences::{Batch, MIXED, Sequences, ids_and_rows, named};
use crate::backend::check::case::{Case, F32_NMSE, Operand, Problem, x};
use crate::backend::check::store::{Random, Store, operand};
use crate::graph::{Builder, Op, SsmScan, TensorId};

/// One call of SSM_SCAN. x, b, c, z and dt are slices of one row, as a projection gives
/// them, with `gap` values before each.
#[derive(Clone)]
struct Scan {
    d_state: usize,
    head_dim: usize,
    n_head: usize,
    n_group: usize,
    /// A decay for each channel and state.
    mamba_1: bool,
    params: SsmScan,
    gap: usize,
    sequences: Sequences,
}

const ALL: SsmScan = SsmScan {
    dt_bias: true,
    skip: true,
    gate: true,
};

impl Scan {
    fn case(self) -> Case {
        let sequences = &self.sequences;
        let SsmScan {
            dt_bias,
            skip,
            gate,
        } = self.params;
        let flags = [(dt_bias, ",bias"), (skip, ",d"), (gate, ",z")];
        Case {
            name: format!(
                "SSM_SCAN/{},d={},heads={}:{}:{},tokens={}{},gap={}",
                if self.mamba_1 { "mamba" } else { "mamba-2" },
                self.d_state,
                self.head_dim,
                self.n_head,
                self.n_group,
                Batch { sequences }.name(),
                named(&flags),
                self.gap,
            ),
            exact: false,
            nmse: F32_NMSE,
            make: Box::new(move || self.clone().problem()),
        }
    }

    /// Widths of x, b, c, z and dt in a row.
    fn widths(&self) -> [usize; 5] {
        let (n_x, n_b) = (self.head_dim * self.n_head, self.d_state * self.n_group);
        [n_x, n_b, n_b, n_x, self.n_head]
    }

    /// First value of part `i` of a row, or of what follows them all.
    fn start(&self, i: usize) -> usize {
        self.widths()[..i].iter().sum::<usize>() + (i + 1) * self.gap
    }

    /// All of them: steps of 0.02 to 0.7 with their bias, but one of 50 that of a linear
    /// softplus, which forgets everything.
    fn row(&self, n: usize) -> Operand {
        let (row, dt_at) = (self.start(5), self.start(4));
        let value = move |random: &mut Random, i: usize| match i % row {
            at if at < dt_at => random.unit(),
            _ if random.below(50) == 0 => 22.0 + random.unit(),
            _ => 2.0 * random.unit() - 2.0,
        };
        x(&[row, n]).live(1).values(value)
    }

    /// One head or group of a part is a row of its own.
    fn part(&self, b: &mut Builder<'_>, row: TensorId, i: usize) -> crate::Result<TensorId> {
        let width = self.widths()[i];
        let part = b.slice(row, 0, self.start(i), width)?;
        match i {
            0 | 3 => b.split_rows(part, [self.head_dim, self.n_head]),
            1 | 2 => b.split_rows(part, [self.d_state, self.n_group]),
            _ => Ok(part),
        }
    }

    fn problem(self) -> Problem {
        let sequences = &self.sequences;
        let batch = Batch { sequences };
        let (n_live, n_slots) = (batch.n_live(), batch.n_slots());
        let mut random = Random(107);
        let mut store = Store::default();
        let row = self.row(batch.n());
        let n_decays = if self.mamba_1 { self.d_state } else { 1 };
        let decay = |random: &mut Random, _| -0.01 - 0.99 * random.unit().abs();
        let a = x(&[n_decays, self.n_head]).values(decay);
        let vector = x(&[self.n_head]);
        for (name, operand) in [("row", &row), ("a", &a), ("bias", &vector), ("d", &vector)] {
            operand.put(&mut store, name, n_live, &mut random);
        }
        let n_state = self.d_state * self.head_dim * self.n_head;
        let (cache, setup) = batch.set_up(&mut store, n_state, &mut random);
        Problem {
            store,
            setup,
            build: Box::new(move |b, store| {
                let row = row.take(b, store, "row")?;
                let shape = [self.d_state, self.head_dim, self.n_head, n_slots];
                let mut src = vec![b.states(cache, &shape)?];
                src.push(self.part(b, row, 0)?);
                src.push(self.part(b, row, 4)?);
                src.push(operand(b, store, "a"));
                src.push(self.part(b, row, 1)?);
                src.push(self.part(b, row, 2)?);
                src.extend(ids_and_rows(b));
                let vectors = [(self.params.dt_bias, "bias"), (self.params.skip, "d")];
                let vectors = vectors.iter().filter(|v| v.0);
                src.extend(vectors.map(|v| operand(b, store, v.1)));
                if self.params.gate {
                    src.push(self.part(b, row, 3)?);
                }
                Ok(vec![b.op(Op::SsmScan(self.params), &src)?])
            }),
        }
    }
}

/// Every size of state, both forms, with and without whole fours.
fn sizes(mixed: &Scan) -> Vec<Scan> {
    let mut all = Vec::new();
    for d_state in [1, 16, 17, 64, 100, 128, 256, 1000, 1024] {
        for gap in [0, 3, 4] {
            all.push(Scan {
                d_state,
                gap,
                ..mixed.clone()
            });
            let (head_dim, n_group, mamba_1) = (1, 1, true);
            let n_head = if d_state > 16 { 21 } else { 53 };
            all.push(Scan {
                d_state,
                head_dim,
                n_head,
                n_group,
                mamba_1,
                gap,
                ..mixed.clone()
            });
        }
    }
    all
}

fn scans() -> Vec<Scan> {
    let mixed = Scan {
        d_state: 128,
        head_dim: 20,
        n_head: 8,
        n_group: 2,
        mamba_1: false,
        params: ALL,
        gap: 0,
        sequences: MIXED.to_vec(),
    };
    let mamba = Scan {
        d_state: 16,
        head_dim: 1,
        n_head: 256,
        n_group: 1,
        mamba_1: true,
        ..mixed.clone()
    };
    let mut all = sizes(&mixed);
    for n_group in [1, 8] {
        all.push(Scan {
            n_group,
            ..mixed.clone()
        });
    }
    for flags in 0..8 {
        let params = SsmScan {
            dt_bias: flags & 1 != 0,
            skip: flags & 2 != 0,
            gate: flags & 4 != 0,
        };
        let sequences = vec![(9, true)];
        for shape in [&mixed, &mamba] {
            let (sequences, shape) = (sequences.clone(), shape.clone());
            all.push(Scan {
                params,
                sequences,
                ..shape
            });
        }
    }
    for sequences in [
        vec![(1, false)],
        vec![(0, false)],
        vec![(1, false); 16],
        vec![(300, true)],
        vec![(1000, false)],
        vec![(32, true), (33, false), (31, false), (8, true)],
        // As wide as a decode step of many sequences.
        [vec![(9, true)], vec![(0, false); 7]].concat(),
    ] {
        for shape in [&mixed, &mamba] {
            let (sequences, shape) = (sequences.clone(), shape.clone());
            all.push(Scan { sequences, ..shape });
        }
    }
    // Real models: a token, and a token of each of 16 sequences.
    for (head_dim, n_head, n_group, n_seqs) in [
        (64, 48, 1, 1),
        (80, 128, 1, 1),
        (64, 64, 8, 16),
        (1, 5, 1, 1),
    ] {
        all.push(Scan {
            head_dim,
            n_head,
            n_group,
            sequences: vec![(1, false); n_seqs],
            ..mixed.clone()
        });
    }
    all.push(Scan {
        n_head: 5120,
        sequences: vec![(1, false), (70, true)],
        ..mamba.clone()
    });
    all
}

pub fn cases() -> Vec<Case> {
    scans().into_iter().map(Scan::case).collect()
}
