//! Formats whose 4-bit values index a table.

use super::{byte, each, nibbles};
use crate::backend::cpu::matmul::lanes::Lanes;
use crate::backend::cpu::matmul::tile::{BlockRows, Kind, Sink, Unpack};
use crate::quant::{DType, IQ4_VALUES, MXFP4_VALUES};

/// Lanes of IQ4_NL and IQ4_XS.
const IQ4: [u8; 16] = biased(IQ4_VALUES, 128);
/// Lanes of MXFP4: twice the E2M1 values; the scale is halved instead.
const E2M1_DOUBLED: [u8; 16] = biased(MXFP4_VALUES, 12);

/// A table of signed values as unsigned lanes.
const fn biased(values: [i8; 16], offset: i16) -> [u8; 16] {
    let mut lanes = [0; 16];
    let mut i = 0;
    while i < 16 {
        lanes[i] = (values[i] as i16 + offset) as u8;
        i += 1;
    }
    lanes
}

/// 0..2 d f16, 2..18 nibbles; value = d * table[q].
pub struct Iq4Nl;
/// 0 d f16, 2 upper two bits of 8 scales, 4..8 lower nibbles, 8..136 nibbles.
pub struct Iq4Xs;
/// 0 exponent (E8M0), 1..17 nibbles; value = 2^(e - 127) * table[q].
pub struct Mxfp4;

impl Unpack for Iq4Nl {
    const DTYPE: DType = DType::Iq4Nl;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Centred(128);
    const WIDE: bool = true;

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let q = each(nibbles(block.columns(2)), |x| x.lookup(&IQ4));
        out.group(0, &q, block.column(0).f16());
    }
}

impl Unpack for Iq4Xs {
    const DTYPE: DType = DType::Iq4Xs;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Centred(128);
    const WIDE: bool = true;

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let head = block.column(0);
        let low = [block.column(4)];
        let d = head.f16();
        unroll!(G in [0 1 2 3 4 5 6 7] {
            let high = head.shr(16 + 2 * G as u32).and(3).shl(4);
            let low = byte(&low, G / 2).shr(4 * (G % 2) as u32).and(15);
            let scale = low.or(high).sub(32).to_f32() * d;
            let q = each(nibbles(block.columns(8 + 16 * G)), |x| x.lookup(&IQ4));
            out.group(G, &q, scale);
        });
    }
}

impl Unpack for Mxfp4 {
    const DTYPE: DType = DType::Mxfp4;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Centred(12);

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let q = each(nibbles(block.columns(1)), |x| x.lookup(&E2M1_DOUBLED));
        out.group(0, &q, exp2_minus_128(block.column(0).and(0xFF)));
    }
}

/// 2^(e - 128): half of an E8M0 scale, subnormal for e = 0 and 1.
#[inline(always)]
fn exp2_minus_128<V: Lanes>(e: V) -> V::F {
    /// Upper fraction byte of 2^-128 and 2^-127.
    const SUBNORMAL: [u8; 16] = [0x20, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // The exponent field is e - 1, or zero for a subnormal.
    let exponent = e.sub_lanes(e.min(1)).shl(23);
    let fraction = e.min(2).lookup(&SUBNORMAL).and(0xFF).shl(16);
    exponent.or(fraction).as_f32()
}
