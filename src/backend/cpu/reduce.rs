//! ARGMAX, TOP_K, SUM_ROWS, MEAN, CUMSUM.

use super::pool::Worker;
use super::{Ctx, Node};
use std::cmp::Ordering;

/// Larger first; equal values by rising index; NaN last.
fn by_value(row: &[f32], a: i32, b: i32) -> Ordering {
    let (x, y) = (row[a as usize], row[b as usize]);
    let order = match (x.is_nan(), y.is_nan()) {
        (false, false) => y.partial_cmp(&x).unwrap_or(Ordering::Equal),
        (nan_x, nan_y) => nan_x.cmp(&nan_y),
    };
    order.then(a.cmp(&b))
}

/// Index of the largest value of each row; ties go to the lowest index.
pub fn argmax(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    // One row of indices, so one thread has them all.
    for (_, out) in dst.my_int_rows(worker) {
        for (r, out) in out.iter_mut().enumerate() {
            let row = x.row([r, 0, 0]);
            let best = (0..row.len() as i32).min_by(|&a, &b| by_value(row, a, b));
            *out = best.unwrap_or(0);
        }
    }
}

/// Indices of the largest values of each row, by falling value.
pub fn top_k(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_int_rows(worker) {
        best(x.row(at), out);
    }
}

/// Indices of the `out.len()` largest values of a row, by falling value.
pub fn best(row: &[f32], out: &mut [i32]) {
    let mut ids: Vec<i32> = (0..row.len() as i32).collect();
    if out.len() < ids.len() {
        ids.select_nth_unstable_by(out.len() - 1, |&a, &b| by_value(row, a, b));
        ids.truncate(out.len());
    }
    ids.sort_unstable_by(|&a, &b| by_value(row, a, b));
    out.copy_from_slice(&ids);
}

/// Sum of each row (f64 inside, as long rows lose digits in f32), times `factor`.
pub fn sum_rows(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, factor: f64) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_rows(worker) {
        let sum: f64 = x.row(at).iter().map(|&v| f64::from(v)).sum();
        out[0] = (sum * factor) as f32;
    }
}

/// Mean of each row.
pub fn mean(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let n = node.src(ctx, 0).ne[0];
    sum_rows(ctx, node, worker, 1.0 / n as f64);
}

/// Running sum of each row (f64 inside).
pub fn cumsum(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    let (dst, x) = (node.dst(ctx), node.src(ctx, 0));
    for (at, out) in dst.my_rows(worker) {
        let mut sum = 0.0f64;
        for (y, &x) in out.iter_mut().zip(x.row(at)) {
            sum += f64::from(x);
            *y = sum as f32;
        }
    }
}
