//! MUL_MAT, MUL_MAT_ID and the quantized forms of their activations: cuts the work
//! for the kernels.

use super::super::pool::Worker;
use super::super::view::View;
use super::super::{Ctx, Node};
use super::{Acts, MatMul, Piece, ROW_TILE, quantize_row, quantize_row16, scratch_bytes};

/// Makes the 8-bit form of all live rows of `x`.
pub fn quantize_q8(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let x = node.src(ctx, 0);
    let (k, n_full) = (x.ne[0], node.src[0].n_rows());
    for r in worker.share(x.n_rows(), 1) {
        // SAFETY: the plan gave this result `q8_bytes(k, n_full)` bytes, and
        // each row belongs to one thread.
        unsafe { quantize_row(ctx.simd, x.row(x.row_at(r)), node.dst.ptr, k, n_full, r) };
    }
}

/// Makes the 16-bit form of all live rows of `x`.
pub fn quantize_q16(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let x = node.src(ctx, 0);
    let (k, n_full) = (x.ne[0], node.src[0].n_rows());
    for r in worker.share(x.n_rows(), 1) {
        // SAFETY: the plan gave this result `q16_bytes(k, n_full)` bytes, and
        // each row belongs to one thread.
        unsafe { quantize_row16(ctx.simd, x.row(x.row_at(r)), node.dst.ptr, k, n_full, r) };
    }
}

/// The activations a product reads: quantized rows when lowering made them.
fn acts<'a>(node: &'a Node, x: &'a View, quantized: Option<&'a View>) -> Acts<'a> {
    let n = node.src[1].n_rows();
    match quantized {
        Some(rows) if node.src[0].dtype.is_quantized() => Acts::Q8 {
            buf: rows.all_bytes(),
            n,
        },
        Some(rows) => Acts::Q16 {
            buf: rows.all_bytes(),
            n,
        },
        None => {
            let len = (x.n_rows().max(1) - 1) * (x.nb[1] / 4) + x.ne[0];
            // SAFETY: rows of `x` are `nb[1]` apart (checked when compiling).
            let x_all = unsafe { std::slice::from_raw_parts(x.ptr.cast::<f32>(), len) };
            Acts::F32 {
                x: x_all,
                stride: x.nb[1] / 4,
            }
        }
    }
}

/// Bytes of W that a thread takes at least for one token: some 2 us of reading.
const LEAST_BYTES: usize = 32 << 10;

/// `dst[m, n] = w[k, m] * x[k, n]`.
pub fn mul_mat(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    // All rows of W, which is what threads have shares of.
    let (dst, w, x) = (node.dst(ctx), &node.src[0], node.src(ctx, 1));
    let n = x.n_rows();
    if n == 0 {
        return;
    }
    let product = MatMul {
        simd: ctx.simd,
        dtype: w.dtype,
        w: w.all_bytes(),
        k: w.ne[0],
        m: w.ne[1],
        acts: acts(node, &x, node.src.get(2)),
    };
    let least = if n == 1 {
        LEAST_BYTES / w.nb[1].max(1)
    } else {
        0
    };
    let take = || ctx.shares.take(worker, node.product, least);
    let list = &ctx.identity[..n];
    // SAFETY: the plan gave `dst` its bytes; threads get disjoint rows of `w`,
    // which are disjoint values of `dst`.
    unsafe {
        product.run(
            &mut std::iter::from_fn(take),
            list,
            list,
            dst.ptr.cast(),
            dst.nb[1] / 4,
            ctx.scratch.bytes(worker),
        );
    }
}

/// Scratch of [`mul_mat_id`] besides its kernel's: two lists of rows.
pub fn id_lists_bytes(n_used: usize, n_tokens: usize) -> usize {
    (2 * n_used * n_tokens * 4).next_multiple_of(64)
}

/// Scratch a thread needs for a product.
pub fn kernel_scratch_bytes(w: &View, x: &View) -> usize {
    scratch_bytes(w.dtype, w.ne[0], x.n_rows())
}

/// `dst[m, u, t] = w[ids[u, t]][k, m] * x[k, u or 0, t]`: rows are gathered by
/// expert, so that each expert's weights are read once.
pub fn mul_mat_id(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, w, x, ids) = (
        node.dst(ctx),
        node.src(ctx, 0),
        node.src(ctx, 1),
        node.src(ctx, 2),
    );
    let (n_used, n_tokens, n_expert) = (ids.ne[0], ids.ne[1], w.ne[2]);
    let rows = worker.share(w.ne[1], ROW_TILE);
    if rows.is_empty() {
        return;
    }
    let scratch = ctx.scratch.bytes(worker);
    let (lists, scratch) = scratch.split_at_mut(id_lists_bytes(n_used, n_tokens));
    // SAFETY: the scratch is aligned to 64 bytes and any bytes are valid u32.
    let lists = unsafe { lists.align_to_mut::<u32>().1 };
    let (tx, ty) = lists.split_at_mut(n_used * n_tokens);
    for expert in 0..n_expert {
        let mut len = 0;
        for t in 0..n_tokens {
            for (u, &id) in ids.ints([t, 0, 0]).iter().enumerate() {
                if usize::try_from(id) == Ok(expert) {
                    tx[len] = (t * x.ne[1] + if x.ne[1] > 1 { u } else { 0 }) as u32;
                    ty[len] = (t * n_used + u) as u32;
                    len += 1;
                }
            }
        }
        if len == 0 {
            continue;
        }
        let bytes = w.nb[2];
        let product = MatMul {
            simd: ctx.simd,
            dtype: w.dtype,
            w: &w.all_bytes()[expert * bytes..(expert + 1) * bytes],
            k: w.ne[0],
            m: w.ne[1],
            acts: acts(node, &x, node.src.get(3)),
        };
        // SAFETY: as in `mul_mat`; the lists name live rows of `x` and `dst`.
        unsafe {
            product.run(
                &mut Piece::whole(rows.clone()),
                &tx[..len],
                &ty[..len],
                dst.ptr.cast(),
                dst.nb[1] / 4,
                scratch,
            );
        }
    }
}
