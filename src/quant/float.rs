//! F32, F16 and BF16 rows, which have no blocks.

use super::f16_at;

/// Little-endian f32 values.
pub(super) fn read_f32(bytes: &[u8], out: &mut [f32]) {
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *out = f32::from_le_bytes(bytes);
    }
}

/// Little-endian f16 values.
pub(super) fn read_f16(bytes: &[u8], out: &mut [f32]) {
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *out = f16_at(bytes);
    }
}

/// Little-endian bf16 values: the upper half of an f32, NaN payloads kept.
pub(super) fn read_bf16(bytes: &[u8], out: &mut [f32]) {
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
    }
}
