//! Q5_1: 5-bit values, one scale and minimum: `x = d * q + m`.

use super::DType;
use super::bits::{add_fifth_bits, nibbles};
use super::block::{Block, dequantize_affine, f16_at};

/// 32 values in 24 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Minimum, f16, added to every value.
    pub m: [u8; 2],
    /// Fifth bits, a little-endian u32: bit `i` is bit 4 of value `i`.
    pub qh: [u8; 4],
    /// Byte `l`: value `l` in its low nibble, value `l + 16` in its high nibble.
    pub qs: [u8; 16],
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ5_1 {
    const DTYPE: DType = DType::Q5_1;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_affine(self, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        nibbles::<16>(&self.qs, q);
        add_fifth_bits(self.qh, q);
        d[0] = f16_at(self.d);
        m[0] = -f16_at(self.m);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifth_bit_and_minimum() {
        let block = BlockQ5_1 {
            d: [0x00, 0x3c], // 1.0
            m: [0x00, 0x40], // 2.0
            qh: [1, 0, 1, 0],
            qs: [0x21; 16],
        };
        let mut out = [9.0; 32];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[1], out[16], out[17]), (19.0, 3.0, 20.0, 4.0));
    }
}
