//! Ops that carry a state from token to token, against a plain loop, in batches and alone.

use super::harness::*;
use llama_rs::backend::Backend;
use llama_rs::backend::cpu::{CpuBackend, Simd};
use llama_rs::graph::{Builder, Input, TensorId};
use std::sync::Arc;

/// Values of a row that the op does not see, before each of its parts.
pub const GAP: usize = 3;
/// Tokens behind the last sequence, all NaN.
const DEAD: usize = 2;
pub const N_SLOTS: usize = 5;

/// Some tokens of a sequence: `n` from `first` on, counted from its beginning.
#[derive(Clone, Copy)]
pub struct Sequence {
    pub first: usize,
    pub n: usize,
    pub slot: usize,
    pub fresh: bool,
}

pub const fn sequence(n: usize, slot: usize, fresh: bool) -> Sequence {
    let first = 0;
    Sequence {
        first,
        n,
        slot,
        fresh,
    }
}

/// Long and short, fresh and resuming, one without tokens; slots in no order.
pub const MIXED: [Sequence; 4] = [
    sequence(150, 2, true),
    sequence(1, 4, false),
    sequence(37, 0, false),
    sequence(0, 3, true),
];

/// What the ops have in common: rows of inputs, weights and a state.
pub trait Recurrent {
    /// Values of a row of inputs, of y and of a state.
    fn sizes(&self) -> [usize; 3];
    /// Input row number `t` of a sequence, which its slot names.
    fn row(&self, slot: usize, t: usize) -> Vec<f32>;
    fn weights(&self) -> Vec<(&'static str, Vec<usize>, Vec<f32>)>;
    fn build(
        &self,
        b: &mut Builder<'_>,
        store: &Store,
        row: TensorId,
    ) -> llama_rs::Result<TensorId>;
    /// One token, in f64: changes the state and gives y.
    fn step(&self, state: &mut [f64], row: &[f64]) -> Vec<f64>;

    /// Relative errors of y and the state; the largest value counts.
    fn tolerance(&self) -> f64;

    fn states(&self) -> Vec<f32> {
        Random(311).units(self.sizes()[2] * N_SLOTS)
    }

    /// One run in one batch from these states: y of live tokens, and all states.
    fn run(
        &self,
        sequences: &[Sequence],
        states: &[f32],
        simd: Simd,
        n_threads: usize,
    ) -> [Vec<f32>; 2] {
        let [row, n_y, _] = self.sizes();
        let n_live: usize = sequences.iter().map(|s| s.n).sum();
        let n = n_live + DEAD;
        let (mut values, mut ids, mut rows) = (Vec::new(), Vec::new(), vec![0]);
        for (i, seq) in sequences.iter().enumerate() {
            let tokens = seq.first..seq.first + seq.n;
            values.extend(tokens.flat_map(|t| self.row(seq.slot, t)));
            let slot = seq.slot as i32;
            ids.push(if seq.fresh { !slot } else { slot });
            rows.push(rows[i] + seq.n as i32);
        }
        values.resize(row * n, f32::NAN);
        let mut store = Store::default();
        store.f32("row", &[row, n], &values);
        for (name, ne, values) in self.weights() {
            store.f32(name, &ne, &values);
        }
        let bytes: Vec<u8> = states.iter().flat_map(|v| v.to_le_bytes()).collect();
        store.cache(&bytes);
        let setup = Setup {
            n_seqs: sequences.len(),
            inputs: vec![(Input::StateSlots, ids), (Input::SeqRows, rows)],
            ..Setup::tokens(n, n_live)
        };
        let mut b = Builder::new(&store, setup.width());
        let inputs = operand(&mut b, &store, "row");
        live(&mut b, inputs, 1);
        let y = self.build(&mut b, &store, inputs).expect("builds");
        b.output(y);
        let graph = b.graph;
        let mut store = Arc::new(store);
        let backend = CpuBackend::with_simd(store.clone(), n_threads, true, simd);
        let backend = backend.expect("available path");
        let y = execute(&backend, &backend.lower(&graph), &setup).remove(0);
        drop(backend);
        let store = Arc::get_mut(&mut store).expect("the last one");
        let states = store.cache_bytes().remove(0);
        let (states, _) = states.as_chunks::<4>();
        [
            y[..n_y * n_live]
                .iter()
                .map(|&v| f32::from_bits(v))
                .collect(),
            states.iter().map(|&v| f32::from_le_bytes(v)).collect(),
        ]
    }

    /// The same in f64, token by token as the op is defined.
    fn reference(&self, sequences: &[Sequence]) -> [Vec<f64>; 2] {
        let [_, _, n_state] = self.sizes();
        let mut states = wide(&self.states());
        let mut y = Vec::new();
        for seq in sequences {
            let state = &mut states[seq.slot * n_state..][..n_state];
            if seq.fresh && seq.n > 0 {
                state.fill(0.0);
            }
            for t in seq.first..seq.first + seq.n {
                y.extend(self.step(state, &wide(&self.row(seq.slot, t))));
            }
        }
        [y, states]
    }

    fn check(&self, sequences: &[Sequence]) {
        let want = self.reference(sequences);
        let states = self.states();
        for simd in paths() {
            let got = self.run(sequences, &states, simd, 1);
            let again = self.run(sequences, &states, simd, 3);
            assert!(got == again, "threads change the bits");
            for (what, (got, want)) in ["y", "state"].iter().zip(got.iter().zip(&want)) {
                near(&format!("{what}, {simd:?}"), got, want, self.tolerance());
            }
        }
    }

    /// A sequence of a batch has the bits that it has alone.
    fn check_alone(&self) {
        let [_, n_y, n_state] = self.sizes();
        let before = self.states();
        for simd in paths() {
            let [y, states] = self.run(&MIXED, &before, simd, 2);
            let mut first = 0;
            for seq in MIXED {
                let [alone_y, alone] = self.run(&[seq], &before, simd, 1);
                assert!(y[first * n_y..][..seq.n * n_y] == alone_y, "{simd:?}");
                let of = |states: &[f32]| states[seq.slot * n_state..][..n_state].to_vec();
                assert!(of(&states) == of(&alone), "{simd:?}, slot {}", seq.slot);
                let kept = of(&states) == of(&before);
                assert_eq!(kept, seq.n == 0, "slot {}", seq.slot);
                first += seq.n;
            }
            // Nobody has the second slot.
            let idle = n_state..2 * n_state;
            assert!(states[idle.clone()] == before[idle]);
        }
    }

    /// A prompt in pieces of 7 tokens leaves the bits that it leaves in one.
    fn check_pieces(&self) {
        let whole = sequence(300, 1, true);
        for simd in paths() {
            let [y, states] = self.run(&[whole], &self.states(), simd, 1);
            let (mut pieces_y, mut pieces) = (Vec::new(), self.states());
            for first in (0..whole.n).step_by(7) {
                let piece = Sequence {
                    first,
                    n: 7.min(whole.n - first),
                    fresh: first == 0,
                    ..whole
                };
                let [y, states] = self.run(&[piece], &pieces, simd, 3);
                pieces_y.extend(y);
                pieces = states;
            }
            assert!(y == pieces_y && states == pieces, "{simd:?}");
        }
    }

    fn check_slots(&self) {
        let before = self.states();
        for fresh in [false, true] {
            let outside = sequence(3, N_SLOTS, fresh);
            let [_, states] = self.run(&[outside], &before, Simd::Scalar, 1);
            assert!(states == before, "a slot that is not there");
        }
    }
}

/// Within `tolerance` of the largest value.
fn near(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    let most = want.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(got) - want).abs();
        assert!(off <= tolerance * most, "{what} {i}: {got}, want {want}");
    }
}

pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Random numbers for token `t` of the sequence of a slot.
pub fn random_of(slot: usize, t: usize) -> Random {
    Random((1 + slot as u64 * 10_000 + t as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}
