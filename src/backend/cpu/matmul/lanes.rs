//! Vectors with one 32-bit lane for each row of W: what the unpackers and the
//! matmul kernels are written in.
//!
//! Working across rows makes a block's scales, minimums and high bits plain
//! lane arithmetic (no shuffle within a row, no horizontal sum), so a format's
//! unpacker is a dozen lines and serves every instruction set.

use std::ops::Mul;

/// A vector of u32 lanes. Its constructors are unsafe because the instruction
/// set must have been detected; a value is the proof, so the rest is safe.
pub trait Lanes: Copy {
    /// Lanes: rows of W worked on together, 8 or 16.
    const ROWS: usize;
    /// f32 lanes.
    type F: FloatLanes<Int = Self>;

    /// # Safety
    /// The instruction set is available; `p` has `4 * ROWS` readable bytes.
    unsafe fn load(p: *const u8) -> Self;
    /// Four bytes (one lane) at `p` in every lane.
    ///
    /// # Safety
    /// The instruction set is available; `p` has 4 readable bytes.
    unsafe fn broadcast(p: *const u8) -> Self;
    /// Lane `r` of vector `c`: bytes `4c..4c + 4` at `p + r * stride`.
    ///
    /// # Safety
    /// The instruction set is available; 16 readable bytes at each `p + r * stride`.
    unsafe fn columns(p: *const u8, stride: usize) -> [Self; 4];
    /// Lane `r`: the 4 bytes at `p + r * stride`.
    ///
    /// # Safety
    /// The instruction set is available; 4 readable bytes at each `p + r * stride`.
    unsafe fn column(p: *const u8, stride: usize) -> Self;
    /// Asks for the cache line at `p`; any address will do.
    fn prefetch(p: *const u8);
    /// # Safety
    /// `p` has `4 * ROWS` writable bytes.
    unsafe fn store(self, p: *mut u8);

    fn and(self, mask: u32) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, mask: u32) -> Self;
    /// Zero bits come in.
    fn shl(self, bits: u32) -> Self;
    /// Zero bits come in.
    fn shr(self, bits: u32) -> Self;
    /// The sign comes in.
    fn sar(self, bits: u32) -> Self;
    fn sub(self, x: u32) -> Self;
    fn sub_lanes(self, x: Self) -> Self;
    /// Unsigned minimum.
    fn min(self, x: u32) -> Self;
    /// Unsigned maximum.
    fn max(self, x: u32) -> Self;
    /// Unsigned maximum of 16-bit halves.
    fn max16(self, x: Self) -> Self;
    /// The lower halves of `self`, and in the upper halves those of `high`.
    fn pair(self, high: Self) -> Self;
    /// Each byte (0..16) becomes the table's entry.
    fn lookup(self, table: &[u8; 16]) -> Self;
    /// Bit `i` of the lowest four bits becomes bit 4 of byte `i`; others are zero.
    fn spread_bits(self) -> Self;
    /// A vector of zeros.
    fn zero(self) -> Self;

    /// The f16 halves of all lanes, in the order they lie in, as f32.
    fn f16_halves(self) -> [Self::F; 2];
    /// Each lane twice, in the order of [`Lanes::f16_halves`].
    fn twice(self) -> [Self; 2];
    /// The lower halves of all lanes of two vectors: what [`Lanes::f16_halves`] took apart.
    fn halves(parts: [Self; 2]) -> Self;

    /// The lower half of each lane, an f16, as f32.
    fn f16(self) -> Self::F;
    /// Each lane, a signed integer, as f32.
    fn to_f32(self) -> Self::F;
    /// Each lane's bits as f32.
    fn as_f32(self) -> Self::F;

    /// `self` plus, in each lane, the dot product of the four unsigned bytes of
    /// `u` with the four signed bytes of `s`. Exact where no `|s|` exceeds 127
    /// and, unless `WIDE`, no `u` does.
    fn dot<const WIDE: bool>(self, u: Self, s: Self) -> Self;
    /// `self` plus, in each lane, the products of the two signed halves of `a` and `b`.
    fn dot16(self, a: Self, b: Self) -> Self;
}

/// f32 lanes beside [`Lanes`].
pub trait FloatLanes: Copy + Mul<Output = Self> {
    type Int;
    /// # Safety
    /// The instruction set is available; `p` has room for `ROWS` values.
    unsafe fn load(p: *const f32) -> Self;
    /// # Safety
    /// The instruction set is available; `p` is readable (any alignment).
    unsafe fn broadcast(p: *const f32) -> Self;
    /// # Safety
    /// `p` has room for `ROWS` values.
    unsafe fn store(self, p: *mut f32);
    /// `self * b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    fn add(self, b: Self) -> Self;
    /// The bits of each lane.
    fn bits(self) -> Self::Int;
    fn zero(self) -> Self;
}
