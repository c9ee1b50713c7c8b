//! Products with 8-bit activations, generic over the instruction set and
//! compiled for each by `entry.rs`.
//!
//! Many tokens: [`unpack`] fills a tile of W, [`q8`] multiplies it. One token:
//! [`dot`] multiplies lanes as they are unpacked. Both take the terms of a sum
//! in the same order with the same roundings, for each 32 values
//!
//! ```text
//! y += d_x * (d * sum(q * q_x) + b * sum(q_x))
//! ```
//!
//! so that a token's result does not depend on its neighbours.

use super::driver::{Acts, CACHE_LINE};
use super::lanes::{FloatLanes, Lanes};
use super::tile::{
    BlockRows, GROUP_STEP, Kind, Q_STEP, ROW_TILE, SCALE_STEP, Sink, Tile, TileOut, Unpack,
};

/// Unpacks `k` values (whole blocks) of 16 rows, `stride` bytes apart.
///
/// Budget on AVX-512, for 512 weights (32 values of 16 rows) in 4 bits: 16
/// loads with 12 inserts and 8 shuffles transpose 256 bytes, 12 operations
/// split nibbles, centring and summing take 16, scales some 12, and there are
/// 11 stores: about 60 instructions on two ports, 30 cycles; [`q8`] takes 6 a
/// token.
///
/// # Safety
/// The instruction set of `V` is available, the blocks are readable, the tile
/// has room for `k` values.
#[inline(always)]
pub unsafe fn unpack<V: Lanes, U: Unpack>(src: *const u8, stride: usize, k: usize, tile: Tile) {
    let (len, bytes) = (U::DTYPE.block_len(), U::DTYPE.block_bytes());
    let groups = len / U::GROUP;
    for b in 0..k / len {
        for r in (0..ROW_TILE).step_by(V::ROWS) {
            // SAFETY: block `b` of rows `r..` and its place in the tile, which
            // the caller vouches for.
            unsafe {
                let block = BlockRows::new(src.add(b * bytes + r * stride), stride, bytes);
                let at = Tile {
                    q: tile.q.add(b * len / 4 * Q_STEP),
                    groups: tile.groups.add(b * groups * GROUP_STEP),
                };
                U::unpack::<V, _>(block, &mut TileOut::<V, U>::new(at.from_row(r)));
            }
        }
    }
}

/// Integer dot products of `LANES * 4` values for each token, added to `init`.
///
/// # Safety
/// `q` has that many lanes of W; each `x` that many values.
#[inline(always)]
unsafe fn group_dot<
    V: Lanes,
    const NT: usize,
    const LANES: usize,
    const AFFINE: bool,
    const WIDE: bool,
>(
    q: *const u8,
    init: V,
    x: &[*const u8; NT],
    x_at: usize,
) -> [V; NT] {
    let mut sum = [init; NT];
    for i in 0..LANES {
        // SAFETY: the caller vouches for a whole group of weights and activations.
        unsafe {
            let w = V::load(q.add(i * Q_STEP));
            for t in 0..NT {
                let x = V::broadcast(x[t].add(x_at + 4 * i));
                let (u, s) = if AFFINE { (w, x) } else { (x, w) };
                sum[t] = sum[t].dot::<WIDE>(u, s);
            }
        }
    }
    sum
}

/// Multiplies a tile: `HALVES` groups in 32 values, with offset `b` if `AFFINE`.
///
/// Budget on AVX-512, for 32 values of 16 rows and one token (1,024
/// operations): 8 `vpdpbusd`, convert, scale, add, and add `b` times the sum: 11
/// or 12 instructions on two ports (13 for groups of 16): 6 cycles, 170
/// operations a cycle. Loads: 8 broadcasts, and for all tokens 8 lanes and 3
/// factors.
///
/// # Safety
/// The instruction set of `V` is available; `tile` holds `k` values starting at
/// value `k0` of the rows; `tx` has `NT` rows of `acts`; `acc` has `16 * NT` values.
#[inline(always)]
pub unsafe fn q8<
    V: Lanes,
    const NT: usize,
    const HALVES: usize,
    const AFFINE: bool,
    const WIDE: bool,
