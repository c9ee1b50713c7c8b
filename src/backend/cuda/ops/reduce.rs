//! ARGMAX, TOP_K, SUM_ROWS, MEAN, CUMSUM.

use super::super::kernel::{Answer, Arg, Kernel, Node, n_rows};
use super::grids::{self, WARP};

/// Rows longer than this are split over blocks by ARGMAX.
const ARGMAX_ROW: usize = 8192;
/// Values of one of those blocks: 16 a thread.
const ARGMAX_PART: usize = 4096;
const ARGMAX_THREADS: u32 = 256;

/// Rows and counts that one warp ranks.
const TOP_K_WARP: usize = 1024;
const TOP_K_COUNT: usize = 64;
/// Blocks that fill any GPU, and the scratch memory they may take together.
const TOP_K_BLOCKS: usize = 512;
const TOP_K_SCRATCH_BYTES: usize = 64 << 20;

/// Bytes of a value with its index as one key.
const KEY_BYTES: usize = 8;

/// As SOFT_MAX: MOE_ROUTE divides by sums added in this order.
const SUM_ROWS_WARP: usize = super::moe::MOST_EXPERTS;

pub fn argmax(node: &Node<'_>) -> Option<Answer> {
    let x = node.src[0];
    let (k, rows) = (x.ne[0], x.ne[1]);
    if k <= ARGMAX_ROW {
        return Some(
            grids::blocks("argmax_rows", x)
                .args([Arg::Dst, Arg::Src(0)])
                .into(),
        );
    }
    let parts = k.div_ceil(ARGMAX_PART);
    let partial = Arg::Scratch { offset_bytes: 0 };
    let n_parts = Arg::I32(parts as i32);
    let first = Kernel::new("argmax_parts", [rows * parts, 1, 1], ARGMAX_THREADS);
    let second = Kernel::new("argmax_merge", [rows, 1, 1], WARP as u32);
    Some(Answer {
        kernels: vec![
            first.args([Arg::Src(0), partial.clone(), n_parts.clone()]),
            second.args([Arg::Dst, Arg::Src(0), partial, n_parts]),
        ],
        scratch_bytes: rows * parts * KEY_BYTES,
    })
}

pub fn top_k(node: &Node<'_>) -> Option<Answer> {
    let (k, count) = (node.src[0].ne[0], node.dst.ne[0]);
    if k <= TOP_K_WARP && count <= TOP_K_COUNT {
        let entry = format!("top_k_{}", grids::values_per_thread(k));
        return Some(
            grids::warps(entry, node.dst)
                .args([Arg::Dst, Arg::Src(0)])
                .into(),
        );
    }
    let width = count.next_power_of_two();
    let fit = TOP_K_SCRATCH_BYTES / (width * KEY_BYTES);
    let blocks = n_rows(node.dst).min(TOP_K_BLOCKS).min(fit).max(1);
    let threads = if k < 4096 { 256 } else { 1024 };
    let args = [
        Arg::Dst,
        Arg::Src(0),
        Arg::Scratch { offset_bytes: 0 },
        Arg::I32(width as i32),
    ];
    Some(Answer {
        kernels: vec![Kernel::new("top_k_any", [blocks, 1, 1], threads).args(args)],
        scratch_bytes: blocks * width * KEY_BYTES,
    })
}

pub fn sum_rows(node: &Node<'_>) -> Option<Answer> {
    Some(row_sums(node, false))
}

pub fn mean(node: &Node<'_>) -> Option<Answer> {
    Some(row_sums(node, true))
}

fn row_sums(node: &Node<'_>, mean: bool) -> Answer {
    let kernel = grids::warp_or_block("sum_rows", node.src[0], SUM_ROWS_WARP);
    let args = [Arg::Dst, Arg::Src(0), Arg::I32(i32::from(mean))];
    kernel.args(args).into()
}

pub fn cumsum(node: &Node<'_>) -> Option<Answer> {
    Some(
        grids::blocks("cumsum", node.dst)
            .args([Arg::Dst, Arg::Src(0)])
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::tensor;
    use super::*;
    use crate::graph::Op;

    fn node<'a>(op: Op, x: &'a crate::graph::Tensor, dst: &'a crate::graph::Tensor) -> Node<'a> {
        Node {
            op,
            dst,
            src: vec![x],
            exact: false,
        }
    }

    #[test]
    fn argmax_splits_long_rows_over_many_blocks() {
        let (x, dst) = (tensor([1_215_488, 3, 1, 1]), tensor([3, 1, 1, 1]));
        let answer = argmax(&node(Op::Argmax, &x, &dst)).expect("supported");
        let [first, second] = &answer.kernels[..] else {
            panic!("two passes");
        };
        let parts = first.grid[0] as usize / 3;
        assert!(parts > 132 && parts * ARGMAX_PART >= 1_215_488);
        assert_eq!(first.args[2], Arg::I32(parts as i32));
        assert_eq!((second.grid, second.block), ([3, 1, 1], 32));
        assert_eq!(answer.scratch_bytes, 3 * parts * 8);
    }

    #[test]
    fn top_k_keeps_every_key_within_bounded_scratch() {
        let rows = 70_000;
        for (k, count) in [
            (8, 8),
            (256, 16),
            (1024, 64),
            (1024, 65),
            (1025, 1),
            (262_144, 262_144),
        ] {
            let (x, dst) = (tensor([k, rows, 1, 1]), tensor([count, rows, 1, 1]));
            let answer = top_k(&node(Op::TopK { count }, &x, &dst)).expect("supported");
            let kernel = &answer.kernels[0];
            if k <= 1024 && count <= 64 {
                let each: usize = kernel.entry["top_k_".len()..].parse().expect("a number");
                assert!(each * WARP >= k && [4, 8, 16, 32].contains(&each));
                assert!(kernel.grid[0] as usize * 4 >= rows);
                continue;
            }
            assert_eq!(kernel.entry, "top_k_any");
            let Some(Arg::I32(width)) = kernel.args.last() else {
                panic!("the width comes last");
            };
            let width = *width as usize;
            assert!(width >= count && width.is_power_of_two());
            assert_eq!(answer.scratch_bytes, kernel.grid[0] as usize * width * 8);
            assert!(kernel.grid[0] >= 1 && answer.scratch_bytes <= TOP_K_SCRATCH_BYTES);
        }
    }
}
