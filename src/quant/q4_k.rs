//! Q4_K: super-blocks of 256 4-bit values in 8 groups of 32, each with a 6-bit
//! scale and a 6-bit minimum: `x = d * scale * q - dmin * min`.

use super::DType;
use super::bits::{nibbles, scales_and_mins};
use super::block::{Block, dequantize_affine, f16_at};

/// 256 values in 144 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ4K {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minimums, f16.
    pub dmin: [u8; 2],
    /// Eight 6-bit scales and eight 6-bit minimums: see [`BlockQ4K::scales_and_mins`].
    pub scales: [u8; 12],
    /// Byte `32 j + l`: value `64 j + l` in its low nibble, `64 j + 32 + l` in its high one.
    pub qs: [u8; 128],
}

impl BlockQ4K {
    /// Scales and minimums of the eight groups, 0..=63. Bytes 0..4 and 4..8 hold
    /// scales and minimums 0..4 in their low six bits and, above them, the upper
    /// two bits of scales and minimums 4..8, whose low nibbles are the low and
    /// high nibbles of bytes 8..12.
    pub fn scales_and_mins(&self) -> ([u8; 8], [u8; 8]) {
        scales_and_mins(&self.scales)
    }
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ4K {
    const DTYPE: DType = DType::Q4K;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_affine(self, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        nibbles::<32>(&self.qs, q);
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
    fn packed_scales() {
        let mut block = BlockQ4K {
            d: [0x00, 0x3c],    // 1.0
            dmin: [0x00, 0x40], // 2.0
            scales: [0; 12],
            qs: [0; 128],
        };
        block.scales[0] = 0x80 | 5; // group 0: 5; group 4: high bits 2
        block.scales[4] = 0x40 | 7; // min 0: 7; min 4: high bits 1
        block.scales[8] = 0x93; // group 4: low bits 3; min 4: low bits 9
        block.qs[0] = 0x0f; // value 0
        block.qs[64] = 0x02; // value 128
        let mut out = [9.0; 256];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[1]), (5.0 * 15.0 - 14.0, -14.0));
        assert_eq!((out[128], out[129]), (35.0 * 2.0 - 50.0, -50.0));
        assert_eq!((out[32], out[255]), (0.0, 0.0));
    }
}
