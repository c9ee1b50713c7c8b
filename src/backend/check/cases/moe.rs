//! Mixture of experts: MOE_ROUTE, MUL_MAT_ID, MUL_MAT_ID_GLU, MOE_SUM.

use super::mul_mat::{nmse, row_lengths, weight_types};
use crate::backend::check::case::{Case, F32_NMSE, Operand, Problem, simple, x};
use crate::backend::check::store::{Random, Setup, Store, live, operand, random_weights};
use crate::backend::cuda::lower::VEC_TOKENS;
use crate::graph::{Builder, GluKind, Op};
use crate::quant::DType;

fn route(cases: &mut Vec<Case>) {
    let logits = |random: &mut Random, _: usize| 5.0 * random.unit();
    for (n_expert, n_used) in [
        (1, 1),
        (4, 4),
        (8, 2),
        (32, 4),
        (33, 8),
        (60, 4),
        (128, 8),
        (256, 8),
        (500, 10),
        (1024, 64),
    ] {
        for norm in [false, true] {
            let op = Op::MoeRoute { n_used, norm };
            let label = format!("used={n_used},norm={norm}");
            let mut add = |label: &str, x: Operand| {
                cases.push(simple(label, op, F32_NMSE, vec![x], 4));
            };
            add(&label, x(&[n_expert, 1]).values(logits));
            add(&label, x(&[n_expert, 9]).live(1).values(logits));
            add(&label, x(&[n_expert, 300]).values(logits));
            let tied = x(&[n_expert, 5]).values(|random, _| random.below(3) as f32);
            add(&format!("{label},tied"), tied);
        }
    }
    let op = Op::MoeRoute {
        n_used: 2,
        norm: true,
    };
    let many = x(&[8, 70_001]).values(logits);
    cases.push(simple("used=2,norm=true", op, F32_NMSE, vec![many], 0));
}

/// A product with experts.
#[derive(Clone, Copy)]
struct Experts {
    dtype: DType,
    exact: bool,
    k: usize,
    m: usize,
    n_expert: usize,
    n_used: usize,
    /// Each chosen expert has its own activations.
    own: bool,
    n: usize,
    n_live: usize,
    glu: Option<GluKind>,
    /// Most tokens choose expert 1 first.
    skewed: bool,
}

impl Experts {
    fn case(self) -> Case {
        let op = match self.glu {
            Some(_) => "MUL_MAT_ID_GLU",
            None => "MUL_MAT_ID",
        };
        let mut name = format!(
            "{op}/{}/k={},m={},experts={}of{},n={}of{}",
            self.dtype.name(),
            self.k,
            self.m,
            self.n_used,
            self.n_expert,
            self.n_live,
            self.n
        );
        for (there, label) in [
            (self.own, "own"),
            (self.skewed, "skewed"),
            (self.exact, "exact"),
        ] {
            if there {
                name += &format!(",{label}");
            }
        }
        Case {
            name,
            exact: self.exact,
            nmse: nmse(self.dtype, self.exact),
            make: Box::new(move || self.problem()),
        }
    }

    /// Different experts for each token; dead tokens hold what is no expert.
    fn ids(&self, random: &mut Random) -> Vec<i32> {
        let mut all: Vec<i32> = Vec::new();
        for t in 0..self.n {
            if t >= self.n_live {
                all.extend((0..self.n_used).map(|u| [i32::MIN, i32::MAX, -1][u % 3]));
                continue;
            }
            let mut experts: Vec<i32> = (0..self.n_expert as i32).collect();
            for u in 0..self.n_used {
                experts.swap(u, u + random.below(self.n_expert - u));
            }
            if self.skewed && !t.is_multiple_of(7) {
                let one = experts.iter().position(|&e| e == 1).expect("expert 1");
                experts.swap(0, one);
            }
            all.extend(&experts[..self.n_used]);
        }
        all
    }

