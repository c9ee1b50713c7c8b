//! ROPE, and HEAD_ROWS: norm over heads, RoPE and storing in one.

use crate::backend::check::case::{Case, F32_NMSE, Problem, x};
use crate::backend::check::store::{Random, Setup, Store, operand, random_weights};
use crate::graph::{Input, Op, RopeMode, RopeParams};
use crate::quant::DType;

const PLAIN: RopeParams = RopeParams {
    mode: RopeMode::Norm,
    n_rot: 64,
    freq_base: 10_000.0,
    freq_scale: 1.0,
    ext_factor: 0.0,
    attn_factor: 1.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
    n_ctx_orig: 4096,
};

const YARN: RopeParams = RopeParams {
    freq_scale: 0.25,
    ext_factor: 1.0,
    ..PLAIN
};

/// As models have them.
const KINDS: [(&str, RopeParams); 6] = [
    ("plain", PLAIN),
    (
        "linear",
        RopeParams {
            freq_scale: 0.125,
            ..PLAIN
        },
    ),
    (
        "base",
        RopeParams {
            freq_base: 1e6,
            attn_factor: 1.19,
            ..PLAIN
        },
    ),
    ("yarn", YARN),
    (
        "yarn,base",
        RopeParams {
            freq_base: 1e6,
            n_ctx_orig: 32_768,
            ..YARN
        },
    ),
    (
        "yarn,half",
        RopeParams {
            ext_factor: 0.5,
            attn_factor: 0.8,
            ..YARN
        },
    ),
];

/// Near and far, up to a context of a million.
const POSITIONS: [i32; 9] = [0, 1, 2, 31, 2_700, 4_096, 32_768, 131_071, 1_000_000];

/// What a projection goes through.
#[derive(Clone, Copy)]
struct Heads {
    rope: RopeParams,
    kind: &'static str,
    head_dim: usize,
    n_head: usize,
    n: usize,
    n_live: usize,
    norm: bool,
    factors: bool,
    store: Option<DType>,
    /// Heads lie in a row with those of others.
    window: bool,
}

impl Heads {
    fn case(self, op: &str) -> Case {
        let mut name = format!(
            "{op}/{},{:?}/[{},{}],rot={},n={}of{}",
            self.kind,
            self.rope.mode,
            self.head_dim,
            self.n_head,
            self.rope.n_rot,
            self.n_live,
            self.n
        );
        for (there, label) in [
            (self.norm, "norm"),
            (self.factors, "factors"),
            (self.window, "window"),
        ] {
            if there {
                name += &format!(",{label}");
            }
        }
        let nmse = match self.store {
            None | Some(DType::F32) => F32_NMSE,
            // A value near the middle between two of 16 bits may go to the other
            // one: some 1e-4 of all, by 2^-10 (F16) or 2^-7 (BF16).
            Some(_) => 1e-7,
        };
        if let Some(dtype) = self.store {
            name += &format!(",store {}", dtype.name());
        }
        Case {
            name,
            exact: false,
            nmse,
            make: Box::new(move || self.problem()),
        }
    }

    fn problem(self) -> Problem {
        let (hd, n_head, n) = (self.head_dim, self.n_head, self.n);
        let mut random = Random(79);
        let mut store = Store::default();
        let x = match self.window {
            true => x(&[hd, n_head + 3, n]).window(1, 2, n_head),
            false => x(&[hd, n_head, n]),
        };
        let x = x.live(2);
        x.put(&mut store, "x", self.n_live, &mut random);
        store.f32("weight", &[hd], &random.units(hd));
        let factors = (0..self.rope.n_rot / 2).map(|i| 1.0 + i as f32 * 0.37);
        let factors: Vec<f32> = factors.collect();
        store.f32("factors", &[factors.len()], &factors);
        let n_cells = n + 13;
        let dtype = self.store.unwrap_or(DType::F32);
        let cells = random_weights(dtype, hd * n_head * n_cells, &mut random);
        let cache = store.cache(&cells);
        let mut pos: Vec<i32> = (0..n).map(|i| POSITIONS[i % POSITIONS.len()]).collect();
        let mut slots: Vec<i32> = (0..n as i32).map(|i| n_cells as i32 - 2 - i).collect();
        pos[self.n_live..].fill(i32::MIN);
        slots[self.n_live..].fill(i32::MAX);
        let swa = false;
        Problem {
            store,
            setup: Setup {
                inputs: vec![(Input::Pos, pos), (Input::Slots { swa }, slots)],
                ..Setup::tokens(n, self.n_live)
            },
            build: Box::new(move |b, store| {
                let mut x = x.take(b, store, "x")?;
                if self.norm {
                    let weight = operand(b, store, "weight");
                    x = b.op(Op::RmsNorm { eps: 1e-6 }, &[x])?;
                    x = b.mul(x, weight)?;
                }
                let factors = self.factors.then(|| operand(b, store, "factors"));
                let x = b.rope(self.rope, x, factors)?;
                let Some(dtype) = self.store else {
                    return Ok(vec![x]);
                };
                let x = b.reshape(x, &[hd * n_head, n])?;
                let cache = b.cache(cache, dtype, hd * n_head, n_cells);
                let slots = b.input(Input::Slots { swa }, 0);
                b.op(Op::SetRows, &[cache, x, slots])?;
                Ok(Vec::new())
            }),
        }
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, params) in KINDS {
        for mode in [RopeMode::Norm, RopeMode::Neox] {
            for (at, (head_dim, n_rot)) in
                [(64, 64), (80, 32), (128, 128), (96, 94), (256, 256), (2, 2)]
                    .into_iter()
                    .enumerate()
            {
                let plain = Heads {
                    rope: RopeParams {
                        mode,
                        n_rot,
                        ..params
                    },
                    kind,
                    head_dim,
                    n_head: 3,
                    n: 11,
                    n_live: 9,
                    norm: false,
                    factors: false,
                    store: None,
                    window: false,
                };
                cases.push(plain.case("ROPE"));
                for bits in 0..8 {
                    let stores = [None, Some(DType::F32), Some(DType::F16), Some(DType::BF16)];
                    let heads = Heads {
                        norm: bits & 1 == 1,
                        factors: bits & 2 == 2,
                        store: stores[(bits + at) % 4],
                        window: bits & 4 == 4,
                        ..plain
                    };
                    cases.push(heads.case("HEAD_ROWS"));
                }
            }
        }
    }
    // One token of a decode step, and more heads than a grid's second dimension.
    for (n_head, n, n_live) in [(32, 1, 1), (5, 3, 2), (8, 8_801, 8_800)] {
        for (norm, store) in [(false, None), (true, Some(DType::F16))] {
            let heads = Heads {
                rope: RopeParams {
                    mode: RopeMode::Neox,
                    ..PLAIN
                },
                kind: "plain",
                head_dim: 64,
                n_head,
                n,
                n_live,
                norm,
                factors: false,
                store,
                window: false,
            };
            cases.push(heads.case("HEAD_ROWS"));
        }
    }
    cases
}
