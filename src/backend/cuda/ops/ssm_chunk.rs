//! SSM_SCAN with one decay a head for many tokens: products over chunks
//! (`cuda-kernels/ssm_chunk.cu`), all at once where they are few (`ssm_chunk_short.cu`).

use super::super::kernel::{Answer, Arg, Kernel, Node};
use super::grids::WARP;
use crate::graph::SsmScan;

/// Tokens of a chunk, as in `ssm_chunk.cuh`.
const CHUNK: usize = 64;
const THREADS: u32 = 128;
/// Warps of a block of `ssm_chunk_prepare`.
const PREPARE_WARPS: usize = 8;
/// Blocks that run at once: two on each of an H200's 132 multiprocessors. Other GPUs only
/// get other tails.
const BLOCKS: usize = 2 * 132;
/// Most pieces of a sequence: each reads the states at the end of all before it.
const MOST_PIECES: usize = 8;
/// Pieces of more chunks than this go through them in turn. Up to here all chunks at once
/// are quicker, though each writes and reads 16 KB of states for 64 columns of a head.
const MOST_SHORT_CHUNKS: usize = 4;
/// Values of rows of states that a block of `ssm_chunk_pass` has.
const PASS_VALUES: usize = 8 * PASS_THREADS;
const PASS_THREADS: usize = 256;
/// Fewer tokens for each sequence than this are quicker one by one: four launches and the
/// fill of one chunk cost some 12 us, a token of the sequential kernel 0.1 to 0.3.
const FEWEST_TOKENS: usize = 96;
/// More scratch memory than this is not asked for; 4,096 tokens of 8 groups take 28 MB.
const MOST_SCRATCH_BYTES: usize = 1 << 30;
/// Offsets in scratch memory.
const ALIGN_BYTES: usize = 256;

/// How a kernel is built: its name, the state's width and the columns of a head that a
/// block takes.
struct Kind {
    name: &'static str,
    width: usize,
    columns: usize,
}

impl Kind {
    fn of(d_state: usize, head_dim: usize) -> Option<Kind> {
        // What is below is mostly padding; tiles are of 16.
        if d_state < 32
            || head_dim < 32
            || !d_state.is_multiple_of(16)
            || !head_dim.is_multiple_of(16)
        {
            return None;
        }
        let (name, width, columns) = match (d_state, head_dim) {
            (..=64, _) => ("64", 64, 64),
            (..=128, 80) => ("128x80", 128, 80),
            (..=128, _) => ("128", 128, 64),
            (..=256, _) => ("256", 256, 32),
            _ => return None,
        };
        Some(Kind {
            name,
            width,
            columns,
        })
    }

    /// Chunks of B and C that are in shared memory while a piece goes through its chunks.
    fn stages(&self) -> usize {
        if self.width <= 128 { 2 } else { 1 }
    }

    /// Bytes of `Shared` with one of B and C (1) or both (2), in the order of its fields
    /// before `h`.
    fn shared_bytes(&self, matrices: usize, stages: usize) -> usize {
        let x = CHUNK * (self.columns + 8);
        let halves = stages * matrices * CHUNK * self.width + x + 4 * CHUNK;
        2 * halves + 4 * (4 * CHUNK + 4)
    }

    /// Bytes of `h`, the last field, where there is one.
    fn h_bytes(&self) -> usize {
        2 * self.columns * (self.width + 8)
    }

    /// Bytes of `outputs`: C, h, and the unit of each row of h.
    fn outputs_bytes(&self) -> usize {
        self.shared_bytes(1, 1) + self.h_bytes() + 4 * self.columns
    }
}

/// Places in scratch memory, one after the other.
#[derive(Default)]
struct Scratch {
    bytes: usize,
}

impl Scratch {
    fn take(&mut self, values: usize, value_bytes: usize) -> Arg {
        let offset_bytes = self.bytes;
        self.bytes += (values * value_bytes).next_multiple_of(ALIGN_BYTES);
        Arg::Scratch { offset_bytes }
    }
}

