//! Builds graphs: architectures call one method per op.

use super::op::{AttnParams, AttnShape, GluKind, Op, RopeParams, UnaryKind};
use super::tensor::{CacheId, Count, Graph, Input, Live, Origin, Tensor, TensorId};
use crate::error::{Error, Result};
use crate::quant::DType;
use std::collections::HashMap;

/// What a builder may ask about a model's weights.
pub trait Catalog {
    /// Type and shape (GGUF order, padded with 1) of a weight; `None` when absent.
    fn weight(&self, name: &str) -> Option<(DType, [usize; 4])>;
    /// The error for a weight that is missing or has the wrong shape.
    fn weight_error(&self, name: &str, want: &[usize], have: Option<[usize; 4]>) -> Error;
}

/// Widths of one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Width {
    pub n_tokens: usize,
    pub n_outputs: usize,
    /// Sequences that may share a batch.
    pub n_seqs: usize,
}

impl Width {
    /// Batches of one sequence.
    pub fn of(n_tokens: usize, n_outputs: usize) -> Width {
        Width {
            n_tokens,
            n_outputs,
            n_seqs: 1,
        }
    }
}

/// A graph under construction.
pub struct Builder<'a> {
    pub graph: Graph,
    pub width: Width,
    catalog: &'a dyn Catalog,
    weights: HashMap<String, TensorId>,
    inputs: HashMap<Input, TensorId>,
    caches: HashMap<CacheId, TensorId>,
}

impl<'a> Builder<'a> {
    /// An empty graph for batches of `width`.
    pub fn new(catalog: &'a dyn Catalog, width: Width) -> Self {
        Builder {
            graph: Graph::default(),
            width,
            catalog,
            weights: HashMap::new(),
            inputs: HashMap::new(),
            caches: HashMap::new(),
        }
    }

    fn push(&mut self, tensor: Tensor) -> TensorId {
        self.graph.tensors.push(tensor);
        TensorId(self.graph.tensors.len() as u32 - 1)
    }

    fn leaf(&mut self, name: &str, dtype: DType, ne: [usize; 4], origin: Origin) -> TensorId {
        self.push(Tensor {
            name: name.into(),
            dtype,
            ne,
            nb: Tensor::packed(dtype, ne),
            live: None,
            origin,
            src: Vec::new(),
        })
    }

    /// A weight of exactly this shape, when the file has it.
    pub fn weight_opt(&mut self, name: &str, shape: &[usize]) -> Result<Option<TensorId>> {
        if let Some(&id) = self.weights.get(name) {
            return Ok(Some(id));
        }
        let Some((dtype, ne)) = self.catalog.weight(name) else {
            return Ok(None);
        };
        let want: [usize; 4] = std::array::from_fn(|i| shape.get(i).copied().unwrap_or(1));
        if ne != want {
            return Err(self.catalog.weight_error(name, shape, Some(ne)));
        }
        let id = self.leaf(name, dtype, ne, Origin::Weight);
        self.weights.insert(name.to_string(), id);
        Ok(Some(id))
    }

