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

use std::ops::Range;

use super::ROW_TILE;
use super::acts::{ACT_GROUP, C16, C16_AT, D_AT, N32_AT, RECORD};
use super::driver::{CACHE_LINE, STREAM_AHEAD};
use super::lanes::{FloatLanes, Lanes};
use super::operands::Acts;
use super::tile::{BlockRows, GROUP_STEP, Kind, Q_STEP, SCALE_STEP, Sink, Tile, TileOut, Unpack};

/// Unpacks `k` values (whole blocks) of 16 rows, `stride` bytes apart.
///
/// Budget on AVX-512, for 512 weights (32 values of 16 rows) in 4 bits: 16
/// loads with 12 inserts and 8 shuffles transpose 256 bytes, 12 operations
/// split nibbles, scales take some 12, and there are 10 stores: 44 instructions
/// on two ports, 22 cycles; [`q8`] takes 6 a token.
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
                U::unpack::<V, _>(block, &mut TileOut::<V, U>::new(at.seen_from(r)));
            }
        }
    }
}

/// Integer dot products of `LANES * 4` values for each token, added to `sum`.
///
/// # Safety
/// `q` has that many lanes of W; each `x` that many values.
#[inline(always)]
unsafe fn group_dot<V: Lanes, const NT: usize, const LANES: usize, const WIDE: bool>(
    q: *const u8,
    x: &[*const u8; NT],
    x_at: usize,
    mut sum: [V; NT],
) -> [V; NT] {
    // SAFETY: the caller vouches for a whole group of weights and activations.
    unsafe {
        for i in 0..LANES {
            let w = V::load(q.add(i * Q_STEP));
            for t in 0..NT {
                sum[t] = sum[t].dot::<WIDE>(w, V::broadcast(x[t].add(x_at + 4 * i)));
            }
        }
        sum
    }
}

/// What a group of 16 starts from, given where its `c16` lies: minus the offset times the
/// sum of the activations for a centred format, nothing for an affine one (`OFFSET` 0).
///
/// # Safety
/// The instruction set is available; `c16` is readable.
#[inline(always)]
unsafe fn start16<V: Lanes, const OFFSET: u32>(c16: *const u8) -> V {
    // SAFETY: the caller's contract.
    let c16 = unsafe { V::broadcast(c16) };
    match OFFSET {
        0 => c16.zero(),
        32 => c16,
        // A power of two, so that this is exact.
        _ => c16.sar((C16.unsigned_abs() / OFFSET).ilog2()),
    }
}

/// Adds to `to` a group's `d * sum(q * q_x) + b * sum(q_x)`, or for a centred
/// format, where `b` is minus the offset, `d * sum((q - offset) * q_x)`. Sums are
/// whole numbers below 2^24, so the centring is exact. `n` is the sum of the activations,
/// `None` where `dot` is centred already.
#[inline(always)]
fn scale<V: Lanes, const AFFINE: bool>(
    dot: V,
    (d, b): (V::F, V::F),
    n: Option<V::F>,
    to: Option<V::F>,
) -> V::F {
    let dot = dot.to_f32();
    let dot = match n {
        Some(n) if !AFFINE => b.mul_add(n, dot),
        _ => dot,
    };
    let scaled = match to {
        Some(to) => dot.mul_add(d, to),
        None => dot * d,
    };
    match n {
        Some(n) if AFFINE => b.mul_add(n, scaled),
        _ => scaled,
    }
}

/// [`scale`] for a group of 16 that began with [`start16`].
///
/// # Safety
/// The instruction set is available; `c16` is readable.
#[inline(always)]
unsafe fn scale16<V: Lanes, const OFFSET: u32>(
    dot: V,
    factors: (V::F, V::F),
    c16: *const u8,
    to: Option<V::F>,
) -> V::F {
    match OFFSET {
        0 => {
            const PART: f32 = 1.0 / C16 as f32;
            // SAFETY: the caller's contract; a power of two keeps the sum exact.
            let n = unsafe { V::broadcast(c16).to_f32() * V::F::broadcast(&PART) };
            scale::<V, true>(dot, factors, Some(n), to)
        }
        _ => scale::<V, false>(dot, factors, None, to),
    }
}

