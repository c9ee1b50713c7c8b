//! MUL_MAT and its fused and expert forms; `cuda-kernels/mul_mat*.cu`.

use super::super::kernel::{Answer, Arg, Kernel, Node, multiplies_codes, n_rows, vec_family};
use super::super::layout::{self, TILE_ROWS};
use super::VEC_TOKENS;
use super::mul_mat_cluster::Product;
use crate::graph::{FusedMulMat, Origin, Tensor};
use crate::quant::DType;

/// Columns of a matrix-vector block.
const COLUMNS: usize = 8;
const VEC_WARPS: usize = 8;
/// Rows and columns of a matrix-matrix block.
const MM_ROWS: usize = 128;
const MM_COLUMNS: usize = 64;
/// Warps that run at once on a large GPU (132 SMs with 16 each): more come in a second
/// round that fills only a part of it.
const MOST_WARPS: usize = 132 * 16;
/// As the kernel's shared memory allows with 8 columns: see `STAGED` there. Steps of F32
/// weights are short.
const MOST_SPLIT: usize = 8;
const MOST_SPLIT_EXACT: usize = 4;
/// Longest k of `mul_mat_vec_one.cu`.
const ONE_MOST: usize = 2048;
/// Teams of eight warps of the integer form that run at once: two on each of 132 SMs, in a
/// block of their own for one column, else in one.
const INT_TEAMS: usize = 264;
/// `X_BYTES` and `MOST_GROUPS` of `mul_mat_vec_int.cu`.
const X_BYTES: usize = 72 << 10;
const MOST_GROUPS: usize = 128;
/// Values of x that share a scale there.
pub const X_GROUP: usize = 256;
/// Largest y and z dimension of a grid, rounded down to a handy number.
const MOST_COLUMN_GROUPS: usize = 32768;
/// `moe_bucket` keeps this many counters.
pub const MOST_EXPERTS: usize = 1024;

/// True for weights that the device holds in unit order.
fn is_matrix(w: &Tensor) -> bool {
    w.origin == Origin::Weight && w.ne[3] == 1 && layout::has_type(w.dtype)
}

/// The matrix-vector form. Products read x and write y in rows without gaps in
/// dimension 0; a third dimension is for experts only.
fn vec(node: &Node<'_>, f: &FusedMulMat) -> Option<Answer> {
    let (w, x) = (node.src[0], node.src[f.x_at()]);
    let matrices = &node.src[..f.x_at()];
    if matrices.iter().any(|m| !is_matrix(m) || m.dtype != w.dtype) {
        return None;
    }
    // Blocks over columns, of all tokens and of one. A few tokens divide k as one does, so
    // that each gets the bits that it gets alone.
    let (groups, of_one, n_tokens) = match f.ids_at().map(|at| node.src[at]) {
        Some(ids) => (n_rows(ids) * ids.ne[0], ids.ne[0], n_rows(ids)),
        None if x.ne[2..] == [1, 1] => (x.ne[1].div_ceil(COLUMNS), 1, x.ne[1]),
        None => return None,
    };
    let n_groups = w.ne[0] / X_GROUP;
    let int = !node.exact && multiplies_codes(w.dtype) && n_groups <= MOST_GROUPS;
    let counted = if n_tokens <= VEC_TOKENS {
        of_one
    } else {
        groups
    };
    let (entry, most) = match (node.exact, w.dtype) {
        (_, DType::F32) => ("mul_mat_vec_exact", MOST_SPLIT),
        (false, d) if int || !multiplies_codes(d) => ("mul_mat_vec", MOST_SPLIT),
        // Also rows of codes that are too long for the integer form.
        _ => ("mul_mat_vec_exact", MOST_SPLIT_EXACT),
    };
    let tiles = w.ne[1].div_ceil(TILE_ROWS);
    let all_tiles = tiles + node.rows_beside.div_ceil(TILE_ROWS);
    let y = groups.min(MOST_COLUMN_GROUPS);
    let slots = match f.ids_at() {
        Some(_) => 1,
        None => token_slots(x.ne[1]),
    };
    let teams = if int && slots > 1 { 2 } else { 1 };
    // Blocks along the rows, and `split` of `VecJob`: there row tiles of a block.
    let (blocks, split) = match int {
        true => {
            let of_block = (all_tiles * groups).div_ceil(INT_TEAMS / teams);
            (tiles.div_ceil(of_block), of_block)
        }
        false => {
            let split = split(all_tiles * counted, w.ne[0].div_ceil(256), most);
            (tiles.div_ceil(VEC_WARPS / split), split)
        }
    };
    let grid = [blocks, y, groups.div_ceil(y)];
    let view = |i: Option<usize>| i.map_or(Arg::NoView, Arg::Src);
    let one = w.dtype == DType::F32
        && f.ids_at().is_none()
        && f.glu.is_none()
        && (n_tokens, split) == (1, VEC_WARPS)
        && w.ne[0] <= ONE_MOST;
    let entry = match int {
        true => format!("{entry}_{}_{slots}", vec_family(w.dtype)),
        false if one => "mul_mat_vec_one_F32".to_string(),
        false => format!("{entry}_{}", w.dtype.name()),
    };
    let mut kernel = Kernel::new(entry, grid, (teams * VEC_WARPS * 32) as u32);
    if int {
        kernel = kernel.shared(x_bytes(slots, n_groups));
    }
    let args = |split: usize| {
        vec![
            Arg::Src(0),
            view(f.glu.map(|_| 1)),
            Arg::Src(f.x_at()),
            view(f.norm_at()),
            view(f.ids_at()),
            view(f.b_at()),
            Arg::Dst,
            Arg::I32(f.glu.map_or(0, |kind| kind as i32)),
            Arg::I32(split as i32),
            Arg::F32(f.norm_eps.unwrap_or(0.0)),
        ]
    };
    let product = Product {
        k: w.ne[0],
        m: w.ne[1],
        all_rows: w.ne[1] + node.rows_beside,
        n_tokens,
        gated: f.glu.is_some(),
        norm: f.norm_at().is_some(),
    };
    let clusters = (int && slots > 1).then(|| product.kernel(TILE_ROWS, args));
    let kernel = kernel.args(args(split)).on_clusters(clusters.flatten());
    Some(kernel.job().into())
}

