//! Super-blocks of 256 values with small integer scales for 16 or 32.

use super::{LOW2, LOW4, byte, each, join, shift};
use crate::backend::cpu::matmul::lanes::Lanes;
use crate::backend::cpu::matmul::tile::{BlockRows, Kind, Sink, Unpack};
use crate::quant::DType;

/// 0..16 scale and minimum nibbles, 16..80 2-bit values, 80 d, 82 dmin f16.
pub struct Q2K;
/// 0..32 third bits, 32..96 2-bit values, 96..108 6-bit scales, 108 d f16.
pub struct Q3K;
/// 0 d, 2 dmin f16, 4..16 6-bit scales and minimums, 16..144 nibbles.
pub struct Q4K;
/// 0 d, 2 dmin f16, 4..16 6-bit scales and minimums, 16..48 fifth bits, 48..176 nibbles.
pub struct Q5K;
/// 0..128 nibbles, 128..192 upper two bits, 192..208 i8 scales, 208 d f16.
pub struct Q6K;

/// The sign bit of an f16: minimums are subtracted, `b` is added.
const F16_SIGN: u32 = 0x8000;

impl Unpack for Q2K {
    const DTYPE: DType = DType::Q2K;
    const GROUP: usize = 16;
    const KIND: Kind = Kind::Affine;

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let factors = block.column(80);
        let (d, neg_dmin) = (factors.f16(), factors.shr(16).xor(F16_SIGN).f16());
        let scales = block.columns(0);
        unroll!(PART in [0 1 2 3] {
            // 16 bytes hold four groups, two bits each: 32 values apart.
            let qs = block.columns(16 + 16 * PART);
            unroll!(J in [0 1 2 3] {
                const G: usize = 8 * (PART / 2) + 2 * J + PART % 2;
                let scale = byte(&scales, G);
                let q = each(qs, |x| x.shr(2 * J as u32).and(LOW2));
                let (d, b) = (scale.and(15).to_f32() * d, scale.shr(4).to_f32() * neg_dmin);
                out.group_affine(G, &q, d, b);
            });
        });
    }
}

impl Unpack for Q3K {
    const DTYPE: DType = DType::Q3K;
    const GROUP: usize = 16;
    const KIND: Kind = Kind::Centred(4);

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let d = block.column(106).shr(16).f16();
        let scales = [block.column(96), block.column(100), block.column(104)];
        let thirds = [block.columns(0), block.columns(16)];
        unroll!(PART in [0 1 2 3] {
            let qs = block.columns(32 + 16 * PART);
            unroll!(J in [0 1 2 3] {
                const G: usize = 8 * (PART / 2) + 2 * J + PART % 2;
                // Scale g: four bits in byte g % 8, two in byte 8 + g % 4.
                let low = byte(&scales, G % 8).shr(4 * (G / 8) as u32).and(15);
                let high = byte(&scales, 8 + G % 4).shr(2 * (G / 4) as u32).and(3);
                let scale = low.or(high.shl(4)).sub(32).to_f32() * d;
                let mut q = qs;
                for i in 0..4 {
                    // Bit 4 * half + j of each byte to bit 2.
                    let third = shift(thirds[PART % 2][i], 2 - (4 * (PART / 2) + J) as i32);
                    q[i] = q[i].shr(2 * J as u32).and(LOW2).or(third.and(0x0404_0404));
                }
                out.group(G, &q, scale);
            });
        });
    }
}

/// Factors of Q4_K and Q5_K group `g`: d * scale and -dmin * minimum.
#[inline(always)]
fn scale_min<V: Lanes>(head: &[V; 4], d: V::F, neg_dmin: V::F, g: usize) -> (V::F, V::F) {
    let bytes = &head[1..];
    let (scale, min) = if g < 4 {
        (byte(bytes, g).and(63), byte(bytes, g + 4).and(63))
    } else {
        let low = byte(bytes, g + 4);
        let scale = low.and(15).or(byte(bytes, g - 4).shr(6).shl(4));
        (scale, low.shr(4).or(byte(bytes, g).shr(6).shl(4)))
    };
    (scale.to_f32() * d, min.to_f32() * neg_dmin)
}

impl Unpack for Q4K {
    const DTYPE: DType = DType::Q4K;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Affine;

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let head = block.columns(0);
        let (d, neg_dmin) = (head[0].f16(), head[0].shr(16).xor(F16_SIGN).f16());
        unroll!(PAIR in [0 1 2 3] {
            // 32 bytes: group 2 * pair in the low nibbles, the next in the high.
            let qs = join(block.columns(16 + 32 * PAIR), block.columns(32 + 32 * PAIR));
            unroll!(NIBBLE in [0 1] {
                const G: usize = 2 * PAIR + NIBBLE;
                let q = each(qs, |x| x.shr(4 * NIBBLE as u32).and(LOW4));
                let (scale, min) = scale_min(&head, d, neg_dmin, G);
                out.group_affine(G, &q, scale, min);
            });
        });
    }
}

impl Unpack for Q5K {
    const DTYPE: DType = DType::Q5K;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Affine;

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let head = block.columns(0);
        let (d, neg_dmin) = (head[0].f16(), head[0].shr(16).xor(F16_SIGN).f16());
        let fifths = join(block.columns(16), block.columns(32));
        unroll!(PAIR in [0 1 2 3] {
            let qs = join(block.columns(48 + 32 * PAIR), block.columns(64 + 32 * PAIR));
            unroll!(NIBBLE in [0 1] {
                const G: usize = 2 * PAIR + NIBBLE;
                let mut q = qs;
                for i in 0..8 {
                    // Bit g of each byte to bit 4.
                    let fifth = shift(fifths[i], 4 - G as i32).and(0x1010_1010);
                    q[i] = q[i].shr(4 * NIBBLE as u32).and(LOW4).or(fifth);
                }
                let (scale, min) = scale_min(&head, d, neg_dmin, G);
                out.group_affine(G, &q, scale, min);
            });
        });
    }
}

impl Unpack for Q6K {
    const DTYPE: DType = DType::Q6K;
    const GROUP: usize = 16;
    const KIND: Kind = Kind::Centred(32);

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let d = block.column(206).shr(16).f16();
        let scales = block.columns(192);
        unroll!(HALF in [0 1] {
            unroll!(PART in [0 1] {
                // Values 32 apart: nibbles of two places, two bits each of one.
                let upper = block.columns(128 + 32 * HALF + 16 * PART);
                let near = block.columns(64 * HALF + 16 * PART);
                let far = block.columns(64 * HALF + 32 + 16 * PART);
                unroll!(J in [0 1 2 3] {
                    const G: usize = 8 * HALF + 2 * J + PART;
                    let mut q = [near, far][J % 2];
                    for i in 0..4 {
                        // Two bits of each byte to bits 4 and 5.
                        let upper = shift(upper[i], 4 - 2 * J as i32).and(0x3030_3030);
                        q[i] = q[i].shr(4 * (J / 2) as u32).and(LOW4).or(upper);
                    }
                    let scale = scales[G / 4].shl(24 - 8 * (G % 4) as u32).sar(24);
                    out.group(G, &q, scale.to_f32() * d);
                });
            });
        });
    }
}