    fn problem(self) -> Problem {
        let mut random = Random(97 + self.n as u64);
        let mut store = Store::default();
        let (k, m) = (self.k, self.m);
        for w in ["w", "up"] {
            let bytes = random_weights(self.dtype, k * m * self.n_expert, &mut random);
            store.bytes(w, self.dtype, &[k, m, self.n_expert], &bytes);
        }
        let x = x(&[k, if self.own { self.n_used } else { 1 }, self.n]).live(2);
        x.put(&mut store, "x", self.n_live, &mut random);
        store.i32("ids", &[self.n_used, self.n], &self.ids(&mut random));
        Problem {
            store,
            setup: Setup::tokens(self.n, self.n_live),
            build: Box::new(move |b, store| {
                let (x, ids) = (x.take(b, store, "x")?, operand(b, store, "ids"));
                let ids = live(b, ids, 1);
                let w = operand(b, store, "w");
                let y = b.op(Op::MulMatId, &[w, x, ids])?;
                let Some(kind) = self.glu else {
                    return Ok(vec![y]);
                };
                let up = operand(b, store, "up");
                let up = b.op(Op::MulMatId, &[up, x, ids])?;
                Ok(vec![b.glu(kind, y, up)?])
            }),
        }
    }
}

/// m, experts, experts used, own activations, width, live tokens.
const SHAPES: [(usize, usize, usize, bool, usize, usize); 10] = [
    (19, 8, 2, false, 1, 1),
    (33, 8, 2, true, 1, 1),
    (16, 128, 8, false, 3, 3),
    (40, 8, 2, true, 8, 5),
    (130, 8, 8, false, 8, 8),
    (33, 8, 3, false, 9, 9),
    (33, 128, 8, true, 40, 33),
    (64, 8, 2, false, 300, 300),
    (24, 128, 8, true, 300, 290),
    (200, 4, 1, false, 130, 130),
];

fn products(cases: &mut Vec<Case>) {
    for dtype in weight_types() {
        for exact in [false, true] {
            for (i, (m, n_expert, n_used, own, n, n_live)) in SHAPES.into_iter().enumerate() {
                let plain = Experts {
                    dtype,
                    exact,
                    k: row_lengths(dtype)[1],
                    m,
                    n_expert,
                    n_used,
                    own,
                    n,
                    n_live,
                    glu: None,
                    skewed: false,
                };
                cases.push(plain.case());
                // Wider ones are fused only where activations are not packed.
                if n <= VEC_TOKENS || (nmse(dtype, exact) == F32_NMSE && i == 5) {
                    let glu = Some(GluKind::Swiglu);
                    cases.push(Experts { glu, ..plain }.case());
                }
                if n == 300 && n_expert == 8 {
                    let skewed = true;
                    cases.push(Experts { skewed, ..plain }.case());
                }
            }
        }
    }
}

/// MOE_SUM of `y [m, n_used, n]`; weights as an operand or as MOE_ROUTE leaves them.
fn sum(m: usize, n_used: usize, n: usize, n_live: usize, routed: bool, residual: bool) -> Case {
    let mut name = format!("MOE_SUM/m={m},used={n_used},n={n_live}of{n}");
    for (there, label) in [(routed, "routed"), (residual, "residual")] {
        if there {
            name += &format!(",{label}");
        }
    }
    Case {
        name,
        exact: false,
        nmse: F32_NMSE,
        make: Box::new(move || {
            let mut random = Random(131);
            let mut store = Store::default();
            let operands = [
                ("y", x(&[m, n_used, n]).live(2)),
                ("weights", x(&[1, n_used, n]).live(2)),
                ("logits", x(&[2 * n_used, n]).live(1)),
                ("residual", x(&[m, n]).live(1)),
            ];
            for (name, x) in &operands {
                x.put(&mut store, name, n_live, &mut random);
            }
            let [y, weights, logits, b] = operands;
            Problem {
                store,
                setup: Setup::tokens(n, n_live),
                build: Box::new(move |g, store| {
                    let y = y.1.take(g, store, y.0)?;
                    let weights = match routed {
                        true => {
                            let logits = logits.1.take(g, store, logits.0)?;
                            g.moe_route(logits, n_used, true)?[1]
                        }
                        false => weights.1.take(g, store, weights.0)?,
                    };
                    let mut out = g.op(Op::MoeSum, &[y, weights])?;
                    if residual {
                        let b = b.1.take(g, store, b.0)?;
                        out = g.add(out, b)?;
                    }
                    Ok(vec![out])
                }),
            }
        }),
    }
}