/// Columns that a block of the integer form has room for.
fn token_slots(n_tokens: usize) -> usize {
    match n_tokens {
        0 | 1 => 1,
        2..=4 => 4,
        _ => COLUMNS,
    }
}

/// Bytes of an `XGroup` (`int_product.cuh`) of so many tokens: integers, sums of units and
/// a scale, in pieces of 16 bytes.
pub const fn x_group_bytes(slots: usize) -> usize {
    (slots * (2 * X_GROUP + 4 * 8 + 4)).next_multiple_of(16)
}

/// Shared memory for x there, of all groups or as many whole rounds of classes as fit.
fn x_bytes(slots: usize, n_groups: usize) -> usize {
    let group = x_group_bytes(slots);
    n_groups.min(X_BYTES / group / VEC_WARPS * VEC_WARPS) * group
}

/// Warps that share a row tile: as many as run at once, no more than have work.
fn split(tiles: usize, steps: usize, most: usize) -> usize {
    let mut split = 1;
    while split < most && tiles * split * 2 <= MOST_WARPS && split < steps {
        split *= 2;
    }
    split
}

/// The matrix-matrix form over packed activations.
fn mat(node: &Node<'_>, packed: usize, b: Option<usize>) -> Option<Answer> {
    let (w, x) = (node.src[0], node.src[packed]);
    if !is_matrix(w) || x.ne[2..] != [1, 1] {
        return None;
    }
    let grid = [w.ne[1].div_ceil(MM_ROWS), x.ne[1].div_ceil(MM_COLUMNS), 1];
    let b = b.map_or(Arg::NoView, Arg::Src);
    let entry = format!("mul_mat_{}", w.dtype.name());
    Some(
        Kernel::new(entry, grid, 256)
            .args([Arg::Src(0), Arg::Src(packed), b, Arg::Dst])
            .into(),
    )
}

pub fn mul_mat(node: &Node<'_>) -> Option<Answer> {
    match node.src.len() {
        3 => mat(node, 2, None),
        _ => vec(node, &FusedMulMat::default()),
    }
}

pub fn fused(node: &Node<'_>, f: &FusedMulMat) -> Option<Answer> {
    let packed = f.n_operands();
    match node.src.len() > packed {
        true if f.glu.is_none() && f.norm_eps.is_none() && !f.ids => mat(node, packed, f.b_at()),
        true => None,
        false => vec(node, f),
    }
}

pub fn mul_mat_id(node: &Node<'_>) -> Option<Answer> {
    if node.src.len() < 4 {
        let ids = FusedMulMat {
            ids: true,
            ..FusedMulMat::default()
        };
        return vec(node, &ids);
    }
    let (w, ids) = (node.src[0], node.src[2]);
    let n_expert = w.ne[2];
    if !is_matrix(w) || n_expert > MOST_EXPERTS {
        return None;
    }
    let pairs = ids.ne[0] * ids.ne[1];
    // Every expert may leave one tile that is not full.
    let tiles = n_expert.min(pairs) + pairs / MM_COLUMNS;
    let scratch = Arg::Scratch { offset_bytes: 0 };
    let bucket = Kernel::new("moe_bucket", [1, 1, 1], 1024).args([
        Arg::Src(2),
        Arg::I32(n_expert as i32),
        scratch.clone(),
    ]);
    if tiles > 65_535 {
        return None; // more pairs than a ubatch has
    }
    let entry = format!("mul_mat_id_{}", w.dtype.name());
    let product = Kernel::new(entry, [w.ne[1].div_ceil(MM_ROWS), tiles, 1], 256).args([
        Arg::Src(0),
        Arg::Src(3),
        Arg::Dst,
        scratch,
    ]);
    Some(Answer {
        kernels: vec![bucket, product],
        scratch_bytes: 16 + 4 * pairs + 12 * tiles,
    })
}

pub fn pack_f16(node: &Node<'_>) -> Option<Answer> {
    let grid = [n_rows(node.src[0]), 1, 1];
    Some(
        Kernel::new("pack_f16", grid, 256)
            .args([Arg::Dst, Arg::Src(0)])
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_of_the_integer_form_fits_in_whole_rounds() {
        // `XGroup` of 1, 4 and 8 tokens: 560, 2,192 and 4,384 bytes.
        assert_eq!(x_bytes(token_slots(1), 16), 16 * 560);
        assert_eq!(x_bytes(token_slots(3), 16), 16 * 2_192);
        assert_eq!(x_bytes(token_slots(16), 16), 16 * 4_384);
        // k of 14,336 comes in chunks of 16 groups.
        assert_eq!(x_bytes(8, 56), 16 * 4_384);
        assert!(
            [1, 4, 8]
                .iter()
                .all(|&s| x_bytes(s, MOST_GROUPS) <= X_BYTES)
        );
    }
}