/// Sizes that the launches have in common.
struct Plan {
    kind: Kind,
    n: usize,
    n_seqs: usize,
    n_group: usize,
    n_head: usize,
    head_dim: usize,
    /// Blocks of a chunk or piece.
    shares: usize,
    /// Chunks of a piece.
    piece_chunks: usize,
    /// Most chunks of all sequences: the last of each may hold one token, others are full.
    all_chunks: usize,
}

/// Operands as `ssm_chunk_prepare` leaves them: bc, scales and steps.
type Prepared = [Arg; 3];

/// The launches of SSM_SCAN in chunks; `None` where the sequential kernel is quicker,
/// exact, or the only one.
pub fn chunked(node: &Node<'_>, params: &SsmScan) -> Option<Answer> {
    let [d_state, head_dim, n_head, _] = node.src[0].ne;
    let (n, n_seqs, n_group) = (node.src[1].ne[2], node.src[6].ne[0], node.src[4].ne[1]);
    let kind = Kind::of(d_state, head_dim)?;
    if node.exact || node.src[3].ne[0] != 1 || n < FEWEST_TOKENS * n_seqs {
        return None;
    }
    let shares = n_head * head_dim.div_ceil(kind.columns);
    // Of one sequence; shorter ones have fewer, down to one each.
    let (chunks, pieces) = (n.div_ceil(CHUNK), BLOCKS / shares);
    let plan = Plan {
        kind,
        n,
        n_seqs,
        n_group,
        n_head,
        head_dim,
        shares,
        piece_chunks: chunks.div_ceil(pieces.clamp(1, MOST_PIECES)),
        all_chunks: (n - n_seqs) / CHUNK + n_seqs,
    };

    let mut scratch = Scratch::default();
    let rows = plan.all_chunks * n_group * 2 * CHUNK;
    let prepared = [
        scratch.take(rows * plan.kind.width, 2),
        scratch.take(rows, 4),
        scratch.take(plan.all_chunks * n_head * 2 * CHUNK, 4),
    ];
    let jobs = plan.all_chunks * (CHUNK * n_group + n_head);
    let to = prepared.each_ref().map(Arg::clone);
    let width = Arg::I32(plan.kind.width as i32);
    let mut kernels = vec![prepare(params, jobs).args(to).args([width])];
    let most = jobs
        .max(plan.all_chunks * (shares + n_group))
        .max(n_head * head_dim * n_seqs);
    kernels.extend(match plan.piece_chunks {
        ..=MOST_SHORT_CHUNKS => plan.at_once(params, prepared, &mut scratch),
        _ => plan.in_turn(params, prepared, &mut scratch),
    });
    let fits = scratch.bytes <= MOST_SCRATCH_BYTES && most <= i32::MAX as usize;
    fits.then_some(Answer {
        kernels,
        scratch_bytes: scratch.bytes,
    })
}

impl Plan {
    /// `local` and `scan`: every block goes through the chunks of a piece.
    fn in_turn(&self, params: &SsmScan, prepared: Prepared, scratch: &mut Scratch) -> Vec<Kernel> {
        let (kind, piece_tokens) = (&self.kind, CHUNK * self.piece_chunks);
        let all_pieces = (self.n - self.n_seqs) / piece_tokens + self.n_seqs;
        // Sequences of several pieces have less than twice as many as they fill.
        let kept = all_pieces.min(2 * self.n / piece_tokens);
        let states = kept * self.shares * kind.columns * kind.width;
        let kept = [scratch.take(states, 4), scratch.take(kept * self.n_head, 4)];
        let pass = |name: &str, shared: usize| {
            let entry = format!("ssm_chunk_{name}_{}", kind.name);
            let numbers = [self.n_group, self.piece_chunks].map(|n| Arg::I32(n as i32));
            Kernel::new(entry, [all_pieces * self.shares, 1, 1], THREADS)
                .shared(shared)
                .args([0, 1, 6, 7].map(Arg::Src))
                .args(prepared.each_ref().map(Arg::clone))
                .args(kept.each_ref().map(Arg::clone))
                .args(numbers)
        };
        let with_h = kind.shared_bytes(2, kind.stages()) + kind.h_bytes();
        let scan = pass("scan", with_h).args(results(params));
        // One piece that holds all tokens needs no state of another.
        if piece_tokens < self.n {
            vec![pass("local", kind.shared_bytes(1, kind.stages())), scan]
        } else {
            vec![scan]
        }
    }

