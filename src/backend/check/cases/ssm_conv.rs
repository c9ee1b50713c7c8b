//! SSM_CONV: sequences of all lengths in one batch, states in any order.

use super::sequences::{Batch, MIXED, Sequences, ids_and_rows, named};
use crate::backend::check::case::{Case, F32_NMSE, Problem, x};
use crate::backend::check::store::{Random, Store, operand};
use crate::graph::{Op, SsmConv};

/// One call of SSM_CONV; x is a slice of a row with `gap` values before and behind.
#[derive(Clone)]
struct Conv {
    d_conv: usize,
    channels: usize,
    params: SsmConv,
    gap: usize,
    sequences: Sequences,
}

impl Conv {
    fn case(self) -> Case {
        let sequences = &self.sequences;
        let flags = [(self.params.bias, ",bias"), (self.params.silu, ",silu")];
        Case {
            name: format!(
                "SSM_CONV/d={},c={},tokens={}{},gap={}",
                self.d_conv,
                self.channels,
                Batch { sequences }.name(),
                named(&flags),
                self.gap,
            ),
            exact: false,
            nmse: F32_NMSE,
            make: Box::new(move || self.clone().problem()),
        }
    }

    fn problem(self) -> Problem {
        let sequences = &self.sequences;
        let batch = Batch { sequences };
        let (n_live, n_slots) = (batch.n_live(), batch.n_slots());
        let mut random = Random(103);
        let mut store = Store::default();
        let row = self.channels + 2 * self.gap;
        let input = x(&[row, batch.n()]).live(1);
        let input = input.window(0, self.gap, self.channels);
        let w = x(&[self.d_conv, self.channels]);
        let bias = x(&[self.channels]);
        for (name, operand) in [("x", &input), ("w", &w), ("bias", &bias)] {
            operand.put(&mut store, name, n_live, &mut random);
        }
        let n_state = (self.d_conv - 1) * self.channels;
        let (cache, setup) = batch.set_up(&mut store, n_state, &mut random);
        Problem {
            store,
            setup,
            build: Box::new(move |b, store| {
                let x = input.take(b, store, "x")?;
                let w = operand(b, store, "w");
                let state = b.states(cache, &[self.channels, self.d_conv - 1, n_slots])?;
                let mut src = vec![x, w, state];
                src.extend(ids_and_rows(b));
                if self.params.bias {
                    src.push(operand(b, store, "bias"));
                }
                Ok(vec![b.op(Op::SsmConv(self.params), &src)?])
            }),
        }
    }
}

fn convs() -> Vec<Conv> {
    let (bias, silu) = (true, true);
    let mixed = Conv {
        d_conv: 4,
        channels: 640,
        params: SsmConv { bias, silu },
        gap: 0,
        sequences: MIXED.to_vec(),
    };
    let mut all = Vec::new();
    for bias in [false, true] {
        for silu in [false, true] {
            let params = SsmConv { bias, silu };
            all.push(Conv {
                params,
                ..mixed.clone()
            });
        }
    }
    for d_conv in [2, 3, 5, 8, 17] {
        all.push(Conv {
            d_conv,
            channels: 131,
            gap: 1,
            ..mixed.clone()
        });
    }
    for (channels, gap) in [(1, 0), (131, 3), (640, 4), (640, 1), (5376, 8), (10_241, 0)] {
        for sequences in [
            MIXED.to_vec(),
            vec![(1, false)],
            vec![(2, true), (3, false)],
        ] {
            all.push(Conv {
                channels,
                gap,
                sequences,
                ..mixed.clone()
            });
        }
    }
    for sequences in [
        vec![(1000, true)],
        vec![(1, false); 16],
        vec![(0, false)],
        vec![(2, false); 70],
        vec![(16, true), (17, false), (15, false), (33, true)],
    ] {
        all.push(Conv {
            sequences,
            ..mixed.clone()
        });
    }
    all
}

pub fn cases() -> Vec<Case> {
    convs().into_iter().map(Conv::case).collect()
}
