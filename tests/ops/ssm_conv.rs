//! SSM_CONV.

use super::harness::*;
use super::recurrent::*;
use llama_rs::graph::{Builder, CacheId, Input, Op, SsmConv, TensorId};

#[derive(Clone, Copy)]
struct Conv {
    d_conv: usize,
    channels: usize,
    params: SsmConv,
}

impl Recurrent for Conv {
    fn sizes(&self) -> [usize; 3] {
        let n_state = (self.d_conv - 1) * self.channels;
        [self.channels + GAP, self.channels, n_state]
    }

    fn row(&self, slot: usize, t: usize) -> Vec<f32> {
        random_of(slot, t).units(self.sizes()[0])
    }

    fn weights(&self) -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
        let mut random = Random(317);
        let w = random.units(self.d_conv * self.channels);
        vec![
            ("w", vec![self.d_conv, self.channels], w),
            ("bias", vec![self.channels], random.units(self.channels)),
        ]
    }

    fn build(
        &self,
        b: &mut Builder<'_>,
        store: &Store,
        row: TensorId,
    ) -> llama_rs::Result<TensorId> {
        let x = b.slice(row, 0, GAP, self.channels)?;
        let w = operand(b, store, "w");
        let state = b.states(CacheId(0), &[self.channels, self.d_conv - 1, N_SLOTS])?;
        let ids = b.input(Input::StateSlots, 0);
        let mut src = vec![x, w, state, ids, b.input(Input::SeqRows, 0)];
        if self.params.bias {
            src.push(operand(b, store, "bias"));
        }
        b.op(Op::SsmConv(self.params), &src)
    }

    fn step(&self, state: &mut [f64], row: &[f64]) -> Vec<f64> {
        let weights = self.weights();
        let (w, bias) = (&weights[0].2, &weights[1].2);
        let mut inputs = state.to_vec();
        inputs.extend(&row[GAP..]);
        state.copy_from_slice(&inputs[self.channels..]);
        let channel = |ch: usize| {
            let taps = w[ch * self.d_conv..][..self.d_conv].iter();
            let seen = inputs[ch..].iter().step_by(self.channels);
            let sum: f64 = taps.zip(seen).map(|(w, x)| f64::from(*w) * x).sum();
            let bias = f64::from(bias[ch]) * f64::from(u8::from(self.params.bias));
            match self.params.silu {
                true => silu(sum + bias),
                false => sum + bias,
            }
        };
        (0..self.channels).map(channel).collect()
    }

    fn tolerance(&self) -> f64 {
        // Two roundings a tap, and some for e^x.
        (2.0 * self.d_conv as f64 + 6.0) * ROUNDING
    }
}

fn conv(d_conv: usize) -> Conv {
    let (bias, silu) = (true, true);
    Conv {
        d_conv,
        channels: 131,
        params: SsmConv { bias, silu },
    }
}

#[test]
fn convolutions_against_the_plain_loop() {
    for d_conv in [2, 3, 4, 8] {
        for (bias, silu) in [(false, false), (true, false), (false, true), (true, true)] {
            let params = SsmConv { bias, silu };
            Conv {
                params,
                ..conv(d_conv)
            }
            .check(&MIXED);
        }
        // Shorter than the state.
        conv(d_conv).check(&[sequence(2, 3, false), sequence(1, 0, true)]);
    }
}

#[test]
fn a_sequence_is_what_it_is_alone() {
    conv(4).check_alone();
}

#[test]
fn a_prompt_in_pieces_leaves_the_same_state() {
    conv(4).check_pieces();
}

#[test]
fn slots_that_are_not_there_are_passed_over() {
    conv(4).check_slots();
}