    /// `states`, `pass` and `outputs`: every block has one chunk.
    fn at_once(&self, params: &SsmScan, prepared: Prepared, scratch: &mut Scratch) -> Vec<Kernel> {
        let kind = &self.kind;
        let rows = self.all_chunks * self.shares * kind.columns;
        let groups = self.all_chunks * self.n_group;
        let [states, undo, scores] = [
            scratch.take(rows * kind.width, 2),
            scratch.take(4 * rows, 4),
            scratch.take(groups * CHUNK * CHUNK, 4),
        ];
        let states = || [states.clone(), undo.clone()];
        let chunk_blocks = self.all_chunks * self.shares;
        let each_chunk = |name: &str, blocks: usize, shared: usize| {
            let entry = format!("ssm_chunk_{name}_{}", kind.name);
            Kernel::new(entry, [blocks, 1, 1], THREADS)
                .shared(shared)
                .args([0, 1, 6, 7].map(Arg::Src))
                .args(prepared.each_ref().map(Arg::clone))
                .args([Arg::I32(self.n_group as i32)])
                .args(states())
                .args([scores.clone()])
        };
        // The blocks of the scores have B and C in shared memory and nothing else.
        let shared = kind.shared_bytes(1, 1).max(2 * 2 * CHUNK * kind.width);
        let first_scores = Arg::I32(chunk_blocks as i32);
        let added = each_chunk("states", chunk_blocks + groups, shared).args([first_scores]);

        let values = self.n_head * self.head_dim * kind.width;
        let blocks = self.n_seqs * values.div_ceil(PASS_VALUES);
        let entry = format!("ssm_chunk_pass_{}", kind.width);
        let pass = Kernel::new(entry, [blocks, 1, 1], PASS_THREADS as u32)
            .args([0, 1, 6, 7].map(Arg::Src))
            .args([prepared[2].clone()])
            .args(states())
            .args([Arg::I32(kind.columns as i32)]);
        let outputs = each_chunk("outputs", chunk_blocks, kind.outputs_bytes());
        vec![added, pass, outputs.args(results(params))]
    }
}

/// What the last launch writes, and the operands that only it reads.
fn results(params: &SsmScan) -> [Arg; 3] {
    let [skip, gate] = [params.skip_at(), params.gate_at()].map(optional);
    [Arg::Dst, skip, gate]
}

fn optional(at: Option<usize>) -> Arg {
    at.map_or(Arg::NoView, Arg::Src)
}

/// The launch that converts operands, a warp for each of `jobs`, without where they go.
fn prepare(params: &SsmScan, jobs: usize) -> Kernel {
    let grid = [jobs.div_ceil(PREPARE_WARPS), 1, 1];
    Kernel::new("ssm_chunk_prepare", grid, (PREPARE_WARPS * WARP) as u32)
        .args([4, 5, 2, 3].map(Arg::Src))
        .args([optional(params.dt_bias_at()), Arg::Src(6), Arg::Src(7)])
}

#[cfg(test)]
mod tests {
    use super::super::tests::tensor;
    use super::*;
    use crate::graph::{Op, Tensor};

    /// The answer for a state `[d_state, head_dim, n_head]`, groups, tokens, sequences.
    fn answer(state: [usize; 3], n_group: usize, n: usize, n_seqs: usize) -> Option<Answer> {
        let [d_state, head_dim, n_head] = state;
        let x = tensor([head_dim, n_head, n, 1]);
        let operands: Vec<Tensor> = vec![
            tensor([d_state, head_dim, n_head, n_seqs]),
            x.clone(),
            tensor([n_head, n, 1, 1]),
            tensor([1, n_head, 1, 1]),
            tensor([d_state, n_group, n, 1]),
            tensor([d_state, n_group, n, 1]),
            tensor([n_seqs, 1, 1, 1]),
            tensor([n_seqs + 1, 1, 1, 1]),
        ];
        let params = SsmScan::default();
        let node = Node {
            op: Op::SsmScan(params),
            dst: &x,
            src: operands.iter().collect(),
            exact: false,
            rows_beside: 0,
        };
        chunked(&node, &params)
    }

