//! Grids of the kernels that work row by row.

use super::super::kernel::{Arg, Kernel, n_rows};
use crate::graph::Tensor;

/// Threads of a warp.
pub const WARP: usize = 32;

/// Threads of a block that holds several rows.
const ROWS_THREADS: usize = 256;

/// Most blocks in the second and third dimension of a grid.
pub const MOST_BLOCKS_YZ: usize = 65_535;

/// A value-wise kernel (`map.cuh`) over the rows of `rows`: as many threads a row as
/// it has values, or fours of values, up to a block. Appends `lanes` to `args`.
pub fn map(entry: impl Into<String>, rows: &Tensor, args: impl IntoIterator<Item = Arg>) -> Kernel {
    let k = rows.ne[0];
    let units = if k.is_multiple_of(4) { k / 4 } else { k };
    let lanes = units.next_power_of_two().min(ROWS_THREADS);
    let grid = [
        n_rows(rows).div_ceil(ROWS_THREADS / lanes),
        units.div_ceil(lanes).clamp(1, MOST_BLOCKS_YZ),
        1,
    ];
    Kernel::new(entry, grid, ROWS_THREADS as u32)
        .args(args)
        .args([Arg::I32(lanes as i32)])
}

/// A kernel with one warp for each row of `rows`.
pub fn warps(entry: impl Into<String>, rows: &Tensor) -> Kernel {
    // Four warps a block: a handful of rows still spreads over the GPU.
    let warps = 4;
    let grid = [n_rows(rows).div_ceil(warps), 1, 1];
    Kernel::new(entry, grid, (warps * WARP) as u32)
}

/// A kernel with one block for each row of `rows`.
pub fn blocks(entry: impl Into<String>, rows: &Tensor) -> Kernel {
    // By the row's length alone: a row's bits do not depend on how many there are.
    let threads = (rows.ne[0] / 4).next_power_of_two().clamp(WARP, 1024);
    Kernel::new(entry, [n_rows(rows), 1, 1], threads as u32)
}

/// `entry` with one warp (`_warp`) or one block (`_block`) for each row of `x`,
/// whichever suits: a warp up to `longest_of_warp` values.
pub fn warp_or_block(entry: &str, x: &Tensor, longest_of_warp: usize) -> Kernel {
    if x.ne[0] <= longest_of_warp {
        warps(format!("{entry}_warp"), x)
    } else {
        blocks(format!("{entry}_block"), x)
    }
}

/// Values of a row of `k` that each thread of a warp ranks, as kernels come.
pub fn values_per_thread(k: usize) -> usize {
    k.div_ceil(WARP).next_power_of_two().max(4)
}

#[cfg(test)]
mod tests {
    use super::super::tests::tensor;
    use super::*;

    const ROWS: [[usize; 3]; 5] = [
        [1, 1, 1],
        [9, 1, 1],
        [5, 4, 3],
        [65_537, 1, 1],
        [300, 300, 2],
    ];

    #[test]
    fn map_covers_every_row_and_value() {
        for k in [1, 3, 4, 31, 128, 1000, 1027, 14_336, 262_144, 70_000_001] {
            for rows in ROWS {
                let t = tensor([k, rows[0], rows[1], rows[2]]);
                let kernel = map("f", &t, [Arg::Dst]);
                let Some(Arg::I32(lanes)) = kernel.args.last() else {
                    panic!("lanes come last");
                };
                let lanes = *lanes as usize;
                let rows_per_block = kernel.block as usize / lanes;
                assert!(lanes.is_power_of_two() && kernel.block as usize >= lanes);
                assert!(kernel.grid[0] as usize * rows_per_block >= n_rows(&t));
                // Rows that one pass does not cover are walked in steps.
                assert!((1..=MOST_BLOCKS_YZ).contains(&(kernel.grid[1] as usize)));
            }
        }
    }

    #[test]
    fn every_row_has_a_warp_or_a_block() {
        for k in [1, 33, 512, 513, 4096, 262_144] {
            for rows in ROWS {
                let t = tensor([k, rows[0], rows[1], rows[2]]);
                let kernel = warp_or_block("f", &t, 512);
                let threads = kernel.block as usize;
                assert!(threads.is_multiple_of(WARP) && threads <= 1024);
                let warp = kernel.entry == "f_warp";
                assert_eq!(warp, k <= 512);
                let rows_per_block = if warp { threads / WARP } else { 1 };
                assert!(kernel.grid[0] as usize * rows_per_block >= n_rows(&t));
                assert_eq!(kernel.grid[1..], [1, 1]);
            }
        }
    }
}
