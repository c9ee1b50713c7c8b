//! Q6_K: super-blocks of 256 6-bit centred values in 16 groups of 16, each with
//! an 8-bit signed scale: `x = d * scale * (q - 32)`.

use super::DType;
use super::bits::{bit_pairs, nibbles};
use super::block::{Block, MAX_BLOCK_LEN, dequantize_centred, f16_at};

/// A stored 32 means zero.
const OFFSET: i16 = 32;

/// 256 values in 210 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockQ6K {
    /// Byte `64 h + l`: bits 0..4 of value `128 h + l` in its low nibble, of
    /// `128 h + 64 + l` in its high one.
    pub ql: [u8; 128],
    /// Byte `32 h + l` holds bits 4 and 5 of values `128 h + 32 j + l`, `j` = 0..4,
    /// in its bits `2j`, `2j + 1`.
    pub qh: [u8; 64],
    /// Scales of the groups, in order.
    pub scales: [i8; 16],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockQ6K {
    const DTYPE: DType = DType::Q6K;
    const GROUP: usize = 16;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_centred(self, OFFSET, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        let mut high = [0; MAX_BLOCK_LEN];
        bit_pairs(&self.qh, &mut high);
        nibbles::<64>(&self.ql, q);
        for (q, high) in q.iter_mut().zip(high) {
            *q |= high << 4;
        }
        let scale = f16_at(self.d);
        for ((d, m), &group) in d.iter_mut().zip(m).zip(&self.scales) {
            *d = scale * f32::from(group);
            *m = f32::from(OFFSET) * *d;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_by_64_and_pairs_by_32() {
        let mut block = BlockQ6K {
            ql: [0; 128],
            qh: [0; 64],
            scales: [1; 16],
            d: [0x00, 0x3c], // 1.0
        };
        block.scales[0] = -2;
        block.ql[127] = 0xf1; // value 255: 15, value 191: 1
        block.qh[63] = 0b11_00_10_00; // value 255: 48, value 191: 32
        let mut out = [9.0; 256];
        block.dequantize(&mut out);
        assert_eq!(
            (out[0], out[16], out[191], out[255]),
            (64.0, -32.0, 1.0, 31.0)
        );
    }
}