/// All that the experts of a layer do, behind the router's product, with k and the length of an
/// expert: what a backend may do as fewer launches than ops.
fn layer(k: usize, n_ff: usize, [n_expert, n_used]: [usize; 2], n: usize, normed: bool) -> Case {
    let types = [DType::Q4K, DType::Q6K];
    let mut name = format!("MOE_SUM/layer,k={k},ff={n_ff},experts={n_used}of{n_expert},n={n}");
    if normed {
        name += ",normed";
    }
    Case {
        name,
        exact: false,
        // Gate, up and down each round once.
        nmse: 3.0 * nmse(types[0], false),
        make: Box::new(move || {
            let mut random = Random(149 + n as u64);
            let mut store = Store::default();
            for (w, dtype, ne) in [
                ("gate", types[0], [k, n_ff]),
                ("up", types[0], [k, n_ff]),
                ("down", types[1], [n_ff, k]),
            ] {
                let shape = [ne[0], ne[1], n_expert];
                let bytes = random_weights(dtype, shape.iter().product(), &mut random);
                store.bytes(w, dtype, &shape, &bytes);
            }
            store.f32("norm", &[k], &random.units(k));
            let operands = [
                ("x", x(&[k, n]).live(1)),
                ("logits", x(&[n_expert, n]).live(1)),
                ("residual", x(&[k, n]).live(1)),
            ];
            for (name, x) in &operands {
                x.put(&mut store, name, n, &mut random);
            }
            let [x, logits, residual] = operands;
            Problem {
                store,
                setup: Setup::tokens(n, n),
                build: Box::new(move |g, store| {
                    let mut x = x.1.take(g, store, x.0)?;
                    if normed {
                        let norm = operand(g, store, "norm");
                        x = g.op(Op::RmsNorm { eps: 1e-5 }, &[x])?;
                        x = g.mul(x, norm)?;
                    }
                    let x = g.reshape(x, &[k, 1, n])?;
                    // A result of this graph, as logits are.
                    let logits = logits.1.take(g, store, logits.0)?;
                    let logits = g.scale(logits, 2.0)?;
                    let [ids, weights] = g.moe_route(logits, n_used, true)?;
                    let product = |g: &mut Builder<'_>, name: &str, x| {
                        let w = operand(g, store, name);
                        g.op(Op::MulMatId, &[w, x, ids])
                    };
                    let (gate, up) = (product(g, "gate", x)?, product(g, "up", x)?);
                    let h = g.glu(GluKind::Swiglu, gate, up)?;
                    let y = product(g, "down", h)?;
                    let out = g.op(Op::MoeSum, &[y, weights])?;
                    let residual = residual.1.take(g, store, residual.0)?;
                    Ok(vec![g.add(out, residual)?])
                }),
            }
        }),
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    route(&mut cases);
    for (k, n_ff, experts) in [
        (256, 256, [8, 2]),
        (2048, 768, [128, 8]),
        (512, 2048, [32, 4]),
        (4096, 512, [60, 6]),
    ] {
        for n in [1, 3, 16] {
            cases.push(layer(k, n_ff, experts, n, n != 3));
        }
    }
    products(&mut cases);
    for (m, n_used, n, n_live) in [
        (1, 1, 1, 1),
        (33, 2, 1, 1),
        (2048, 8, 3, 3),
        (67, 8, 9, 4),
        (2048, 2, 300, 290),
        (5, 2, 70_001, 70_000),
    ] {
        for (routed, residual) in [(false, false), (false, true), (true, false), (true, true)] {
            cases.push(sum(m, n_used, n, n_live, routed, residual));
        }
    }
    cases
}
