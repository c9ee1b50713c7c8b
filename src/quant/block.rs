//! What a block format must offer, and the cast from file bytes to blocks.

use super::DType;

/// One block of a quantized row, laid out as in the file.
///
/// Implementors are `#[repr(C)]` structs of byte arrays only, so that their
/// alignment is 1, they have no padding, and every byte pattern is valid.
///
/// # Safety
/// The three properties above are what [`cast_blocks`] relies on.
pub unsafe trait Block: Copy + Send + Sync + 'static {
    /// The row of the type table.
    const DTYPE: DType;
    /// Values a block.
    const LEN: usize = Self::DTYPE.block_len();
    /// Values that share one scale after [`Block::unpack`]: 16 or 32.
    const GROUP: usize;

    /// Writes the block's `LEN` values, bit for bit as `gguf.quants` gives them.
    fn dequantize(&self, out: &mut [f32]);

    /// Unpacks to unsigned 8-bit lanes: value `i` is `d[g] * q[i] - m[g]` with
    /// `g = i / GROUP`. `q` holds `LEN` lanes, `d` and `m` `LEN / GROUP` factors.
    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]);
}

/// Largest [`Block::LEN`]; every block length divides it.
pub const MAX_BLOCK_LEN: usize = 256;

/// Most groups in a block: [`MAX_BLOCK_LEN`] over the smallest group.
pub const MAX_BLOCK_GROUPS: usize = MAX_BLOCK_LEN / 16;

/// Views file bytes as whole blocks; trailing bytes are left out.
pub fn cast_blocks<B: Block>(bytes: &[u8]) -> &[B] {
    const { assert!(align_of::<B>() == 1 && size_of::<B>() == B::DTYPE.block_bytes()) };
    // SAFETY: alignment 1, no padding, every byte pattern valid (trait contract);
    // the length is rounded down to whole blocks.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<B>(), bytes.len() / size_of::<B>()) }
}

/// A little-endian f16 as f32.
pub fn f16_at(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}

/// `d * q - m` a group, for the formats whose file stores a minimum.
pub(super) fn dequantize_affine<B: Block>(block: &B, out: &mut [f32]) {
    let (mut q, mut d, mut m) = lanes();
    let groups = B::LEN / B::GROUP;
    block.unpack(&mut q[..B::LEN], &mut d[..groups], &mut m[..groups]);
    let factors = d.iter().zip(&m);
    for ((out, q), (d, m)) in (out.chunks_exact_mut(B::GROUP))
        .zip(q.chunks_exact(B::GROUP))
        .zip(factors)
    {
        for (out, &q) in out.iter_mut().zip(q) {
            *out = d * f32::from(q) - m;
        }
    }
}

/// `d * (q - offset)` a group, for the formats whose values are centred. Not the
/// same as `d * q - m`: rounding and the sign of zero differ.
pub(super) fn dequantize_centred<B: Block>(block: &B, offset: i16, out: &mut [f32]) {
    let (mut q, mut d, mut m) = lanes();
    let groups = B::LEN / B::GROUP;
    block.unpack(&mut q[..B::LEN], &mut d[..groups], &mut m[..groups]);
    for ((out, q), d) in (out.chunks_exact_mut(B::GROUP))
        .zip(q.chunks_exact(B::GROUP))
        .zip(&d)
    {
        for (out, &q) in out.iter_mut().zip(q) {
            *out = d * f32::from(i16::from(q) - offset);
        }
    }
}

/// Room for what [`Block::unpack`] writes, whatever the block: `q`, `d`, `m`.
pub(super) type Lanes = (
    [u8; MAX_BLOCK_LEN],
    [f32; MAX_BLOCK_GROUPS],
    [f32; MAX_BLOCK_GROUPS],
);

/// Zeroed [`Lanes`].
pub(super) fn lanes() -> Lanes {
    (
        [0; MAX_BLOCK_LEN],
        [0.0; MAX_BLOCK_GROUPS],
        [0.0; MAX_BLOCK_GROUPS],
    )
}
