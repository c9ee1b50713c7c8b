//! ARGMAX, TOP_K, SUM_ROWS, MEAN, SUM, CUMSUM.

use super::super::kernel::{Answer, Arg, Kernel, Node, n_rows};
use super::grids::{self, WARP};

/// SMs of an H200, for which grids are made. Other GPUs of the same age have 46 to 148:
/// they run somewhat fewer or more blocks at a time, with the same results.
const SMS: usize = 132;

/// Threads of a block that reads one row or a part of it.
const THREADS: usize = 256;

/// Longest rows that a warp sums or compares: 32 values a thread.
const WARP_ROW: usize = 1024;

/// Values that a block has under way at once, four fours a thread: 16 KB, of the 26 KB
/// an SM that memory's rate times its latency asks for.
const PART: usize = 16 * THREADS;

/// Longest rows that one block sums: four times what it has under way, which costs less
/// than asking other blocks.
const BLOCK_SUM: usize = 4 * PART;

/// Values of a row, or of a thread, in one piece of `cumsum.cu`.
const CUMSUM_WARP: usize = 512;
const CUMSUM_THREAD: usize = CUMSUM_WARP / WARP;
/// Longest rows that one block of `CUMSUM` holds at once.
const CUMSUM_BLOCK: usize = 512 * CUMSUM_THREAD;
/// Longest rows that `cumsum_parts` takes, in parts of `CUMSUM_PART`: up to here what counts
/// is that a row is spread over many SMs, from here on that few parts look back far.
const CUMSUM_SHORT: usize = 80 * CUMSUM_PART;
const CUMSUM_PART: usize = 8 * THREADS;
/// Values of a part of `cumsum_long`.
const CUMSUM_LONG_PART: usize = 40 * THREADS;

/// Bytes of `Relay` of `relay.cuh`: its head, and a slot.
const RELAY_BYTES: usize = 16;
const SLOT_BYTES: usize = 16;

/// Rows and counts that one warp ranks.
const TOP_K_WARP: usize = 1024;
const TOP_K_COUNT: usize = 64;
/// Blocks that fill any GPU, and the scratch memory they may take together.
const TOP_K_BLOCKS: usize = 512;
const TOP_K_SCRATCH_BYTES: usize = 64 << 20;

/// Bytes of a value with its index as one key.
const KEY_BYTES: usize = 8;

/// Blocks that send each other results through `slots` slots. `None` when there are
/// more than a grid may have.
fn relay(entry: &str, blocks: usize, slots: usize) -> Option<(Kernel, Arg)> {
    i32::try_from(slots.max(blocks)).ok()?;
    let kernel = Kernel::new(entry, [blocks, 1, 1], THREADS as u32);
    let bytes = RELAY_BYTES + slots * SLOT_BYTES;
    Some((kernel, Arg::State { bytes }))
}

/// The best index does not depend on who compares what, so rows are cut as the GPU needs
/// it: not at all when there are two blocks an SM without, else to eight an SM, but
/// into parts that are worth a block.
fn argmax_part(k: usize, rows: usize) -> usize {
    let parts = match rows {
        _ if rows >= 2 * SMS => 1,
        _ => (8 * SMS / rows.max(1)).min(k.div_ceil(PART)),
    };
    k.div_ceil(parts.max(1)).next_multiple_of(PART)
}

pub fn argmax(node: &Node<'_>) -> Option<Answer> {
    let x = node.src[0];
    let (k, rows) = (x.ne[0], x.ne[1]);
    let len = argmax_part(k, rows);
    let args = [Arg::Dst, Arg::Src(0)];
    let kernel = if k <= WARP_ROW {
        grids::warps("argmax_warp", x).args(args)
    } else if k <= len {
        Kernel::new("argmax_block", [rows, 1, 1], THREADS as u32).args(args)
    } else {
        let blocks = rows * k.div_ceil(len);
        let (kernel, state) = relay("argmax_parts", blocks, blocks)?;
        kernel.args(args).args([state, Arg::I32(len as i32)])
    };
    Some(kernel.into())
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
    row_sums(node, false)
}

