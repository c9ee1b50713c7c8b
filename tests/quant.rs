//! Every type of the table against vectors of the `gguf` Python package
//! (`scripts/export_quant_vectors.py`): random blocks, zero, negative, subnormal,
//! largest and non-finite scales.

use std::path::Path;

use llama_rs::quant::{DType, dot_q8, dot_row, quantize_q8};
use proptest::prelude::*;

/// Unit roundoff of f32: one operation is off by at most this share of its result.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Blocks of one type and the values `gguf.quants` gives them.
struct Vectors {
    dtype: DType,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl Vectors {
    fn load(dtype: DType) -> Vectors {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/quant")
            .join(format!("{}.bin", dtype.name()));
        let mut bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let pair_bytes = dtype.block_bytes() + 4 * dtype.block_len();
        assert!(!bytes.is_empty() && bytes.len().is_multiple_of(pair_bytes));
        let values = bytes.split_off(bytes.len() / pair_bytes * dtype.block_bytes());
        let values = (values.as_chunks::<4>().0.iter())
            .map(|&value| f32::from_le_bytes(value))
            .collect();
        Vectors {
            dtype,
            bytes,
            values,
        }
    }

    /// Rows whose lanes are finite: each block alone, and the last eight blocks
    /// (random ones with ordinary scales) as one row.
    fn rows(&self) -> Vec<Row<'_>> {
        let (len, size) = (self.dtype.block_len(), self.dtype.block_bytes());
        let n_blocks = self.values.len() / len;
        let singles = (0..n_blocks).map(|i| (i, 1));
        singles
            .chain([(n_blocks - 8, 8)])
            .map(|(first, n)| {
                let bytes = &self.bytes[first * size..(first + n) * size];
                let values = &self.values[first * len..(first + n) * len];
                Row::unpack(self.dtype, bytes, values)
            })
            .filter(|row| row.d.iter().chain(&row.m).all(|factor| factor.is_finite()))
            .collect()
    }
}

/// A row with its expected values and its lanes.
struct Row<'a> {
    bytes: &'a [u8],
    values: &'a [f32],
    group: usize,
    q: Vec<u8>,
    d: Vec<f32>,
    m: Vec<f32>,
}

impl<'a> Row<'a> {
    fn unpack(dtype: DType, bytes: &'a [u8], values: &'a [f32]) -> Row<'a> {
        let k = values.len();
        let group = dtype.lane_group().expect("a block format");
        let (mut d, mut m) = (vec![f32::NAN; k / group], vec![f32::NAN; k / group]);
        let mut q = vec![0xaa; k];
        (dtype.unpack_row(bytes, &mut q, &mut d, &mut m)).expect("sizes match");
        Row {
            bytes,
            values,
            group,
            q,
            d,
            m,
        }
    }

    /// Value `i` from its lane, and how far the dequantized value may be from it.
    ///
    /// Affine formats compute `fl(fl(d q) - m)`: two roundings, of `d q` and of the
    /// result, each at most `U (d q + |m|)`. Centred ones compute `fl(d (q - o))`
    /// where `m = o d` is exact: one rounding. Second-order terms: the 0.01.
    fn lane(&self, i: usize) -> (f64, f64) {
        let (d, m) = (
            f64::from(self.d[i / self.group]),
            f64::from(self.m[i / self.group]),
        );
        let dq = d * f64::from(self.q[i]);
        (dq - m, 2.01 * U * (dq.abs() + m.abs()))
    }
}

/// The types with blocks.
fn block_formats() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|d| d.is_quantized())
}

/// `k` numbers in -1..1, the same for each seed.
fn noise(k: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..k)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}

/// Activations in the 8-bit format: values, scales, sums.
fn quantized(x: &[f32]) -> (Vec<i8>, Vec<f32>, Vec<f32>) {
    let k = x.len();
    let (mut q, mut d) = (vec![-128; k], vec![f32::NAN; k / 32]);
    let mut s16 = vec![f32::NAN; k / 16];
    quantize_q8(x, &mut q, &mut d, &mut s16);
    (q, d, s16)
}

