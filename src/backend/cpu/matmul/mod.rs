//! Matrix multiplication: `y[m, n] = W[k, m] * x[k, n]`, W in any type of the file.
//!
//! W is read as it lies in the file. A tile of 16 rows is unpacked into 8-bit
//! lanes (or f32 values) once for all tokens, then multiplied; one token goes
//! the same way, or along the rows.
//!
//! - [`acts`]: activations in 8 bits; `quantize`: its vector forms; [`acts16`]: in 16;
//! - `driver`: tiles, chunks, tokens; `gemm`, `q16`, `float`: the inner loops;
//! - `along`: one token along the rows, where it pays; `streams`: in tiles of rows far apart;
//! - `unpack`: one short unpacker a format, on the vectors of `lanes`;
//! - `avx512`, `avx2`: those vectors; `scalar`: the plain path.
//!
//! A result depends neither on how rows are split over threads nor on the
//! other tokens of the batch.

mod acts;
mod acts16;
#[cfg(target_arch = "x86_64")]
mod along;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod driver;
#[cfg(target_arch = "x86_64")]
mod entry;
#[cfg(target_arch = "x86_64")]
mod float;
#[cfg(target_arch = "x86_64")]
mod gemm;
#[cfg(target_arch = "x86_64")]
mod lanes;
pub mod op;
mod operands;
#[cfg(target_arch = "x86_64")]
mod q16;
#[cfg(target_arch = "x86_64")]
mod quantize;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod streams;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod unpack;

pub use acts::{ACT_GROUP, q8_bytes, quantize_row};
pub use acts16::{q16_bytes, quantize_row16};

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use driver::Ops;

use super::simd::Simd;
use crate::quant::DType;

/// Rows that are worked on together: threads had best get multiples of it.
pub const ROW_TILE: usize = 16;

/// Tiles of 16 rows of a thread's share, whose last may have fewer. Their rows lie
/// together, or, where a kernel reads a share at several places at once, as far apart as
/// those places; both are the same rows once all tiles of the share are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Rows of W.
    pub share: Range<usize>,
    pub tiles: Range<usize>,
}

impl Piece {
    /// All of a share at once.
    pub fn whole(share: Range<usize>) -> std::iter::Once<Piece> {
        let tiles = 0..share.len().div_ceil(ROW_TILE);
        std::iter::once(Piece { share, tiles })
    }

    /// Rows of the tiles from `from` on, where those lie together.
    fn rows(&self, from: usize) -> Range<usize> {
        let at = |tile: usize| (self.share.start + tile * ROW_TILE).min(self.share.end);
        at(self.tiles.start.max(from))..at(self.tiles.end.max(from))
    }

    /// Tiles below `apart`.
    fn spread(&self, apart: usize) -> Range<usize> {
        self.tiles.start.min(apart)..self.tiles.end.min(apart)
    }
}

/// What a matmul reads beside its weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActKind {
    /// The quantized form that [`quantize_row`] writes.
    Q8,
    /// The quantized form that [`quantize_row16`] writes.
    Q16,
    /// f32 values.
    F32,
}

/// The activations a weight of this type is multiplied with: 8 bits for block
/// formats, 16 for F16 and BF16; f32 for F32 weights, in `exact` mode, and where a
/// row is not whole groups.
pub fn act_kind(dtype: DType, k: usize, exact: bool) -> ActKind {
    match dtype {
        _ if exact || !k.is_multiple_of(ACT_GROUP) => ActKind::F32,
        DType::F32 | DType::I32 => ActKind::F32,
        DType::F16 | DType::BF16 => ActKind::Q16,
        _ => ActKind::Q8,
    }
}

