//! One unpacker a block format, written once for every instruction set.
//!
//! Layouts are those of `quant/`; here bytes become signed 8-bit lanes, so that
//! value = d * q (+ b), sixteen rows at a time (see `lanes.rs`).

/// Repeats a block with a constant in place of a loop's variable: the compiler
/// leaves loops of this size rolled, and then shifts and indexes at run time.
macro_rules! unroll {
    ($i:ident in [$($n:literal)*] $body:block) => {
        $({
            const $i: usize = $n;
            $body
        })*
    };
}

mod kquants;
mod lookup;
mod small;

pub use kquants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub use lookup::{Iq4Nl, Iq4Xs, Mxfp4};
pub use small::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

use super::lanes::Lanes;

/// Low nibble of each byte.
const LOW4: u32 = 0x0F0F_0F0F;
/// Low two bits of each byte.
const LOW2: u32 = 0x0303_0303;

/// The low nibbles of 16 bytes, then the high ones: 32 values.
#[inline(always)]
fn nibbles<V: Lanes>(qs: [V; 4]) -> [V; 8] {
    let [a, b, c, d] = qs;
    let low = |x: V| x.and(LOW4);
    let high = |x: V| x.shr(4).and(LOW4);
    [
        low(a),
        low(b),
        low(c),
        low(d),
        high(a),
        high(b),
        high(c),
        high(d),
    ]
}

/// Byte `i` of a row's bytes, four to a lane.
#[inline(always)]
fn byte<V: Lanes>(columns: &[V], i: usize) -> V {
    columns[i / 4].shr(8 * (i % 4) as u32).and(0xFF)
}

/// Shifts each lane left, or right when negative; bits cross bytes.
#[inline(always)]
fn shift<V: Lanes>(x: V, left: i32) -> V {
    if left >= 0 {
        x.shl(left as u32)
    } else {
        x.shr(left.unsigned_abs())
    }
}

/// `f` of each vector. Unlike `array::map` it is always inlined, without which
/// the instruction set's features do not reach `f`.
#[inline(always)]
fn each<V: Lanes, const N: usize>(x: [V; N], f: impl Fn(V) -> V) -> [V; N] {
    let mut y = x;
    for i in 0..N {
        y[i] = f(x[i]);
    }
    y
}

/// 32 bytes of two 16.
#[inline(always)]
fn join<V: Lanes>(a: [V; 4], b: [V; 4]) -> [V; 8] {
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}
