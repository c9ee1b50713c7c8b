//! Shape rules refuse wrong operands with `Error::Shape`.

use super::harness::*;
use super::{K, N, ONE, store};
use llama_rs::Error;
use llama_rs::backend::Backend;
use llama_rs::backend::cpu::CpuBackend;
use llama_rs::graph::op::AttnShape;
use llama_rs::graph::{
    AttnParams, Builder, CacheId, GluKind, Input, Op, Plan, RopeMode, RopeParams, TensorId,
    UnaryKind,
};
use llama_rs::quant::DType;

/// Operands by type and shape, for the shape rules.
fn refused(op: Op, operands: &[(DType, &[usize])]) {
    let mut store = Store::default();
    for (i, (dtype, ne)) in operands.iter().enumerate() {
        store.bytes(&i.to_string(), *dtype, ne, &[]);
    }
    let mut b = Builder::new(&store, ONE);
    let src: Vec<TensorId> = (0..operands.len())
        .map(|i| operand(&mut b, &store, &i.to_string()))
        .collect();
    match b.op(op, &src) {
        Err(Error::Shape { op: name, detail }) => {
            assert_eq!(name, op.name());
            assert!(!detail.contains('\n'), "one line");
        }
        other => panic!("{op:?} of {operands:?}: {other:?}"),
    }
}

const ATTN: AttnParams = AttnParams {
    scale: 1.0,
    softcap: None,
    window: None,
    swa: false,
    temperature: None,
};
const HEADS: AttnShape = AttnShape {
    head_dim_k: 8,
    head_dim_v: 8,
    n_head: 4,
    n_head_kv: 2,
};
const ROPE: RopeParams = RopeParams {
    mode: RopeMode::Norm,
    n_rot: 8,
    freq_base: 1e4,
    freq_scale: 1.0,
    ext_factor: 0.0,
    attn_factor: 1.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
    n_ctx_orig: 64,
};

