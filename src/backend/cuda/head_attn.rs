//! Attention of few tokens takes the HEAD_ROWS ahead of it in: one launch for RoPE, norms of
//! Q and K, storing K and V, and attention (`cuda-kernels/attn_token.cu`), with the bits of
//! the launches that it stands for.
//!
//! `LLAMA_RS_CHAIN=off` leaves them launches of their own.

use super::bind::Launch;
use super::ops::ATTN_TOKEN;
use super::seen::{Seen, VIEW, view_at};
use crate::quant::DType;

/// Words of `HeadRows` (`head_rows.cuh`): six views, an address, five numbers.
const HEADS: usize = 6 * VIEW + 4;
/// Word of the first view of `Attn`, behind three `HeadRows`.
const ATTN: usize = 3 * HEADS;

/// The operands of one HEAD_ROWS.
#[derive(Clone, Copy)]
struct Heads<'a>(&'a [u64]);

impl<'a> Heads<'a> {
    fn view(&self, at: usize) -> Seen<'a> {
        view_at(self.0, at)
    }

    fn dst(&self) -> Seen<'a> {
        self.view(0)
    }

    fn x(&self) -> Seen<'a> {
        self.view(1)
    }

    fn slots(&self) -> u64 {
        self.view(5).data()
    }

    /// Positions, factors, coefficients, values that turn, pairing and magnitude.
    fn rope(&self) -> [u64; 5] {
        let at = 6 * VIEW;
        let (pos, factors) = (self.view(3).data(), self.view(4).data());
        [
            pos,
            factors,
            self.0[at],
            self.0[at + 1] >> 32,
            self.0[at + 2],
        ]
    }

    /// Whether positions, factors and slots were there before the first kernel.
    fn is_early(&self) -> bool {
        self.0[6 * VIEW + 3] & 0xffff_ffff == 1
    }

    fn is_plain(&self) -> bool {
        self.view(2).data() == 0 && self.view(3).data() == 0
    }
}

/// The words of three HEAD_ROWS as an attention with the words `attn` wants them; `None` when
/// they are not its Q, K and V.
fn taken(jobs: &[&[u64]], attn: &[u64]) -> Option<Vec<u64>> {
    let [q, k, v] = jobs else {
        return None;
    };
    if jobs.iter().any(|job| job.len() != HEADS) {
        return None;
    }
    let (q, k, v) = (Heads(q), Heads(k), Heads(v));
    let view = |at: usize| view_at(&attn[ATTN..], at);
    let (attn_q, attn_k, attn_v, pos) = (view(1), view(2), view(3), view(4));
    let (head_dim, n) = (attn_q.ne(0), attn_q.ne(2));
    let n_kv = attn[ATTN + 8 * VIEW] as u32;
    let heads_of = |h: &Heads, n_head: u32| {
        h.x().ne(0) == head_dim && h.x().ne(1) == n_head && h.x().ne(2) == n && h.x().ne(3) == 1
    };
    let stores = |h: &Heads, cache: &Seen| {
        let same = h.dst().data() == cache.data() && h.dst().nb(1) == cache.nb(1);
        same && h.slots() != 0 && h.dst().dtype() == DType::F16.id() as u64
    };
    let fits = [q, k, v].iter().all(Heads::is_early)
        && q.slots() == 0
        && q.dst().data() == attn_q.data()
        && heads_of(&q, attn_q.ne(1))
        && heads_of(&k, n_kv)
        && stores(&k, &attn_k)
        && stores(&v, &attn_v)
        && k.slots() == v.slots()
        && q.rope() == k.rope()
        && q.view(3).data() == pos.data()
        && v.is_plain()
        // V's rows without gaps, in heads of any length.
        && v.x().ne(0) * v.x().ne(1) == head_dim * n_kv
        && v.x().nb(1) == 4 * u64::from(v.x().ne(0));
    if !fits {
        return None;
    }
    let mut words: Vec<u64> = [q.0, k.0, v.0].concat();
    // V in the heads of attention.
    let x = &mut words[2 * HEADS + VIEW..2 * HEADS + 2 * VIEW];
    x[3] = 4 * u64::from(head_dim);
    x[6] = u64::from(head_dim) | u64::from(n_kv) << 32;
    Some(words)
}