pub fn mean(node: &Node<'_>) -> Option<Answer> {
    row_sums(node, true)
}

/// By the row's length alone, so that a row's bits do not depend on how many there are.
/// Few rows that are not long take microseconds either way; parts of long ones fill the
/// GPU however few they are.
fn row_sums(node: &Node<'_>, mean: bool) -> Option<Answer> {
    let x = node.src[0];
    let (k, rows) = (x.ne[0], n_rows(x));
    let args = [Arg::Dst, Arg::Src(0), Arg::I32(i32::from(mean))];
    let kernel = if k <= WARP_ROW {
        // Four fours a thread, but short rows are not taken by fours, see `reduce.cu`.
        let units = if k <= 2 * WARP { k } else { k.div_ceil(16) };
        let lanes = units.next_power_of_two().min(WARP);
        let grid = [rows.div_ceil(THREADS / lanes), 1, 1];
        let kernel = Kernel::new("sum_rows_lanes", grid, THREADS as u32);
        kernel.args(args).args([Arg::I32(lanes as i32)])
    } else if k <= BLOCK_SUM {
        Kernel::new("sum_rows_block", [rows, 1, 1], THREADS as u32).args(args)
    } else {
        let blocks = rows * k.div_ceil(PART);
        let (kernel, state) = relay("sum_rows_parts", blocks, blocks)?;
        kernel.args(args).args([state, Arg::I32(PART as i32)])
    };
    Some(kernel.into())
}

pub fn sum(node: &Node<'_>) -> Option<Answer> {
    let n = node.src[0]
        .ne
        .iter()
        .fold(1, |n: usize, &ne| n.saturating_mul(ne));
    let blocks = n.div_ceil(PART).clamp(1, 8 * SMS);
    let (kernel, state) = relay("sum", blocks, blocks)?;
    Some(kernel.args([Arg::Dst, Arg::Src(0), state]).into())
}

