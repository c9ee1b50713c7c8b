//! Q8_0: 8-bit signed values, one scale: `x = d * q`.

use super::DType;
use super::block::{Block, dequantize_centred, f16_at};

/// Lanes are the signed values with the top bit flipped.
const OFFSET: i16 = 128;

/// 32 values in 34 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Values in order.
    pub qs: [i8; 32],
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ8_0 {
    const DTYPE: DType = DType::Q8_0;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_centred(self, OFFSET, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        for (q, &value) in q.iter_mut().zip(&self.qs) {
            *q = value.cast_unsigned() ^ 0x80;
        }
        d[0] = f16_at(self.d);
        m[0] = f32::from(OFFSET) * d[0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_signed() {
        let mut qs = [0; 32];
        (qs[0], qs[31]) = (-128, 127);
        let block = BlockQ8_0 {
            d: [0x00, 0xb8], // -0.5
            qs,
        };
        let mut out = [9.0; 32];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[1], out[31]), (64.0, 0.0, -63.5));
    }
}
