//! GATED_DELTA_NET.

use super::harness::*;
use llama_rs::backend::Backend;
use llama_rs::backend::cpu::{CpuBackend, Simd};
use llama_rs::graph::{Builder, GatedDelta, Graph, Input, Op, TensorId};
use std::sync::Arc;

/// Values of Q, K and V rows that the op does not see, before and between them.
const GAP: usize = 3;
/// Tokens behind the last sequence, all NaN.
const DEAD: usize = 2;

#[derive(Clone, Copy)]
struct Shape {
    d_k: usize,
    d_v: usize,
    n_k_head: usize,
    n_v_head: usize,
    tiled: bool,
}

/// Some tokens of a sequence, and what it had before.
#[derive(Clone, Copy)]
struct Sequence {
    n: usize,
    slot: usize,
    fresh: bool,
}

const fn sequence(n: usize, slot: usize, fresh: bool) -> Sequence {
    Sequence { n, slot, fresh }
}

/// Long and short, fresh and resuming, one without tokens; slots in no order.
const MIXED: [Sequence; 4] = [
    sequence(150, 2, true),
    sequence(1, 4, false),
    sequence(37, 0, false),
    sequence(0, 3, true),
];
const N_SLOTS: usize = 5;

impl Shape {
    fn n_state(&self) -> usize {
        self.d_k * self.d_v * self.n_v_head
    }

    /// Values of a row of Q, K and V together.
    fn row(&self) -> usize {
        2 * self.d_k * self.n_k_head + self.d_v * self.n_v_head + 3 * GAP
    }

    /// First value of Q, K or V of a head in that row.
    fn q_at(&self, head: usize) -> usize {
        GAP + head * self.d_k
    }

    fn k_at(&self, head: usize) -> usize {
        2 * GAP + (self.n_k_head + head) * self.d_k
    }

    fn v_at(&self, head: usize) -> usize {
        3 * GAP + 2 * self.n_k_head * self.d_k + head * self.d_v
    }

    /// Q, K and V, then g and beta, of a sequence's tokens: by its slot alone.
    fn tokens(&self, seq: &Sequence) -> [Vec<f32>; 3] {
        let mut random = Random(200 + seq.slot as u64);
        let size = (3.0 / self.d_k as f32).sqrt();
        let v_at = self.v_at(0);
        let mut qkv = random.units(self.row() * seq.n);
        for row in qkv.chunks_mut(self.row()) {
            // Q and K have a length of one or so.
            row[..v_at].iter_mut().for_each(|v| *v *= size);
        }
        let mut factors = |f: fn(f32) -> f32| -> Vec<f32> {
            let all = random.units(self.n_v_head * seq.n);
            all.into_iter().map(f).collect()
        };
        let g = factors(|u| -0.7 * u * u);
        let beta = factors(|u| 0.5 + 0.5 * u);
        [qkv, g, beta]
    }

    fn states(&self) -> Vec<f32> {
        Random(311).units(self.n_state() * N_SLOTS)
    }

    fn build(&self, b: &mut Builder<'_>, store: &Store) -> llama_rs::Result<TensorId> {
        let [qkv, g, beta] = ["qkv", "g", "beta"].map(|name| operand(b, store, name));
        for x in [qkv, g, beta] {
            live(b, x, 1);
        }
        let shape = [self.d_k, self.d_v, self.n_v_head, N_SLOTS];
        let mut src = vec![b.states(llama_rs::graph::CacheId(0), &shape)?];
        for (at, head_dim, n_head) in [
            (self.q_at(0), self.d_k, self.n_k_head),
            (self.k_at(0), self.d_k, self.n_k_head),
            (self.v_at(0), self.d_v, self.n_v_head),
        ] {
            let part = b.slice(qkv, 0, at, head_dim * n_head)?;
            src.push(b.split_rows(part, [head_dim, n_head])?);
        }
        let ids = b.input(Input::StateSlots, 0);
        src.extend([g, beta, ids, b.input(Input::SeqRows, 0)]);
        let op = Op::GatedDeltaNet(GatedDelta { tiled: self.tiled });
        b.op(op, &src)
    }

    /// One run of these sequences in one batch: y of live tokens, and all states.
    fn run(&self, sequences: &[Sequence], simd: Simd, n_threads: usize) -> [Vec<f32>; 2] {
        let n_live: usize = sequences.iter().map(|s| s.n).sum();
        let n = n_live + DEAD;
        let mut all = [const { Vec::new() }; 3];
        let (mut ids, mut rows) = (Vec::new(), vec![0]);
        for (i, seq) in sequences.iter().enumerate() {
            for (all, part) in all.iter_mut().zip(self.tokens(seq)) {
                all.extend(part);
            }
            let slot = seq.slot as i32;
            ids.push(if seq.fresh { !slot } else { slot });
            rows.push(rows[i] + seq.n as i32);
        }
        let mut store = Store::default();
        let widths = [self.row(), self.n_v_head, self.n_v_head];
        for ((name, values), width) in ["qkv", "g", "beta"].iter().zip(&mut all).zip(widths) {
            values.resize(width * n, f32::NAN);
            store.f32(name, &[width, n], values);
        }
        let states = self.states();
        let bytes: Vec<u8> = states.iter().flat_map(|v| v.to_le_bytes()).collect();
        store.cache(&bytes);
        let setup = Setup {
            n_seqs: sequences.len(),
            inputs: vec![(Input::StateSlots, ids), (Input::SeqRows, rows)],
            ..Setup::tokens(n, n_live)
        };
        let mut b = Builder::new(&store, setup.width());
        let y = self.build(&mut b, &store).expect("builds");
        b.output(y);
        let graph: Graph = b.graph;
        let mut store = Arc::new(store);
        let backend = CpuBackend::with_simd(store.clone(), n_threads, true, simd);
        let backend = backend.expect("available path");
        let y = execute(&backend, &backend.lower(&graph), &setup).remove(0);
        drop(backend);
        let states = Arc::get_mut(&mut store)
            .expect("the last one")
            .cache_bytes();
        let (states, _) = states[0].as_chunks::<4>();
        let n_y = self.d_v * self.n_v_head * n_live;
        [
            y[..n_y].iter().map(|&v| f32::from_bits(v)).collect(),
            states.iter().map(|&v| f32::from_le_bytes(v)).collect(),
        ]
    }