/// By the row's length alone, as sums.
pub fn cumsum(node: &Node<'_>) -> Option<Answer> {
    let (k, rows) = (node.dst.ne[0], n_rows(node.dst));
    let args = [Arg::Dst, Arg::Src(0)];
    let kernel = if k <= CUMSUM_WARP {
        grids::warps("cumsum_warp", node.dst).args(args)
    } else if k <= CUMSUM_BLOCK {
        let threads = k.div_ceil(CUMSUM_THREAD).next_power_of_two();
        Kernel::new("cumsum_block", [rows, 1, 1], threads as u32).args(args)
    } else {
        let (entry, part) = match k {
            ..=CUMSUM_SHORT => ("cumsum_parts", CUMSUM_PART),
            _ => ("cumsum_long", CUMSUM_LONG_PART),
        };
        i32::try_from(k.next_multiple_of(part)).ok()?; // as kernels count columns
        let parts = k.div_ceil(part);
        let slots = rows * (parts + parts.div_ceil(WARP));
        let (kernel, state) = relay(entry, rows * parts, slots)?;
        kernel.args(args).args([state, Arg::I32(parts as i32)])
    };
    Some(kernel.into())
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
            rows_beside: 0,
        }
    }

    /// The one launch of an answer.
    fn launch(answer: Option<Answer>) -> Kernel {
        let answer = answer.expect("supported");
        assert_eq!((answer.kernels.len(), answer.scratch_bytes), (1, 0));
        answer.kernels[0].clone()
    }

    /// Slots of a launch's relay, and the number after it.
    fn relay_of(kernel: &Kernel) -> (usize, usize) {
        let at = kernel
            .args
            .iter()
            .position(|a| matches!(a, Arg::State { .. }));
        match kernel.args[at.expect("a relay")..] {
            [Arg::State { bytes }, Arg::I32(n)] => ((bytes - 16) / 16, n as usize),
            _ => panic!("a number follows"),
        }
    }

    #[test]
    fn argmax_fills_the_gpu_in_one_launch() {
        for (k, rows) in [
            (1_215_488, 3),
            (151_936, 1),
            (151_936, 16),
            (4097, 1),
            (40_000, 263),
        ] {
            let (x, dst) = (tensor([k, rows, 1, 1]), tensor([rows, 1, 1, 1]));
            let kernel = launch(argmax(&node(Op::Argmax, &x, &dst)));
            let (slots, len) = relay_of(&kernel);
            assert_eq!(kernel.entry, "argmax_parts");
            assert_eq!(kernel.grid, [(rows * k.div_ceil(len)) as u32, 1, 1]);
            assert_eq!(slots, kernel.grid[0] as usize);
            assert!(len.is_multiple_of(PART) && slots <= 8 * SMS);
            assert!(len == PART || slots > 4 * SMS - rows, "{k} x {rows}");
        }
        for (k, rows, entry) in [
            (1024, 5, "argmax_warp"),
            (1025, 5, "argmax_block"),
            (4096, 1, "argmax_block"),
            (32_000, 512, "argmax_block"),
        ] {
            let (x, dst) = (tensor([k, rows, 1, 1]), tensor([rows, 1, 1, 1]));
            assert_eq!(launch(argmax(&node(Op::Argmax, &x, &dst))).entry, entry);
        }
    }

    #[test]
    fn sums_of_rows_go_by_their_length() {
        for rows in [1, 2, 70_001] {
            for k in [1, 3, 31, 32, 33, 64, 65, 100, 128, 129, 1024] {
                let (x, dst) = (tensor([k, rows, 1, 1]), tensor([1, rows, 1, 1]));
                let kernel = launch(sum_rows(&node(Op::SumRows, &x, &dst)));
                let Some(Arg::I32(lanes)) = kernel.args.last() else {
                    panic!("lanes come last");
                };
                let lanes = *lanes as usize;
                assert!(lanes.is_power_of_two() && lanes <= WARP && lanes < 2 * k);
                assert!(kernel.grid[0] as usize * (256 / lanes) >= rows);
            }
            let (x, dst) = (tensor([16_384, rows, 1, 1]), tensor([1, rows, 1, 1]));
            let kernel = launch(mean(&node(Op::Mean, &x, &dst)));
            assert_eq!(
                (kernel.entry.as_str(), kernel.grid[0]),
                ("sum_rows_block", rows as u32)
            );
            let x = tensor([16_385, rows, 1, 1]);
            let kernel = launch(mean(&node(Op::Mean, &x, &dst)));
            assert_eq!(relay_of(&kernel), (5 * rows, PART));
            assert_eq!(kernel.grid[0] as usize, 5 * rows);
        }
    }

    #[test]
    fn running_sums_have_a_slot_for_each_part_and_group() {
        for (k, rows, entry, threads) in [
            (512, 70_000, "cumsum_warp", 128),
            (513, 3, "cumsum_block", 64),
            (1025, 3, "cumsum_block", 128),
            (8192, 3, "cumsum_block", 512),
        ] {
            let x = tensor([k, rows, 1, 1]);
            let kernel = launch(cumsum(&node(Op::Cumsum, &x, &x)));
            assert_eq!((kernel.entry.as_str(), kernel.block), (entry, threads));
        }
        for (k, rows, entry, parts, groups) in [
            (8193, 3, "cumsum_parts", 5, 1),
            (65_536, 2, "cumsum_parts", 32, 1),
            (65_537, 2, "cumsum_parts", 33, 2),
            (163_840, 2, "cumsum_parts", 80, 3),
            (163_841, 2, "cumsum_long", 17, 1),
            (327_680, 2, "cumsum_long", 32, 1),
            (327_681, 2, "cumsum_long", 33, 2),
        ] {
            let x = tensor([k, rows, 1, 1]);
            let kernel = launch(cumsum(&node(Op::Cumsum, &x, &x)));
            assert_eq!((kernel.entry.as_str(), kernel.block), (entry, 256));
            assert_eq!(relay_of(&kernel), (rows * (parts + groups), parts));
            assert_eq!(kernel.grid[0] as usize, rows * parts);
        }
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
