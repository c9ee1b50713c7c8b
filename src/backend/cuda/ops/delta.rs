//! GATED_DELTA_NET.

use super::super::kernel::{Answer, Arg, Kernel, Node};
use super::grids::WARP;
use crate::graph::GatedDelta;
use crate::graph::recurrent::MOST_STATE;

/// Warps of a block.
const WARPS: usize = 8;
/// Most blocks in the second dimension of a grid.
const MOST_SEQUENCES: usize = 65_535;

/// The kernel for `d_k`, and how many lanes share a row of the state.
fn entry(d_k: usize) -> (String, usize) {
    match d_k {
        64 | 128 => (format!("delta_{d_k}"), 8),
        256 => ("delta_256".to_string(), 16),
        _ => ("delta_any".to_string(), WARP),
    }
}

pub fn gated_delta_net(node: &Node<'_>, params: &GatedDelta) -> Option<Answer> {
    let [d_k, d_v, n_head, _] = node.src[0].ne;
    let n_seqs = node.src[6].ne[0];
    if d_k > MOST_STATE || n_seqs > MOST_SEQUENCES {
        return None;
    }
    let (entry, lanes) = entry(d_k);
    let slices = d_v.div_ceil(WARPS * WARP / lanes);
    let kernel = Kernel::new(entry, [slices * n_head, n_seqs, 1], (WARPS * WARP) as u32);
    let operands = (0..node.src.len()).map(Arg::Src);
    let tiled = Arg::I32(i32::from(params.tiled));
    Some(kernel.args([Arg::Dst]).args(operands).args([tiled]).into())
}

#[cfg(test)]
mod tests {
    use super::super::tests::tensor;
    use super::*;
    use crate::graph::Op;

    #[test]
    fn every_row_of_every_state_has_its_lanes() {
        for (d_k, d_v) in [
            (16, 16),
            (64, 64),
            (128, 128),
            (128, 40),
            (256, 20),
            (1024, 9),
        ] {
            let state = tensor([d_k, d_v, 6, 5]);
            let (ids, x) = (tensor([3, 1, 1, 1]), tensor([1; 4]));
            let params = GatedDelta { tiled: true };
            let node = Node {
                op: Op::GatedDeltaNet(params),
                dst: &x,
                src: vec![&state, &x, &x, &x, &x, &x, &ids, &x],
                exact: false,
                rows_beside: 0,
            };
            let answer = gated_delta_net(&node, &params).expect("supported");
            let kernel = &answer.kernels[0];
            let (_, lanes) = entry(d_k);
            let rows = kernel.block as usize / lanes;
            let slices = kernel.grid[0] as usize / 6;
            assert!((slices - 1) * rows < d_v && slices * rows >= d_v);
            assert_eq!(kernel.grid[1..], [3, 1]);
            assert_eq!(kernel.args.len(), 10);
            assert_eq!(kernel.args[9], Arg::I32(1));
        }
    }
}
