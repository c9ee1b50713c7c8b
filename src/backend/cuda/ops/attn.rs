//! ATTN: which kernel runs, and over how many splits of the KV length.

use super::super::kernel::{Answer, Arg, Kernel, Node};
use super::VEC_TOKENS;
use super::attn_token::attn_token;
use crate::graph::{AttnParams, AttnShape, Origin, Tensor};
use crate::quant::DType;

/// Head dims of the tensor core kernels, with the blocks of `attn_split` that a
/// multiprocessor holds (by registers) and the blocks that share a head's columns.
const HEAD_DIMS: [(usize, usize, usize); 7] = [
    (64, 4, 1),
    (80, 2, 1),
    (96, 2, 1),
    (112, 2, 1),
    (128, 2, 1),
    (192, 2, 1),
    (256, 2, 2),
];

/// Multiprocessors that the grids are sized for (H200); others only get other tails.
const N_SM: usize = 132;
/// Cells that a split takes at a time, as in `attn.cuh`.
const SPLIT_CELLS: usize = 128;
/// More splits than this cost `attn_combine` more than they save.
const MAX_SPLITS: usize = 64;
/// Query rows (heads of a token) of a block.
const SPLIT_ROWS: usize = 16;
const PREFILL_ROWS: usize = 64;
/// Fewer blocks of `attn_prefill` than this leave over half of the device idle, and
/// splitting the KV length wins.
const PREFILL_BLOCKS: usize = N_SM / 2;
const THREADS: u32 = 128;
/// Blocks of `attn_any` that a multiprocessor holds, with 64 registers a thread.
const ANY_BLOCKS: usize = 8;
/// Columns of V that `attn_any` keeps in registers.
const ANY_HEAD_DIM_V: usize = 512;
/// Shared memory that every device gives a block unasked.
const SHARED_BYTES: usize = 48 << 10;

/// The launches of ATTN: a prefill kernel, or one that may split the KV length and
/// then another that adds the splits up.
pub fn attn(node: &Node<'_>, params: &AttnParams, shape: &AttnShape) -> Option<Answer> {
    let mut answer = launches(node, params, shape)?;
    if node.src[0].ne[2] > VEC_TOKENS {
        // A few tokens may need more than many; plans look at the widest graph.
        let (per_sm, heads) = match tensor_cores(node, shape) {
            Some(&(_, per_sm, columns)) => (per_sm, shape.n_head_kv * columns),
            None => (ANY_BLOCKS, shape.n_head),
        };
        let n_split = splits(node, N_SM * per_sm / heads.max(1));
        let few = scratch_bytes(shape, VEC_TOKENS, n_split).1;
        answer.scratch_bytes = answer.scratch_bytes.max(few);
    }
    Some(answer)
}

fn launches(node: &Node<'_>, params: &AttnParams, shape: &AttnShape) -> Option<Answer> {
    let n = node.src[0].ne[2];
    let rows = n * (shape.n_head / shape.n_head_kv);
    let Some(&(head_dim, per_sm, columns)) = tensor_cores(node, shape) else {
        return any(node, params, shape);
    };
    let blocks = rows.div_ceil(PREFILL_ROWS) * shape.n_head_kv;
    if rows >= PREFILL_ROWS && blocks >= PREFILL_BLOCKS {
        let grid = [rows.div_ceil(PREFILL_ROWS), shape.n_head_kv, 1];
        let kernel = Kernel::new(format!("attn_prefill_{head_dim}"), grid, THREADS)
            .shared(prefill_shared_bytes(head_dim))
            .args(operands(params, shape));
        return Some(kernel.into());
    }
    let (tiles, heads) = (rows.div_ceil(SPLIT_ROWS), shape.n_head_kv * columns);
    // A few tokens are split as one is, so that each gets the bits that it gets alone.
    let counted = if n <= VEC_TOKENS { 1 } else { tiles };
    let n_split = splits(node, N_SM * per_sm / (counted * heads).max(1));
    if let Some(answer) = attn_token(node, params, shape, n_split) {
        return Some(answer);
    }
    let grid = [n_split * tiles, heads, 1];
    let kernel = Kernel::new(format!("attn_split_{head_dim}"), grid, THREADS);
    with_combine(node, params, shape, kernel, n_split)
}

