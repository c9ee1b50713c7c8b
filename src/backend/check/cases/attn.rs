//! ATTN: decode and prefill, with huge noise wherever nobody may look.

use crate::backend::check::case::{Case, F32_NMSE, Problem, x};
use crate::backend::check::store::{Random, Setup, Store};
use crate::graph::op::AttnShape;
use crate::graph::{AttnParams, Count, Input};
use crate::quant::DType;

/// With F16 caches the weights of cells may pass through F16 once (q is split in two
/// halves, so scores lose nothing): 2^-12 relative, an NMSE of 4e-8 where one cell
/// decides; 3.1e-8 is the most seen on an H200. The project promises 1e-7.
const F16_CACHE_NMSE: f64 = 1e-7;

/// What cells hold that no token may look at.
const NOISE: f32 = 6e4;

/// One call: shapes, types, who is where.
#[derive(Clone)]
struct Attn {
    label: String,
    shape: AttnShape,
    types: [DType; 2],
    params: AttnParams,
    /// (sequence, position) of each live token.
    tokens: Vec<(i32, i32)>,
    width: usize,
    /// (sequence, position) of each cell; position -1 when empty.
    cells: Vec<(i32, i32)>,
    /// Cells of the cache beyond those in use.
    n_spare: usize,
}

fn shape(head_dim: usize, n_head: usize, group: usize) -> AttnShape {
    AttnShape {
        head_dim_k: head_dim,
        head_dim_v: head_dim,
        n_head,
        n_head_kv: n_head / group,
    }
}

impl Attn {
    /// One sequence: `n_past` tokens in cells, then `n` more.
    fn causal(shape: AttnShape, n_past: usize, n: usize) -> Attn {
        let all = (n_past + n) as i32;
        Attn {
            label: String::new(),
            shape,
            types: [DType::F16; 2],
            params: AttnParams {
                scale: 1.0 / (shape.head_dim_k as f32).sqrt(),
                softcap: None,
                window: None,
                swa: false,
                temperature: None,
            },
            tokens: (n_past as i32..all).map(|p| (0, p)).collect(),
            // Dead tokens, but not beside every one.
            width: if n.is_multiple_of(2) { n } else { n + 2 },
            cells: (0..all).map(|p| (0, p)).collect(),
            n_spare: 70,
        }
    }

    fn label(self, label: String) -> Attn {
        Attn { label, ..self }
    }

    /// In a graph of as many tokens as there are.
    fn alone(self) -> Attn {
        Attn {
            width: self.tokens.len(),
            ..self
        }
    }

    /// Cells in random order, with empty ones between.
    fn scattered(mut self, random: &mut Random) -> Attn {
        for _ in 0..self.cells.len() / 3 + 2 {
            self.cells.push((0, -1));
        }
        for i in (1..self.cells.len()).rev() {
            self.cells.swap(i, random.below(i + 1));
        }
        self
    }

    fn case(self) -> Case {
        let s = self.shape;
        let exact = self.types.contains(&DType::F32);
        let name = format!(
            "ATTN/{},{}/hd={}:{},heads={}:{},cells={},n={}of{}{}",
            self.types[0].name(),
            self.types[1].name(),
            s.head_dim_k,
            s.head_dim_v,
            s.n_head,
            s.n_head_kv,
            self.cells.len(),
            self.tokens.len(),
            self.width,
            self.label
        );
        Case {
            name,
            exact,
            nmse: if exact { F32_NMSE } else { F16_CACHE_NMSE },
            make: Box::new(move || self.problem()),
        }
    }

