//! Q3_K: super-blocks of 256 3-bit centred values in 16 groups of 16, each with
//! a 6-bit centred scale: `x = d * (scale - 32) * (q - 4)`.

use super::DType;
use super::bits::{add_bit_planes, bit_pairs};
use super::block::{Block, dequantize_centred, f16_at};

/// A stored 4 means zero.
const OFFSET: i16 = 4;

/// 256 values in 110 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ3K {
    /// Bit `j` of byte `l` is bit 2 of value `32 j + l`.
    pub hmask: [u8; 32],
    /// Byte `32 h + l` holds bits 0 and 1 of values `128 h + 32 j + l`, `j` = 0..4,
    /// in its bits `2j`, `2j + 1`.
    pub qs: [u8; 64],
    /// Sixteen 6-bit scales: see [`BlockQ3K::scales`].
    pub scales: [u8; 12],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
}

impl BlockQ3K {
    /// The scales less their offset, -32..=31. Low four bits of scale `g`: bytes
    /// 0..8, low nibbles for `g` = 0..8, high nibbles for 8..16. Upper two bits:
    /// byte `8 + g % 4`, at bit `2 * (g / 4)`.
    pub fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|g| {
            let low = (self.scales[g % 8] >> (4 * (g / 8))) & 15;
            let high = (self.scales[8 + g % 4] >> (2 * (g / 4))) & 3;
            (low | (high << 4)).cast_signed() - 32
        })
    }
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ3K {
    const DTYPE: DType = DType::Q3K;
    const GROUP: usize = 16;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_centred(self, OFFSET, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        bit_pairs(&self.qs, q);
        add_bit_planes(&self.hmask, 2, q);
        let scale = f16_at(self.d);
        for ((d, m), group) in d.iter_mut().zip(m).zip(self.scales()) {
            *d = scale * f32::from(group);
            *m = f32::from(OFFSET) * *d;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_bit_and_scales() {
        let mut block = BlockQ3K {
            hmask: [0; 32],
            qs: [0; 64],
            scales: [0; 12],
            d: [0x00, 0x3c], // 1.0
        };
        block.scales[7] = 0x10; // group 15: low bits 1
        block.scales[11] = 0x80; // group 15: high bits 2, so 33 - 32 = 1
        block.hmask[31] = 0x80; // value 255
        block.qs[63] = 0xc0; // value 255
        let mut out = [9.0; 256];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[254], out[255]), (128.0, -4.0, 3.0));
    }
}