#[test]
fn dequantize_is_bit_exact() {
    for &dtype in DType::ALL.iter().filter(|&&d| d != DType::I32) {
        let vectors = Vectors::load(dtype);
        // A signalling NaN that must be overwritten.
        let mut out = vec![f32::from_bits(0x7fa0_dead); vectors.values.len()];
        dtype.dequantize_row(&vectors.bytes, &mut out).unwrap();
        for (i, (got, want)) in out.iter().zip(&vectors.values).enumerate() {
            // Payloads of NaN depend on the machine's f16 conversion.
            let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
            let untouched = got.to_bits() == 0x7fa0_dead;
            assert!(
                same && !untouched,
                "{dtype:?} value {i}: {got:e}, not {want:e}"
            );
        }
    }
}

#[test]
fn integers_are_no_weights() {
    let error = DType::I32.dequantize_row(&[0; 8], &mut [0.0; 2]);
    assert!(error.unwrap_err().to_string().contains("I32"));
}

#[test]
fn lanes_give_the_values() {
    for dtype in block_formats() {
        let vectors = Vectors::load(dtype);
        let rows = vectors.rows();
        // The last row of eight blocks must be among the finite ones.
        assert_eq!(rows.last().unwrap().values.len(), 8 * dtype.block_len());
        for row in rows {
            for (i, &want) in row.values.iter().enumerate() {
                let (value, bound) = row.lane(i);
                let error = (value - f64::from(want)).abs();
                assert!(
                    error <= bound,
                    "{dtype:?} value {i}: {value:e}, not {want:e}"
                );
            }
        }
    }
}

