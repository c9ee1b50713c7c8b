//! Whole rows of any type: dequantize, unpack, and the reference dot product.

use super::block::MAX_BLOCK_LEN;
use super::{Block, DType, cast_blocks, float, with_block};
use crate::{Error, Result};

impl DType {
    /// Dequantizes one row of `out.len()` values.
    ///
    /// Block formats give the same bits as `gguf.quants`, as do F32, F16 and BF16.
    ///
    /// # Errors
    /// `out.len()` is not a whole number of blocks, `bytes` is not exactly that
    /// many, or the type is I32, which holds no weights.
    pub fn dequantize_row(self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        self.check_row("dequantize", bytes.len(), out.len())?;
        with_block!(self, B => {
            for (block, out) in cast_blocks::<B>(bytes).iter().zip(out.chunks_exact_mut(B::LEN)) {
                block.dequantize(out);
            }
        },
        DType::F32 => float::read_f32(bytes, out),
        DType::F16 => float::read_f16(bytes, out),
        DType::BF16 => float::read_bf16(bytes, out),
        DType::I32 => return Err(not_possible("dequantize", self)));
        Ok(())
    }

    /// Unpacks one row of `q.len()` values to 8-bit lanes as [`Block::unpack`]
    /// does; `d` and `m` hold `q.len() / lane_group` factors.
    ///
    /// # Errors
    /// Sizes do not match, or the type has no lanes ([`DType::lane_group`]).
    pub fn unpack_row(
        self,
        bytes: &[u8],
        q: &mut [u8],
        d: &mut [f32],
        m: &mut [f32],
    ) -> Result<()> {
        self.check_row("unpack", bytes.len(), q.len())?;
        let Some(group) = self.lane_group() else {
            return Err(not_possible("unpack", self));
        };
        if d.len() != q.len() / group || m.len() != d.len() {
            return Err(Error::Shape {
                op: "unpack",
                detail: format!(
                    "{} values need {} factors, got {} and {}",
                    q.len(),
                    q.len() / group,
                    d.len(),
                    m.len()
                ),
            });
        }
        with_block!(self, B => {
            let groups = B::LEN / B::GROUP;
            let factors = d.chunks_exact_mut(groups).zip(m.chunks_exact_mut(groups));
            let lanes = q.chunks_exact_mut(B::LEN).zip(factors);
            for (block, (q, (d, m))) in cast_blocks::<B>(bytes).iter().zip(lanes) {
                block.unpack(q, d, m);
            }
            Ok(())
        },
        DType::F32 | DType::F16 | DType::BF16 | DType::I32 => Err(not_possible("unpack", self)))
    }

    /// Values that share one scale in the type's 8-bit lanes, 16 or 32; `None`
    /// for F32, F16, BF16 and I32, which have no lanes.
    pub fn lane_group(self) -> Option<usize> {
        with_block!(self, B => Some(B::GROUP),
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 => None)
    }

    /// Checks that `n_bytes` hold exactly `k` values.
    fn check_row(self, op: &'static str, n_bytes: usize, k: usize) -> Result<()> {
        match self.row_bytes(k) {
            Some(expected) if expected == n_bytes => Ok(()),
            Some(expected) => Err(Error::Shape {
                op,
                detail: format!(
                    "{k} values of {} take {expected} bytes, got {n_bytes}",
                    self.name()
                ),
            }),
            None => Err(Error::Shape {
                op,
                detail: format!(
                    "a row of {k} values is not a whole number of {} blocks of {}",
                    self.name(),
                    self.block_len()
                ),
            }),
        }
    }
}

/// The error for a type that an operation does not serve.
fn not_possible(op: &'static str, dtype: DType) -> Error {
    Error::Shape {
        op,
        detail: format!("not possible for {} tensors", dtype.name()),
    }
}

/// Dot product of one row with `x`: the plain reference. Dequantized values,
/// products and sum in f64 in order, rounded once at the end.
///
/// # Panics
/// `bytes` is not a row of `x.len()` values of a type that can be dequantized:
/// callers check shapes when they place the weight.
pub fn dot_row(dtype: DType, bytes: &[u8], x: &[f32]) -> f32 {
    let checked = dtype.check_row("dot_row", bytes.len(), x.len());
    assert!(checked.is_ok(), "{checked:?}");
    // Every block length divides MAX_BLOCK_LEN, so chunks are whole blocks.
    let chunk_bytes = MAX_BLOCK_LEN / dtype.block_len() * dtype.block_bytes();
    let mut values = [0.0; MAX_BLOCK_LEN];
    let mut sum = 0.0;
    for (bytes, x) in bytes.chunks(chunk_bytes).zip(x.chunks(MAX_BLOCK_LEN)) {
        let values = &mut values[..x.len()];
        let done = dtype.dequantize_row(bytes, values);
        assert!(done.is_ok(), "{done:?}");
        for (w, x) in values.iter().zip(x) {
            sum += f64::from(*w) * f64::from(*x);
        }
    }
    sum as f32
}