/// Multiplies a tile: `HALVES` groups in 32 values; affine (`OFFSET` 0) or centred (for
/// groups of 32 any other number).
///
/// Budget on AVX-512, for 32 values of 16 rows and one token (1,024
/// operations): 8 `vpdpbusd`, convert, scale, offset, add: 12 instructions on
/// two ports: 6 cycles, 170 operations a cycle. Loads: 10 broadcasts, and for all
/// tokens 8 lanes and 2 factors. Twelve tokens cover the latency of `vpdpbusd` (5
/// cycles). Centred groups of 16 take 13: their integer sums start at minus the offset
/// times the activations. They have three vectors a token at once, so that ten fit the
/// registers.
///
/// # Safety
/// The instruction set of `V` is available; `tile` holds `k` values starting at
/// value `k0` of the rows; `tx` has `NT` rows of `acts`; `acc` has `16 * NT` values.
#[inline(always)]
pub unsafe fn q8<
    V: Lanes,
    const NT: usize,
    const HALVES: usize,
    const OFFSET: u32,
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
        for r in (0..ROW_TILE).step_by(V::ROWS) {
            let mut x = [std::ptr::null::<u8>(); NT];
            let mut y = [V::F::load(acc.add(r)); NT];
            for (t, (x, y)) in x.iter_mut().zip(&mut y).enumerate() {
                *x = acts.row(*tx.add(t), k0 / ACT_GROUP * RECORD);
                *y = V::F::load(acc.add(t * ROW_TILE + r));
            }
            let part = tile.seen_from(r);
            let (mut q, mut entry) = (part.q.cast_const(), part.groups.cast_const());
            for _ in 0..k / ACT_GROUP {
                let factors = |i: usize| {
                    let at = entry.add(i * GROUP_STEP);
                    (V::F::load(at.cast()), V::F::load(at.add(SCALE_STEP).cast()))
                };
                let mut sum = [y[0]; NT];
                if HALVES == 1 {
                    let zero = [V::load(q).zero(); NT];
                    let dot = group_dot::<V, NT, 8, WIDE>(q, &x, 0, zero);
                    for t in 0..NT {
                        let n = V::F::broadcast(x[t].add(N32_AT).cast());
                        sum[t] = match OFFSET {
                            0 => scale::<V, true>(dot[t], factors(0), Some(n), None),
                            _ => scale::<V, false>(dot[t], factors(0), Some(n), None),
                        };
                    }
                } else {
                    let mut start = [V::load(q).zero(); NT];
                    for t in 0..NT {
                        start[t] = start16::<V, OFFSET>(x[t].add(C16_AT));
                    }
                    let dot = group_dot::<V, NT, 4, WIDE>(q, &x, 0, start);
                    for t in 0..NT {
                        let c16 = x[t].add(C16_AT);
                        sum[t] = scale16::<V, OFFSET>(dot[t], factors(0), c16, None);
                        start[t] = start16::<V, OFFSET>(c16.add(4));
                    }
                    let dot = group_dot::<V, NT, 4, WIDE>(q.add(4 * Q_STEP), &x, 16, start);
                    for t in 0..NT {
                        let c16 = x[t].add(C16_AT + 4);
                        sum[t] = scale16::<V, OFFSET>(dot[t], factors(1), c16, Some(sum[t]));
                    }
                }
                for t in 0..NT {
                    y[t] = sum[t].mul_add(V::F::broadcast(x[t].add(D_AT).cast()), y[t]);
                    x[t] = x[t].add(RECORD);
                }
                q = q.add(8 * Q_STEP);
                entry = entry.add(HALVES * GROUP_STEP);
            }
            for (t, y) in y.into_iter().enumerate() {
                y.store(acc.add(t * ROW_TILE + r));
            }
        }
    }
}

/// Multiplies the groups of one block with one token as they are unpacked.
struct DotOut<V: Lanes, U> {
    /// The block's records of activations.
    x: *const u8,
    /// Sums of the rows.
    y: V::F,
    /// First halves of up to four 32 values, where groups are of 16.
    halves: [V::F; 4],
    format: std::marker::PhantomData<U>,
}

