//! The form of a matrix product of 2 to 16 tokens for GPUs whose blocks form clusters;
//! `cuda-kernels/mul_mat_vec_cluster.cu`.

use super::super::kernel::{Arg, Kernel};
use super::mul_mat::{X_GROUP, x_group_bytes};

/// `CLUSTER`, `WARPS` of the kernel, and its classes of groups, one a block.
const CLUSTER: usize = 8;
const WARPS: usize = 20;
/// Clusters that an H200 has room for at once, found by asking it; one more would wait for
/// the others to end.
const AT_ONCE: usize = 15;
/// Columns that there are kernels for.
const SLOTS: [usize; 3] = [4, 8, 16];
/// What a warp needs for its weights: `Scales` and three groups of Q4_K, in which two of
/// Q6_K fit; at least two of either.
const RING_BYTES: [usize; 2] = [1024 + 3 * 2304, 2 * 3360];
/// Dynamic shared memory at most: what Hopper has, less the kernel's own 11 KiB.
const MOST_BYTES: usize = 216 << 10;

/// A product as the choice of a launch sees it.
pub struct Product {
    /// Values and rows of a matrix, and rows of all products that share the launch.
    pub k: usize,
    pub m: usize,
    pub all_rows: usize,
    pub n_tokens: usize,
    pub gated: bool,
    pub norm: bool,
}

impl Product {
    /// Row tiles of a cluster.
    fn split(&self, tile_rows: usize) -> usize {
        // Each of up to three products that share a launch fills its last cluster only
        // partly: less than two more than the rows alone would take.
        let room = if self.all_rows > self.m {
            AT_ONCE - 2
        } else {
            AT_ONCE
        };
        self.all_rows.div_ceil(tile_rows).div_ceil(room)
    }

    /// Dynamic shared memory with `slots` columns; `None` when there is too little.
    fn shared_bytes(&self, slots: usize, split: usize) -> Option<usize> {
        let n_groups = self.k / X_GROUP;
        let squares = if self.norm { slots * n_groups * 4 } else { 0 };
        let boxes = if self.gated || split > WARPS { 2 } else { 1 };
        // A row tile's sums of a warp, 16 rows of f32, for each column.
        let mail = WARPS * boxes * 64 * slots;
        let fixed = n_groups.div_ceil(CLUSTER) * x_group_bytes(slots) + squares + mail;
        let rings = RING_BYTES.map(|bytes| fixed + WARPS * bytes);
        rings.into_iter().find(|&bytes| bytes <= MOST_BYTES)
    }

    /// The launch; `args` gives its arguments for so many row tiles a cluster.
    pub fn kernel(&self, tile_rows: usize, args: impl Fn(usize) -> Vec<Arg>) -> Option<Kernel> {
        let split = self.split(tile_rows);
        // Long rows leave no room for many columns: then the columns go in groups.
        let fits = |&slots: &usize| Some((slots, self.shared_bytes(slots, split)?));
        let fewest = SLOTS.iter().position(|&s| s >= self.n_tokens)?;
        let (slots, bytes) = SLOTS[..=fewest].iter().rev().find_map(fits)?;
        let blocks = self.m.div_ceil(tile_rows).div_ceil(split) * CLUSTER;
        let grid = [blocks, self.n_tokens.div_ceil(slots), 1];
        let kernel = Kernel::new(
            format!("mul_mat_vec_cluster_{slots}"),
            grid,
            (WARPS * 32) as u32,
        );
        Some(kernel.shared(bytes).args(args(split)).job())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(k: usize, m: usize, n_tokens: usize) -> Product {
        Product {
            k,
            m,
            all_rows: m,
            n_tokens,
            gated: false,
            norm: false,
        }
    }

    fn launch(product: &Product) -> (String, [u32; 3], u32) {
        let kernel = product.kernel(16, |_| Vec::new()).expect("a launch");
        (kernel.entry, kernel.grid, kernel.shared_bytes)
    }

    #[test]
    fn a_round_of_clusters_does_all_rows() {
        // llama-8b: down, gate and up, output; 18, 60 and 18 row tiles a cluster.
        let (entry, grid, bytes) = launch(&product(14_336, 4096, 16));
        assert_eq!(
            (entry.as_str(), grid),
            ("mul_mat_vec_cluster_16", [120, 1, 1])
        );
        // x of 7 groups, sums once, two groups of Q6_K a warp.
        assert_eq!(bytes, 7 * 8768 + 20 * 1024 + 20 * 6720);
        let gated = Product {
            gated: true,
            norm: true,
            ..product(4096, 14_336, 9)
        };
        let (_, grid, bytes) = launch(&gated);
        assert_eq!(grid, [120, 1, 1]);
        assert_eq!(bytes, 2 * 8768 + 16 * 16 * 4 + 40 * 1024 + 20 * 7936);
        // Q, K and V: 28, 28 and 10 + 3 + 3 clusters would be 16.
        let all: u32 = [4096, 1024, 1024]
            .map(|m| {
                launch(&Product {
                    all_rows: 6144,
                    ..product(4096, m, 8)
                })
                .1[0]
            })
            .iter()
            .sum();
        assert!(all <= 8 * AT_ONCE as u32, "{all}");
    }

    #[test]
    fn columns_go_in_groups_where_rows_are_long() {
        let (entry, grid, _) = launch(&product(32_768, 4096, 16));
        assert_eq!((entry.as_str(), grid[1]), ("mul_mat_vec_cluster_8", 2));
        assert_eq!(launch(&product(32_768, 4096, 3)).0, "mul_mat_vec_cluster_4");
        assert!(product(4096, 4096, 17).kernel(16, |_| Vec::new()).is_none());
    }
}
