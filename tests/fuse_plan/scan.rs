//! The mixers of state-space models: fused into one convolution and one scan, with the
//! results and the states of the plain graph.

use super::harness::*;
use llama_rs::backend::Backend;
use llama_rs::backend::cpu::CpuBackend;
use llama_rs::graph::{
    Builder, CacheId, GluKind, Graph, Input, Op, Origin, SsmConv, SsmScan, TensorId, UnaryKind,
};
use std::sync::Arc;

const N_HEAD: usize = 6;
const D_STATE: usize = 16;
const N: usize = 9;
const D_CONV: usize = 4;

/// Mamba (heads of one channel) or Mamba-2.
#[derive(Clone, Copy)]
struct Mixer {
    head_dim: usize,
    mamba2: bool,
}

impl Mixer {
    fn d_inner(self) -> usize {
        self.head_dim * N_HEAD
    }

    /// A row of z, x, B, C and dt.
    fn row(self) -> usize {
        2 * self.d_inner() + 2 * D_STATE + N_HEAD
    }

    fn store(self) -> Store {
        let mut random = Random(77);
        let mut store = Store::default();
        let mut put = |name: &str, ne: &[usize], scale: f32, shift: f32| {
            let values = random.units(ne.iter().product());
            let values: Vec<f32> = values.iter().map(|v| v * scale + shift).collect();
            store.f32(name, ne, &values);
        };
        let channels = self.d_inner() + 2 * D_STATE;
        let vector = if self.mamba2 {
            [1, N_HEAD]
        } else {
            [N_HEAD, 1]
        };
        put("in", &[self.row(), N], 1.0, 0.0);
        put("conv", &[D_CONV, channels], 0.5, 0.0);
        put("conv_bias", &[channels], 1.0, 0.0);
        put("dt_bias", &[N_HEAD], 1.0, -1.0);
        put(
            "a",
            &[if self.mamba2 { 1 } else { D_STATE }, N_HEAD],
            0.4,
            -0.6,
        );
        put("d", &vector, 1.0, 0.0);
        for n in [channels * (D_CONV - 1), D_STATE * self.d_inner()] {
            let values = random.units(n);
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            store.cache(&bytes);
        }
        store
    }

    /// The graph as architectures build it.
    fn graph(self, store: &Store, setup: &Setup) -> llama_rs::Result<Graph> {
        let mut b = Builder::new(store, setup.width());
        let (d_inner, head_dim) = (self.d_inner(), self.head_dim);
        let channels = d_inner + 2 * D_STATE;
        let rows = b.input(Input::SeqRows, 0);
        let ids = b.input(Input::StateSlots, 0);
        let weight = |b: &mut Builder<'_>, name| operand(b, store, name);
        let all = weight(&mut b, "in");
        live(&mut b, all, 1);
        let z = b.slice(all, 0, 0, d_inner)?;
        let xbc = b.slice(all, 0, d_inner, channels)?;
        let dt = b.slice(all, 0, d_inner + channels, N_HEAD)?;
        let [w, bias] = ["conv", "conv_bias"].map(|name| weight(&mut b, name));
        let state = b.states(CacheId(0), &[channels, D_CONV - 1, 1])?;
        let conv = Op::SsmConv(SsmConv::default());
        let xbc = b.op(conv, &[xbc, w, state, ids, rows])?;
        let xbc = b.add(xbc, bias)?;
        let xbc = b.unary(UnaryKind::Silu, xbc)?;
        let mut part = |start, parts: [usize; 2]| {
            let part = b.slice(xbc, 0, start, parts[0] * parts[1])?;
            b.split_rows(part, parts)
        };
        let x = part(0, [head_dim, N_HEAD])?;
        let [k, q] = [0, 1].map(|i| part(d_inner + i * D_STATE, [D_STATE, 1]));
        let [dt_bias, a, d] = ["dt_bias", "a", "d"].map(|name| weight(&mut b, name));
        let dt = b.add(dt, dt_bias)?;
        let state = b.states(CacheId(1), &[D_STATE, head_dim, N_HEAD, 1])?;
        let scan = Op::SsmScan(SsmScan::default());
        let mut y = b.op(scan, &[state, x, dt, a, k?, q?, ids, rows])?;
        let shape = [d_inner, N];
        let skip = match self.mamba2 {
            true => b.mul(x, d)?,
            false => {
                y = b.reshape(y, &shape)?;
                let x = b.slice(xbc, 0, 0, d_inner)?;
                b.mul(x, d)?
            }
        };
        y = b.add(y, skip)?;
        if self.mamba2 {
            y = b.reshape(y, &shape)?;
        }
        let y = b.glu(GluKind::Swiglu, z, y)?;
        let y = b.scale(y, 2.0)?;
        b.output(y);
        Ok(b.graph)
    }
}

fn names(graph: &Graph) -> Vec<&'static str> {
    let op = |id: TensorId| match graph.get(id).origin {
        Origin::Op(op) => Some(op.name()),
        _ => None,
    };
    graph.ids().filter_map(op).collect()
}

/// `got` within the roundings of sums of a few terms of size 1, in two orders.
fn close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (got - want).abs();
        assert!(
            off <= 1e-5 * want.abs().max(1.0),
            "{what} {i}: {got}, want {want}"
        );
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.chunks_exact(4).map(value).collect()
}

#[test]
fn mixers_become_one_convolution_and_one_scan() {
    for mixer in [
        Mixer {
            head_dim: 1,
            mamba2: false,
        },
        Mixer {
            head_dim: 8,
            mamba2: true,
        },
        // One channel a head, yet one decay a head.
        Mixer {
            head_dim: 1,
            mamba2: true,
        },
    ] {
        for slot in [0, -1] {
            let mut setup = Setup::tokens(N, N - 2);
            setup.inputs = vec![
                (Input::SeqRows, vec![0, N as i32 - 2]),
                (Input::StateSlots, vec![slot]),
            ];
            let mut results = Vec::new();
            for fused in [false, true] {
                let mut store = Arc::new(mixer.store());
                let graph = mixer.graph(&store, &setup).expect("builds");
                let backend = CpuBackend::new(store.clone(), 2, true).expect("threads");
                let lowered = backend.lower(&graph);
                assert_eq!(names(&lowered), ["SSM_CONV", "SSM_SCAN", "SCALE"]);
                let graph = if fused { lowered } else { graph };
                let out = execute(&backend, &graph, &setup).remove(0);
                let live = (N - 2) * mixer.d_inner();
                let out: Vec<f32> = out[..live].iter().map(|&b| f32::from_bits(b)).collect();
                drop(backend);
                let store = Arc::get_mut(&mut store).expect("nobody else holds it");
                results.push((out, store.cache_bytes()));
            }
            let [(plain, before), (fused, after)] = &results[..] else {
                panic!("two runs");
            };
            close("result", fused, plain);
            for (cache, (before, after)) in before.iter().zip(after).enumerate() {
                close(&format!("cache {cache}"), &floats(after), &floats(before));
            }
        }
    }
}
