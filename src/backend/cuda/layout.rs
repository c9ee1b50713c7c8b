//! How weights lie on the device: which types have kernels, how many bytes a matrix
//! takes, and the launches that bring it into place.
//!
//! `cuda-kernels/quant/unit.cuh` says what is inside a row tile. A matrix `[k, m]` is
//! `ceil(m / 16)` row tiles one after the other; the matrices of experts follow each
//! other, each padded to whole row tiles.

use super::image::QUANT_TYPES;
use crate::quant::DType;

/// Rows of a row tile; `unit.cuh` has the same.
pub const TILE_ROWS: usize = 16;

/// Values of `k` in a unit, to a multiple of which plain types are padded.
const UNIT: usize = 32;

/// Threads of a block of `cuda-kernels/rearrange.cu`, and groups (one a warp) it does.
const REARRANGE_THREADS: u32 = 128;
const GROUPS_A_BLOCK: usize = 4;

/// True when weights of this type have kernels (`cuda-kernels/quant/`).
pub fn has_type(dtype: DType) -> bool {
    QUANT_TYPES.contains(&dtype.name())
}

/// Bytes of 16 rows of `k` values: as in the file, but for F32, F16 and BF16 with `k`
/// rounded up to a multiple of 32.
pub fn row_tile_bytes(dtype: DType, k: usize) -> usize {
    let len = dtype.block_len();
    let blocks = k.div_ceil(len.max(UNIT)) * (len.max(UNIT) / len);
    (TILE_ROWS * dtype.block_bytes()).saturating_mul(blocks)
}

/// Bytes of a weight `[k, m, n_expert]` (`ne[3]` counts as more experts).
pub fn device_bytes(dtype: DType, ne: [usize; 4]) -> usize {
    let tiles = ne[1].div_ceil(TILE_ROWS);
    [tiles, ne[2], ne[3]]
        .into_iter()
        .fold(row_tile_bytes(dtype, ne[0]), usize::saturating_mul)
}

/// A launch of `rearrange_<type>(const uint8_t* src, uint8_t* dst, int k, long long n_rows)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rearrange {
    /// Name of the `extern "C"` kernel.
    pub entry: String,
    /// Blocks, first dimension.
    pub grid: u32,
    /// Threads a block.
    pub block: u32,
    /// Values a row.
    pub k: i32,
    /// Rows that `src` holds.
    pub n_rows: i64,
}

/// A stretch of a weight's rows that is copied and rearranged at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// Where its rows begin in the weight's bytes in the file, and how many they are.
    pub src_offset_bytes: usize,
    pub src_bytes: usize,
    /// Where its first row tile lies in the weight's device memory.
    pub dst_offset_bytes: usize,
    pub launch: Rearrange,
}

/// Cuts a weight `[k, m, n_expert]` into pieces of whole row tiles, each of at most
/// `most_bytes` file bytes but at least one row tile, in file order. Together they write
/// all [`device_bytes`].
pub fn pieces(dtype: DType, ne: [usize; 4], most_bytes: usize) -> impl Iterator<Item = Piece> {
    let k = ne[0];
    let row_bytes = k.div_ceil(dtype.block_len()) * dtype.block_bytes();
    let tile_bytes = row_tile_bytes(dtype, k);
    // Without padding between them, experts are the rows of one tall matrix.
    let (rows, matrices) = match ne[1].is_multiple_of(TILE_ROWS) {
        true => (ne[1] * ne[2] * ne[3], 1),
        false => (ne[1], ne[2] * ne[3]),
    };
    let tiles = most_bytes / (TILE_ROWS * row_bytes).max(1);
    let piece_rows = tiles.max(1).saturating_mul(TILE_ROWS);
    (0..matrices).flat_map(move |matrix| {
        let first_tile = matrix * rows.div_ceil(TILE_ROWS);
        (0..rows).step_by(piece_rows).map(move |row| {
            let n_rows = (rows - row).min(piece_rows);
            Piece {
                src_offset_bytes: (matrix * rows + row) * row_bytes,
                src_bytes: n_rows * row_bytes,
                dst_offset_bytes: (first_tile + row / TILE_ROWS) * tile_bytes,
                launch: rearrange(dtype, k, n_rows),
            }
        })
    })
}