#[test]
fn shape_rules_refuse_wrong_operands() {
    use DType::{F16, F32, I32, Q4_0};
    let binary = [Op::Add, Op::Mul, Op::Div];
    for op in binary {
        refused(op, &[(F32, &[4, 3]), (F32, &[4, 2])]);
        refused(op, &[(F32, &[4, 3]), (F16, &[4, 3])]);
        refused(op, &[(F32, &[4, 3])]);
    }
    let scale = Op::Scale {
        scale: 1.0,
        bias: 0.0,
    };
    let norms = [Op::RmsNorm { eps: 0.0 }, Op::Norm { eps: 0.0 }];
    let unary = [
        scale,
        Op::Unary(UnaryKind::Silu),
        Op::SoftMax { scale: 1.0 },
        Op::Argmax,
        Op::TopK { count: 1 },
        Op::Cont,
        Op::Cpy { dtype: F16 },
        Op::SumRows,
        Op::Mean,
        Op::Sum,
        Op::Cumsum,
        Op::Glu(GluKind::Swiglu),
        Op::QuantizeQ8 { words: 1 },
        Op::QuantizeQ16 { words: 1 },
    ];
    for op in unary.into_iter().chain(norms) {
        refused(op, &[(F16, &[4, 3])]);
        refused(op, &[(F32, &[4]), (F32, &[4]), (F32, &[4])]);
        refused(op, &[]);
    }
    type Operands<'a> = &'a [(DType, &'a [usize])];
    let cases: &[(Op, Operands<'_>)] = &[
        (Op::MulMat, &[(Q4_0, &[64, 3]), (F32, &[32, 2])]),
        (Op::MulMat, &[(F32, &[4, 3]), (F16, &[4, 2])]),
        (Op::MulMat, &[(I32, &[4, 3]), (F32, &[4, 2])]),
        (Op::MulMat, &[(F32, &[4, 3, 2]), (F32, &[4, 2, 2])]),
        (
            Op::MulMatId,
            &[(F32, &[4, 3, 8]), (F32, &[4, 3, 5]), (I32, &[2, 5])],
        ),
        (
            Op::MulMatId,
            &[(F32, &[4, 3, 8]), (F32, &[4, 1, 5]), (F32, &[2, 5])],
        ),
        (Op::GetRows, &[(F32, &[4, 3]), (F32, &[2])]),
        (Op::GetRows, &[(I32, &[4, 3]), (I32, &[2])]),
        (Op::GetRows, &[(F32, &[4, 3, 2]), (I32, &[2, 3])]),
        (Op::SetRows, &[(F16, &[4, 9]), (F32, &[5, 2]), (I32, &[2])]),
        (Op::SetRows, &[(F16, &[4, 9]), (F32, &[4, 2]), (I32, &[3])]),
        (
            Op::SetRows,
            &[(Q4_0, &[32, 9]), (F32, &[32, 2]), (I32, &[2])],
        ),
        (norms[0], &[(F32, &[4, 3]), (F32, &[3])]),
        (norms[0], &[(F32, &[4, 3]), (F16, &[4])]),
        (norms[0], &[(F32, &[4, 4]), (F32, &[1, 4])]),
        (Op::Rope(ROPE), &[(F32, &[8, 2, 3]), (I32, &[2])]),
        (Op::Rope(ROPE), &[(F32, &[8, 2, 3]), (F32, &[3])]),
        (Op::Rope(ROPE), &[(F32, &[6, 2, 3]), (I32, &[3])]),
        (
            Op::Rope(ROPE),
            &[(F32, &[8, 2, 3]), (I32, &[3]), (F32, &[3])],
        ),
        (
            Op::Rope(ROPE),
            &[(F32, &[8, 2, 3]), (I32, &[3]), (F16, &[4])],
        ),
        (Op::Glu(GluKind::Geglu), &[(F32, &[5, 2])]),
        (Op::Glu(GluKind::Geglu), &[(F32, &[4, 2]), (F32, &[4, 3])]),
        (Op::Glu(GluKind::Geglu), &[(F32, &[4, 2]), (F16, &[4, 2])]),
        (Op::Argmax, &[(F32, &[4, 3, 2])]),
        (Op::TopK { count: 5 }, &[(F32, &[4, 3])]),
        (Op::TopK { count: 0 }, &[(F32, &[4, 3])]),
        (Op::Cpy { dtype: Q4_0 }, &[(F32, &[32, 3])]),
    ];
    for (op, operands) in cases {
        refused(*op, operands);
    }
}

#[test]
fn attention_refuses_wrong_operands() {
    use DType::{F16, F32, I32, Q8_0};
    type Operand = (DType, &'static [usize]);
    let good: [Operand; 7] = [
        (F32, &[8, 4, 3]),
        (F16, &[16, 32]),
        (F16, &[16, 32]),
        (I32, &[3]),
        (I32, &[3]),
        (I32, &[32]),
        (I32, &[32]),
    ];
    let wrong: [(usize, Operand); 12] = [
        (0, (F16, &[8, 4, 3])),
        (0, (F32, &[8, 3, 3])),
        (1, (F16, &[15, 32])),
        (1, (Q8_0, &[32, 16])),
        (1, (I32, &[16, 32])),
        (2, (F16, &[16, 31])),
        (2, (DType::BF16, &[16, 32])),
        (3, (I32, &[2])),
        (3, (F32, &[3])),
        (4, (I32, &[4])),
        (5, (I32, &[31])),
        (6, (I32, &[33])),
    ];
    for (at, operand) in wrong {
        let mut operands = good;
        operands[at] = operand;
        refused(Op::Attn(ATTN, HEADS), &operands);
    }
    for n_head_kv in [0, 3] {
        refused(Op::Attn(ATTN, AttnShape { n_head_kv, ..HEADS }), &good);
    }
}

#[test]
fn views_refuse_what_they_cannot_show() {
    let store = store(1);
    let mut b = Builder::new(&*store, ONE);
    let (x, q) = (operand(&mut b, &store, "x"), operand(&mut b, &store, "q0"));
    let shape_error = |r: llama_rs::Result<TensorId>| matches!(r, Err(Error::Shape { .. }));
    assert!(shape_error(b.slice(x, 1, 3, 3)), "beyond the end");
    assert!(shape_error(b.slice(q, 0, 0, 32)), "inside blocks");
    assert!(shape_error(b.reshape(x, &[K, N + 1])), "more values");
    let low = b.slice(x, 0, 0, 8).expect("inside");
    assert!(shape_error(b.reshape(low, &[8 * N])), "not contiguous");
    let live_x = live(&mut b, x, 1);
    assert!(
        shape_error(b.slice(live_x, 1, 0, 2)),
        "cuts the live dimension"
    );
    assert!(
        shape_error(b.reshape(live_x, &[N, K])),
        "mixes the live dimension"
    );
    assert!(b.reshape(live_x, &[8, K / 8, N]).is_ok());
}

#[test]
fn compiling_refuses_missing_memory_and_long_inputs() {
    let store = store(1);
    let backend = CpuBackend::new(store.clone(), 1, true).expect("threads");
    let mut b = Builder::new(&*store, ONE);
    let x = operand(&mut b, &store, "x");
    let cache = b.cache(CacheId(3), DType::F16, K, 8);
    let slots = b.input(Input::Slots { swa: false }, 0);
    let row = b.slice(x, 1, 0, 1).expect("inside");
    let set = b.op(Op::SetRows, &[cache, row, slots]).expect("shape");
    b.output(set);
    let plan = Plan::new(&b.graph);
    let missing = backend.compile(b.graph, plan);
    assert!(matches!(missing, Err(Error::Shape { .. })), "no such cache");

    let mut b = Builder::new(&*store, ONE);
    let x = operand(&mut b, &store, "x");
    let half = b.op(Op::Cpy { dtype: DType::F16 }, &[x]).expect("shape");
    let part = b.slice(x, 0, 0, 8).expect("inside");
    for id in [half, part] {
        let mut graph = b.graph.clone();
        graph.outputs = vec![id];
        let plan = Plan::new(&graph);
        let refused = backend.compile(graph, plan);
        assert!(matches!(refused, Err(Error::Shape { .. })), "read as f32");
    }

    let mut b = Builder::new(&*store, ONE);
    let ids = b.input(Input::Tokens, 0);
    let x = operand(&mut b, &store, "x");
    let y = b.op(Op::GetRows, &[x, ids]).expect("shape");
    b.output(y);
    let plan = Plan::new(&b.graph);
    let mut exe = backend.compile(b.graph, plan).expect("compiles");
    let long = exe.set_input(Input::Tokens, &[1, 2]);
    assert!(matches!(long, Err(Error::Shape { .. })), "one token wide");
}
