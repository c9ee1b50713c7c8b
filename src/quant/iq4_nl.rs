//! IQ4_NL: 4-bit indices into a fixed non-linear table, one scale:
//! `x = d * IQ4_VALUES[q]`.

use super::DType;
use super::bits::nibbles;
use super::block::{Block, dequantize_centred, f16_at};

/// What a 4-bit index stands for; IQ4_XS shares the table.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Lanes are table values plus this: as in Q8_0, so that a kernel gets signed
/// values by flipping the top bit, and so that `m` is exact.
pub(super) const IQ4_OFFSET: i16 = 128;

/// The lane of a 4-bit index.
pub(super) fn iq4_lane(index: u8) -> u8 {
    IQ4_VALUES[usize::from(index & 15)].cast_unsigned() ^ 0x80
}

/// 32 values in 18 bytes; field order as in the file.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Byte `l`: value `l` in its low nibble, value `l + 16` in its high nibble.
    pub qs: [u8; 16],
}

// SAFETY: `repr(C)` of byte arrays only.
unsafe impl Block for BlockIq4Nl {
    const DTYPE: DType = DType::Iq4Nl;
    const GROUP: usize = 32;

    fn dequantize(&self, out: &mut [f32]) {
        dequantize_centred(self, IQ4_OFFSET, out);
    }

    fn unpack(&self, q: &mut [u8], d: &mut [f32], m: &mut [f32]) {
        nibbles::<16>(&self.qs, q);
        for q in q.iter_mut() {
            *q = iq4_lane(*q);
        }
        d[0] = f16_at(self.d);
        m[0] = f32::from(IQ4_OFFSET) * d[0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_index_the_table() {
        let mut qs = [0x88; 16];
        qs[3] = 0xf0;
        let block = BlockIq4Nl {
            d: [0x00, 0x3c], // 1.0
            qs,
        };
        let mut out = [9.0; 32];
        block.dequantize(&mut out);
        assert_eq!((out[0], out[3], out[19]), (1.0, -127.0, 113.0));
    }
}
