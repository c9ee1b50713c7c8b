//! SSM_SCAN: token by token, unless chunks are quicker.

use super::super::kernel::{Answer, Arg, Kernel, Node};
use super::grids::{MOST_BLOCKS_YZ, WARP};
use super::ssm_chunk;
use crate::graph::SsmScan;

/// Shared memory holds floats.
const FLOAT_BYTES: usize = 4;

/// Tokens that the kernels add up together.
const GROUP: usize = 4;

pub fn ssm_scan(node: &Node<'_>, params: &SsmScan) -> Option<Answer> {
    match node.src[3].ne[0] {
        1 => ssm_chunk::chunked(node, params).or_else(|| heads(node, params)),
        _ => channels(node, params),
    }
}

/// Mamba-2: `ssm_scan_heads.cu`.
fn heads(node: &Node<'_>, params: &SsmScan) -> Option<Answer> {
    let [d_state, head_dim, n_head, _] = node.src[0].ne;
    let (n, n_seqs) = (node.src[1].ne[2], node.src[6].ne[0]);
    // Rows of a head that a warp holds.
    let (name, warp_rows) = match d_state {
        16 => ("16", 8),
        64 => ("64", 8),
        128 => ("128", 8),
        256 => ("256", 4),
        1..128 => ("upto_128", 2),
        129..=1024 => ("upto_1024", 1),
        _ => return None,
    };
    // One token a sequence: many small blocks have more bytes under way. Long ones:
    // warps share what is copied.
    let (warps, chunk) = match (n <= 2 * n_seqs, d_state) {
        (true, _) => (2, 2),
        (false, ..=256) => (4, 2 * GROUP),
        (false, _) => (4, 2),
    };
    let warps = warps.min(head_dim.div_ceil(warp_rows));
    let block_rows = warps * warp_rows;
    let pitch = d_state.next_multiple_of(4);
    let shared = 2 * 2 * chunk * (pitch + block_rows) * FLOAT_BYTES;
    if n_head.max(n_seqs) > MOST_BLOCKS_YZ {
        return None;
    }
    let kernel = Kernel::new(
        format!("ssm_scan_heads_{name}"),
        [head_dim.div_ceil(block_rows), n_head, n_seqs],
        (warps * WARP) as u32,
    );
    Some(kernel.shared(shared).args(args(params, chunk)).into())
}

/// Mamba: `ssm_scan_channels.cu`.
fn channels(node: &Node<'_>, params: &SsmScan) -> Option<Answer> {
    let [d_state, _, n_head, _] = node.src[0].ne;
    let (n, n_seqs, n_group) = (node.src[1].ne[2], node.src[6].ne[0], node.src[4].ne[1]);
    if n_group != 1 || n_seqs > MOST_BLOCKS_YZ {
        return None;
    }
    // Lanes of a row of the state, channels of a block, tokens that pass together.
    let (name, lanes, channels, most) = match d_state {
        16 => ("16", 8, 8, 64),
        1..=128 => ("upto_128", 32, 4, 8),
        129..=1024 => ("upto_1024", 32, 4, GROUP),
        _ => return None,
    };
    let chunk = if n <= GROUP * n_seqs { GROUP } else { most };
    let pitch = d_state.next_multiple_of(4);
    let buffers = 2 * chunk * (2 * pitch + 3 * channels);
    let shared = (buffers + 3 * channels * chunk) * FLOAT_BYTES;
    let kernel = Kernel::new(
        format!("ssm_scan_channels_{name}"),
        [n_head.div_ceil(channels), n_seqs, 1],
        (channels * lanes) as u32,
    );
    Some(kernel.shared(shared).args(args(params, chunk)).into())
}

/// Operands in the order of `Scan` in `ssm_scan.cuh`, and tokens that pass together.
fn args(params: &SsmScan, chunk: usize) -> Vec<Arg> {
    let optional = |at: Option<usize>| at.map_or(Arg::NoView, Arg::Src);
    let mut args = vec![Arg::Dst];
    args.extend((0..8).map(Arg::Src));
    args.extend([params.dt_bias_at(), params.skip_at(), params.gate_at()].map(optional));
    args.push(Arg::I32(chunk as i32));
    args
}

#[cfg(test)]
mod tests {
    use super::super::tests::tensor;
    use super::*;
    use crate::graph::{Op, Tensor};

    /// The launch for a state `[d_state, head_dim, n_head]` and `n` tokens.
    fn launch(state: [usize; 3], n_decays: usize, n: usize, n_seqs: usize) -> Option<Kernel> {
        let [d_state, head_dim, n_head] = state;
        let vector = |k: usize, rows: usize| tensor([k, rows, 1, 1]);
        let x = tensor([head_dim, n_head, n, 1]);
        let operands: Vec<Tensor> = vec![
            tensor([d_state, head_dim, n_head, n_seqs]),
            x.clone(),
            vector(n_head, n),
            vector(n_decays, n_head),
            tensor([d_state, 1, n, 1]),
            tensor([d_state, 1, n, 1]),
            vector(n_seqs, 1),
            vector(n_seqs + 1, 1),
        ];
        let params = SsmScan::default();
        let node = Node {
            op: Op::SsmScan(params),
            dst: &x,
            src: operands.iter().collect(),
            exact: true,
            rows_beside: 0,
        };
        Some(ssm_scan(&node, &params)?.kernels.remove(0))
    }

    #[test]
    fn launches_fit_every_gpu() {
        for d_state in [1, 2, 16, 17, 64, 100, 128, 129, 256, 1000, 1024] {
            for (n, n_seqs) in [(1, 1), (16, 16), (17, 1), (4096, 3)] {
                for (head_dim, n_head) in [(64, 48), (1, 5120), (80, 3)] {
                    let kernel = launch([d_state, head_dim, n_head], 1, n, n_seqs);
                    let kernel = kernel.expect("supported");
                    assert!(kernel.shared_bytes <= 96 << 10, "{d_state} {n}");
                    let blocks: usize = kernel.grid.iter().map(|&n| n as usize).product();
                    assert!(blocks >= n_head * n_seqs);
                    let per_channel = launch([d_state, 1, n_head], d_state, n, n_seqs);
                    let kernel = per_channel.expect("supported");
                    assert!(kernel.shared_bytes <= 96 << 10, "{d_state} {n}");
                }
            }
        }
        assert!(launch([1025, 64, 8], 1, 1, 1).is_none());
    }

    #[test]
    fn one_token_spreads_over_the_gpu() {
        let kernel = launch([128, 64, 48], 1, 1, 1).expect("supported");
        assert!(kernel.grid[0] * kernel.grid[1] > 132 && kernel.block == 64);
        let kernel = launch([16, 1, 5120], 16, 4096, 1).expect("supported");
        assert!(kernel.grid[0] > 132);
    }
}
