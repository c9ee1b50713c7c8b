//! The tile of W that the kernels read, and how unpackers fill it.
//!
//! A tile is 16 rows of W by up to `K_CHUNK` values. `G` is the type's group
//! (values that share a scale, 16 or 32):
//!
//! ```text
//! q       [4, 16 rows, k / 4] u8   four consecutive values of a row make a lane
//! groups  [2, 16 rows, k / G] f32  d, then b (affine) or -offset (centred):
//!                                  value = d * q + b, or d * (q - offset)
//! ```

use super::ROW_TILE;
use super::lanes::{FloatLanes, Lanes};
use crate::quant::DType;

/// Bytes of a lane (four values) of all rows of a tile.
pub const Q_STEP: usize = 4 * ROW_TILE;
/// Bytes of one group's d or b.
pub const SCALE_STEP: usize = 4 * ROW_TILE;
/// Bytes of one group's entry.
pub const GROUP_STEP: usize = 2 * SCALE_STEP;

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
    pub unsafe fn seen_from(self, r: usize) -> Tile {
        // SAFETY: stays inside the first lane of the tile.
        unsafe {
            Tile {
                q: self.q.add(4 * r),
                groups: self.groups.add(4 * r),
            }
        }
    }
}

/// What the unsigned lane `q` of a format means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// value = d * (q - offset)
    Centred(u8),
    /// value = d * q + b
    Affine,
}

/// Takes what an unpacker makes of a block: groups in ascending order, except
/// that groups of 16 may come evens first within four pairs.
pub trait Sink<V: Lanes> {
    /// Group `g` of a centred format.
    fn group(&mut self, g: usize, q: &[V], d: V::F);
    /// Group `g` of an affine format.
    fn group_affine(&mut self, g: usize, q: &[V], d: V::F, b: V::F);
}

/// A format's unpacker: the only thing a type brings to the matmul.
pub trait Unpack {
    /// The row of the type table.
    const DTYPE: DType;
    /// Values that share a scale: 16 or 32.
    const GROUP: usize;
    /// What a lane's value means.
    const KIND: Kind;
    /// True when lanes may exceed 63.
    const WIDE: bool = false;

    /// Unpacks one block of each row, group after group.
    fn unpack<V: Lanes, S: Sink<V>>(block: BlockRows<V>, out: &mut S);
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

/// Stores the groups of one block in a tile.
pub struct TileOut<V, U> {
    tile: Tile,
    types: std::marker::PhantomData<(V, U)>,
}

impl<V: Lanes, U: Unpack> TileOut<V, U> {
    /// # Safety
    /// `tile` has room for a block of `U`, seen from the first row of `V`.
    #[inline(always)]
    pub unsafe fn new(tile: Tile) -> Self {
        TileOut {
            tile,
            types: std::marker::PhantomData,
        }
    }
}

impl<V: Lanes, U: Unpack> Sink<V> for TileOut<V, U> {
    #[inline(always)]
    fn group(&mut self, g: usize, q: &[V], d: V::F) {
        let Kind::Centred(offset) = U::KIND else {
            unreachable!("an affine format gives b")
        };
        // SAFETY: a local value; the instruction set is that of `d`.
        let offset = unsafe { V::F::broadcast(&-f32::from(offset)) };
        self.group_affine(g, q, d, offset);
    }

    #[inline(always)]
    fn group_affine(&mut self, g: usize, q: &[V], d: V::F, b: V::F) {
        assert!((g + 1) * U::GROUP <= U::DTYPE.block_len() && 4 * q.len() == U::GROUP);
        // SAFETY: group `g` is inside the block, by the assertion, and the block
        // inside the tile, by the contract of `new`.
        unsafe {
            for (i, lanes) in q.iter().enumerate() {
                lanes.store(self.tile.q.add((g * q.len() + i) * Q_STEP));
            }
            let entry = self.tile.groups.add(g * GROUP_STEP);
            d.store(entry.cast());
            b.store(entry.add(SCALE_STEP).cast());
        }
    }
}