    /// A weight that must be there.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Result<TensorId> {
        match self.weight_opt(name, shape)? {
            Some(id) => Ok(id),
            None => Err(self.catalog.weight_error(name, shape, None)),
        }
    }

    /// An input tensor (i32); `n_cells` is read for the cell arrays only.
    pub fn input(&mut self, input: Input, n_cells: usize) -> TensorId {
        if let Some(&id) = self.inputs.get(&input) {
            return id;
        }
        let counted = |n, count, name| (n, Some(count), name);
        let (n, count, name) = match input {
            // Not cut: sequences that are not there have no tokens.
            Input::SeqRows => (self.width.n_seqs + 1, None, "seq_rows"),
            Input::StateSlots => (self.width.n_seqs, None, "state_slots"),
            Input::Tokens => counted(self.width.n_tokens, Count::Tokens, "tokens"),
            Input::Pos => counted(self.width.n_tokens, Count::Tokens, "pos"),
            Input::Seq => counted(self.width.n_tokens, Count::Tokens, "seq"),
            Input::Slots { .. } => counted(self.width.n_tokens, Count::Tokens, "slots"),
            Input::OutIds => counted(self.width.n_outputs, Count::Outputs, "out_ids"),
            Input::CellPos { swa } => counted(n_cells, Count::Cells { swa }, "cell_pos"),
            Input::CellSeq { swa } => counted(n_cells, Count::Cells { swa }, "cell_seq"),
            // Placed by who splits a graph; here for completeness.
            Input::Border(_) => counted(n_cells, Count::Tokens, "border"),
        };
        let id = self.leaf(name, DType::I32, [n, 1, 1, 1], Origin::Input(input));
        self.graph.tensors[id.at()].live = count.map(|count| Live { dim: 0, count });
        self.inputs.insert(input, id);
        id
    }

    /// A cache tensor `[row, n_cells]`.
    pub fn cache(&mut self, id: CacheId, dtype: DType, row: usize, n_cells: usize) -> TensorId {
        if let Some(&tensor) = self.caches.get(&id) {
            return tensor;
        }
        let name = format!("cache-{}", id.0);
        let tensor = self.leaf(&name, dtype, [row, n_cells, 1, 1], Origin::Cache(id));
        self.caches.insert(id, tensor);
        tensor
    }

    /// A cache tensor of states `[.., n_slots]` in f32.
    pub fn states(&mut self, id: CacheId, shape: &[usize]) -> Result<TensorId> {
        let (&n_slots, sizes) = shape.split_last().unwrap_or((&1, &[]));
        let flat = self.cache(id, DType::F32, sizes.iter().product(), n_slots);
        self.reshape(flat, shape)
    }

    /// The same values with dimension 0 cut into `parts`; rows may lie apart.
    pub fn split_rows(&mut self, x: TensorId, parts: [usize; 2]) -> Result<TensorId> {
        let t = self.graph.get(x);
        let live_inside = t.live.is_some_and(|l| l.dim == 0);
        if t.ne[0] != parts[0] * parts[1] || t.ne[3] != 1 || live_inside {
            return Err(Error::Shape {
                op: "VIEW",
                detail: format!("{} {:?} cut into {parts:?}", t.name, t.ne),
            });
        }
        let tensor = Tensor {
            ne: [parts[0], parts[1], t.ne[1], t.ne[2]],
            nb: [t.nb[0], parts[0] * t.nb[0], t.nb[1], t.nb[2]],
            live: t.live.map(|l| Live {
                dim: l.dim + 1,
                ..l
            }),
            origin: Origin::View { offset_bytes: 0 },
            src: vec![x],
            ..t.clone()
        };
        Ok(self.push(tensor))
    }

    /// `x` without gaps between its rows: itself when it has none.
    pub fn cont(&mut self, x: TensorId) -> Result<TensorId> {
        match self.graph.get(x).is_contiguous() {
            true => Ok(x),
            false => self.op(Op::Cont, &[x]),
        }
    }

    /// Rows of `parts`, one behind the other.
    pub fn concat(&mut self, parts: &[TensorId]) -> Result<TensorId> {
        self.op(Op::Concat, parts)
    }

    /// Appends an op; the shape rule checks its operands.
    pub fn op(&mut self, op: Op, src: &[TensorId]) -> Result<TensorId> {
        let operands: Vec<&Tensor> = src.iter().map(|&id| self.graph.get(id)).collect();
        let shape = op.shape(&operands)?;
        Ok(self.push(Tensor {
            name: op.name().into(),
            dtype: shape.dtype,
            ne: shape.ne,
            nb: Tensor::packed(shape.dtype, shape.ne),
            live: shape.live,
            origin: Origin::Op(op),
            src: src.to_vec(),
        }))
    }

    /// Names a tensor, for dumps and error messages.
    pub fn name(&mut self, id: TensorId, name: &str, il: Option<usize>) -> TensorId {
        self.graph.tensors[id.at()].name = match il {
            Some(il) => format!("{name}-{il}").into(),
            None => name.into(),
        };
        id
    }

    /// Another shape over the same contiguous values. A live dimension must
    /// become the last one of `shape`.
    pub fn reshape(&mut self, x: TensorId, shape: &[usize]) -> Result<TensorId> {
        let t = self.graph.get(x);
        let ne: [usize; 4] = std::array::from_fn(|i| shape.get(i).copied().unwrap_or(1));
        let last = shape.len() - 1;
        let keeps_live = t.live.is_none_or(|l| {
            ne[last] == t.ne[l.dim]
                && ne[..last].iter().product::<usize>() == t.ne[..l.dim].iter().product::<usize>()
        });
        if !t.is_contiguous() || t.n_values() != ne.iter().product::<usize>() || !keeps_live {
            return Err(Error::Shape {
                op: "RESHAPE",
                detail: format!("{} {:?} to {shape:?}", t.name, t.ne),
            });
        }
        let tensor = Tensor {
            name: t.name.clone(),
            dtype: t.dtype,
            ne,
            nb: Tensor::packed(t.dtype, ne),
            live: t.live.map(|l| Live { dim: last, ..l }),
            origin: Origin::View { offset_bytes: 0 },
            src: vec![x],
        };
        Ok(self.push(tensor))
    }

    /// A window `start .. start + len` of dimension `dim`.
    pub fn slice(&mut self, x: TensorId, dim: usize, start: usize, len: usize) -> Result<TensorId> {
        let t = self.graph.get(x);
        let cuts_live = t.live.is_some_and(|l| l.dim == dim);
        if start + len > t.ne[dim] || cuts_live || (dim == 0 && t.dtype.is_quantized()) {
            return Err(Error::Shape {
                op: "VIEW",
                detail: format!(
                    "{start} + {len} of dimension {dim} of {} {:?}",
                    t.name, t.ne
                ),
            });
        }
        let mut ne = t.ne;
        ne[dim] = len;
        let tensor = Tensor {
            name: t.name.clone(),
            dtype: t.dtype,
            ne,
            nb: t.nb,
            live: t.live,
            origin: Origin::View {
                offset_bytes: start * t.nb[dim],
            },
            src: vec![x],
        };
        Ok(self.push(tensor))
    }

    /// Experts of each token for `logits [n_expert, n]`: ids `[n_used, n]` and weights
    /// `[1, n_used, n]`, scaled to sum 1 when `norm`.
    pub fn moe_route(
        &mut self,
        logits: TensorId,
        n_used: usize,
        norm: bool,
    ) -> Result<[TensorId; 2]> {
        let route = self.op(Op::MoeRoute { n_used, norm }, &[logits])?;
        let ids = self.slice(route, 0, 0, n_used)?;
        let t = self.graph.get(route);
        // The second half holds the bits of floats.
        let weights = Tensor {
            name: "moe_weights".into(),
            dtype: DType::F32,
            ne: [1, n_used, t.ne[1], 1],
            nb: [4, 4, t.nb[1], t.nb[2]],
            live: t.live.map(|l| Live { dim: 2, ..l }),
            origin: Origin::View {
                offset_bytes: 4 * n_used,
            },
            src: vec![route],
        };
        Ok([ids, self.push(weights)])
    }

    /// `w [k, m] * x [k, n] -> [m, n]`.
    pub fn mul_mat(&mut self, w: TensorId, x: TensorId) -> Result<TensorId> {
        self.op(Op::MulMat, &[w, x])
    }

    /// `a + b`.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> Result<TensorId> {
        self.op(Op::Add, &[a, b])
    }

    /// `a * b`.
    pub fn mul(&mut self, a: TensorId, b: TensorId) -> Result<TensorId> {
        self.op(Op::Mul, &[a, b])
    }

    /// `x * scale`.
    pub fn scale(&mut self, x: TensorId, scale: f32) -> Result<TensorId> {
        self.op(Op::Scale { scale, bias: 0.0 }, &[x])
    }

    /// Value-wise function.
    pub fn unary(&mut self, kind: UnaryKind, x: TensorId) -> Result<TensorId> {
        self.op(Op::Unary(kind), &[x])
    }

    /// `act(gate) * up`.
    pub fn glu(&mut self, kind: GluKind, gate: TensorId, up: TensorId) -> Result<TensorId> {
        self.op(Op::Glu(kind), &[gate, up])
    }

    /// Rotates `x [head_dim, n_head, n]` by its positions.
    pub fn rope(
        &mut self,
        params: RopeParams,
        x: TensorId,
        factors: Option<TensorId>,
    ) -> Result<TensorId> {
        let pos = self.input(Input::Pos, 0);
        match factors {
            Some(f) => self.op(Op::Rope(params), &[x, pos, f]),
            None => self.op(Op::Rope(params), &[x, pos]),
        }
    }

    /// Attention of `q` over the cache tensors `k` and `v`.
    pub fn attn(
        &mut self,
        params: AttnParams,
        shape: AttnShape,
        q: TensorId,
        k: TensorId,
        v: TensorId,
    ) -> Result<TensorId> {
        let n_cells = self.graph.get(k).ne[1];
        let swa = params.swa;
        let pos = self.input(Input::Pos, 0);
        let seq = self.input(Input::Seq, 0);
        let cell_pos = self.input(Input::CellPos { swa }, n_cells);
        let cell_seq = self.input(Input::CellSeq { swa }, n_cells);
        self.op(
            Op::Attn(params, shape),
            &[q, k, v, pos, seq, cell_pos, cell_seq],
        )
    }

    /// Keeps a tensor's data readable after the run.
    pub fn output(&mut self, id: TensorId) {
        self.graph.outputs.push(id);
    }
}
