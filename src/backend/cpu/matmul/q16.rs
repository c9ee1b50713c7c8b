//! Products of F16 and BF16 weights with 16-bit activations (`acts16.rs`).
//!
//! Two values of a row make a lane, as they lie in the file. In each 32 values of a
//! row the weights become whole numbers of 14 bits: multiples of 2^-12 of the power
//! of two below the greatest magnitude, so that those within a quarter of it keep
//! all bits of an F16 and the others are off by at most 2^-13 of it. Then
//!
//! ```text
//! y += d * (d_x * sum(q * q_x))
//! ```
//!
//! takes half as many multiply instructions as f32 values would. One token and many
//! take the same terms in the same order with the same roundings.

use super::ROW_TILE;
use super::acts::ACT_GROUP;
use super::acts16::{D16_AT, EXPONENT, INVERSE, LEAST, RECORD16, STEP, WHOLE};
use super::float::FloatFormat;
use super::gemm::prefetch_rows;
use super::lanes::{FloatLanes, Lanes};
use super::operands::Acts;
use super::tile::{Q_STEP, SCALE_STEP, Tile};

/// Lanes of a group: two values each.
const PAIRS: usize = ACT_GROUP / 2;
/// Bytes of 16 rows' lanes for each value of a row.
pub const VALUE_STEP: usize = Q_STEP / 2;
/// [`quantize_weights`](super::acts16::quantize_weights) for each row of a vector, on
/// lanes of two values in the order of the file.
#[inline(always)]
fn group<V: Lanes, T: FloatFormat>(lanes: &[V; PAIRS]) -> ([V; PAIRS], V::F) {
    // As 16-bit integers magnitudes order like the numbers.
    let mut most = lanes[0].and(0x7FFF_7FFF);
    for lane in &lanes[1..] {
        most = most.max16(lane.and(0x7FFF_7FFF));
    }
    let most = T::low(most.max16(most.shr(16)).and(0xFFFF));
    // SAFETY: local values; the instruction set is that of `lanes`.
    let (whole, step, inverse) = unsafe {
        (
            V::F::broadcast(&WHOLE),
            V::F::broadcast(&STEP),
            V::broadcast((&INVERSE as *const u32).cast()),
        )
    };
    let power = most.bits().and(EXPONENT).max(LEAST);
    let inverse = T::factors(inverse.sub_lanes(power));
    let mut q = *lanes;
    for q in &mut q {
        *q = T::round(*q, inverse, whole);
    }
    (q, power.as_f32() * step)
}

/// The lanes of 32 values of `V::ROWS` rows.
///
/// # Safety
/// The instruction set is available; 64 readable bytes at each `p + r * stride`.
#[inline(always)]
unsafe fn lanes<V: Lanes>(p: *const u8, stride: usize) -> [V; PAIRS] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut all = [V::columns(p, stride)[0]; PAIRS];
        for (i, part) in all.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *part = V::columns(p.add(16 * i), stride);
        }
        all
    }
}

/// Makes the tile `q [2, 16 rows, k / 2] i16`, `groups [16 rows, k / 32] f32` (steps)
/// of 16 rows of floats.
///
/// Budget on AVX-512, for 512 weights: 80 transpose, 31 find the greatest, 16 times
/// 8 (half taken, two conversions of two, two roundings, one that joins) and 17 stores:
/// 260 instructions on two ports; [`q16`] takes 19 a token.
///
/// # Safety
/// The instruction set of `V` is available; `k % 32 == 0`; `2 * k` bytes of each row
/// are readable, and the tile has room.
#[inline(always)]
pub unsafe fn unpack<V: Lanes, T: FloatFormat>(
    src: *const u8,
    stride: usize,
    k: usize,
    tile: Tile,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for g in 0..k / ACT_GROUP {
            for r in (0..ROW_TILE).step_by(V::ROWS) {
                let part = tile.seen_from(r);
                let at = src.add(g * 2 * ACT_GROUP + r * stride);
                let (q, d) = group::<V, T>(&lanes(at, stride));
                for (i, q) in q.into_iter().enumerate() {
                    q.store(part.q.add((g * PAIRS + i) * Q_STEP));
                }
                d.store(part.groups.add(g * SCALE_STEP).cast());
            }
        }
    }
}

