//! Q4_0: 4-bit centred values, one scale: `x = d * (q - 8)`.

use super::DType;
use super::bits::nibbles;
use super::block::{Block, dequantize_centred, f16_at};

/// A stored 8 means zero.
const OFFSET: i16 = 8;

/// 32 values in 18 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Byte `l`: value `l` in its low nibble, value `l + 16` in its high nibble.
    pub qs: [u8; 16],
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ4_0 {
    const DTYPE: DType = DType::Q4_0;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_centred(self, OFFSET, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        nibbles::<16>(&self.qs, q);
        d[0] = f16_at(self.d);
        m[0] = f32::from(OFFSET) * d[0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_nibbles_come_first() {
        let mut qs = [0x88; 16];
        qs[1] = 0xf0;
        let block = BlockQ4_0 {
            d: [0x00, 0x3c], // 1.0
            qs,
        };
        let mut out = [9.0; 32];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[1], out[17]), (0.0, -8.0, 7.0));
    }
}
