//! Tensors and the graph that holds them.
//!
//! Shapes are in GGUF order: `ne[0]` is contiguous. The one rule of matrix
//! products: weight `[k, m]`, activation `[k, n]`, result `[m, n]`.

use super::op::Op;
use crate::quant::DType;
use std::sync::Arc;

/// Index of a tensor in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

impl TensorId {
    /// Position in `Graph::tensors`.
    pub fn at(self) -> usize {
        self.0 as usize
    }
}

/// Data that changes from step to step; shapes do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Input {
    /// Token ids, `[n_tokens]`.
    Tokens,
    /// Position of each token in its sequence, `[n_tokens]`.
    Pos,
    /// Sequence of each token, `[n_tokens]`.
    Seq,
    /// Indices of the tokens whose logits are wanted, `[n_outputs]`.
    OutIds,
    /// Cell each token's K and V go to, `[n_tokens]`; `swa` names the cache.
    Slots { swa: bool },
    /// Position held by each cell, -1 when empty, `[n_cells]`.
    CellPos { swa: bool },
    /// Sequence that owns each cell, `[n_cells]`.
    CellSeq { swa: bool },
    /// First token of each sequence in the batch, and the end of the last one,
    /// `[n_seqs + 1]`.
    SeqRows,
    /// State slot of each sequence, `-1 - slot` of a fresh one, `[n_seqs]`.
    StateSlots,
    /// A tensor that another segment of a split graph computes, by number.
    Border(usize),
}

/// A number known only when a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Count {
    /// Live tokens of the batch, at most its width.
    Tokens,
    /// Live outputs.
    Outputs,
    /// Cells in use (high-water mark) of the full or the sliding-window cache.
    Cells { swa: bool },
}

/// The dimension of a tensor that is cut to a live count when a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Live {
    pub dim: usize,
    pub count: Count,
}

/// One cache tensor, by its number in the memory that owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheId(pub usize);

/// What a layer keeps from token to token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// `[head_dim * n_head_kv, n_cells]`.
    K,
    /// `[head_dim * n_head_kv, n_cells]`.
    V,
    /// Last inputs of a convolution, `[channels, d_conv - 1, n_slots]` in f32.
    Conv,
    /// State of a scan, `[d_state, head_dim, n_head, n_slots]` in f32.
    State,
}

impl CacheKind {
    /// Every kind, in the order of their numbers in a layer.
    pub const ALL: [CacheKind; 4] = [Self::K, Self::V, Self::Conv, Self::State];
}

impl CacheId {
    /// The cache of a layer.
    pub fn of(il: usize, kind: CacheKind) -> CacheId {
        CacheId(il * CacheKind::ALL.len() + kind as usize)
    }

    /// The layer that a cache belongs to.
    pub fn layer(self) -> usize {
        self.0 / CacheKind::ALL.len()
    }

    /// What the cache holds.
    pub fn kind(self) -> CacheKind {
        CacheKind::ALL[self.0 % CacheKind::ALL.len()]
    }
}

/// Where a tensor's data comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// A tensor of the model file, by its GGUF name.
    Weight,
    Input(Input),
    Cache(CacheId),
    /// Another shape over the data of `src[0]`, from a byte offset on.
    View {
        offset_bytes: usize,
    },
    Op(Op),
}

/// A tensor: shape, strides, and how it comes to be.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// GGUF name of a weight, else the step's name (`attn_norm-3`); shared, since graphs
    /// are rewritten often.
    pub name: Arc<str>,
    pub dtype: DType,
    pub ne: [usize; 4],
    /// Strides in bytes; `nb[0]` is one value (one block for quantized types).
    pub nb: [usize; 4],
    pub live: Option<Live>,
    pub origin: Origin,
    pub src: Vec<TensorId>,
}

impl Tensor {
    /// Strides of a contiguous tensor.
    pub fn packed(dtype: DType, ne: [usize; 4]) -> [usize; 4] {
        let nb0 = dtype.block_bytes();
        let nb1 = ne[0] / dtype.block_len() * nb0;
        [nb0, nb1, nb1 * ne[1], nb1 * ne[1] * ne[2]]
    }

    /// Bytes from the first to the last value of the full width.
    pub fn bytes(&self) -> usize {
        let row = self.ne[0] / self.dtype.block_len() * self.nb[0];
        row + (1..4).map(|i| (self.ne[i] - 1) * self.nb[i]).sum::<usize>()
    }

    /// Number of values at full width.
    pub fn n_values(&self) -> usize {
        self.ne.iter().product()
    }

    /// True when values lie one after the other without gaps.
    pub fn is_contiguous(&self) -> bool {
        let packed = Self::packed(self.dtype, self.ne);
        (0..4).all(|i| self.ne[i] == 1 || self.nb[i] == packed[i])
    }

    /// True for tensors that need a place in the compute buffer.
    pub fn is_computed(&self) -> bool {
        matches!(&self.origin, Origin::Op(op) if op.writes_in_place().is_none())
    }
}

/// A graph in evaluation order: a tensor comes after its sources.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    pub tensors: Vec<Tensor>,
    /// Tensors read after the run; their buffers outlive it.
    pub outputs: Vec<TensorId>,
}

impl Graph {
    /// The tensor with this id.
    pub fn get(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.at()]
    }

    /// Ids in evaluation order.
    pub fn ids(&self) -> impl Iterator<Item = TensorId> + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    /// The tensor that owns the data `id` shows (follows views and in-place ops).
    pub fn owner(&self, mut id: TensorId) -> TensorId {
        loop {
            let t = self.get(id);
            match &t.origin {
                Origin::View { .. } => id = t.src[0],
                Origin::Op(op) => match op.writes_in_place() {
                    Some(at) => id = t.src[at],
                    None => return id,
                },
                _ => return id,
            }
        }
    }

    /// Byte offset of a tensor's first value inside its owner's data.
    pub fn offset_in_owner(&self, mut id: TensorId) -> usize {
        let mut offset = 0;
        loop {
            let t = self.get(id);
            match &t.origin {
                Origin::View { offset_bytes } => {
                    offset += offset_bytes;
                    id = t.src[0];
                }
                Origin::Op(op) => match op.writes_in_place() {
                    Some(at) => id = t.src[at],
                    None => return offset,
                },
                _ => return offset,
            }
        }
    }

    /// Drops tensors that nothing reads (left behind by fusion).
    pub fn prune(&mut self) {
        let mut live = vec![false; self.tensors.len()];
        for id in &self.outputs {
            live[id.at()] = true;
        }
        for at in (0..self.tensors.len()).rev() {
            // Cache writes matter although no later tensor may read them.
            live[at] |= matches!(&self.tensors[at].origin, Origin::Op(op) if op.writes_in_place().is_some());
            if live[at] {
                for s in self.tensors[at].src.clone() {
                    live[s.at()] = true;
                }
            }
        }
        let mut map = Vec::with_capacity(live.len());
        let mut kept = 0;
        for &l in &live {
            map.push(TensorId(kept));
            kept += u32::from(l);
        }
        let mut at = 0;
        self.tensors.retain(|_| {
            at += 1;
            live[at - 1]
        });
        for t in &mut self.tensors {
            t.src.iter_mut().for_each(|s| *s = map[s.at()]);
        }
        self.outputs.iter_mut().for_each(|s| *s = map[s.at()]);
    }
}
