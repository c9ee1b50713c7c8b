//! GATED_DELTA_NET (arXiv 2412.06464), token by token. Threads share the rows of the
//! states, one for each value of V.

use super::pool::Worker;
use super::ssm::sequences;
use super::{Ctx, Node, simd_scan};
use crate::graph::GatedDelta;

/// `state *= exp(g); state += k * (beta * (v - state k)); y = state q / sqrt(d_k)`.
pub fn gated_delta_net(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>, params: &GatedDelta) {
    let dst = node.dst(ctx);
    let [state, q, k, v, g, beta, ids, rows] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| node.src(ctx, i));
    let [d_k, d_v, n_head, _] = state.ne;
    let n_k_head = k.ne[1];
    let scale = 1.0 / (d_k as f32).sqrt();
    let mine = worker.share(d_v * n_head, 1);
    for seq in sequences(&ids, &rows, v.ne[2], state.ne[3]) {
        for h in 0..n_head {
            let (first, end) = (mine.start.max(h * d_v), mine.end.min((h + 1) * d_v));
            if first >= end {
                continue;
            }
            let columns = first - h * d_v..end - h * d_v;
            let k_head = match params.tiled {
                true => h % n_k_head,
                false => h / (n_head / n_k_head),
            };
            let state = state.own_rows(columns.clone(), [h, seq.slot]);
            if seq.fresh {
                state.fill(0.0);
            }
            for t in seq.tokens.clone() {
                let factors = [g.row([t, 0, 0])[h].exp(), beta.row([t, 0, 0])[h]];
                let [q, k] = [&q, &k].map(|x| x.row([k_head, t, 0]));
                let v = &v.row([h, t, 0])[columns.clone()];
                let y = dst.own_columns([h, t, 0], columns.clone());
                simd_scan::delta_rows(ctx.simd, state, factors, q, k, v, y);
                y.iter_mut().for_each(|y| *y *= scale);
            }
        }
    }
}
