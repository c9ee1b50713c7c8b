//! Binds tensors to memory: finds each tensor's bytes and checks that they are
//! enough for its shape.

use super::Node;
use super::buffer::Buffer;
use super::rope::RopeTable;
use super::view::View;
use crate::error::{Error, Result};
use crate::graph::{Graph, Input, Op, Origin, Plan, RopeParams, Tensor, TensorId};
use crate::quant::DType;
use std::collections::HashMap;

/// Memory that outlives a graph: weights in the map, cache tensors.
pub trait Storage: Send + Sync {
    /// First byte and length of a weight.
    fn weight(&self, name: &str) -> Option<&[u8]>;
    /// The buffer of a cache tensor.
    fn cache(&self, id: crate::graph::CacheId) -> Option<&Buffer>;
}

/// Resolves tensors to memory.
pub struct Binder<'a> {
    graph: &'a Graph,
    plan: &'a Plan,
    storage: &'a dyn Storage,
    arena: &'a Buffer,
    /// Data and full width of each input.
    pub inputs: HashMap<Input, (Buffer, usize)>,
    /// Sines and cosines, one table for all layers that share parameters.
    pub tables: Vec<RopeTable>,
    table_of: Vec<(RopeParams, Option<TensorId>)>,
}

impl<'a> Binder<'a> {
    /// A binder that has placed nothing yet.
    pub fn new(
        graph: &'a Graph,
        plan: &'a Plan,
        storage: &'a dyn Storage,
        arena: &'a Buffer,
    ) -> Binder<'a> {
        Binder {
            graph,
            plan,
            storage,
            arena,
            inputs: HashMap::new(),
            tables: Vec::new(),
            table_of: Vec::new(),
        }
    }

    fn view(&mut self, id: TensorId) -> Result<View> {
        let tensor = self.graph.get(id);
        let owner_id = self.graph.owner(id);
        let owner = self.graph.get(owner_id);
        let (ptr, bytes) = match &owner.origin {
            Origin::Op(_) => {
                let at = self.plan.offset[owner_id.at()].ok_or_else(|| unplanned(owner))?;
                assert!(at + owner.bytes() <= self.arena.bytes());
                (self.arena.at(at), owner.bytes())
            }
            Origin::Weight => {
                let data = self
                    .storage
                    .weight(&owner.name)
                    .ok_or_else(|| unplanned(owner))?;
                (data.as_ptr().cast_mut(), data.len())
            }
            Origin::Cache(cache) => {
                let data = self.storage.cache(*cache).ok_or_else(|| unplanned(owner))?;
                (data.at(0), data.bytes())
            }
            Origin::Input(input) => {
                let n = owner.n_values(); // 4 bytes each
                if !self.inputs.contains_key(input) {
                    let data = Buffer::new(n * 4, "inputs")?;
                    self.inputs.insert(*input, (data, n));
                }
                (self.inputs[input].0.at(0), n * 4)
            }
            Origin::View { .. } => return Err(unplanned(owner)),
        };
        let offset = self.graph.offset_in_owner(id);
        if offset + tensor.bytes() > bytes {
            return Err(Error::Shape {
                op: "VIEW",
                detail: format!(
                    "{} needs {} bytes, {} has {bytes}",
                    tensor.name,
                    offset + tensor.bytes(),
                    owner.name
                ),
            });
        }
        Ok(View {
            ptr: ptr.wrapping_add(offset),
            dtype: tensor.dtype,
            ne: tensor.ne,
            nb: tensor.nb,
            live: tensor.live,
        })
    }

    /// Outputs are read as one slice of 4-byte values.
    pub fn output(&mut self, id: TensorId) -> Result<View> {
        let tensor = self.graph.get(id);
        if !tensor.is_contiguous() || !matches!(tensor.dtype, DType::F32 | DType::I32) {
            return Err(Error::Shape {
                op: "output",
                detail: format!("{} is not contiguous F32 or I32", tensor.name),
            });
        }
        self.view(id)
    }

    /// An op with its operands in memory.
    pub fn node(&mut self, id: TensorId, op: Op) -> Result<Node> {
        let tensor = self.graph.get(id);
        if !super::runs(&op) {
            return Err(Error::Shape {
                op: op.name(),
                detail: format!("{} is of another backend's fusion", tensor.name),
            });
        }
        let src = tensor
            .src
            .iter()
            .map(|&s| self.view(s))
            .collect::<Result<Vec<_>>>()?;
        let contiguous = |at: usize| self.graph.get(tensor.src[at]).is_contiguous();
        if matches!(op, Op::MulMat | Op::MulMatId) && !(contiguous(0) && contiguous(1)) {
            return Err(Error::Shape {
                op: op.name(),
                detail: format!("{} needs contiguous operands", tensor.name),
            });
        }
        let rope_table = match op {
            Op::Rope(params) => self.rope_table(params, &src, tensor.src.get(2).copied())?,
            _ => 0,
        };
        Ok(Node {
            op,
            dst: self.view(id)?,
            src,
            rope_table,
            product: 0,
            barrier_before: true,
        })
    }

    fn rope_table(
        &mut self,
        params: RopeParams,
        src: &[View],
        factors: Option<TensorId>,
    ) -> Result<usize> {
        let key = (params, factors);
        if let Some(at) = self.table_of.iter().position(|k| *k == key) {
            return Ok(at);
        }
        self.tables
            .push(RopeTable::new(params, src[1], src.get(2).copied())?);
        self.table_of.push(key);
        Ok(self.tables.len() - 1)
    }
}

fn unplanned(tensor: &Tensor) -> Error {
    Error::Shape {
        op: "compile",
        detail: format!("{} has no memory", tensor.name),
    }
}
