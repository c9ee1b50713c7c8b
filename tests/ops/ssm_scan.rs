//! SSM_SCAN.

use super::harness::*;
use super::recurrent::*;
use llama_rs::graph::{Builder, CacheId, Input, Op, SsmScan, TensorId};

#[derive(Clone, Copy)]
struct Scan {
    d_state: usize,
    head_dim: usize,
    n_head: usize,
    n_group: usize,
    /// A decay for each channel and state.
    mamba_1: bool,
    params: SsmScan,
}

impl Scan {
    fn decays(&self) -> usize {
        if self.mamba_1 { self.d_state } else { 1 }
    }

    /// Widths of x, b, c, z and dt.
    fn widths(&self) -> [usize; 5] {
        let (n_x, n_b) = (self.head_dim * self.n_head, self.d_state * self.n_group);
        [n_x, n_b, n_b, n_x, self.n_head]
    }

    fn start(&self, part: usize) -> usize {
        self.widths()[..part].iter().sum::<usize>() + (part + 1) * GAP
    }
}

impl Recurrent for Scan {
    fn sizes(&self) -> [usize; 3] {
        let n_x = self.head_dim * self.n_head;
        [self.start(4) + self.n_head, n_x, n_x * self.d_state]
    }

    fn row(&self, slot: usize, t: usize) -> Vec<f32> {
        let mut random = random_of(slot, t);
        let mut row = random.units(self.sizes()[0]);
        let dt_at = self.start(4);
        // One in ten is where softplus is linear.
        row[dt_at..].iter_mut().for_each(|dt| {
            *dt = if random.below(10) == 0 {
                21.0
            } else {
                *dt - 1.0
            };
        });
        row
    }

    fn weights(&self) -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
        let mut random = Random(331);
        let a = random.units(self.decays() * self.n_head);
        let a = a.into_iter().map(|v| -0.1 - 0.9 * v.abs()).collect();
        vec![
            ("a", vec![self.decays(), self.n_head], a),
            ("bias", vec![self.n_head], random.units(self.n_head)),
            ("d", vec![self.n_head], random.units(self.n_head)),
        ]
    }

    fn build(
        &self,
        b: &mut Builder<'_>,
        store: &Store,
        row: TensorId,
    ) -> llama_rs::Result<TensorId> {
        let heads = [self.head_dim, self.n_head];
        let groups = [self.d_state, self.n_group];
        let mut parts = Vec::new();
        for (i, split) in [heads, groups, groups, heads].into_iter().enumerate() {
            let part = b.slice(row, 0, self.start(i), split[0] * split[1])?;
            parts.push(b.split_rows(part, split)?);
        }
        let dt = b.slice(row, 0, self.start(4), self.n_head)?;
        let shape = [self.d_state, self.head_dim, self.n_head, N_SLOTS];
        let state = b.states(CacheId(0), &shape)?;
        let a = operand(b, store, "a");
        let mut src = vec![state, parts[0], dt, a, parts[1], parts[2]];
        src.extend([Input::StateSlots, Input::SeqRows].map(|input| b.input(input, 0)));
        for (there, name) in [(self.params.dt_bias, "bias"), (self.params.skip, "d")] {
            if there {
                src.push(operand(b, store, name));
            }
        }
        if self.params.gate {
            src.push(parts[3]);
        }
        b.op(Op::SsmScan(self.params), &src)
    }

    fn step(&self, state: &mut [f64], row: &[f64]) -> Vec<f64> {
        let weights = self.weights();
        let weight = |of: usize, at: usize| f64::from(weights[of].2[at]);
        let optional = |there: bool, value: f64| if there { value } else { 0.0 };
        let part = |i: usize| &row[self.start(i)..][..self.widths()[i]];
        let [x, b, c, z, dt] = [0, 1, 2, 3, 4].map(part);
        let mut y = Vec::new();
        for (i, state) in state.chunks_mut(self.d_state).enumerate() {
            let h = i / self.head_dim;
            let group = h / (self.n_head / self.n_group) * self.d_state;
            let dt = dt[h] + optional(self.params.dt_bias, weight(1, h));
            let dt = if dt > 20.0 { dt } else { dt.exp().ln_1p() };
            let mut sum = optional(self.params.skip, weight(2, h) * x[i]);
            for (j, s) in state.iter_mut().enumerate() {
                let a = weight(0, h * self.decays() + j % self.decays());
                *s = *s * (dt * a).exp() + b[group + j] * x[i] * dt;
                sum += *s * c[group + j];
            }
            y.push(if self.params.gate {
                sum * silu(z[i])
            } else {
                sum
            });
        }
        y
    }

    fn tolerance(&self) -> f64 {
        // A token adds the roundings of softplus, e^x, products and sums to the state,
        // about 10; states fade by e^-0.03 a token or faster, so that at most some 30
        // tokens' worth of them add up, in size as the states do. Sums over the state
        // lose d_state / 16 in a lane and 4 to add the lanes.
        (10.0 + self.d_state as f64 / 16.0 + 4.0) * ROUNDING * 5.0
    }
}

const ALL: SsmScan = SsmScan {
    dt_bias: true,
    skip: true,
    gate: true,
};

fn heads(d_state: usize) -> Scan {
    Scan {
        d_state,
        head_dim: 9,
        n_head: 4,
        n_group: 2,
        mamba_1: false,
        params: ALL,
    }
}

fn channels(d_state: usize) -> Scan {
    Scan {
        head_dim: 1,
        n_head: 37,
        n_group: 1,
        mamba_1: true,
        ..heads(d_state)
    }
}

#[test]
fn scans_against_the_plain_loop() {
    for d_state in [1, 16, 100, 128] {
        heads(d_state).check(&MIXED);
        channels(d_state).check(&MIXED);
    }
    heads(1024).check(&[sequence(12, 1, false)]);
    channels(16).check(&[sequence(1000, 1, true)]);
}

#[test]
fn scans_with_and_without_bias_skip_and_gate() {
    for flags in 0..8 {
        let params = SsmScan {
            dt_bias: flags & 1 != 0,
            skip: flags & 2 != 0,
            gate: flags & 4 != 0,
        };
        for scan in [heads(16), channels(16)] {
            Scan { params, ..scan }.check(&[sequence(20, 4, false)]);
        }
    }
}

#[test]
fn a_sequence_is_what_it_is_alone() {
    heads(64).check_alone();
    channels(16).check_alone();
}

#[test]
fn a_prompt_in_pieces_leaves_the_same_state() {
    heads(64).check_pieces();
    channels(16).check_pieces();
}

#[test]
fn slots_that_are_not_there_are_passed_over() {
    heads(64).check_slots();
    channels(16).check_slots();
}
