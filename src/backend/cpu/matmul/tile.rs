//! The tile of W that the kernels read, and how unpackers fill it.
//!
//! A tile is 16 rows of W by up to `K_CHUNK` values. `G` is the type's group
//! (values that share a scale, 16 or 32):
//!
//! ```text
//! q       [4, 16 rows, k / 4]  i8   four consecutive values of a row make a lane
//! groups  [3, 16 rows, k / G]  i32 init = -128 * sum of the group's q,
//!                              f32 d, f32 b: value = d * q + b
//! ```
//!
//! `init` takes out the bias of the activations. Formats without an offset
//! leave `b` unwritten.

use super::lanes::Lanes;
use crate::quant::DType;

/// Rows in a tile.
pub const ROW_TILE: usize = 16;
/// Bytes of a lane (four values) of all rows of a tile.
pub const Q_STEP: usize = 4 * ROW_TILE;
/// Bytes of one group's init, d or b.
pub const SCALE_STEP: usize = 4 * ROW_TILE;
/// Bytes of one group's entry.
pub const GROUP_STEP: usize = 3 * SCALE_STEP;

/// Where a tile (or the part of its rows that one vector covers) lies.
#[derive(Clone, Copy)]
pub struct Tile {
    pub q: *mut u8,
    pub groups: *mut u8,
}

impl Tile {
    /// The same tile seen from row `r`.
    ///
    /// # Safety
    /// `r < ROW_TILE`, and the pointers are those of a whole tile.
    #[inline(always)]
    pub unsafe fn from_row(self, r: usize) -> Tile {
        // SAFETY: stays inside the first lane of the tile.
        unsafe {
            Tile {
                q: self.q.add(4 * r),
                groups: self.groups.add(4 * r),
            }
        }
    }
}

/// A format's unpacker: the only thing a type brings to the matmul.
pub trait Unpack {
    /// The row of the type table.
    const DTYPE: DType;
    /// Values that share a scale: 16 or 32.
    const GROUP: usize;
    /// True when `b` is used: value = d * q + b.
    const AFFINE: bool = false;
    /// True when |q| may exceed 64.
    const WIDE: bool = false;

    /// Unpacks one block of each row, group after group.
    fn unpack<V: Lanes>(block: BlockRows<V>, out: &mut TileOut<V>);
}

/// One block of each of `V::ROWS` rows of W.
#[derive(Clone, Copy)]
pub struct BlockRows<V> {
    p: *const u8,
    stride: usize,
    block_bytes: usize,
    lanes: std::marker::PhantomData<V>,
}

impl<V: Lanes> BlockRows<V> {
    /// # Safety
    /// The instruction set of `V` is available, and `block_bytes` bytes are
    /// readable at `p + r * stride` for each `r < V::ROWS`.
    #[inline(always)]
    pub unsafe fn new(p: *const u8, stride: usize, block_bytes: usize) -> Self {
        BlockRows {
            p,
            stride,
            block_bytes,
            lanes: std::marker::PhantomData,
        }
    }

    /// Bytes `at..at + 16` of each block, four to a lane.
    #[inline(always)]
    pub fn columns(self, at: usize) -> [V; 4] {
        assert!(at + 16 <= self.block_bytes);
        // SAFETY: inside the block, by the assertion and the contract of `new`.
        unsafe { V::columns(self.p.add(at), self.stride) }
    }

    /// Bytes `at..at + 4` of each block.
    #[inline(always)]
    pub fn column(self, at: usize) -> V {
        assert!(at + 4 <= self.block_bytes);
        // SAFETY: inside the block, by the assertion and the contract of `new`.
        unsafe { V::column(self.p.add(at), self.stride) }
    }
}

/// Where the groups of one block go.
pub struct TileOut<V> {
    tile: Tile,
    group: usize,
    groups: usize,
    lanes: std::marker::PhantomData<V>,
}

impl<V: Lanes> TileOut<V> {
    /// Room for `groups` groups of `group` values.
    ///
    /// # Safety
    /// `tile` has that room, seen from the first row of `V`.
    #[inline(always)]
    pub unsafe fn new(tile: Tile, group: usize, groups: usize) -> Self {
        TileOut {
            tile,
            group,
            groups,
            lanes: std::marker::PhantomData,
        }
    }

    /// Stores group `g`: value = d * q.
    #[inline(always)]
    pub fn group(&mut self, g: usize, q: &[V], d: V::F) {
        assert!(g < self.groups && 4 * q.len() == self.group);
        let mut sum = q[0].zero();
        for (i, lanes) in q.iter().enumerate() {
            sum = sum.add_bytes(*lanes);
            // SAFETY: group `g` is inside the tile (assertion, contract of `new`).
            unsafe { lanes.store(self.tile.q.add((g * q.len() + i) * Q_STEP)) };
        }
        let init = sum.zero().sub_lanes(sum).shl(7);
        // SAFETY: as above.
        unsafe {
            let entry = self.tile.groups.add(g * GROUP_STEP);
            init.store(entry);
            store_f32::<V>(d, entry.add(SCALE_STEP));
        }
    }

    /// Stores group `g`: value = d * q + b.
    #[inline(always)]
    pub fn group_affine(&mut self, g: usize, q: &[V], d: V::F, b: V::F) {
        self.group(g, q, d);
        // SAFETY: `group` has asserted that `g` is inside the tile.
        unsafe { store_f32::<V>(b, self.tile.groups.add(g * GROUP_STEP + 2 * SCALE_STEP)) };
    }
}

/// Stores f32 lanes at a byte address.
#[inline(always)]
unsafe fn store_f32<V: Lanes>(x: V::F, p: *mut u8) {
    use super::lanes::FloatLanes;
    // SAFETY: the caller's contract.
    unsafe { x.store(p.cast()) }
}
