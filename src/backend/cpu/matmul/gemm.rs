//! The inner loops, generic over the instruction set and compiled for each by
//! `compile_kernels!`.
//!
//! All of them add to `acc [16 rows, NT]` the products of a tile of W with `NT`
//! tokens, a token's sum being taken in the same order whatever `NT` is, so a
//! token's result does not depend on its neighbours.

use super::driver::Acts;
use super::lanes::{FloatLanes, Lanes};
use super::tile::{BlockRows, GROUP_STEP, Q_STEP, ROW_TILE, SCALE_STEP, Tile, TileOut, Unpack};

/// Unpacks `k` values (whole blocks) of 16 rows, `stride` bytes apart.
///
/// Budget on AVX-512, for 512 weights (32 values of 16 rows) in 4 bits: 16
/// loads with 12 inserts and 8 shuffles transpose 256 bytes, 16 operations
/// split nibbles, 8 sum them, some 12 make the scales, 11 stores: about 60
/// instructions on the two vector ports, 30 cycles, 9 bytes of file a cycle,
/// which is twice what one of two cores reads from memory.
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
                let mut out = TileOut::new(at.from_row(r), U::GROUP, groups);
                U::unpack::<V>(block, &mut out);
            }
        }
    }
}

/// Integer dot products of `LANES * 4` values for each token, biased by `init`.
#[inline(always)]
unsafe fn group_dot<V: Lanes, const NT: usize, const LANES: usize, const WIDE: bool>(
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
                sum[t] = sum[t].dot::<WIDE>(V::broadcast(x[t].add(x_at + 4 * i)), w);
            }
        }
    }
    sum
}