impl<V: Lanes, U: Unpack> DotOut<V, U> {
    /// Adds group `g`.
    #[inline(always)]
    fn add<const OFFSET: u32>(&mut self, g: usize, q: &[V], factors: (V::F, V::F)) {
        assert!((g + 1) * U::GROUP <= U::DTYPE.block_len() && 4 * q.len() == U::GROUP);
        let at = g * U::GROUP % ACT_GROUP;
        let (pair, first) = (g / 2 % 4, g.is_multiple_of(2));
        let to = (U::GROUP == 16 && !first).then_some(self.halves[pair]);
        // SAFETY: group `g` is inside the block, whose records are at `x`.
        let (sum, d_x) = unsafe {
            let record = self.x.add(g * U::GROUP / ACT_GROUP * RECORD);
            let c16 = record.add(C16_AT + at / 4);
            let mut dot = match U::GROUP {
                16 => start16::<V, OFFSET>(c16),
                _ => q[0].zero(),
            };
            for (i, &q) in q.iter().enumerate() {
                let x = V::broadcast(record.add(at + 4 * i));
                dot = match U::WIDE {
                    true => dot.dot::<true>(q, x),
                    false => dot.dot::<false>(q, x),
                };
            }
            let n32 = V::F::broadcast(record.add(N32_AT).cast());
            let sum = match (U::GROUP, OFFSET) {
                (16, _) => scale16::<V, OFFSET>(dot, factors, c16, to),
                (_, 0) => scale::<V, true>(dot, factors, Some(n32), to),
                _ => scale::<V, false>(dot, factors, Some(n32), to),
            };
            (sum, V::F::broadcast(record.add(D_AT).cast()))
        };
        if U::GROUP == 16 && first {
            self.halves[pair] = sum;
        } else {
            self.y = sum.mul_add(d_x, self.y);
        }
    }
}

impl<V: Lanes, U: Unpack> Sink<V> for DotOut<V, U> {
    #[inline(always)]
    fn group(&mut self, g: usize, q: &[V], d: V::F) {
        let Kind::Centred(offset) = U::KIND else {
            unreachable!("an affine format gives b")
        };
        // SAFETY: a local value; the instruction set is that of `d`.
        let neg = unsafe { V::F::broadcast(&-f32::from(offset)) };
        // Groups of 32 take the offset from the factors.
        match offset {
            4 => self.add::<4>(g, q, (d, neg)),
            _ => self.add::<32>(g, q, (d, neg)),
        }
    }

    #[inline(always)]
    fn group_affine(&mut self, g: usize, q: &[V], d: V::F, b: V::F) {
        self.add::<0>(g, q, (d, b));
    }
}

/// Asks for what follows in each row, once a cache line: `p` is byte `bytes.start` of
/// the part of a row that is being read, of which `bytes` are read next.
#[inline(always)]
pub fn prefetch_rows<V: Lanes>(p: *const u8, stride: usize, bytes: Range<usize>) {
    let first = bytes.start.next_multiple_of(CACHE_LINE);
    for line in (first..bytes.end).step_by(CACHE_LINE) {
        let at = p.wrapping_add(line - bytes.start + STREAM_AHEAD);
        for r in 0..V::ROWS {
            V::prefetch(at.wrapping_add(r * stride));
        }
    }
}

/// Adds to `acc [16 rows]` the products of values `k0..k0 + k` of 16 rows at
/// `src` with row `token` of the activations.
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
    (src, stride): (*const u8, usize),
    (k0, k): (usize, usize),
    acts: &Acts,
    token: u32,
    acc: *mut f32,
) {
    let (len, bytes) = (U::DTYPE.block_len(), U::DTYPE.block_bytes());
    // SAFETY: all addresses are inside the rows, the activations' row and `acc`,
    // as the caller vouches.
    unsafe {
        for r in (0..ROW_TILE).step_by(V::ROWS) {
            let y = V::F::load(acc.add(r));
            let mut out = DotOut::<V, U> {
                x: acts.row(token, k0 / ACT_GROUP * RECORD),
                y,
                halves: [y; 4],
                format: std::marker::PhantomData,
            };
            for b in 0..k / len {
                let at = src.add(b * bytes + r * stride);
                prefetch_rows::<V>(at, stride, b * bytes..(b + 1) * bytes);
                let block = BlockRows::new(at, stride, bytes);
                U::unpack::<V, _>(block, &mut out);
                out.x = out.x.add(len / ACT_GROUP * RECORD);
            }
            out.y.store(acc.add(r));
        }
    }
}