/// The row of [`HEAD_DIMS`] when tensor cores can run this.
fn tensor_cores(node: &Node<'_>, shape: &AttnShape) -> Option<&'static (usize, usize, usize)> {
    let fits = |t: &Tensor| {
        let offset = match t.origin {
            Origin::View { offset_bytes } => offset_bytes,
            _ => 0,
        };
        // 16-byte loads; 16 rows within 32-bit offsets.
        t.dtype == DType::F16 && t.nb[1].is_multiple_of(16) && t.nb[1] < 1 << 27 && offset % 16 == 0
    };
    if shape.head_dim_k != shape.head_dim_v || !fits(node.src[1]) || !fits(node.src[2]) {
        return None;
    }
    HEAD_DIMS.iter().find(|d| d.0 == shape.head_dim_k)
}

/// The launch for what tensor cores do not take: one block a query row and split.
fn any(node: &Node<'_>, params: &AttnParams, shape: &AttnShape) -> Option<Answer> {
    let n = node.src[0].ne[2];
    let shared_bytes = 4 * (shape.head_dim_k + 4 * shape.head_dim_v);
    if shape.head_dim_v > ANY_HEAD_DIM_V || shared_bytes > SHARED_BYTES {
        return None;
    }
    let counted = if n <= VEC_TOKENS { 1 } else { n };
    let n_split = splits(node, N_SM * ANY_BLOCKS / (counted * shape.n_head).max(1));
    let kernel = Kernel::new("attn_any", [n_split * shape.n_head, n, 1], THREADS);
    with_combine(node, params, shape, kernel.shared(shared_bytes), n_split)
}

/// Splits of the KV length, at most `wanted`; the widest cache decides, as the cells in
/// use are known only when a step runs.
fn splits(node: &Node<'_>, wanted: usize) -> usize {
    let most = node.src[1].ne[1].div_ceil(SPLIT_CELLS).min(MAX_SPLITS);
    wanted.clamp(1, most.max(1))
}

/// Scratch memory of the splits: bytes of `parts`, and of it with `part_out`.
pub fn scratch_bytes(shape: &AttnShape, n: usize, n_split: usize) -> (usize, usize) {
    if n_split == 1 {
        return (0, 0);
    }
    let shares = n * shape.n_head * n_split;
    let parts = (8 * shares).next_multiple_of(256);
    (parts, parts + 4 * shares * shape.head_dim_v)
}

/// A split kernel with its arguments and, when there is more than one split, the launch
/// that adds them up.
fn with_combine(
    node: &Node<'_>,
    params: &AttnParams,
    shape: &AttnShape,
    kernel: Kernel,
    n_split: usize,
) -> Option<Answer> {
    let n = node.src[0].ne[2];
    // Token and head are grid dimensions.
    if n > 65_535 || shape.n_head > 32_767 {
        return None;
    }
    let kernel = kernel
        .args(operands(params, shape))
        .args([Arg::I32(n_split as i32)]);
    if n_split == 1 {
        let nowhere = || Arg::Scratch { offset_bytes: 0 };
        return Some(kernel.args([nowhere(), nowhere()]).into());
    }
    let (parts_bytes, bytes) = scratch_bytes(shape, n, n_split);
    let parts = [
        Arg::Scratch { offset_bytes: 0 },
        Arg::Scratch {
            offset_bytes: parts_bytes,
        },
    ];
    let combine = Kernel::new("attn_combine", [shape.n_head, n, 1], THREADS)
        .args([Arg::Dst, Arg::Src(0), Arg::Src(3), Arg::Src(5)])
        .args([Arg::I32(shape.head_dim_v as i32), Arg::I32(n_split as i32)])
        .args(parts.clone());
    Some(Answer {
        kernels: vec![kernel.args(parts), combine],
        scratch_bytes: bytes,
    })
}

/// `ATTN_PARAMS` of `attn.cuh`.
pub fn operands(params: &AttnParams, shape: &AttnShape) -> Vec<Arg> {
    // Positions are below 2^31, so a wider window hides nothing.
    let window = params
        .window
        .and_then(|w| i32::try_from(w).ok())
        .unwrap_or(-1);
    let (beta, len) = params.temperature.unwrap_or((0.0, 1));
    let len = len.clamp(1, i32::MAX as u32) as i32;
    let mut args = vec![Arg::Dst];
    args.extend((0..7).map(Arg::Src));
    args.extend([
        Arg::I32(shape.n_head_kv as i32),
        Arg::F32(params.scale),
        Arg::F32(params.softcap.unwrap_or(0.0)),
        Arg::I32(window),
        Arg::F32(beta),
        Arg::I32(len),
    ]);
    args
}

/// Dynamic shared memory of `attn_prefill`: q of 64 rows as two halves, then a tile of
/// K and one of V, each row padded by 16 bytes. At most 97 KiB, which sm_86 still has.
fn prefill_shared_bytes(head_dim: usize) -> usize {
    let cells = if head_dim <= 128 { 64 } else { 32 };
    PREFILL_ROWS * head_dim * 4 + 2 * cells * (head_dim * 2 + 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Op;

    fn tensor(dtype: DType, ne: [usize; 4]) -> Tensor {
        Tensor {
            name: "".into(),
            dtype,
            ne,
            nb: Tensor::packed(dtype, ne),
            live: None,
            origin: Origin::Weight,
            src: Vec::new(),
        }
    }

    /// The answer for `n` tokens over `cells` of a cache of type `cache`.
    fn answer(shape: AttnShape, cache: DType, n: usize, cells: usize) -> Option<Answer> {
        let params = AttnParams {
            scale: 1.0,
            softcap: None,
            window: Some(u32::MAX),
            swa: false,
            temperature: None,
        };
        let q = tensor(DType::F32, [shape.head_dim_k, shape.n_head, n, 1]);
        let k = tensor(cache, [shape.head_dim_k * shape.n_head_kv, cells, 1, 1]);
        let v = tensor(cache, [shape.head_dim_v * shape.n_head_kv, cells, 1, 1]);
        let (ids, held) = (
            tensor(DType::I32, [n, 1, 1, 1]),
            tensor(DType::I32, [cells, 1, 1, 1]),
        );
        let dst = tensor(DType::F32, [shape.head_dim_v * shape.n_head, n, 1, 1]);
        let node = Node {
            op: Op::Attn(params, shape),
            dst: &dst,
            src: vec![&q, &k, &v, &ids, &ids, &held, &held],
            exact: false,
            rows_beside: 0,
        };
        attn(&node, &params, &shape)
    }

    fn llama_8b() -> AttnShape {
        AttnShape {
            head_dim_k: 128,
            head_dim_v: 128,
            n_head: 32,
            n_head_kv: 8,
        }
    }

    #[test]
    fn decode_splits_the_kv_length_within_bounds() {
        for (cells, n_split) in [(1, 1), (128, 1), (500, 4), (1 << 14, 33), (1 << 20, 33)] {
            let answer = answer(llama_8b(), DType::F16, 1, cells).unwrap();
            let split = &answer.kernels[0];
            assert_eq!(split.entry, "attn_token_one_128");
            assert_eq!(split.grid, [1, 8, n_split], "{cells} cells");
            assert_eq!(answer.kernels.len(), 1);
            // (max, sum) and 128 columns of every head and split.
            let shares = 32 * n_split as usize;
            let bytes = (8 * shares).next_multiple_of(256) + 512 * shares;
            assert_eq!(answer.scratch_bytes, if n_split == 1 { 0 } else { bytes });
        }
    }

    #[test]
    fn a_few_tokens_are_split_as_one_is() {
        let n_split = |n, cache| {
            let split = answer(llama_8b(), cache, n, 1 << 14).unwrap().kernels[0].clone();
            match cache {
                DType::F16 => split.grid[2],
                _ => split.grid[0] / 32,
            }
        };
        for cache in [DType::F16, DType::F32] {
            let alone = n_split(1, cache);
            assert!(alone > 1 && (2..=VEC_TOKENS).all(|n| n_split(n, cache) == alone));
            // What few take is in the plan of more.
            let bytes = |n| answer(llama_8b(), cache, n, 1 << 14).unwrap().scratch_bytes;
            let most = bytes(VEC_TOKENS);
            assert!(most > bytes(1) && [17, 64, 512].iter().all(|&n| bytes(n) >= most));
        }
    }

    #[test]
    fn many_rows_prefill_and_few_split() {
        let entry = |n| {
            answer(llama_8b(), DType::F16, n, 4096).unwrap().kernels[0]
                .entry
                .clone()
        };
        assert_eq!(entry(8), "attn_token_few_128");
        assert_eq!(entry(64), "attn_split_128");
        assert_eq!(entry(512), "attn_prefill_128");
    }

    #[test]
    fn what_tensor_cores_cannot_take_has_a_kernel_up_to_512_columns() {
        let mut shape = llama_8b();
        let entry = |s, cache| answer(s, cache, 2, 300).map(|a| a.kernels[0].entry.clone());
        assert_eq!(entry(shape, DType::F32).as_deref(), Some("attn_any"));
        shape.head_dim_v = 512;
        assert_eq!(entry(shape, DType::F16).as_deref(), Some("attn_any"));
        shape.head_dim_v = 513;
        assert_eq!(entry(shape, DType::F16), None);
    }

    #[test]
    fn shared_memory_fits_the_smallest_multiprocessor() {
        // sm_86, sm_89 and sm_120 give a block 99 KiB.
        for (head_dim, ..) in HEAD_DIMS {
            assert!(prefill_shared_bytes(head_dim) <= 99 << 10, "{head_dim}");
        }
    }
}
