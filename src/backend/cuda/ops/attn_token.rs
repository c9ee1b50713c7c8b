//! ATTN for few tokens; `cuda-kernels/attn_token.cu`.

use super::super::kernel::{Answer, Arg, Kernel, Node};
use super::VEC_TOKENS;
use super::attn;
use crate::graph::{AttnParams, AttnShape};

/// How the names of the kernels begin.
pub const ENTRY: &str = "attn_token_";

/// Heads that a multiprocessor's registers and shared memory are enough for.
const MOST_HEAD_DIM: usize = 128;
/// Query rows (heads of a token) of a block.
const ROWS: usize = 8;
const WARPS: usize = 8;
/// Cells of a warp's chunk.
const CELLS: usize = 16;

/// The launch, over `n_split` splits; `None` for wider heads or more tokens.
pub fn attn_token(
    node: &Node<'_>,
    params: &AttnParams,
    shape: &AttnShape,
    n_split: usize,
) -> Option<Answer> {
    let (n, head_dim) = (node.src[0].ne[2], shape.head_dim_k);
    if n > VEC_TOKENS || head_dim > MOST_HEAD_DIM {
        return None;
    }
    let group = shape.n_head / shape.n_head_kv;
    let tiles = (n * group).div_ceil(ROWS);
    let grid = [tiles, shape.n_head_kv, n_split];
    let (parts_bytes, scratch_bytes) = attn::scratch_bytes(shape, n, n_split);
    let scratch = |offset_bytes| Arg::Scratch { offset_bytes };
    let tokens = if n == 1 { "one" } else { "few" };
    let mut kernel = Kernel::new(
        format!("{ENTRY}{tokens}_{head_dim}"),
        grid,
        (WARPS * 32) as u32,
    )
    .shared(shared_bytes(head_dim, n))
    .packed();
    // HEAD_ROWS of Q, K and V: launches of their own until `head_attn` takes them in.
    for _ in 0..3 {
        kernel = kernel
            .args(vec![Arg::NoView; 6])
            .args([Arg::Rope(None), Arg::F32(0.0), Arg::I32(0), Arg::I32(0)])
            .args([Arg::F32(1.0), Arg::I32(0)]);
    }
    let arrived = Arg::State {
        bytes: 4 * tiles * shape.n_head_kv,
    };
    let kernel = kernel
        .args(attn::operands(params, shape))
        .args([Arg::I32(n_split as i32), Arg::I32(group as i32)])
        .args([scratch(0), scratch(parts_bytes), arrived]);
    Some(Answer {
        kernels: vec![kernel],
        scratch_bytes,
    })
}

/// Dynamic shared memory: `TokenShared`, sines and fresh K and V of `n` tokens. A cell's row
/// is padded by 16 bytes.
fn shared_bytes(head_dim: usize, n: usize) -> usize {
    let cells = WARPS * 2 * CELLS * (head_dim + 8) * 2;
    let queries = 2 * ROWS * head_dim * 2 + WARPS * head_dim * 4;
    cells + queries + 1072 + n * (head_dim / 2 * 8 + 2 * head_dim * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_fits_on_the_smallest_multiprocessor() {
        assert_eq!(shared_bytes(128, 0), 78_896); // as the kernel asserts
        assert!(shared_bytes(MOST_HEAD_DIM, VEC_TOKENS) <= 99 << 10);
    }
}
