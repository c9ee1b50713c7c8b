//! The operands as the loops see them.

use super::ActKind;
use crate::quant::DType;

/// Activations as the kernels see them: the records of `acts.rs` or `acts16.rs`, or f32.
pub struct Acts {
    /// Row 0.
    pub x: *const u8,
    /// From row to row.
    pub stride_bytes: usize,
}

impl Acts {
    /// Address of row `row`, from its record or value at byte `at`.
    ///
    /// # Safety
    /// That lies in the activations.
    #[inline(always)]
    pub unsafe fn row(&self, row: u32, at: usize) -> *const u8 {
        // SAFETY: the caller's contract.
        unsafe { self.x.add(row as usize * self.stride_bytes + at) }
    }
}

/// Weights `[k, m]`, row after row, and the chunking they are worked in.
pub struct Weights<'a> {
    pub dtype: DType,
    pub bytes: &'a [u8],
    pub k: usize,
    pub row_bytes: usize,
    pub acts: ActKind,
}
