//! Q5_0: 5-bit centred values, one scale: `x = d * (q - 16)`.

use super::DType;
use super::bits::{add_fifth_bits, nibbles};
use super::block::{Block, dequantize_centred, f16_at};

/// A stored 16 means zero.
const OFFSET: i16 = 16;

/// 32 values in 22 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Fifth bits, a little-endian u32: bit `i` is bit 4 of value `i`.
    pub qh: [u8; 4],
    /// Byte `l`: value `l` in its low nibble, value `l + 16` in its high nibble.
    pub qs: [u8; 16],
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ5_0 {
    const DTYPE: DType = DType::Q5_0;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_centred(self, OFFSET, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        nibbles::<16>(&self.qs, q);
        add_fifth_bits(self.qh, q);
        d[0] = f16_at(self.d);
        m[0] = f32::from(OFFSET) * d[0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifth_bit_follows_value_order() {
        let block = BlockQ5_0 {
            d: [0x00, 0x3c], // 1.0
            qh: [0b10, 0, 0, 0x80],
            qs: [0xf0; 16],
        };
        let mut out = [9.0; 32];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[1], out[30], out[31]), (-16.0, 0.0, -1.0, 15.0));
    }
}
