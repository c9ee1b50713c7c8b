//! Super-blocks of 256 values with small integer scales for 16 or 32.

use super::{LOW2, LOW4, byte};
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
        for part in 0..4 {
            // 16 bytes hold four groups, two bits each: 32 values apart.
            let qs = block.columns(16 + 16 * part);
            for j in 0..4 {
                let g = 8 * (part / 2) + 2 * j + part % 2;
                let scale = byte(&scales, g);
                let q = qs.map(|x| x.shr(2 * j as u32).and(LOW2));
                let (d, b) = (scale.and(15).to_f32() * d, scale.shr(4).to_f32() * neg_dmin);
                out.group_affine(g, &q, d, b);
            }
        }
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
        for part in 0..4 {
            let qs = block.columns(32 + 16 * part);
            let third = block.columns(16 * (part % 2));
            for j in 0..4 {
                let g = 8 * (part / 2) + 2 * j + part % 2;
                // Scale g: four bits in byte g % 8, two in byte 8 + g % 4.
                let low = byte(&scales, g % 8).shr(4 * (g / 8) as u32).and(15);
                let high = byte(&scales, 8 + g % 4).shr(2 * (g / 4) as u32).and(3);
                let scale = low.or(high.shl(4)).sub(32).to_f32() * d;
                let bit = (4 * (part / 2) + j) as u32;
                let mut q = [qs[0].zero(); 4];
                for i in 0..4 {
                    let third = third[i].shr(bit).and(0x0101_0101).shl(2);
                    q[i] = qs[i].shr(2 * j as u32).and(LOW2).or(third);
                }
                out.group(g, &q, scale);
            }
        }
    }
}

/// Factors of Q4_K and Q5_K group `g`: d * scale and -dmin * minimum.
#[inline(always)]
fn scale_min<V: Lanes>(head: &[V; 4], g: usize) -> (V::F, V::F) {
    let (d, neg_dmin) = (head[0].f16(), head[0].shr(16).xor(F16_SIGN).f16());
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
        for pair in 0..4 {
            // 32 bytes: group 2 * pair in the low nibbles, the next in the high.
            let [a, b, c, d] = block.columns(16 + 32 * pair);
            let [e, f, g, h] = block.columns(32 + 32 * pair);
            let qs = [a, b, c, d, e, f, g, h];
            let (scale, min) = scale_min(&head, 2 * pair);
            out.group_affine(2 * pair, &qs.map(|x| x.and(LOW4)), scale, min);
            let (scale, min) = scale_min(&head, 2 * pair + 1);
            out.group_affine(2 * pair + 1, &qs.map(|x| x.shr(4).and(LOW4)), scale, min);
        }
    }
}

impl Unpack for Q5K {
    const DTYPE: DType = DType::Q5K;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Affine;

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let head = block.columns(0);
        let (fifth_lo, fifth_hi) = (block.columns(16), block.columns(32));
        for pair in 0..4 {
            let (lo, hi) = (block.columns(48 + 32 * pair), block.columns(64 + 32 * pair));
            for nibble in 0..2 {
                let g = 2 * pair + nibble;
                let mut q = [lo[0].zero(); 8];
                for i in 0..8 {
                    let (qs, fifth) = if i < 4 {
                        (lo[i], fifth_lo[i])
                    } else {
                        (hi[i - 4], fifth_hi[i - 4])
                    };
                    let fifth = fifth.shr(g as u32).and(0x0101_0101).shl(4);
                    q[i] = qs.shr(4 * nibble as u32).and(LOW4).or(fifth);
                }
                let (scale, min) = scale_min(&head, g);
                out.group_affine(g, &q, scale, min);
            }
        }
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
        for half in 0..2 {
            for part in 0..2 {
                // Values 32 apart: nibbles of two places, two bits each of one.
                let upper = block.columns(128 + 32 * half + 16 * part);
                let near = block.columns(64 * half + 16 * part);
                let far = block.columns(64 * half + 32 + 16 * part);
                for j in 0..4 {
                    let qs = if j % 2 == 0 { near } else { far };
                    let mut q = [qs[0].zero(); 4];
                    for i in 0..4 {
                        let low = qs[i].shr(4 * (j / 2) as u32).and(LOW4);
                        // Two bits of each byte to bits 4 and 5.
                        let high = match j {
                            0 | 1 => upper[i].shl(4 - 2 * j as u32),
                            _ => upper[i].shr(2 * j as u32 - 4),
                        };
                        q[i] = low.or(high.and(0x3030_3030));
                    }
                    let g = 8 * half + 2 * j + part;
                    let scale = scales[g / 4].shl(24 - 8 * (g % 4) as u32).sar(24);
                    out.group(g, &q, scale.to_f32() * d);
                }
            }
        }
    }
}
