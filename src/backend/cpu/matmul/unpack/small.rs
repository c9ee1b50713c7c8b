//! Formats of 32 values a block.

use super::{LOW4, each, join, nibbles};
use crate::backend::cpu::matmul::lanes::Lanes;
use crate::backend::cpu::matmul::tile::{BlockRows, Kind, Sink, Unpack};
use crate::quant::DType;

/// 0..2 d f16, 2..18 nibbles; value = d * (q - 8).
pub struct Q4_0;
/// 0..2 d f16, 2..4 m f16, 4..20 nibbles; value = d * q + m.
pub struct Q4_1;
/// 0..2 d f16, 2..6 fifth bits, 6..22 nibbles; value = d * (q - 16).
pub struct Q5_0;
/// 0..2 d f16, 2..4 m f16, 4..8 fifth bits, 8..24 nibbles; value = d * q + m.
pub struct Q5_1;
/// 0..2 d f16, 2..34 i8; value = d * q.
pub struct Q8_0;

impl Unpack for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Centred(8);

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let q = nibbles(block.columns(2));
        out.group(0, &q, block.column(0).f16());
    }
}

impl Unpack for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Affine;

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let dm = block.column(0);
        out.group_affine(0, &nibbles(block.columns(4)), dm.f16(), dm.shr(16).f16());
    }
}

impl Unpack for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Centred(16);

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let q = five_bits(block.columns(6), block.column(2));
        out.group(0, &q, block.column(0).f16());
    }
}

impl Unpack for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Affine;

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let dm = block.column(0);
        let q = five_bits(block.columns(8), block.column(4));
        out.group_affine(0, &q, dm.f16(), dm.shr(16).f16());
    }
}

impl Unpack for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const GROUP: usize = 32;
    const KIND: Kind = Kind::Centred(128);
    const WIDE: bool = true;

    #[inline(always)]
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S) {
        let q = join(block.columns(2), block.columns(18));
        let q = each(q, |x| x.xor(0x8080_8080));
        out.group(0, &q, block.column(0).f16());
    }
}

/// Nibbles with bit `i` of `high` as the fifth bit of value `i`.
#[inline(always)]
fn five_bits<V: Lanes>(qs: [V; 4], high: V) -> [V; 8] {
    let [a, b, c, d] = qs;
    let low = |x: V, at: u32| x.and(LOW4).or(high.shr(at).spread_bits());
    let top = |x: V, at: u32| x.shr(4).and(LOW4).or(high.shr(at).spread_bits());
    [
        low(a, 0),
        low(b, 4),
        low(c, 8),
        low(d, 12),
        top(a, 16),
        top(b, 20),
        top(c, 24),
        top(d, 28),
    ]
}
