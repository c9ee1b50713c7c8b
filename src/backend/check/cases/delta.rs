//! GATED_DELTA_NET: sequences of all lengths in one batch, states in any order.

use crate::backend::check::case::{Case, F32_NMSE, Operand, Problem, x};
use crate::backend::check::store::{Random, Setup, Store};
use crate::graph::{GatedDelta, Input, Op};

/// Tokens behind the last sequence, which hold NaN.
const DEAD: usize = 3;

/// One call. Q, K and V are slices of one row, as a projection gives them, with
/// `gap` values before and between them.
#[derive(Clone)]
struct Delta {
    d_k: usize,
    d_v: usize,
    n_k_head: usize,
    n_v_head: usize,
    tiled: bool,
    gap: usize,
    /// Tokens of each sequence, and whether it starts here.
    sequences: Vec<(usize, bool)>,
}

/// Fresh and resuming, long and short, and one that has no tokens.
const MIXED: [(usize, bool); 4] = [(150, true), (1, false), (37, false), (0, true)];

impl Delta {
    fn n_live(&self) -> usize {
        self.sequences.iter().map(|s| s.0).sum()
    }

    fn n_slots(&self) -> usize {
        self.sequences.len() + 1
    }

    /// Slots from the last one down: never the first.
    fn slot(&self, seq: usize) -> usize {
        self.sequences.len() - seq
    }

    fn case(self) -> Case {
        let lengths: Vec<_> = self.sequences.iter().map(|s| s.0.to_string()).collect();
        let lengths = match lengths.len() {
            0..=4 => lengths.join(","),
            n => format!("{n}x{}", lengths[0]),
        };
        Case {
            name: format!(
                "GATED_DELTA_NET/d={}:{},heads={}:{},tokens={lengths}{}{}",
                self.d_k,
                self.d_v,
                self.n_k_head,
                self.n_v_head,
                if self.tiled { ",tiled" } else { "" },
                if self.gap > 0 { ",gaps" } else { "" },
            ),
            exact: false,
            nmse: F32_NMSE,
            make: Box::new(move || self.clone().problem()),
        }
    }

    /// Widths of Q, K and V in a row.
    fn widths(&self) -> [usize; 3] {
        let n_k = self.d_k * self.n_k_head;
        [n_k, n_k, self.d_v * self.n_v_head]
    }

    /// The row of all three: Q and K of length one or so, as after L2_NORM.
    fn qkv(&self, n: usize) -> Operand {
        let row = self.widths().iter().map(|w| w + self.gap).sum::<usize>();
        let n_qk = 2 * (self.d_k * self.n_k_head + self.gap);
        let size = (3.0 / self.d_k as f32).sqrt();
        x(&[row, n])
            .live(1)
            .values(move |random, i| random.unit() * if i % row < n_qk { size } else { 1.0 })
    }

    /// `g` or `beta`, values of a wider row.
    fn factor(&self, n: usize, value: fn(f32) -> f32) -> Operand {
        x(&[self.n_v_head + 3, n])
            .live(1)
            .window(0, 2, self.n_v_head)
            .values(move |random, _| value(random.unit()))
    }

    fn problem(self) -> Problem {
        let (n_live, n) = (self.n_live(), self.n_live() + DEAD);
        let mut random = Random(101);
        let mut store = Store::default();
        // Mostly little decay, now and then nearly all.
        let g = self.factor(n, |u| -4.0 * u.powi(8));
        let beta = self.factor(n, |u| 0.5 + 0.5 * u);
        let operands = [("qkv", self.qkv(n)), ("g", g), ("beta", beta)];
        for (name, operand) in &operands {
            operand.put(&mut store, name, n_live, &mut random);
        }
        let n_state = self.d_k * self.d_v * self.n_v_head;
        let mut states = random.units(n_state * self.n_slots());
        let (mut ids, mut rows) = (Vec::new(), vec![0]);
        for (i, &(tokens, fresh)) in self.sequences.iter().enumerate() {
            let slot = self.slot(i);
            if fresh && tokens > 0 {
                states[slot * n_state..][..n_state].fill(f32::NAN);
            }
            ids.push(if fresh { !(slot as i32) } else { slot as i32 });
            rows.push(rows[i] + tokens as i32);
        }
        let bytes: Vec<u8> = states.iter().flat_map(|v| v.to_le_bytes()).collect();
        let cache = store.cache(&bytes);
        Problem {
            store,
            setup: Setup {
                n_seqs: self.sequences.len(),
                inputs: vec![(Input::StateSlots, ids), (Input::SeqRows, rows)],
                ..Setup::tokens(n, n_live)
            },
            build: Box::new(move |b, store| {
                let [qkv, g, beta] = [0, 1, 2].map(|i| operands[i].1.take(b, store, operands[i].0));
                let (qkv, shape) = (qkv?, [self.d_k, self.d_v, self.n_v_head, self.n_slots()]);
                let state = b.states(cache, &shape)?;
                let mut src = vec![state];
                let mut start = self.gap;
                for (width, head_dim) in self
                    .widths()
                    .into_iter()
                    .zip([self.d_k, self.d_k, self.d_v])
                {
                    let part = b.slice(qkv, 0, start, width)?;
                    src.push(b.split_rows(part, [head_dim, width / head_dim])?);
                    start += width + self.gap;
                }
                let (ids, rows) = (b.input(Input::StateSlots, 0), b.input(Input::SeqRows, 0));
                src.extend([g?, beta?, ids, rows]);
                let op = Op::GatedDeltaNet(GatedDelta { tiled: self.tiled });
                Ok(vec![b.op(op, &src)?])
            }),
        }
    }
}

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mixed = Delta {
        d_k: 128,
        d_v: 128,
        n_k_head: 2,
        n_v_head: 4,
        tiled: false,
        gap: 0,
        sequences: MIXED.to_vec(),
    };
    for tiled in [false, true] {
        for (d_k, d_v) in [(16, 16), (64, 64), (100, 37), (128, 128), (256, 256)] {
            let mixed = mixed.clone();
            all.push(Delta {
                d_k,
                d_v,
                tiled,
                ..mixed
            });
        }
        // Rows of a slice that are not there, and nothing on 16 bytes.
        for (d_k, d_v) in [
            (1, 1),
            (37, 5),
            (64, 33),
            (100, 12),
            (128, 40),
            (256, 20),
            (1000, 9),
        ] {
            let sequences = vec![(20, false), (3, true), (0, false), (33, true)];
            all.push(Delta {
                d_k,
                d_v,
                tiled,
                gap: 3,
                sequences,
                ..mixed.clone()
            });
        }
    }
    let sequences = [
        vec![(1000, true)],
        vec![(1, false)],
        vec![(0, false)],
        vec![(1, false); 17],
        vec![(16, true), (17, false), (15, false), (32, true)],
    ];
    all.extend(sequences.map(|sequences| Delta {
        sequences,
        ..mixed.clone()
    }));
    all.push(Delta {
        d_k: 1024,
        d_v: 8,
        sequences: vec![(7, false)],
        ..mixed.clone()
    });
    // Qwen 3 Next: a prompt, and a token of each of 16 sequences.
    for sequences in [vec![(512, true)], vec![(1, false)], vec![(1, false); 16]] {
        all.push(Delta {
            n_k_head: 16,
            n_v_head: 32,
            sequences,
            ..mixed.clone()
        });
    }
    all.into_iter().map(Delta::case).collect()
}