/// Rows of activations of `k` values.
#[derive(Clone, Copy)]
pub enum Acts<'a> {
    /// A buffer written by [`quantize_row`], laid out for `n` rows.
    Q8 { buf: &'a [u8], n: usize },
    /// A buffer written by [`quantize_row16`], laid out for `n` rows.
    Q16 { buf: &'a [u8], n: usize },
    /// f32 rows, `stride` values apart.
    F32 { x: &'a [f32], stride: usize },
}

impl Acts<'_> {
    /// Rows that lie in the buffer.
    fn rows(&self, k: usize) -> usize {
        match *self {
            Acts::Q8 { buf, n } if buf.len() >= q8_bytes(k, n) => n,
            Acts::Q16 { buf, n } if buf.len() >= q16_bytes(k, n) => n,
            Acts::Q8 { .. } | Acts::Q16 { .. } => 0,
            Acts::F32 { x, .. } if x.len() < k => 0,
            Acts::F32 { x, stride } => (x.len() - k) / stride.max(1) + 1,
        }
    }

    fn kind(&self) -> ActKind {
        match self {
            Acts::Q8 { .. } => ActKind::Q8,
            Acts::Q16 { .. } => ActKind::Q16,
            Acts::F32 { .. } => ActKind::F32,
        }
    }

    /// Addresses for the kernels.
    fn view(&self, k: usize) -> operands::Acts {
        match *self {
            Acts::Q8 { buf, .. } => operands::Acts {
                x: buf.as_ptr(),
                stride_bytes: acts::row_bytes(k),
            },
            Acts::Q16 { buf, .. } => operands::Acts {
                x: buf.as_ptr(),
                stride_bytes: acts16::row_bytes(k),
            },
            Acts::F32 { x, stride } => operands::Acts {
                x: x.as_ptr().cast(),
                stride_bytes: stride * size_of::<f32>(),
            },
        }
    }
}

/// One multiplication: weights `w [k, m]` (rows contiguous, as in the file) and
/// activations. Several threads may run disjoint rows of it at once.
#[derive(Clone, Copy)]
pub struct MatMul<'a> {
    pub simd: Simd,
    /// Any type but I32.
    pub dtype: DType,
    pub w: &'a [u8],
    /// Values a row.
    pub k: usize,
    /// Rows.
    pub m: usize,
    /// Of the kind that [`act_kind`] names, or f32 for any type.
    pub acts: Acts<'a>,
}

/// Scratch bytes a thread needs for up to `n` tokens, whatever the path and
/// kind of activations.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
pub fn scratch_bytes(dtype: DType, k: usize, n: usize) -> usize {
    let plain = scalar::scratch_bytes(n);
    #[cfg(target_arch = "x86_64")]
    return plain.max(driver::scratch_bytes(dtype, k, n));
    #[cfg(not(target_arch = "x86_64"))]
    plain
}

impl MatMul<'_> {
    /// Computes `y[ty[j] * y_stride + r] = W[r] . x[tx[j]]` for each row `r` of all
    /// `pieces`, asked for when those before are done, and each `j`. `y_stride` is in
    /// values. `scratch` has [`scratch_bytes`].
    ///
    /// `pieces` are asked no more once there are none; a share that is not whole tiles ends
    /// W.
    ///
    /// # Safety
    /// `y` is writable at all those places, and no other thread touches them
    /// meanwhile; `simd` is available on this machine.
    ///
    /// # Panics
    /// When `w`, `scratch` or a row of `tx` is out of range, `tx` and `ty`
    /// differ in length, or the type is I32: faults of the caller.
    pub unsafe fn run(
        &self,
        pieces: &mut dyn Iterator<Item = Piece>,
        tx: &[u32],
        ty: &[u32],
        y: *mut f32,
        y_stride: usize,
        scratch: &mut [u8],
    ) {
        let Some(row_bytes) = self.dtype.row_bytes(self.k) else {
            panic!("a row of {} values of {}", self.k, self.dtype.name());
        };
        let n_rows = self.acts.rows(self.k);
        assert!(tx.len() == ty.len() && tx.iter().all(|&row| (row as usize) < n_rows));
        assert!(self.m * row_bytes <= self.w.len());
        let pieces = &mut pieces
            .fuse()
            .inspect(|piece| assert!(piece.share.end <= self.m));
        let acts = self.acts.view(self.k);
        let kind = self.acts.kind();
        let fits = kind == ActKind::F32 || kind == act_kind(self.dtype, self.k, false);
        assert!(fits, "{kind:?} is not what {} takes", self.dtype.name());
        let weights = operands::Weights {
            dtype: self.dtype,
            bytes: self.w,
            k: self.k,
            row_bytes,
            acts: kind,
        };
        #[cfg(target_arch = "x86_64")]
        if let Some(ops) = self.ops(kind) {
            // SAFETY: the ranges are checked above, the rest is the caller's contract.
            unsafe {
                driver::run(
                    &ops,
                    &weights,
                    &acts,
                    pieces,
                    (tx, ty),
                    (y, y_stride),
                    scratch,
                );
            }
            return;
        }
        // SAFETY: as above.
        unsafe {
            for piece in pieces {
                scalar::run(
                    &weights,
                    &acts,
                    piece.rows(0),
                    (tx, ty),
                    (y, y_stride),
                    scratch,
                );
            }
        }
    }

    /// The vector path's functions; `None` on the plain path.
    #[cfg(target_arch = "x86_64")]
    fn ops(&self, kind: ActKind) -> Option<Ops> {
        match self.simd {
            Simd::Scalar => None,
            Simd::Avx2 => avx2::ops(self.dtype, kind),
            Simd::Avx512 => avx512::ops(self.dtype, kind).map(|ops| Ops {
                along: along::ops(self.dtype, kind, self.k),
                ..ops
            }),
        }
    }
}
