//! Buffer lifetimes: where each computed tensor lies in the one compute
//! buffer, and exactly how many bytes that buffer needs.

use super::op::Op;
use super::tensor::{Graph, Origin, TensorId};

/// Every computed tensor starts on a cache line.
pub const ALIGN_BYTES: usize = 64;

/// Offsets of computed tensors in the compute buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// By tensor; `None` for what lives elsewhere (weights, inputs, caches, views).
    pub offset: Vec<Option<usize>>,
    /// Size of the compute buffer.
    pub bytes: usize,
}

/// Free stretches of the buffer, by offset.
struct FreeList(Vec<(usize, usize)>);

impl FreeList {
    /// Takes the smallest stretch that fits; else grows the buffer's end.
    fn take(&mut self, bytes: usize, end: &mut usize) -> usize {
        let best = (0..self.0.len())
            .filter(|&i| self.0[i].1 >= bytes)
            .min_by_key(|&i| self.0[i].1);
        if let Some(i) = best {
            let (at, len) = self.0[i];
            if len == bytes {
                self.0.remove(i);
            } else {
                self.0[i] = (at + bytes, len - bytes);
            }
            return at;
        }
        // A stretch that touches the end is grown instead of left behind.
        if let Some(&(at, len)) = self.0.last()
            && at + len == *end
        {
            self.0.pop();
            *end = at + bytes;
            return at;
        }
        *end += bytes;
        *end - bytes
    }

    fn give(&mut self, at: usize, bytes: usize) {
        let i = self.0.partition_point(|&(a, _)| a < at);
        self.0.insert(i, (at, bytes));
        if i + 1 < self.0.len() && self.0[i].0 + self.0[i].1 == self.0[i + 1].0 {
            self.0[i].1 += self.0.remove(i + 1).1;
        }
        if i > 0 && self.0[i - 1].0 + self.0[i - 1].1 == self.0[i].0 {
            self.0[i - 1].1 += self.0.remove(i).1;
        }
    }
}

impl Plan {
    /// Plans a graph: a tensor's bytes are free again after its last reader. What
    /// `HEAD_ROWS` reads stays until the attention behind it has run, and what experts read
    /// until their sum: a backend may do both at once, in parts that are done before others.
    pub fn new(graph: &Graph) -> Plan {
        let n = graph.tensors.len();
        let mut last_use = vec![None; n];
        let (mut heads, mut experts) = (Vec::new(), Vec::new());
        for id in graph.ids() {
            let tensor = graph.get(id);
            for &s in &tensor.src {
                last_use[graph.owner(s).at()] = Some(id.at());
            }
            let read = |at: usize| graph.owner(tensor.src[at]);
            let done = match tensor.origin {
                Origin::Op(Op::HeadRows(_)) => {
                    heads.push(read(0));
                    continue;
                }
                Origin::Op(Op::MoeRoute { .. }) => {
                    experts.push(read(0));
                    continue;
                }
                Origin::Op(Op::FusedMulMat(f)) if f.ids => {
                    experts.push(read(f.x_at()));
                    continue;
                }
                Origin::Op(Op::MulMatId) => {
                    experts.push(read(1));
                    continue;
                }
                Origin::Op(Op::Attn(..)) => &mut heads,
                Origin::Op(Op::MoeSum) => &mut experts,
                _ => continue,
            };
            for owner in done.drain(..) {
                last_use[owner.at()] = Some(id.at());
            }
        }
        for &id in &graph.outputs {
            last_use[graph.owner(id).at()] = Some(n);
        }
        let mut dies_at: Vec<Vec<TensorId>> = vec![Vec::new(); n];
        let mut plan = Plan {
            offset: vec![None; n],
            bytes: 0,
        };
        let mut free = FreeList(Vec::new());
        for id in graph.ids() {
            let tensor = graph.get(id);
            if tensor.is_computed() {
                let bytes = tensor.bytes().next_multiple_of(ALIGN_BYTES);
                plan.offset[id.at()] = Some(free.take(bytes, &mut plan.bytes));
                // A result nobody reads is free right after it was written.
                let dies = last_use[id.at()].unwrap_or(id.at());
                if dies < n {
                    dies_at[dies].push(id);
                }
            }
            for dead in std::mem::take(&mut dies_at[id.at()]) {
                if let Some(at) = plan.offset[dead.at()] {
                    free.give(at, graph.get(dead).bytes().next_multiple_of(ALIGN_BYTES));
                }
            }
        }
        plan
    }
}