    #[test]
    fn shared_memory_is_what_every_gpu_has() {
        for (d_state, head_dim) in [(64, 64), (128, 64), (128, 80), (128, 128), (256, 64)] {
            let kind = Kind::of(d_state, head_dim).expect("a kind");
            let scan = kind.shared_bytes(2, kind.stages()) + kind.h_bytes();
            assert!(scan <= 99 << 10, "{}", kind.name);
            // Blocks a multiprocessor, which keeps 1 KB for each.
            let blocks = if kind.width > 128 { 3 } else { 4 };
            assert!(blocks * (kind.outputs_bytes() + 1024) <= 227 << 10);
        }
    }

    #[test]
    fn long_prompts_fill_the_gpu() {
        for (state, n_group, n) in [
            ([128, 64, 64], 8, 4096),
            ([128, 64, 80], 1, 4096),
            ([64, 64, 32], 1, 4096),
        ] {
            let answer = answer(state, n_group, n, 1).expect("in chunks");
            assert_eq!(answer.kernels.len(), 3);
            let blocks = answer.kernels[2].grid[0] as usize;
            assert!((BLOCKS / 2..=BLOCKS).contains(&blocks), "{blocks}");
            assert!(answer.scratch_bytes < 48 << 20, "{}", answer.scratch_bytes);
        }
    }

    #[test]
    fn short_prompts_have_a_block_for_each_chunk() {
        for (state, chunk_blocks, pass_blocks) in [
            ([128, 64, 48], 48, 48 * 4),
            ([128, 80, 128], 128, 128 * 5),
            ([128, 128, 24], 2 * 24, 24 * 8),
        ] {
            let answer = answer(state, 1, 512, 1).expect("in chunks");
            let grids: Vec<u32> = answer.kernels[1..].iter().map(|k| k.grid[0]).collect();
            let states = 8 * (chunk_blocks + 1);
            assert_eq!(grids, [states, pass_blocks, 8 * chunk_blocks]);
            assert!(answer.scratch_bytes < 48 << 20, "{}", answer.scratch_bytes);
        }
    }

    #[test]
    fn grids_hold_the_pieces_of_any_lengths() {
        for (n, n_seqs) in [(2304, 1), (2304, 5), (4096, 1), (4096, 16), (4096, 42)] {
            let answer = answer([128, 64, 8], 1, n, n_seqs).expect("in chunks");
            let scan = answer.kernels.last().expect("a launch");
            let Some(Arg::I32(piece_chunks)) = scan.args.get(10) else {
                panic!("chunks of a piece");
            };
            let piece = CHUNK * *piece_chunks as usize;
            // One long sequence and short ones; all equal, and one token more than full.
            let even = vec![n / n_seqs; n_seqs];
            let mut long = vec![1; n_seqs];
            long[0] = n - n_seqs + 1;
            let over = vec![(n / n_seqs - 1) / CHUNK * CHUNK + 1; n_seqs];
            for lengths in [even, long, over] {
                let cut = |by: usize| lengths.iter().map(|l| l.div_ceil(by)).sum::<usize>();
                assert!(cut(piece) * 8 <= scan.grid[0] as usize, "{n} {n_seqs}");
                let jobs = cut(CHUNK) * (CHUNK + 8);
                assert!(jobs <= answer.kernels[0].grid[0] as usize * PREPARE_WARPS);
                let several = lengths.iter().map(|l| l.div_ceil(piece));
                let kept: usize = several.filter(|&pieces| pieces > 1).sum();
                assert!(kept * 8 * 64 * 128 * 4 <= answer.scratch_bytes);
            }
        }
    }

    #[test]
    fn the_rest_is_sequential() {
        assert!(answer([128, 64, 48], 1, 64, 1).is_none());
        assert!(answer([128, 64, 48], 1, 512, 16).is_none());
        assert!(answer([100, 64, 48], 1, 512, 1).is_none());
        assert!(answer([512, 64, 48], 1, 512, 1).is_none());
        assert!(answer([16, 64, 48], 1, 512, 1).is_none());
        assert!(answer([128, 20, 48], 1, 512, 1).is_none());
        assert!(answer([256, 128, 1 << 20], 1 << 20, 4096, 1).is_none());
    }
}