>(
    tile: Tile,
    k0: usize,
    k: usize,
    acts: &Acts,
    tx: *const u32,
    acc: *mut f32,
) {
    // SAFETY: all addresses are inside the tile, the rows `tx` of `acts` and
    // `acc`, as the caller vouches.
    unsafe {
        let mut x = [std::ptr::null::<u8>(); NT];
        let mut d_x = [std::ptr::null::<f32>(); NT];
        let mut n_x = [std::ptr::null::<f32>(); NT];
        for t in 0..NT {
            let at = *tx.add(t) as usize * acts.k + k0;
            x[t] = if AFFINE {
                acts.qs.cast::<u8>().add(at)
            } else {
                acts.qu.add(at)
            };
            d_x[t] = acts.d.add(at / 32);
            n_x[t] = acts.sums.add(at / 32 * HALVES);
        }
        for r in (0..ROW_TILE).step_by(V::ROWS) {
            let part = tile.from_row(r);
            let acc = acc.add(r);
            let mut y = [V::F::load(acc); NT];
            for t in 1..NT {
                y[t] = V::F::load(acc.add(t * ROW_TILE));
            }
            for g in 0..k / 32 {
                let q = part.q.add(g * 8 * Q_STEP);
                let entry = part.groups.add(g * HALVES * GROUP_STEP);
                let factor = |i: usize| V::F::load(entry.add(i * SCALE_STEP).cast());
                let init = |half: usize| {
                    let init = V::load(entry.add(half * GROUP_STEP));
                    if AFFINE { init.zero() } else { init }
                };
                let mut sum = [y[0]; NT];
                if HALVES == 1 {
                    let dot = group_dot::<V, NT, 8, AFFINE, WIDE>(q, init(0), &x, 32 * g);
                    for t in 0..NT {
                        sum[t] = dot[t].to_f32() * factor(1);
                        if AFFINE {
                            sum[t] = factor(2).mul_add(V::F::broadcast(n_x[t].add(g)), sum[t]);
                        }
                    }
                } else {
                    let dot = group_dot::<V, NT, 4, AFFINE, WIDE>(q, init(0), &x, 32 * g);
                    for t in 0..NT {
                        sum[t] = dot[t].to_f32() * factor(1);
                        if AFFINE {
                            sum[t] = factor(2).mul_add(V::F::broadcast(n_x[t].add(2 * g)), sum[t]);
                        }
                    }
                    let q = q.add(4 * Q_STEP);
                    let dot = group_dot::<V, NT, 4, AFFINE, WIDE>(q, init(1), &x, 32 * g + 16);
                    for t in 0..NT {
                        sum[t] = dot[t].to_f32().mul_add(factor(4), sum[t]);
                        if AFFINE {
                            let n = V::F::broadcast(n_x[t].add(2 * g + 1));
                            sum[t] = factor(5).mul_add(n, sum[t]);
                        }
                    }
                }
                for t in 0..NT {
                    y[t] = sum[t].mul_add(V::F::broadcast(d_x[t].add(g)), y[t]);
                }
            }
            for t in 0..NT {
                y[t].store(acc.add(t * ROW_TILE));
            }
        }
    }
}

/// Multiplies the groups of one block with one token as they are unpacked.
struct DotOut<V: Lanes, U> {
    /// Activations of the block.
    qs: *const u8,
    d: *const f32,
    sums: *const f32,
    /// Sums of the rows.
    y: V::F,
    /// First halves of up to four 32 values, where groups are of 16.
    halves: [V::F; 4],
    format: std::marker::PhantomData<U>,
}

impl<V: Lanes, U: Unpack> DotOut<V, U> {
    /// Sum of `q * q_x` over group `g`, and sum of `q_x` in every lane.
    #[inline(always)]
    fn products(&self, g: usize, q: &[V]) -> (V::F, V::F) {
        assert!((g + 1) * U::GROUP <= U::DTYPE.block_len() && 4 * q.len() == U::GROUP);
        let mut dot = q[0].zero();
        for (i, &q) in q.iter().enumerate() {
            // SAFETY: group `g` is inside the block, whose activations are at `qs`.
            let x = unsafe { V::broadcast(self.qs.add(4 * i + g * U::GROUP)) };
            dot = if U::WIDE {
                dot.dot::<true>(q, x)
            } else {
                dot.dot::<false>(q, x)
            };
        }
        // SAFETY: as above.
        (dot.to_f32(), unsafe { V::F::broadcast(self.sums.add(g)) })
    }