/// The launch for `n_rows` rows of `k` values.
fn rearrange(dtype: DType, k: usize, n_rows: usize) -> Rearrange {
    let groups = n_rows.div_ceil(TILE_ROWS) * k.div_ceil(dtype.block_len().max(UNIT));
    Rearrange {
        entry: format!("rearrange_{}", dtype.name()),
        grid: groups.div_ceil(GROUPS_A_BLOCK) as u32,
        block: REARRANGE_THREADS,
        k: k as i32,
        n_rows: n_rows as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_take_their_file_bytes() {
        for &dtype in DType::ALL.iter().filter(|d| d.is_quantized()) {
            let file = dtype.row_bytes(512).unwrap();
            assert_eq!(row_tile_bytes(dtype, 512), 16 * file, "{dtype:?}");
            assert_eq!(device_bytes(dtype, [512, 48, 3, 1]), 144 * file);
            // 17 rows are two row tiles, for each expert.
            assert_eq!(device_bytes(dtype, [512, 17, 3, 1]), 96 * file);
        }
    }

    #[test]
    fn plain_rows_are_padded() {
        assert_eq!(row_tile_bytes(DType::F32, 33), 16 * 64 * 4);
        assert_eq!(row_tile_bytes(DType::F16, 64), 16 * 64 * 2);
        assert_eq!(device_bytes(DType::BF16, [1, 1, 1, 1]), 16 * 32 * 2);
    }

    #[test]
    fn sizes_do_not_overflow() {
        assert_eq!(device_bytes(DType::F32, [1 << 40; 4]), usize::MAX);
    }

    /// Bytes and rows follow each other without gaps, whatever the sizes.
    fn check_pieces(dtype: DType, ne: [usize; 4], most_bytes: usize) {
        let tile_file_bytes = 16 * dtype.row_bytes(ne[0]).unwrap();
        let (mut src, mut dst) = (0, 0);
        for piece in pieces(dtype, ne, most_bytes) {
            assert_eq!((piece.src_offset_bytes, piece.dst_offset_bytes), (src, dst));
            assert!(piece.src_bytes <= most_bytes.max(tile_file_bytes));
            src += piece.src_bytes;
            let n_rows = piece.launch.n_rows as usize;
            assert_eq!(dtype.row_bytes(ne[0]).unwrap() * n_rows, piece.src_bytes);
            dst += row_tile_bytes(dtype, ne[0]) * n_rows.div_ceil(TILE_ROWS);
        }
        let rows = ne[1] * ne[2] * ne[3];
        assert_eq!(src, dtype.row_bytes(ne[0]).unwrap() * rows, "{ne:?}");
        assert_eq!(dst, device_bytes(dtype, ne), "{ne:?}");
    }

    #[test]
    fn pieces_cover_a_weight() {
        for most_bytes in [0, 5000, 20_000, 1 << 30] {
            for ne in [[256, 64, 1, 1], [256, 40, 1, 1], [512, 17, 3, 1]] {
                check_pieces(DType::Q4K, ne, most_bytes);
            }
            check_pieces(DType::F32, [33, 7, 2, 2], most_bytes);
            check_pieces(DType::F32, [33, 0, 2, 1], most_bytes);
            check_pieces(DType::Mxfp4, [96, 32, 4, 1], most_bytes);
        }
    }

    #[test]
    fn one_warp_does_a_group() {
        let launch = rearrange(DType::Q6K, 1024, 33);
        // Three row tiles of four super-blocks.
        assert_eq!((launch.grid, launch.block, launch.n_rows), (3, 128, 33));
        assert_eq!(launch.entry, "rearrange_Q6_K");
        assert_eq!(rearrange(DType::F16, 33, 1).grid, 1);
    }
}
