//! qwen3next: Qwen 3 Next. Gated delta nets, attention in every fourth layer, and
//! experts everywhere, one of which all tokens share.

use super::blocks::delta_net::{self, Heads, Projected};
use super::blocks::{self, linear};
use super::hparams::MOST_WIDTH;
use super::{Arch, CacheShape, Hparams, Keys, Recurrent, RopeOverrides};
use crate::error::Result;
use crate::graph::{Builder, Catalog, RopeMode, TensorId};

struct Qwen3Next {
    hp: Hparams,
    n_ff_shared: usize,
}

pub fn read(keys: &Keys<'_>, catalog: &dyn Catalog, user: &RopeOverrides) -> Result<Box<dyn Arch>> {
    let mut hp = Hparams::read_hybrid(keys, catalog, RopeMode::Neox, user)?;
    delta_net::read(keys, &mut hp)?;
    let key = "expert_shared_feed_forward_length";
    let n_ff_shared = keys.size_or(key, MOST_WIDTH, hp.n_ff_expert)?;
    Ok(Box::new(Qwen3Next { hp, n_ff_shared }))
}

impl Arch for Qwen3Next {
    fn hparams(&self) -> &Hparams {
        &self.hp
    }

    fn graph(&self, g: &mut Builder<'_>, cache: &CacheShape) -> Result<TensorId> {
        let hp = &self.hp;
        delta_net::graph(
            g,
            hp,
            cache,
            &|g, il, r, h| {
                let x = project(g, il, r, h)?;
                delta_net::delta_net(g, hp, cache, il, r, &x, false)
            },
            &|g, il, h| {
                let experts = blocks::moe(g, hp, il, h, hp.n_ff_expert, true)?;
                let shared = blocks::gated_shared_expert(g, hp, il, h, self.n_ff_shared)?;
                g.add(experts, shared)
            },
        )
    }
}

/// Columns `start .. start + len` of each head of `x [.., n_k, n]`, as `[len * n_k, n]`.
fn columns(g: &mut Builder<'_>, x: TensorId, start: usize, len: usize) -> Result<TensorId> {
    let [_, n_head, n, _] = g.graph.get(x).ne;
    let part = g.slice(x, 0, start, len)?;
    let part = g.cont(part)?;
    g.reshape(part, &[len * n_head, n])
}

/// The projections; `ssm_ba` has beta, then alpha, of each K head in turn.
fn project(g: &mut Builder<'_>, il: usize, r: &Recurrent, h: TensorId) -> Result<Projected> {
    let heads = Heads::of(r);
    let ratio = heads.n_v / heads.n_k;
    let ba = linear(g, h, &format!("blk.{il}.ssm_ba"), 2 * heads.n_v)?;
    let ba = g.split_rows(ba, [2 * ratio, heads.n_k])?;
    let beta = columns(g, ba, 0, ratio)?;
    let alpha = columns(g, ba, ratio, ratio)?;
    let n_qkv = 2 * heads.n_qk() + heads.n_inner();
    let name = format!("blk.{il}.attn_qkv.weight");
    let n_embd = g.graph.get(h).ne[0];
    let [qkv, z] = match g.weight_opt(&name, &[n_embd, n_qkv])? {
        Some(_) => delta_net::project_qkv_z(g, il, &heads, h)?,
        None => project_fused(g, il, &heads, h)?,
    };
    Ok(Projected {
        qkv,
        z,
        beta,
        alpha,
    })
}

/// As older files have it: `ssm_in` gives Q, K, V and the gate of each K head in turn.
fn project_fused(
    g: &mut Builder<'_>,
    il: usize,
    heads: &Heads,
    h: TensorId,
) -> Result<[TensorId; 2]> {
    let n = g.width.n_tokens;
    // Values of V, and of the gate, beside a K head.
    let n_v = heads.n_inner() / heads.n_k;
    let width = 2 * (heads.n_qk() + heads.n_inner());
    let all = linear(g, h, &format!("blk.{il}.ssm_in"), width)?;
    let all = g.split_rows(all, [2 * (heads.d_k + n_v), heads.n_k])?;
    let q = columns(g, all, 0, heads.d_k)?;
    let k = columns(g, all, heads.d_k, heads.d_k)?;
    let v = columns(g, all, 2 * heads.d_k, n_v)?;
    let z = columns(g, all, 2 * heads.d_k + n_v, n_v)?;
    let z = g.reshape(z, &[heads.d_v, heads.n_v, n])?;
    Ok([g.concat(&[q, k, v])?, z])
}