    /// Bytes of a cache of `row` values a cell.
    fn cache(&self, dtype: DType, row: usize, random: &mut Random) -> Vec<u8> {
        let mut values = random.units(row * (self.cells.len() + self.n_spare));
        for (c, cell) in values.chunks_mut(row).enumerate() {
            if self.cells.get(c).is_none_or(|&(_, pos)| pos < 0) {
                cell.iter_mut().for_each(|v| *v = NOISE.copysign(*v));
            }
        }
        match dtype {
            DType::F16 => values
                .iter()
                .flat_map(|&v| half::f16::from_f32(v).to_le_bytes())
                .collect(),
            _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    fn problem(&self) -> Problem {
        let mut random = Random(101);
        let (s, n_live, params, types) = (self.shape, self.tokens.len(), self.params, self.types);
        let mut store = Store::default();
        let q = x(&[s.head_dim_k, s.n_head, self.width]).live(2);
        let q = q.values(|random, _| 3.0 * random.unit());
        q.put(&mut store, "q", n_live, &mut random);
        let rows = [s.head_dim_k * s.n_head_kv, s.head_dim_v * s.n_head_kv];
        let caches = [0, 1].map(|i| store.cache(&self.cache(types[i], rows[i], &mut random)));
        let n_cells = self.cells.len() + self.n_spare;
        // Spare cells claim to hold what every token would see, dead tokens to see all.
        let cells = |of: fn(&(i32, i32)) -> i32| {
            let spare = std::iter::repeat_n(0, self.n_spare);
            self.cells.iter().map(of).chain(spare).collect::<Vec<_>>()
        };
        let tokens = |of: fn(&(i32, i32)) -> i32, dead: i32| {
            let dead = std::iter::repeat_n(dead, self.width - n_live);
            self.tokens.iter().map(of).chain(dead).collect::<Vec<_>>()
        };
        let swa = params.swa;
        let setup = Setup {
            inputs: vec![
                (Input::Pos, tokens(|t| t.1, i32::MAX)),
                (Input::Seq, tokens(|t| t.0, 0)),
                (Input::CellPos { swa }, cells(|c| c.1)),
                (Input::CellSeq { swa }, cells(|c| c.0)),
            ],
            counts: vec![
                (Count::Tokens, n_live),
                (Count::Cells { swa }, self.cells.len()),
            ],
            width: self.width,
            ..Setup::default()
        };
        Problem {
            store,
            setup,
            build: Box::new(move |b, store| {
                let q = q.take(b, store, "q")?;
                let k = b.cache(caches[0], types[0], rows[0], n_cells);
                let v = b.cache(caches[1], types[1], rows[1], n_cells);
                Ok(vec![b.attn(params, s, q, k, v)?])
            }),
        }
    }
}

const F16: [DType; 2] = [DType::F16; 2];
const F32: [DType; 2] = [DType::F32; 2];

fn shapes(cases: &mut Vec<Case>) {
    let steps = [
        (0, 1),
        (150, 1),
        (700, 3),
        (40, 8),
        (0, 9),
        (61, 33),
        (200, 130),
    ];
    for head_dim in [8, 16, 32, 64, 80, 96, 112, 128, 192, 256] {
        for group in [1, 2, 4, 8] {
            let shape = shape(head_dim, 2 * group, group);
            for (n_past, n) in steps {
                let attn = Attn::causal(shape, n_past, n);
                if [(150, 1), (61, 33)].contains(&(n_past, n)) && group != 2 {
                    for types in [F32, [DType::F32, DType::F16], [DType::F16, DType::F32]] {
                        let attn = attn.clone();
                        cases.push(Attn { types, ..attn }.case());
                    }
                }
                cases.push(attn.case());
            }
        }
    }
    for (head_dim_k, head_dim_v) in [(192, 128), (36, 20), (24, 40)] {
        let shape = AttnShape {
            head_dim_k,
            head_dim_v,
            ..shape(1, 4, 2)
        };
        for n in [1, 9] {
            cases.push(Attn::causal(shape, 70, n).case());
        }
    }
    // Heads that divide nothing.
    for (n_head, group) in [(3, 3), (9, 9), (14, 7), (5, 1), (32, 16), (20, 20)] {
        for n in [1, 4, 21] {
            cases.push(Attn::causal(shape(64, n_head, group), 100, n).case());
        }
    }
}

/// Graphs of one token, which have a kernel of their own: heads that fill a tile of rows, do
/// not, and take several; cells around chunks and splits; masks.
fn one_token(cases: &mut Vec<Case>) {
    let mut random = Random(131);
    for head_dim in [64, 80, 96, 112, 128] {
        for (n_head, group) in [(2, 1), (14, 7), (16, 8), (40, 20)] {
            for n_past in [0, 14, 15, 16, 127, 128, 300, 5000] {
                let attn = Attn::causal(shape(head_dim, n_head, group), n_past, 1);
                cases.push(attn.alone().case());
            }
        }
        for window in [None, Some(5)] {
            let mut attn = Attn::causal(shape(head_dim, 6, 3), 400, 1).scattered(&mut random);
            attn.params.window = window;
            attn.params.softcap = Some(3.0);
            attn.params.temperature = Some((0.1, 16));
            let label = format!(",scattered,window={window:?}");
            cases.push(attn.alone().label(label).case());
        }
        let mut attn = Attn::causal(shape(head_dim, 4, 2), 200, 1);
        attn.tokens[0].0 = 3;
        cases.push(attn.alone().label(",masked".to_string()).case());
    }
}

/// Enough rows and heads for the kernel of long prompts: a tile that is almost empty,
/// groups, many cells before, dead tokens.
fn prefill(cases: &mut Vec<Case>) {
    for head_dim in [64, 80, 96, 112, 128, 192, 256] {
        for (n_head_kv, group, n_past, n) in [(34, 1, 60, 65), (8, 4, 150, 140), (2, 8, 0, 280)] {
            let shape = shape(head_dim, n_head_kv * group, group);
            cases.push(Attn::causal(shape, n_past, n).case());
        }
    }
    let mut random = Random(127);
    for head_dim in [64, 128, 256] {
        let one = Attn::causal(shape(head_dim, 32, 4), 90, 131);
        for window in [Some(5), Some(100)] {
            let mut attn = one.clone();
            attn.params.window = window;
            attn.params.softcap = Some(3.0);
            attn.params.temperature = Some((0.1, 16));
            let label = format!(",window={window:?},capped");
            cases.push(attn.label(label).case());
        }
        let mut attn = one.scattered(&mut random);
        for (t, token) in attn.tokens.iter_mut().enumerate() {
            // The first tile of tokens sees nothing, others in part.
            token.0 = if t < 20 || t % 5 == 0 { 6 } else { 0 };
        }
        cases.push(attn.label(",scattered,masked".to_string()).case());
    }
}

/// Every count of cells around the tiles and splits, up to thousands.
fn lengths(cases: &mut Vec<Case>) {
    for n_past in [
        1, 30, 31, 32, 62, 63, 64, 65, 126, 127, 128, 129, 255, 256, 257, 511, 1023, 2047, 4095,
        4999,
    ] {
        for n in [1, 7, 18] {
            cases.push(Attn::causal(shape(128, 8, 4), n_past, n).case());
        }
        let attn = Attn::causal(shape(64, 4, 1), n_past, 1);
        cases.push(Attn { types: F32, ..attn }.case());
    }
    for head_dim in [64, 128, 256] {
        cases.push(Attn::causal(shape(head_dim, 16, 8), 4990, 8).case());
    }
}

fn masks(cases: &mut Vec<Case>) {
    for window in [None, Some(1), Some(7), Some(64), Some(1000), Some(u32::MAX)] {
        for softcap in [None, Some(2.5), Some(50.0)] {
            for temperature in [None, Some((0.1, 16))] {
                for (n, types) in [(1, F16), (3, F16), (40, F16), (3, F32)] {
                    let mut attn = Attn::causal(shape(64, 6, 3), 300, n);
                    attn.params = AttnParams {
                        window,
                        softcap,
                        temperature,
                        swa: window.is_some(),
                        ..attn.params
                    };
                    attn.types = types;
                    let p = attn.params;
                    let label = format!(
                        ",window={:?},cap={:?},temp={:?}",
                        p.window, p.softcap, p.temperature
                    );
                    cases.push(attn.label(label).case());
                }
            }
        }
    }
}

/// Three sequences in one batch, cells in any order with holes between them; a token of
/// a sequence without cells first, between and last; whole tiles masked first.
fn sequences(cases: &mut Vec<Case>) {
    let mut random = Random(109);
    for window in [None, Some(5)] {
        for types in [F16, F32] {
            for head_dim in [64, 128] {
                for n in [3, 8, 24] {
                    let mut attn = Attn::causal(shape(head_dim, 6, 3), 0, 0);
                    attn.cells = (0..120).map(|i| (i % 3, i / 3)).collect();
                    attn = attn.scattered(&mut random);
                    attn.tokens = (0..n).map(|i| (i % 3, 20 + i)).collect();
                    attn.tokens[0] = (7, 50);
                    attn.tokens[n as usize / 2] = (8, 50);
                    attn.tokens[n as usize - 1] = (9, 0);
                    attn.width = n as usize + 3;
                    attn.types = types;
                    attn.params.window = window;
                    let label = format!(",3 sequences,window={window:?}");
                    cases.push(attn.label(label).case());
                }
            }
        }
    }
    for head_dim in [80, 128] {
        for n in [2, 12, 64] {
            let mut attn = Attn::causal(shape(head_dim, 8, 8), 0, n);
            let own = attn.cells.clone();
            attn.cells = (0..530).map(|i| (4, i)).chain(own).collect();
            cases.push(attn.label(",masked first".to_string()).case());
        }
    }
    // Nobody sees anything; then a batch without cells at all.
    for n in [1, 9] {
        let mut attn = Attn::causal(shape(64, 4, 2), 40, n);
        attn.tokens.iter_mut().for_each(|t| t.0 = 3);
        cases.push(attn.label(",all masked".to_string()).case());
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    shapes(&mut cases);
    one_token(&mut cases);
    prefill(&mut cases);
    lengths(&mut cases);
    masks(&mut cases);
    sequences(&mut cases);
    cases
}
