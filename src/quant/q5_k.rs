//! Q5_K: super-blocks of 256 5-bit values in 8 groups of 32, each with a 6-bit
//! scale and a 6-bit minimum: `x = d * scale * q - dmin * min`.

use super::DType;
use super::bits::{add_bit_planes, nibbles, scales_and_mins};
use super::block::{Block, dequantize_affine, f16_at};

/// 256 values in 176 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minimums, f16.
    pub dmin: [u8; 2],
    /// Eight 6-bit scales and eight 6-bit minimums, packed as in Q4_K.
    pub scales: [u8; 12],
    /// Bit `j` of byte `l` is bit 4 of value `32 j + l`.
    pub qh: [u8; 32],
    /// Byte `32 j + l`: bits 0..4 of value `64 j + l` in its low nibble, of
    /// `64 j + 32 + l` in its high one.
    pub qs: [u8; 128],
}

impl BlockQ5K {
    /// Scales and minimums of the eight groups, 0..=63.
    pub fn scales_and_mins(&self) -> ([u8; 8], [u8; 8]) {
        scales_and_mins(&self.scales)
    }
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ5K {
    const DTYPE: DType = DType::Q5K;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_affine(self, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        nibbles::<32>(&self.qs, q);
        add_bit_planes(&self.qh, 4, q);
        let (scale, min_scale) = (f16_at(self.d), f16_at(self.dmin));
        let (scales, mins) = self.scales_and_mins();
        for (d, group) in d.iter_mut().zip(scales) {
            *d = scale * f32::from(group);
        }
        for (m, group) in m.iter_mut().zip(mins) {
            *m = min_scale * f32::from(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_bits_by_run() {
        let mut block = BlockQ5K {
            d: [0x00, 0x3c],    // 1.0
            dmin: [0x00, 0x3c], // 1.0
            scales: [0; 12],
            qh: [0; 32],
            qs: [0; 128],
        };
        block.scales[11] = 0x21; // group 7: scale 1, min 2
        block.qh[31] = 0x80; // value 255
        block.qs[127] = 0x30; // value 255
        let mut out = [9.0; 256];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[254], out[255]), (0.0, -2.0, 17.0));
    }
}
