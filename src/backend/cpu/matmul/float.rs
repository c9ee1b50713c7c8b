//! Products with f32 activations: float weights, and the exact mode.

use super::ROW_TILE;
use super::gemm::prefetch_rows;
use super::lanes::{FloatLanes, Lanes};
use super::operands::Acts;
use super::tile::{GROUP_STEP, Kind, Q_STEP, SCALE_STEP, Tile, Unpack};

/// Makes f32 values `[16 rows, k]` of a tile of lanes.
///
/// # Safety
/// The instruction set of `V` is available; `tile` holds `k` values of `U`;
/// `out` has room for `16 * k` values.
#[inline(always)]
pub unsafe fn expand<V: Lanes, U: Unpack>(tile: Tile, k: usize, out: *mut f32) {
    let lanes = U::GROUP / 4;
    // SAFETY: all addresses are inside the tile and `out`.
    unsafe {
        for r in (0..ROW_TILE).step_by(V::ROWS) {
            let part = tile.seen_from(r);
            for i in 0..k / 4 {
                let q = V::load(part.q.add(i * Q_STEP));
                let entry = part.groups.add(i / lanes * GROUP_STEP);
                let d = V::F::load(entry.cast());
                let b = V::F::load(entry.add(SCALE_STEP).cast());
                for byte in 0..4 {
                    let value = q.shr(8 * byte).and(0xFF).to_f32();
                    let value = match U::KIND {
                        Kind::Affine => value.mul_add(d, b),
                        Kind::Centred(_) => value.add(b) * d,
                    };
                    value.store(out.add((4 * i + byte as usize) * ROW_TILE + r));
                }
            }
        }
    }
}

/// A float format: how 16 bytes of each row become f32 lanes.
pub trait FloatFormat {
    /// Bytes a value: 2 or 4.
    const BYTES: usize;
    /// The value in the lower bytes of each lane.
    fn low<V: Lanes>(lane: V) -> V::F;
    /// The value in the upper half; for formats of 2 bytes.
    fn high<V: Lanes>(lane: V) -> V::F;
    /// For formats of 2 bytes: both values of each lane as whole numbers, after the
    /// product with the lane's `factor` (see [`factors`](Self::factors)) and the sum with
    /// `whole`, whose lower bits then are those of the number.
    #[inline(always)]
    fn round<V: Lanes>(lane: V, factor: [V; 2], whole: V::F) -> V {
        let low = Self::low(lane).mul_add(factor[0].as_f32(), whole).bits();
        let high = Self::high(lane).mul_add(factor[1].as_f32(), whole).bits();
        low.pair(high)
    }
    /// The bits of each lane's factor as `round` wants them.
    #[inline(always)]
    fn factors<V: Lanes>(factor: V) -> [V; 2] {
        [factor; 2]
    }
}

/// IEEE half precision.
pub struct F16;
/// The upper half of an f32.
pub struct Bf16;
/// f32 as it is.
pub struct F32;

impl FloatFormat for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn low<V: Lanes>(lane: V) -> V::F {
        lane.f16()
    }
    #[inline(always)]
    fn high<V: Lanes>(lane: V) -> V::F {
        lane.shr(16).f16()
    }
    // Conversions take neighbours, which saves taking halves apart.
    #[inline(always)]
    fn round<V: Lanes>(lane: V, factor: [V; 2], whole: V::F) -> V {
        let [a, b] = lane.f16_halves();
        let a = a.mul_add(factor[0].as_f32(), whole).bits();
        let b = b.mul_add(factor[1].as_f32(), whole).bits();
        V::halves([a, b])
    }
    #[inline(always)]
    fn factors<V: Lanes>(factor: V) -> [V; 2] {
        factor.twice()
    }
}

impl FloatFormat for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn low<V: Lanes>(lane: V) -> V::F {
        lane.shl(16).as_f32()
    }
    #[inline(always)]
    fn high<V: Lanes>(lane: V) -> V::F {
        lane.and(0xFFFF_0000).as_f32()
    }
}

impl FloatFormat for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn low<V: Lanes>(lane: V) -> V::F {
        lane.as_f32()
    }
    #[inline(always)]
    fn high<V: Lanes>(lane: V) -> V::F {
        lane.as_f32()
    }
}