    /// Adds a group's `sum = d * products (+ b * n)`, made by `add` from what it
    /// is added to.
    #[inline(always)]
    fn add(&mut self, g: usize, products: V::F, d: V::F, offset: impl Fn(V::F) -> V::F) {
        let pair = g / 2 % 4;
        if U::GROUP == 16 && g % 2 == 0 {
            self.halves[pair] = offset(products * d);
            return;
        }
        let sum = match U::GROUP {
            16 => offset(products.mul_add(d, self.halves[pair])),
            _ => offset(products * d),
        };
        // SAFETY: the group's 32 values are inside the block.
        let d_x = unsafe { V::F::broadcast(self.d.add(g * U::GROUP / 32)) };
        self.y = sum.mul_add(d_x, self.y);
    }
}

impl<V: Lanes, U: Unpack> Sink<V> for DotOut<V, U> {
    #[inline(always)]
    fn group(&mut self, g: usize, q: &[V], d: V::F) {
        let Kind::Centred(offset) = U::KIND else {
            unreachable!("an affine format gives b")
        };
        let (products, n) = self.products(g, q);
        // Whole numbers below 2^24: exact, as in the tile's integer sum.
        // SAFETY: a local value.
        let offset = unsafe { V::F::broadcast(&-f32::from(offset)) };
        self.add(g, offset.mul_add(n, products), d, |sum| sum);
    }

    #[inline(always)]
    fn group_affine(&mut self, g: usize, q: &[V], d: V::F, b: V::F) {
        let (products, n) = self.products(g, q);
        self.add(g, products, d, |sum| b.mul_add(n, sum));
    }
}

/// Adds to `acc [16 rows]` the products of values `k0..k0 + k` of 16 rows at
/// `src` with row `token` of the activations, asking for as many bytes at
/// `ahead`.
///
/// Budget on AVX-512, for 512 weights in 4 bits: transposing 20, nibbles 12,
/// `vpdpbusd` 8, scales some 12, convert, scale, add: about 56 instructions on
/// two ports, 28 cycles, 10 bytes of file a cycle: twice what one core reads
/// from memory.
///
/// # Safety
/// The instruction set of `V` is available, the blocks are readable, `token` is
/// a row of `acts`, `acc` has 16 values.
#[inline(always)]
pub unsafe fn dot<V: Lanes, U: Unpack>(
    (src, stride, ahead): (*const u8, usize, *const u8),
    (k0, k): (usize, usize),
    acts: &Acts,
    token: u32,
    acc: *mut f32,
) {
    let (len, bytes) = (U::DTYPE.block_len(), U::DTYPE.block_bytes());
    let at = token as usize * acts.k + k0;
    // SAFETY: all addresses are inside the rows, the activations' row and `acc`,
    // as the caller vouches.
    unsafe {
        for r in (0..ROW_TILE).step_by(V::ROWS) {
            let y = V::F::load(acc.add(r));
            let mut out = DotOut::<V, U> {
                qs: acts.qs.cast::<u8>().add(at),
                d: acts.d.add(at / 32),
                sums: acts.sums.add(at / U::GROUP),
                y,
                halves: [y; 4],
                format: std::marker::PhantomData,
            };
            for b in 0..k / len {
                let ahead = ahead.wrapping_add((b * ROW_TILE + r) * bytes);
                for line in (0..V::ROWS * bytes).step_by(CACHE_LINE) {
                    V::prefetch(ahead.wrapping_add(line));
                }
                let block = BlockRows::new(src.add(b * bytes + r * stride), stride, bytes);
                U::unpack::<V, _>(block, &mut out);
                out.qs = out.qs.add(len);
                out.d = out.d.add(len / 32);
                out.sums = out.sums.add(len / U::GROUP);
            }
            out.y.store(acc.add(r));
        }
    }
}
