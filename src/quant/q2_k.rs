//! Q2_K: super-blocks of 256 2-bit values in 16 groups of 16, each with a 4-bit
//! scale and a 4-bit minimum: `x = d * scale * q - dmin * min`.

use super::DType;
use super::bits::bit_pairs;
use super::block::{Block, dequantize_affine, f16_at};

/// 256 values in 84 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ2K {
    /// Byte `g`: group `g`'s scale in its low nibble, its minimum in its high one.
    pub scales: [u8; 16],
    /// Byte `32 h + l` holds values `128 h + 32 j + l`, `j` = 0..4, in bits `2j`, `2j + 1`.
    pub qs: [u8; 64],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minimums, f16.
    pub dmin: [u8; 2],
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ2K {
    const DTYPE: DType = DType::Q2K;
    const GROUP: usize = 16;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_affine(self, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        bit_pairs(&self.qs, q);
        let (scale, min_scale) = (f16_at(self.d), f16_at(self.dmin));
        for ((d, m), &packed) in d.iter_mut().zip(m).zip(&self.scales) {
            *d = scale * f32::from(packed & 15);
            *m = min_scale * f32::from(packed >> 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_runs() {
        let mut block = BlockQ2K {
            scales: [0x01; 16],
            qs: [0; 64],
            d: [0x00, 0x3c],    // 1.0
            dmin: [0x00, 0x3c], // 1.0
        };
        block.scales[15] = 0x25;
        block.qs[63] = 0b11_10_01_00;
        let mut out = [9.0; 256];
        block.dequantize(&mut out);
        assert_eq!([out[159], out[191], out[223]], [0.0, 1.0, 2.0]);
        assert_eq!((out[254], out[255]), (-2.0, 13.0));
    }
}