    /// The same in f64, token by token as the op is defined.
    fn reference(&self, sequences: &[Sequence]) -> [Vec<f64>; 2] {
        let mut states = wide(&self.states());
        let mut y = Vec::new();
        for seq in sequences {
            let [qkv, g, beta] = self.tokens(seq).map(|x| wide(&x));
            let states = &mut states[seq.slot * self.n_state()..][..self.n_state()];
            if seq.fresh && seq.n > 0 {
                states.fill(0.0);
            }
            for t in 0..seq.n {
                let row = &qkv[t * self.row()..][..self.row()];
                for (h, state) in states.chunks_mut(self.d_k * self.d_v).enumerate() {
                    let k_head = match self.tiled {
                        true => h % self.n_k_head,
                        false => h / (self.n_v_head / self.n_k_head),
                    };
                    let q = &row[self.q_at(k_head)..][..self.d_k];
                    let k = &row[self.k_at(k_head)..][..self.d_k];
                    let v = &row[self.v_at(h)..][..self.d_v];
                    let at = t * self.n_v_head + h;
                    for (s, v) in state.chunks_mut(self.d_k).zip(v) {
                        s.iter_mut().for_each(|s| *s *= g[at].exp());
                        let known: f64 = s.iter().zip(k).map(|(s, k)| s * k).sum();
                        let delta = beta[at] * (v - known);
                        s.iter_mut().zip(k).for_each(|(s, k)| *s += k * delta);
                        let seen: f64 = s.iter().zip(q).map(|(s, q)| s * q).sum();
                        y.push(seen / (self.d_k as f64).sqrt());
                    }
                }
            }
        }
        [y, states]
    }

    fn check(&self, sequences: &[Sequence]) {
        let want = self.reference(sequences);
        // A token adds the roundings of sums over the state: d_k / 16 a lane, 4 to add
        // the lanes, and those of e^g, products and differences. States fade by e^-0.23
        // a token, so five tokens' worth of them add up at most; twice for large steps.
        let roundings = 10.0 * (self.d_k as f64 / 16.0 + 10.0);
        for simd in paths() {
            let got = self.run(sequences, simd, 1);
            assert!(
                got == self.run(sequences, simd, 3),
                "threads change the bits"
            );
            for (what, (got, want)) in ["y", "state"].iter().zip(got.iter().zip(&want)) {
                let most = want.iter().fold(0.0f64, |most, v| most.max(v.abs()));
                assert_eq!(got.len(), want.len());
                for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
                    let off = (f64::from(got) - want).abs();
                    let what = format!("{what} {i} of d_k {}, {simd:?}", self.d_k);
                    assert!(
                        off <= roundings * ROUNDING * most,
                        "{what}: {got}, want {want}"
                    );
                }
            }
        }
    }
}

fn shape(d_k: usize, d_v: usize, tiled: bool) -> Shape {
    Shape {
        d_k,
        d_v,
        n_k_head: 2,
        n_v_head: 4,
        tiled,
    }
}

#[test]
fn a_batch_of_sequences_against_the_plain_loop() {
    for tiled in [false, true] {
        for (d_k, d_v) in [(16, 16), (64, 24), (100, 7), (128, 128), (256, 10)] {
            shape(d_k, d_v, tiled).check(&MIXED);
        }
    }
}

#[test]
fn a_thousand_tokens() {
    let one = Shape {
        n_k_head: 1,
        n_v_head: 1,
        ..shape(128, 32, false)
    };
    one.check(&[sequence(1000, 1, true)]);
}

#[test]
fn a_sequence_is_what_it_is_alone() {
    for (d_k, d_v) in [(16, 16), (100, 7), (128, 33)] {
        let shape = shape(d_k, d_v, true);
        let (n_state, n_y) = (shape.n_state(), d_v * shape.n_v_head);
        for simd in paths() {
            let [y, states] = shape.run(&MIXED, simd, 2);
            let mut first = 0;
            for seq in MIXED {
                let [alone_y, alone] = shape.run(&[seq], simd, 1);
                assert!(y[first * n_y..][..seq.n * n_y] == alone_y, "{simd:?}");
                let of = |states: &[f32]| states[seq.slot * n_state..][..n_state].to_vec();
                assert!(of(&states) == of(&alone), "{simd:?}, slot {}", seq.slot);
                let kept = of(&states) == of(&shape.states());
                assert_eq!(kept, seq.n == 0, "slot {}", seq.slot);
                first += seq.n;
            }
            // Nobody has the second slot.
            let idle = n_state..2 * n_state;
            assert!(states[idle.clone()] == shape.states()[idle]);
        }
    }
}

#[test]
fn slots_that_are_not_there_are_passed_over() {
    let shape = shape(16, 5, false);
    for fresh in [false, true] {
        let [_, states] = shape.run(&[sequence(3, N_SLOTS, fresh)], Simd::Scalar, 1);
        assert!(states == shape.states());
    }
}