#[test]
fn dot_matches_f64_sum() {
    for dtype in block_formats() {
        let vectors = Vectors::load(dtype);
        for row in vectors.rows() {
            let x = noise(row.values.len(), 1);
            // Backwards, so that the order of the sum is not the tested one.
            let terms = row.values.iter().zip(&x).rev();
            let terms = terms.map(|(&w, &x)| f64::from(w) * f64::from(x));
            let (want, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
            // Rounding to f32, and of `k` additions in f64 on each side.
            let k = x.len() as f64;
            let bound = U * f64::abs(want) + 2.0 * k * f64::EPSILON * size;
            let got = dot_row(dtype, row.bytes, &x);
            assert!(
                (f64::from(got) - want).abs() <= bound,
                "{dtype:?}: {got:e}, not {want:e}"
            );
        }
    }
}

/// Holds `dot_q8` to the exact dot product of the expected values with `x`,
/// where activation `i` is off by at most `steps` of its scale.
fn check_dot_q8(dtype: DType, row: &Row, x: &[f32], steps: f64) {
    let (q, d, s16) = quantized(x);
    let (mut want, mut bound) = (0.0, 0.0);
    for (i, &w) in row.values.iter().enumerate() {
        let (w, dx) = (f64::from(w), f64::from(d[i / 32]));
        want += w * f64::from(x[i]);
        // The activation's error, then the lane's.
        let (_, lane_error) = row.lane(i);
        bound += w.abs() * steps * dx + lane_error * (dx * f64::from(q[i])).abs();
    }
    for (j, &s) in s16.iter().enumerate() {
        // `s16` is a rounded product.
        bound += f64::from(row.m[j * 16 / row.group]).abs() * U * f64::from(s).abs();
    }
    let got = f64::from(dot_q8(dtype, row.bytes, &q, &d, &s16));
    // Rounding of the result to f32; f64 rounding is below the 0.01 in the lane's bound.
    bound += U * got.abs();
    assert!(
        (got - want).abs() <= bound,
        "{dtype:?}: {got:e}, not {want:e} +- {bound:e}"
    );
}

#[test]
fn dot_q8_is_within_half_a_step() {
    for dtype in block_formats() {
        let vectors = Vectors::load(dtype);
        for (seed, row) in vectors.rows().iter().enumerate() {
            // 0.5001 steps: what `quantize_q8` promises.
            check_dot_q8(dtype, row, &noise(row.values.len(), seed as u64), 0.5001);
        }
    }
}

#[test]
fn dot_q8_is_exact_on_whole_numbers() {
    for dtype in block_formats() {
        let vectors = Vectors::load(dtype);
        for row in vectors.rows() {
            let mut x = noise(row.values.len(), 3);
            for x in x.chunks_mut(32) {
                x.iter_mut().for_each(|x| *x = (*x * 127.0).round());
                x[0] = 127.0; // the scale is exactly 1
            }
            check_dot_q8(dtype, &row, &x, 0.0);
        }
    }
}

#[test]
fn wrong_sizes_are_errors() {
    for &dtype in DType::ALL.iter().filter(|&&d| d != DType::I32) {
        let (len, size) = (dtype.block_len(), dtype.block_bytes());
        let (bytes, mut out) = (vec![0; 3 * size], vec![0.0; 3 * len]);
        assert!(dtype.dequantize_row(&bytes, &mut out).is_ok());
        assert!(dtype.dequantize_row(&bytes[1..], &mut out).is_err());
        assert!(dtype.dequantize_row(&bytes[size..], &mut out).is_err());
        assert!(dtype.dequantize_row(&bytes, &mut out[1..]).is_err());
        assert!(dtype.dequantize_row(&bytes, &mut []).is_err());
        assert_eq!(dtype.lane_group().is_some(), dtype.is_quantized());
        let Some(group) = dtype.lane_group() else {
            let lanes = dtype.unpack_row(&bytes, &mut [0; 3], &mut [], &mut []);
            assert!(lanes.is_err());
            continue;
        };
        let (mut q, n) = (vec![0; 3 * len], 3 * len / group);
        let (mut d, mut m) = (vec![0.0; n], vec![0.0; n]);
        assert!(dtype.unpack_row(&bytes, &mut q, &mut d, &mut m).is_ok());
        assert!(
            dtype
                .unpack_row(&bytes, &mut q, &mut d[1..], &mut m)
                .is_err()
        );
        assert!(
            dtype
                .unpack_row(&bytes, &mut q, &mut d, &mut m[1..])
                .is_err()
        );
        assert!(
            dtype
                .unpack_row(&bytes, &mut q[1..], &mut d, &mut m)
                .is_err()
        );
    }
}

proptest! {
    /// Any bytes give some values, without a panic and with every value written.
    #[test]
    fn any_block_is_read(
        bytes in proptest::collection::vec(any::<u8>(), 2 * 210),
        x in -1e30f32..1e30,
    ) {
        for dtype in block_formats() {
            let bytes = &bytes[..2 * dtype.block_bytes()];
            let k = 2 * dtype.block_len();
            let mut out = vec![f32::from_bits(0x7fa0_dead); k];
            dtype.dequantize_row(bytes, &mut out).unwrap();
            prop_assert!(out.iter().all(|v| v.to_bits() != 0x7fa0_dead), "{:?}", dtype);
            let row = Row::unpack(dtype, bytes, &out);
            prop_assert_eq!(row.q.len(), k);
            let x = vec![x; k];
            let (q, d, s16) = quantized(&x);
            prop_assert!(d.iter().chain(&s16).all(|v| v.is_finite()));
            dot_q8(dtype, bytes, &q, &d, &s16);
            dot_row(dtype, bytes, &x);
        }
    }

    /// Lengths that do not match are errors, never panics.
    #[test]
    fn any_length_is_answered(n_bytes in 0usize..1000, k in 0usize..1000, id in 0u32..64) {
        if let Some(dtype) = DType::from_id(id) {
            let fits = dtype.row_bytes(k) == Some(n_bytes) && dtype != DType::I32;
            let done = dtype.dequantize_row(&vec![0xff; n_bytes], &mut vec![0.0; k]);
            prop_assert_eq!(done.is_ok(), fits);
        }
    }

    /// The error of each activation is within the promised 0.5001 steps.
    #[test]
    fn activations_are_within_half_a_step(
        x in proptest::array::uniform32(-3f32..3.0),
        log2 in -120i32..120,
    ) {
        let x = x.map(|x| x * (log2 as f32).exp2());
        let (q, d, s16) = quantized(&x);
        for (x, q) in x.iter().zip(&q) {
            let error = f64::from(*x) - f64::from(d[0]) * f64::from(*q);
            // 4e-37: below it a block may become zeros.
            prop_assert!(error.abs() <= (0.5001 * f64::from(d[0])).max(4e-37), "{x:e} {q}");
        }
        for (s, q) in s16.iter().zip(q.chunks(16)) {
            let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
            prop_assert_eq!(*s, d[0] * sum as f32);
        }
    }
}