/// 8-bit kernel: `HALVES` groups in 32 values, offset `b` when `AFFINE`.
///
/// Budget on AVX-512, for 32 values of 16 rows and one token (1,024
/// operations): 8 `vpdpbusd`, then convert, scale, add (and add `b * s`): 11 or
/// 12 instructions on two ports (13 for groups of 16): 6 cycles, 170 operations
/// a cycle. Loads: 8 broadcasts, and for all tokens 8 lanes and 3 factors.
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
        let mut s_x = [std::ptr::null::<f32>(); NT];
        for t in 0..NT {
            let row = *tx.add(t) as usize;
            x[t] = acts.x.add(row * acts.x_stride + k0);
            d_x[t] = acts.d.add(row * acts.d_stride + k0 / 32);
            s_x[t] = acts.s.add(row * acts.s_stride + k0 / 32 * HALVES);
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
                let first = V::load(entry);
                if HALVES == 1 {
                    let sum = group_dot::<V, NT, 8, WIDE>(q, first, &x, 32 * g);
                    let d = factor(1);
                    for t in 0..NT {
                        let scale = d * V::F::broadcast(d_x[t].add(g));
                        y[t] = sum[t].to_f32().mul_add(scale, y[t]);
                        if AFFINE {
                            y[t] = factor(2).mul_add(V::F::broadcast(s_x[t].add(g)), y[t]);
                        }
                    }
                } else {
                    let low = group_dot::<V, NT, 4, WIDE>(q, first, &x, 32 * g);
                    let mut scaled = [y[0]; NT];
                    for t in 0..NT {
                        scaled[t] = low[t].to_f32() * factor(1);
                    }
                    let second = V::load(entry.add(GROUP_STEP));
                    let high =
                        group_dot::<V, NT, 4, WIDE>(q.add(4 * Q_STEP), second, &x, 32 * g + 16);
                    for t in 0..NT {
                        let both = high[t].to_f32().mul_add(factor(4), scaled[t]);
                        y[t] = both.mul_add(V::F::broadcast(d_x[t].add(g)), y[t]);
                        if AFFINE {
                            let (s0, s1) = (s_x[t].add(2 * g), s_x[t].add(2 * g + 1));
                            y[t] = factor(2).mul_add(V::F::broadcast(s0), y[t]);
                            y[t] = factor(5).mul_add(V::F::broadcast(s1), y[t]);
                        }
                    }
                }
            }
            for t in 0..NT {
                y[t].store(acc.add(t * ROW_TILE));
            }
        }
    }
}

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
            let part = tile.from_row(r);
            for i in 0..k / 4 {
                let q = V::load(part.q.add(i * Q_STEP));
                let entry = part.groups.add(i / lanes * GROUP_STEP);
                let d = V::F::load(entry.add(SCALE_STEP).cast());
                let b = V::F::load(entry.add(2 * SCALE_STEP).cast());
                for byte in 0..4 {
                    let value = q.shl(24 - 8 * byte).sar(24).to_f32();
                    let value = if U::AFFINE {
                        value.mul_add(d, b)
                    } else {
                        value * d
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
/// As for [`q8`], with `acts.x` rows of f32.
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
        for t in 0..NT {
            x[t] = acts
                .x
                .add(*tx.add(t) as usize * acts.x_stride)
                .cast::<f32>()
                .add(k0);
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

/// Compiles unpackers and kernels for lanes `$v` with target features
/// `$features`, and makes `fn ops(dtype, exact) -> Option<Ops>` of them.
/// `$nt` lists 1, 2, ... up to the tokens that fit the registers.
macro_rules! compile_kernels {
    ($v:ty, $features:literal, [$($nt:literal)*]) => {
        #[target_feature(enable = $features)]
        unsafe fn unpack_q8<U: Unpack>(
            src: *const u8,
            stride: usize,
            k: usize,
            scratch: &Scratch,
        ) {
            // SAFETY: the contract of `UnpackFn`.
            unsafe { gemm::unpack::<$v, U>(src, stride, k, scratch.tile) }
        }

        #[target_feature(enable = $features)]
        unsafe fn unpack_f32<U: Unpack>(
            src: *const u8,
            stride: usize,
            k: usize,
            scratch: &Scratch,
        ) {
            // SAFETY: the contract of `UnpackFn`.
            unsafe {
                gemm::unpack::<$v, U>(src, stride, k, scratch.tile);
                gemm::expand::<$v, U>(scratch.tile, k, scratch.values);
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn widen<T: gemm::FloatFormat>(
            src: *const u8,
            stride: usize,
            k: usize,
            scratch: &Scratch,
        ) {
            // SAFETY: the contract of `UnpackFn`.
            unsafe { gemm::widen::<$v, T>(src, stride, k, scratch.values) }
        }

        #[target_feature(enable = $features)]
        unsafe fn q8<
            const NT: usize,
            const HALVES: usize,
            const AFFINE: bool,
            const WIDE: bool,
        >(
            scratch: &Scratch,
            k0: usize,
            k: usize,
            acts: &Acts,
            tx: *const u32,
            acc: *mut f32,
        ) {
            // SAFETY: the contract of `KernelFn`.
            unsafe {
                gemm::q8::<$v, NT, HALVES, AFFINE, WIDE>(scratch.tile, k0, k, acts, tx, acc)
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn f32<const NT: usize>(
            scratch: &Scratch,
            k0: usize,
            k: usize,
            acts: &Acts,
            tx: *const u32,
            acc: *mut f32,
        ) {
            // SAFETY: the contract of `KernelFn`.
            unsafe { gemm::f32::<$v, NT>(scratch.values, k0, k, acts, tx, acc) }
        }

        const F32_KERNELS: &[KernelFn] = &[$(f32::<$nt>),*];

        /// What multiplies a block format with 8-bit activations.
        fn quant<U: Unpack>() -> Ops {
            let kernels: &[KernelFn] = match (U::GROUP, U::AFFINE, U::WIDE) {
                (16, false, _) => &[$(q8::<$nt, 2, false, false>),*],
                (16, true, _) => &[$(q8::<$nt, 2, true, false>),*],
                (_, true, _) => &[$(q8::<$nt, 1, true, false>),*],
                (_, false, false) => &[$(q8::<$nt, 1, false, false>),*],
                (_, false, true) => &[$(q8::<$nt, 1, false, true>),*],
            };
            Ops { unpack: unpack_q8::<U>, kernels }
        }

        /// What multiplies a block format with f32 activations.
        fn quant_f32<U: Unpack>() -> Ops {
            Ops { unpack: unpack_f32::<U>, kernels: F32_KERNELS }
        }

        /// What multiplies a float format with f32 activations.
        fn float<T: gemm::FloatFormat>() -> Ops {
            Ops { unpack: widen::<T>, kernels: F32_KERNELS }
        }

        /// The functions for a type; `None` for I32, which holds no weights.
        pub fn ops(dtype: DType, f32: bool) -> Option<Ops> {
            fn quantized<U: Unpack>(f32: bool) -> Option<Ops> {
                Some(if f32 { quant_f32::<U>() } else { quant::<U>() })
            }
            match dtype {
                DType::F32 => Some(float::<gemm::F32>()),
                DType::F16 => Some(float::<gemm::F16>()),
                DType::BF16 => Some(float::<gemm::Bf16>()),
                DType::I32 => None,
                DType::Q4_0 => quantized::<unpack::Q4_0>(f32),
                DType::Q4_1 => quantized::<unpack::Q4_1>(f32),
                DType::Q5_0 => quantized::<unpack::Q5_0>(f32),
                DType::Q5_1 => quantized::<unpack::Q5_1>(f32),
                DType::Q8_0 => quantized::<unpack::Q8_0>(f32),
                DType::Q2K => quantized::<unpack::Q2K>(f32),
                DType::Q3K => quantized::<unpack::Q3K>(f32),
                DType::Q4K => quantized::<unpack::Q4K>(f32),
                DType::Q5K => quantized::<unpack::Q5K>(f32),
                DType::Q6K => quantized::<unpack::Q6K>(f32),
                DType::Iq4Nl => quantized::<unpack::Iq4Nl>(f32),
                DType::Iq4Xs => quantized::<unpack::Iq4Xs>(f32),
                DType::Mxfp4 => quantized::<unpack::Mxfp4>(f32),
            }
        }
    };
}
pub(super) use compile_kernels;