/// `launches` with HEAD_ROWS inside the attention behind them, wherever that can be.
pub fn fuse(launches: Vec<Launch>) -> Vec<Launch> {
    let mut fused: Vec<Launch> = Vec::new();
    for mut launch in launches {
        if launch.entry().starts_with(ATTN_TOKEN)
            && let Some(heads) = fused.pop_if(|last| last.entry() == "head_rows")
        {
            let jobs: Vec<&[u64]> = heads.jobs().collect();
            // Blocks that are done write results while others still read x.
            let apart = !launch.disturbs(&heads, None);
            match taken(&jobs, launch.values()).filter(|_| apart) {
                Some(words) => launch.take_in(heads, &words),
                None => fused.push(heads),
            }
        }
        fused.push(launch);
    }
    fused
}

#[cfg(test)]
mod tests {
    use super::super::seen::tests::view;
    use super::*;

    const POS: u64 = 50;
    const SLOTS: u64 = 60;

    /// HEAD_ROWS of one token: x at `x` of heads `ne`, to `dst`.
    fn heads(x: u64, ne: [u64; 2], dst: u64, slots: u64, rope: bool) -> Vec<u64> {
        let none = || view(0, [1; 4], None, DType::F32);
        let stored = view(dst, [256, 77, 1, 1], None, DType::F16);
        let dst = match slots {
            0 => view(dst, [ne[0], ne[1], 1, 1], None, DType::F32),
            _ => stored,
        };
        let mut x = view(x, [ne[0], ne[1], 1, 1], None, DType::F32);
        x[3] = 4 * ne[0];
        let pos = view(if rope { POS } else { 0 }, [1; 4], None, DType::I32);
        let slots = view(slots, [1; 4], None, DType::I32);
        let rotated = if rope { 64 } else { 0 };
        let words = [dst, x, none(), pos, none(), slots].concat();
        [words, vec![9, rotated << 32, 1, 1]].concat()
    }

    /// Q of 4 heads and K and V of 2, 64 wide; V as one head of 128.
    fn jobs() -> [Vec<u64>; 3] {
        [
            heads(1000, [64, 4], 2000, 0, true),
            heads(3000, [64, 2], 4000, SLOTS, true),
            heads(5000, [128, 1], 6000, SLOTS, false),
        ]
    }

    fn attn() -> Vec<u64> {
        let q = view(2000, [64, 4, 1, 1], None, DType::F32);
        let cache = |at| view(at, [128, 77, 1, 1], None, DType::F16);
        let ids = view(POS, [1; 4], None, DType::I32);
        let views = [q, q, cache(4000), cache(6000), ids, ids, ids, ids].concat();
        [vec![0; ATTN], views, vec![2, 0, 0, 1 | 2 << 32, 0, 0, 0]].concat()
    }

    fn fits(change: impl FnOnce(&mut [Vec<u64>; 3], &mut Vec<u64>)) -> bool {
        let (mut jobs, mut attn) = (jobs(), attn());
        change(&mut jobs, &mut attn);
        taken(&jobs.each_ref().map(Vec::as_slice), &attn).is_some()
    }

    #[test]
    fn heads_of_the_same_attention_are_taken() {
        let words = taken(&jobs().each_ref().map(Vec::as_slice), &attn()).expect("they fit");
        assert_eq!(words.len(), ATTN);
        assert_eq!(words[..HEADS], jobs()[0]);
        // V is seen in heads of 64.
        let v = Seen(&words[2 * HEADS + VIEW..2 * HEADS + 2 * VIEW]);
        assert_eq!((v.data(), v.ne(0), v.ne(1), v.nb(1)), (5000, 64, 2, 256));
    }

    #[test]
    fn others_stay_launches() {
        assert!(fits(|_, _| ()));
        let late =
            |job: usize| move |j: &mut [Vec<u64>; 3], _: &mut Vec<u64>| j[job][6 * VIEW + 3] = 0;
        assert!(!fits(late(0)) && !fits(late(1)) && !fits(late(2)));
        assert!(!fits(|j, _| j.swap(1, 2)), "K and V the other way round");
        assert!(!fits(|j, _| j[0][0] = 2001), "another q");
        assert!(!fits(|j, _| j[1][0] = 4001), "another cache");
        assert!(!fits(|j, _| j[1][5 * VIEW] = 61), "other slots");
        assert!(!fits(|j, _| j[1][6 * VIEW] = 8), "another RoPE");
        assert!(!fits(|j, _| j[2][2 * VIEW] = 5), "a norm of V");
        assert!(!fits(|j, _| j[2][VIEW + 3] = 1024), "gaps in V");
        assert!(!fits(|_, a| a[ATTN + 4 * VIEW] = 51), "other positions");
    }
}
