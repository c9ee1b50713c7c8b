//! Q4_1: 4-bit values, one scale and minimum: `x = d * q + m`.

use super::DType;
use super::bits::nibbles;
use super::block::{Block, dequantize_affine, f16_at};

/// 32 values in 20 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Minimum, f16, added to every value.
    pub m: [u8; 2],
    /// Byte `l`: value `l` in its low nibble, value `l + 16` in its high nibble.
    pub qs: [u8; 16],
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ4_1 {
    const DTYPE: DType = DType::Q4_1;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_affine(self, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        nibbles::<16>(&self.qs, q);
        d[0] = f16_at(self.d);
        m[0] = -f16_at(self.m);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_is_added() {
        let mut qs = [0; 16];
        qs[2] = 0x3f;
        let block = BlockQ4_1 {
            d: [0x00, 0x40], // 2.0
            m: [0x00, 0xbc], // -1.0
            qs,
        };
        let mut out = [9.0; 32];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[2], out[18]), (-1.0, 29.0, 5.0));
    }
}
