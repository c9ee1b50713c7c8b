//! IQ4_XS: super-blocks of 256 4-bit indices into the IQ4_NL table in 8 groups
//! of 32, each with a 6-bit centred scale: `x = d * (scale - 32) * IQ4_VALUES[q]`.

use super::DType;
use super::bits::nibbles;
use super::block::{Block, dequantize_centred, f16_at};
use super::iq4_nl::{IQ4_OFFSET, iq4_lane};

/// 256 values in 136 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Upper two bits of the scales, a little-endian u16: scale `g` at bit `2g`.
    pub scales_h: [u8; 2],
    /// Low four bits of the scales: byte `g / 2`, low nibble for even `g`.
    pub scales_l: [u8; 4],
    /// Byte `16 g + l`: value `32 g + l` in its low nibble, `32 g + 16 + l` in its high one.
    pub qs: [u8; 128],
}

impl BlockIq4Xs {
    /// The eight scales less their offset, -32..=31.
    pub fn scales(&self) -> [i8; 8] {
        let upper = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|g| {
            let low = (self.scales_l[g / 2] >> (4 * (g % 2))) & 15;
            let high = ((upper >> (2 * g)) & 3) as u8;
            (low | (high << 4)).cast_signed() - 32
        })
    }
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockIq4Xs {
    const DTYPE: DType = DType::Iq4Xs;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_centred(self, IQ4_OFFSET, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        nibbles::<16>(&self.qs, q);
        for q in q.iter_mut() {
            *q = iq4_lane(*q);
        }
        let scale = f16_at(self.d);
        for ((d, m), group) in d.iter_mut().zip(m).zip(self.scales()) {
            *d = scale * f32::from(group);
            *m = f32::from(IQ4_OFFSET) * *d;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_scales() {
        let mut block = BlockIq4Xs {
            d: [0x00, 0x3c], // 1.0
            scales_h: [0, 0x80],
            scales_l: [0, 0, 0, 0x30],
            qs: [0x88; 128],
        };
        block.qs[127] = 0xf0;
        let mut out = [9.0; 256];
        block.dequantize(&mut out);
        // group 0: -32; group 7: 0x23 - 32 = 3; index 8 is 1, 0 is -127, 15 is 113
        assert_eq!((out[0], out[224]), (-32.0, 3.0));
        assert_eq!((out[239], out[255]), (-381.0, 339.0));
    }
}
