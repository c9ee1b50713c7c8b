//! SSM_CONV.

use super::super::kernel::{Answer, Arg, Kernel, Node};
use crate::graph::SsmConv;

/// Tokens of a block, as `ssm_conv.cu` has it.
const TILE: usize = 16;

/// Channels that a thread takes, at most.
const PER_THREAD: usize = 4;

/// Blocks of one warp until there are more than a large GPU holds.
const MANY_WARPS: usize = 4096;

pub fn ssm_conv(node: &Node<'_>, params: &SsmConv) -> Option<Answer> {
    let (x, w, ids) = (node.src[0], node.src[1], node.src[3]);
    let (channels, d_conv) = (x.ne[0], w.ne[0]);
    // Later pieces of a sequence do not reach back to its state.
    if d_conv > TILE + 1 {
        return None;
    }
    let pieces = x.ne[1] / TILE + ids.ne[0];
    let warps = channels.div_ceil(PER_THREAD * 32);
    let threads = match pieces * warps > MANY_WARPS {
        true => 128,
        false => 32,
    };
    let grid = [pieces * channels.div_ceil(PER_THREAD * threads), 1, 1];
    let entry = match d_conv {
        4 => "ssm_conv_4",
        _ => "ssm_conv_any",
    };
    let bias = params.bias_at().map_or(Arg::NoView, Arg::Src);
    let mut args = vec![Arg::Dst];
    args.extend((0..5).map(Arg::Src));
    args.extend([bias, Arg::I32(i32::from(params.silu))]);
    Some(Kernel::new(entry, grid, threads as u32).args(args).into())
}

#[cfg(test)]
mod tests {
    use super::super::tests::tensor;
    use super::*;
    use crate::graph::Op;

    #[test]
    fn every_channel_of_every_piece_has_a_thread() {
        for (channels, n, n_seqs) in [(1, 1, 1), (5376, 1, 1), (5376, 16, 16), (10_576, 4096, 3)] {
            for d_conv in [2, 4, 8, 17] {
                let x = tensor([channels, n, 1, 1]);
                let w = tensor([d_conv, channels, 1, 1]);
                let state = tensor([channels, d_conv - 1, n_seqs, 1]);
                let (ids, rows) = (tensor([n_seqs, 1, 1, 1]), tensor([n_seqs + 1, 1, 1, 1]));
                let params = SsmConv::default();
                let node = Node {
                    op: Op::SsmConv(params),
                    dst: &x,
                    src: vec![&x, &w, &state, &ids, &rows],
                    exact: false,
                    rows_beside: 0,
                };
                let kernel = &ssm_conv(&node, &params).expect("supported").kernels[0];
                let blocks = channels.div_ceil(PER_THREAD * kernel.block as usize);
                // All tokens in one sequence, or one in each but the last.
                let most = n
                    .div_ceil(TILE)
                    .max(n_seqs - 1 + (n + 1 - n_seqs).div_ceil(TILE));
                assert!(kernel.grid[0] as usize >= most * blocks);
            }
        }
    }
}