/// Multiplies a tile.
///
/// Budget on AVX-512, for 32 values of 16 rows and one token (1,024 operations): 16
/// `vpdpwssd` that broadcast from memory, convert, scale, add: 19 instructions, of
/// which the multiplications go one a cycle on Zen 4: 57 operations a cycle where
/// f32 gives 32. Twelve tokens cover the latency of `vpdpwssd`.
///
/// # Safety
/// The instruction set of `V` is available; `tile` holds `k` values starting at
/// value `k0` of the rows; `tx` has `NT` rows of `acts`; `acc` has `16 * NT` values.
#[inline(always)]
pub unsafe fn q16<V: Lanes, const NT: usize>(
    tile: Tile,
    k0: usize,
    k: usize,
    acts: &Acts,
    tx: *const u32,
    acc: *mut f32,
) {
    // SAFETY: all addresses are inside the tile, the rows `tx` of `acts` and `acc`,
    // as the caller vouches.
    unsafe {
        for r in (0..ROW_TILE).step_by(V::ROWS) {
            let mut x = [std::ptr::null::<u8>(); NT];
            let mut y = [V::F::load(acc.add(r)); NT];
            for (t, (x, y)) in x.iter_mut().zip(&mut y).enumerate() {
                *x = acts.row(*tx.add(t), k0 / ACT_GROUP * RECORD16);
                *y = V::F::load(acc.add(t * ROW_TILE + r));
            }
            let part = tile.seen_from(r);
            let (mut q, mut d) = (part.q.cast_const(), part.groups.cast_const());
            for _ in 0..k / ACT_GROUP {
                let mut sum = [V::load(q).zero(); NT];
                for i in 0..PAIRS {
                    let w = V::load(q.add(i * Q_STEP));
                    for t in 0..NT {
                        sum[t] = sum[t].dot16(w, V::broadcast(x[t].add(4 * i)));
                    }
                }
                let step = V::F::load(d.cast());
                for t in 0..NT {
                    let d_x = V::F::broadcast(x[t].add(D16_AT).cast());
                    y[t] = (sum[t].to_f32() * d_x).mul_add(step, y[t]);
                    x[t] = x[t].add(RECORD16);
                }
                q = q.add(PAIRS * Q_STEP);
                d = d.add(SCALE_STEP);
            }
            for (t, y) in y.into_iter().enumerate() {
                y.store(acc.add(t * ROW_TILE + r));
            }
        }
    }
}

/// Adds to `acc [16 rows]` the products of values `k0..k0 + k` of 16 rows of floats at
/// `src` with row `token` of the activations.
///
/// Budget on AVX-512, for 1,024 bytes of file: those of [`unpack`] and [`q16`], some
/// 300 instructions on two ports, 7 bytes a cycle: more than memory gives one core.
///
/// # Safety
/// As for [`unpack`] and [`q16`].
#[inline(always)]
pub unsafe fn dot<V: Lanes, T: FloatFormat>(
    (src, stride): (*const u8, usize),
    (k0, k): (usize, usize),
    acts: &Acts,
    token: u32,
    acc: *mut f32,
) {
    // SAFETY: all addresses are inside the rows, the activations' row and `acc`.
    unsafe {
        for r in (0..ROW_TILE).step_by(V::ROWS) {
            let acc = acc.add(r);
            let mut y = V::F::load(acc);
            let mut x = acts.row(token, k0 / ACT_GROUP * RECORD16);
            for g in 0..k / ACT_GROUP {
                let bytes = 2 * ACT_GROUP;
                let at = src.add(g * bytes + r * stride);
                prefetch_rows::<V>(at, stride, g * bytes..(g + 1) * bytes);
                let (q, step) = group::<V, T>(&lanes(at, stride));
                let mut sum = q[0].zero();
                for (i, &q) in q.iter().enumerate() {
                    sum = sum.dot16(q, V::broadcast(x.add(4 * i)));
                }
                let d_x = V::F::broadcast(x.add(D16_AT).cast());
                y = (sum.to_f32() * d_x).mul_add(step, y);
                x = x.add(RECORD16);
            }
            y.store(acc);
        }
    }
}
