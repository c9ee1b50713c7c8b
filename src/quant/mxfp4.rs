//! MXFP4: OCP microscaling 4-bit floats (e2m1) under one power-of-two scale:
//! `x = d * MXFP4_VALUES[q]`, `d` half the scale since the table is doubled.

use super::DType;
use super::bits::nibbles;
use super::block::{Block, dequantize_centred};

/// Lanes are table values plus this, the largest magnitude in the table.
const OFFSET: i16 = 12;

/// What a 4-bit index stands for: twice the e2m1 value. Index 8 is e2m1's minus
/// zero, which dequantizes to plus zero.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The lane of a 4-bit index.
const LANES: [u8; 16] = {
    let mut lanes = [0; 16];
    let mut i = 0;
    while i < 16 {
        lanes[i] = (MXFP4_VALUES[i] as i16 + OFFSET) as u8;
        i += 1;
    }
    lanes
};

/// `2^(e - 128)`: half the scale of exponent `e`. Exponents 0 and 1 give f32
/// subnormals; 255, which OCP calls NaN, counts as a number as in `gguf.quants`.
pub fn half_scale(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits((u32::from(e) - 1) << 23),
    }
}

/// 32 values in 17 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockMxfp4 {
    /// Exponent of the scale, e8m0: the scale is `2^(e - 127)`.
    pub e: [u8; 1],
    /// Byte `l`: value `l` in its low nibble, value `l + 16` in its high nibble.
    pub qs: [u8; 16],
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockMxfp4 {
    const DTYPE: DType = DType::Mxfp4;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_centred(self, OFFSET, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        nibbles::<16>(&self.qs, q);
        for q in q.iter_mut() {
            *q = LANES[usize::from(*q & 15)];
        }
        d[0] = half_scale(self.e[0]);
        m[0] = f32::from(OFFSET) * d[0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2m1_under_a_power_of_two() {
        let mut qs = [0x98; 16];
        qs[0] = 0xf7;
        let block = BlockMxfp4 { e: [128], qs };
        let mut out = [9.0; 32];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[16], out[1], out[17]), (12.0, -12.0, 0.0, -1.0));
    }

    #[test]
    fn half_scale_is_exact_at_both_ends() {
        for (e, log2) in [(0, -128), (1, -127), (2, -126), (127, -1), (255, 127)] {
            assert_eq!(f64::from(half_scale(e)), 2f64.powi(log2), "e = {e}");
        }
    }
}
