//! GET_ROWS, SET_ROWS, CONT, CPY: moving rows between tensors and types.

use super::pool::Worker;
use super::{Ctx, Node, simd_f16};
use crate::quant::DType;

/// `dst[.., i] = table[.., ids[i]]`; an id outside the table gives a zero row
/// (token ids are checked before they get here).
pub fn get_rows(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, table, ids) = (node.dst(ctx), node.src(ctx, 0), node.src(ctx, 1));
    let batched = ids.ne[1] > 1 || table.ne[2] > 1;
    for (at, out) in dst.my_rows(worker) {
        let b = if batched { at[1] } else { 0 };
        let id = ids.ints([b, 0, 0])[at[0]];
        let row = usize::try_from(id).ok().filter(|&r| r < table.ne[1]);
        let done = row.is_some_and(|r| {
            let bytes = table.row_bytes([r, b, 0]);
            table.dtype.dequantize_row(bytes, out).is_ok()
        });
        if !done {
            out.fill(0.0);
        }
    }
}

/// `cache[slots[i]] = x[.., i]`, converted to the cache's type; slot -1 skips.
pub fn set_rows(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (cache, x, slots) = (node.dst(ctx), node.src(ctx, 1), node.src(ctx, 2));
    let slots = slots.ints([0; 3]);
    for (t, out) in cache.my_slots(worker, &slots[..x.ne[1]]) {
        store_row(ctx, x.row([t, 0, 0]), cache.dtype, out);
    }
}

/// Writes f32 values as F32, F16 or BF16.
fn store_row(ctx: &Ctx<'_>, x: &[f32], dtype: DType, out: &mut [u8]) {
    match dtype {
        DType::F16 => simd_f16::store_f16(ctx.simd, x, out),
        DType::BF16 => {
            for (y, &v) in out.chunks_exact_mut(2).zip(x) {
                y.copy_from_slice(&half::bf16::from_f32(v).to_le_bytes());
            }
        }
        _ => {
            for (y, v) in out.chunks_exact_mut(4).zip(x) {
                y.copy_from_slice(&v.to_le_bytes());
            }
        }
    }
}

/// A contiguous copy.
pub fn cont(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_rows(worker) {
        out.copy_from_slice(x.row(at));
    }
}

/// Rows one behind the other.
pub fn concat(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let dst = node.dst(ctx);
    for (at, out) in dst.my_rows(worker) {
        let mut rest = out;
        for i in 0..node.src.len() {
            let src = node.src(ctx, i);
            let row = src.row(at);
            let (part, behind) = rest.split_at_mut(row.len());
            part.copy_from_slice(row);
            rest = behind;
        }
    }
}

/// A copy in another float type.
pub fn cpy(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_row_bytes(worker) {
        store_row(ctx, x.row(at), dst.dtype, out);
    }
}
