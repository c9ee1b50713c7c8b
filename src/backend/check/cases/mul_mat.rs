//! MUL_MAT of every type, and what is fused with it: bias, residual, gated units.

use crate::backend::check::case::{Case, F16_NMSE, F32_NMSE, Operand, Problem, x};
use crate::backend::check::store::{Random, Setup, Store, operand, random_weights};
use crate::graph::{Builder, GluKind, TensorId};
use crate::quant::DType;

/// Types that hold weights.
pub fn weight_types() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&d| d != DType::I32)
}

/// Short, odd and long rows of whole blocks: for types without blocks also rows that
/// are no multiple of a unit of 32 values.
pub fn row_lengths(dtype: DType) -> [usize; 5] {
    match dtype.block_len() {
        1 => [7, 33, 1027, 4096, 14_336],
        32 => [32, 96, 1120, 4096, 14_336],
        _ => [256, 512, 2048, 4096, 14_336],
    }
}

/// How close CUDA must come with this type.
pub fn nmse(dtype: DType, exact: bool) -> f64 {
    match exact || dtype == DType::F32 {
        true => F32_NMSE,
        false => F16_NMSE,
    }
}

/// Which row length, rows of W, width and live tokens.
type Shape = (usize, usize, usize, usize);

/// 1 to 8 tokens take the matrix-vector kernels, more the tiles of 128 rows and 64
/// tokens; rows are no multiple of 16, one tile, or many. No case has a single value:
/// one sum that happens to cancel would make any error look large.
const SHAPES: [Shape; 23] = [
    (0, 1, 8, 8),
    (0, 16, 1, 1),
    (0, 16, 2, 2),
    (1, 5, 3, 3),
    (3, 33, 4, 4),
    (2, 128, 5, 5),
    (1, 1000, 6, 6),
    (4, 33, 7, 7),
    (4, 5, 1, 1),
    (3, 1000, 1, 1),
    (2, 100, 1, 1),
    (2, 33, 8, 5),
    (3, 16, 8, 8),
    (1, 33, 9, 9),
    (1, 17, 16, 1),
    (2, 128, 33, 33),
    (3, 33, 64, 40),
    (1, 1000, 130, 130),
    (2, 128, 300, 300),
    (4, 16, 9, 9),
    (0, 33, 130, 130),
    (3, 1, 12, 11),
    (1, 40, 256, 65),
];

/// What stands around the product.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    Plain,
    Bias,
    Residual,
    Glu(GluKind),
}

impl Form {
    fn op(self) -> &'static str {
        match self {
            Form::Plain => "MUL_MAT",
            Form::Bias | Form::Residual => "MUL_MAT_ADD",
            Form::Glu(_) => "MUL_MAT_GLU",
        }
    }

    fn build(
        self,
        b: &mut Builder<'_>,
        store: &Store,
        x: TensorId,
        residual: &Operand,
    ) -> crate::Result<TensorId> {
        let w = operand(b, store, "w");
        let y = b.mul_mat(w, x)?;
        match self {
            Form::Plain => Ok(y),
            Form::Bias => {
                let bias = operand(b, store, "bias");
                b.add(y, bias)
            }
            Form::Residual => {
                let residual = residual.take(b, store, "residual")?;
                b.add(y, residual)
            }
            Form::Glu(kind) => {
                let up = operand(b, store, "up");
                let up = b.mul_mat(up, x)?;
                b.glu(kind, y, up)
            }
        }
    }
}

/// A product; `x` is multiplied by `size`.
struct Product {
    dtype: DType,
    exact: bool,
    form: Form,
    shape: Shape,
    size: f32,
}

impl Product {
    fn case(self) -> Case {
        let Product {
            dtype, exact, form, ..
        } = self;
        let (at, m, n, n_live) = self.shape;
        let k = row_lengths(dtype)[at];
        let mut name = format!("{}/{}/k={k},m={m},n={n_live}", form.op(), dtype.name());
        if n != n_live {
            name += &format!("of{n}");
        }
        match form {
            Form::Plain => {}
            form => name += &format!(",{form:?}"),
        }
        if self.size != 1.0 {
            name += &format!(",x*{}", self.size);
        }
        if exact {
            name += ",exact";
        }
        Case {
            name,
            exact,
            nmse: nmse(dtype, exact),
            make: Box::new(move || self.problem(k, m, n, n_live)),
        }
    }

    fn problem(&self, k: usize, m: usize, n: usize, n_live: usize) -> Problem {
        let mut random = Random(0x9E37_79B9 ^ (k * 1000 + m * 10 + n) as u64);
        let mut store = Store::default();
        for w in ["w", "up"] {
            let bytes = random_weights(self.dtype, k * m, &mut random);
            store.bytes(w, self.dtype, &[k, m], &bytes);
        }
        store.f32("bias", &[m], &random.units(m));
        let residual = x(&[m, n]).live(1);
        residual.put(&mut store, "residual", n_live, &mut random);
        let size = self.size;
        let values = move |random: &mut Random, _: usize| size * random.unit();
        let x = x(&[k, n]).live(1).values(values);
        x.put(&mut store, "x", n_live, &mut random);
        let form = self.form;
        Problem {
            store,
            setup: Setup::tokens(n, n_live),
            build: Box::new(move |b, store| {
                let x = x.take(b, store, "x")?;
                Ok(vec![form.build(b, store, x, &residual)?])
            }),
        }
    }
}

fn plain(dtype: DType, exact: bool, shape: Shape) -> Product {
    Product {
        dtype,
        exact,
        form: Form::Plain,
        shape,
        size: 1.0,
    }
}

fn fused(cases: &mut Vec<Case>, dtype: DType, exact: bool) {
    let mut add = |form: Form, shape: Shape| {
        let product = Product {
            form,
            ..plain(dtype, exact, shape)
        };
        cases.push(product.case());
    };
    for form in [Form::Bias, Form::Residual] {
        for shape in [
            (1, 33, 1, 1),
            (2, 16, 3, 3),
            (1, 130, 8, 5),
            (2, 33, 9, 9),
            (1, 257, 128, 100),
        ] {
            add(form, shape);
        }
    }
    let kinds = [
        GluKind::Swiglu,
        GluKind::Geglu,
        GluKind::GegluErf,
        GluKind::GegluQuick,
        GluKind::Reglu,
    ];
    let shapes = [
        (1, 33, 1, 1),
        (3, 16, 2, 2),
        (2, 130, 5, 5),
        (1, 257, 8, 5),
        (4, 33, 1, 1),
        (2, 33, 8, 8),
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        add(Form::Glu(kinds[i % kinds.len()]), shape);
    }
    // Wider ones are fused only where activations are not packed.
    if nmse(dtype, exact) == F32_NMSE {
        add(Form::Glu(GluKind::Swiglu), (1, 33, 21, 20));
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in weight_types() {
        for exact in [false, true] {
            let product = |shape| plain(dtype, exact, shape);
            cases.extend(SHAPES.map(|shape| product(shape).case()));
            for (n, n_live) in [(1, 1), (3, 2), (40, 33)] {
                // Large enough to overflow F16 as they are.
                for size in [5e5, 1e-3] {
                    let product = Product {
                        size,
                        ..product((1, 33, n, n_live))
                    };
                    cases.push(product.case());
                }
            }
            fused(&mut cases, dtype, exact);
        }
    }
    cases
}