/// Makes f32 values `[16 rows, k]` of 16 rows of floats; rounds `k` up to whole
/// 16 bytes of a row.
///
/// # Safety
/// The instruction set of `V` is available; the rows are readable and `out`
/// writable for the rounded `k`.
#[inline(always)]
pub unsafe fn widen<V: Lanes, T: FloatFormat>(
    src: *const u8,
    stride: usize,
    k: usize,
    out: *mut f32,
) {
    // SAFETY: the caller vouches for the rounded size.
    unsafe {
        for i in 0..(k * T::BYTES).div_ceil(16) {
            for r in (0..ROW_TILE).step_by(V::ROWS) {
                let columns = V::columns(src.add(16 * i + r * stride), stride);
                for (c, lane) in columns.into_iter().enumerate() {
                    let value = (4 * i + c) * 4 / T::BYTES;
                    T::low(lane).store(out.add(value * ROW_TILE + r));
                    if T::BYTES == 2 {
                        T::high(lane).store(out.add((value + 1) * ROW_TILE + r));
                    }
                }
            }
        }
    }
}

/// f32 kernel on values `w [16 rows, k]`.
///
/// Budget on AVX-512: one fused multiply-add for each value, 16 rows and a
/// token, two a cycle with two sums a token: 64 operations a cycle; one
/// broadcast for each, one load of W for all tokens. Sums start anew in each
/// chunk, which keeps rounding errors to those of short sums.
///
/// # Safety
/// The instruction set of `V` is available; `w` holds `k` values starting at
/// value `k0` of the rows; `tx` has `NT` rows of `acts`; `acc` has `16 * NT` values.
#[inline(always)]
pub unsafe fn f32<V: Lanes, const NT: usize>(
    w: *const f32,
    k0: usize,
    k: usize,
    acts: &Acts,
    tx: *const u32,
    acc: *mut f32,
) {
    // SAFETY: all addresses are inside `w`, the rows `tx` of `acts` and `acc`.
    unsafe {
        let mut x = [std::ptr::null::<f32>(); NT];
        for (t, x) in x.iter_mut().enumerate() {
            *x = acts.row(*tx.add(t), 4 * k0).cast::<f32>();
        }
        for r in (0..ROW_TILE).step_by(V::ROWS) {
            let w = w.add(r);
            let acc = acc.add(r);
            let zero = V::F::load(acc).zero();
            let (mut even, mut odd) = ([zero; NT], [zero; NT]);
            for i in 0..k / 2 {
                let w0 = V::F::load(w.add(2 * i * ROW_TILE));
                let w1 = V::F::load(w.add((2 * i + 1) * ROW_TILE));
                for t in 0..NT {
                    even[t] = w0.mul_add(V::F::broadcast(x[t].add(2 * i)), even[t]);
                    odd[t] = w1.mul_add(V::F::broadcast(x[t].add(2 * i + 1)), odd[t]);
                }
            }
            if k % 2 == 1 {
                let last = V::F::load(w.add((k - 1) * ROW_TILE));
                for t in 0..NT {
                    even[t] = last.mul_add(V::F::broadcast(x[t].add(k - 1)), even[t]);
                }
            }
            for t in 0..NT {
                let acc = acc.add(t * ROW_TILE);
                V::F::load(acc).add(even[t].add(odd[t])).store(acc);
            }
        }
    }
}

/// Adds to `acc [16 rows]` the products of values `k0..k0 + k` of 16 rows of
/// floats at `src` with row `token` of the activations, in the order of [`f32`].
///
/// Budget on AVX-512, for 256 bytes of f16 (8 values of 16 rows): transposing
/// 20, 8 conversions of 4 instructions, 4 shifts, 8 multiply-adds: 64 on two
/// ports, 8 bytes of file a cycle.
///
/// # Safety
/// As for [`widen`] and [`f32`]; `k` is whole 16 bytes.
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
            let y = V::F::load(acc);
            let (mut even, mut odd) = (y.zero(), y.zero());
            let mut x = acts.row(token, 4 * k0).cast::<f32>();
            for i in 0..k * T::BYTES / 16 {
                let at = src.add(16 * i + r * stride);
                prefetch_rows::<V>(at, stride, 16 * i..16 * (i + 1));
                let columns = V::columns(at, stride);
                for pair in columns.as_chunks::<2>().0 {
                    let [a, b] = *pair;
                    if T::BYTES == 2 {
                        even = T::low(a).mul_add(V::F::broadcast(x), even);
                        odd = T::high(a).mul_add(V::F::broadcast(x.add(1)), odd);
                        even = T::low(b).mul_add(V::F::broadcast(x.add(2)), even);
                        odd = T::high(b).mul_add(V::F::broadcast(x.add(3)), odd);
                        x = x.add(4);
                    } else {
                        even = T::low(a).mul_add(V::F::broadcast(x), even);
                        odd = T::low(b).mul_add(V::F::broadcast(x.add(1)), odd);
                        x = x.add(2);
                    }
                }
            }
            y.add(even.add(odd)).store(acc);
        }
    }
}
