//! One comparison: a small graph, its operands, and how close CUDA must come.

use super::store::{Random, Setup, Store, live, operand};
use crate::backend::cuda::kernel::Node;
use crate::backend::cuda::{lower, ops};
use crate::error::{Error, Result};
use crate::graph::{Builder, Graph, Op, Origin, TensorId};
use std::sync::Arc;

/// F32 throughout: CUDA and CPU differ in the order of sums and in the last bits of
/// e^x and the like, relative errors of at most some 1e-6. A value that passed through
/// F16 would be off by 2^-12, an NMSE of 4e-8. (The project promises 1e-7.)
pub const F32_NMSE: f64 = 1e-9;

/// Products with F16 activations, as the project promises: rounding x, and the
/// unpacked weight, to F16 costs 2^-12 each, an NMSE of some 1e-7; the rest is room
/// for sums whose terms cancel.
pub const F16_NMSE: f64 = 5e-5;

/// Copies and selections: equal bits.
pub const SAME: f64 = 0.0;

/// Builds the graph of a case from the operands in its store; gives the outputs.
pub type Build = Box<dyn Fn(&mut Builder<'_>, &Store) -> Result<Vec<TensorId>>>;

/// A graph that is still to be built, with what it reads.
pub struct Problem {
    pub store: Store,
    pub setup: Setup,
    pub build: Build,
}

impl Problem {
    /// The graph as an architecture would build it, not lowered.
    ///
    /// # Errors
    /// The operands do not fit the op.
    pub fn graph(&self) -> Result<Graph> {
        let width = self.setup.width();
        let mut b = Builder::new(&self.store, width);
        for id in (self.build)(&mut b, &self.store)? {
            b.output(id);
        }
        Ok(b.graph)
    }
}

/// One trial.
pub struct Case {
    /// Begins with the op that the lowered graph must have.
    pub name: String,
    /// F32 activations on CUDA.
    pub exact: bool,
    /// Most normalised mean squared error of F32 results; integers are equal.
    pub nmse: f64,
    /// Makes operands and graph; the same ones each time.
    pub make: Box<dyn Fn() -> Problem + Send + Sync>,
}

/// Names of the ops of a graph, in order.
fn names(graph: &Graph) -> Vec<&'static str> {
    let ops = graph.tensors.iter().filter_map(|t| match t.origin {
        Origin::Op(op) => Some(op.name()),
        _ => None,
    });
    ops.collect()
}

impl Case {
    /// Name of the op that the case is about.
    pub fn op(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// What CUDA runs for a graph: as it is lowered, and, where that fuses ops, also
    /// without fusion.
    ///
    /// # Errors
    /// The op of the case's name is in neither: it would test something else.
    pub fn lowered(&self, graph: &Graph) -> Result<Vec<(&'static str, Graph)>> {
        let lowered = lower::rewrite(graph, self.exact, true);
        let unfused = lower::rewrite(graph, self.exact, false);
        let (fused, plain) = (names(&lowered), names(&unfused));
        let op = self.op();
        if !fused.iter().chain(&plain).any(|name| *name == op) {
            let ops = fused.join(", ");
            return Err(Error::input(format!("no {op} after lowering, but {ops}")));
        }
        let mut all = vec![("lowered", lowered)];
        if fused != plain {
            all.push(("not fused", unfused));
        }
        Ok(all)
    }

    /// Whether a lowered graph has the op that the case is named after.
    pub fn is_of(&self, graph: &Graph) -> bool {
        names(graph).contains(&self.op())
    }

    /// Whether CUDA has a kernel for every node of a lowered graph.
    pub fn has_kernels(&self, graph: &Graph) -> bool {
        let nodes = graph.ids().filter_map(|id| Node::of(graph, id, self.exact));
        nodes.into_iter().all(|node| ops::kernels(&node).is_some())
    }

    /// The kernels that a graph launches, each with the types of its operands.
    ///
    /// # Errors
    /// A node without kernel.
    pub fn kernels(&self, graph: &Graph) -> Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        for id in graph.ids() {
            let Some(node) = Node::of(graph, id, self.exact) else {
                continue;
            };
            let answer = ops::kernels(&node)
                .ok_or_else(|| Error::input(format!("{} has no CUDA kernel", node.op.name())))?;
            let types: Vec<_> = node.src.iter().map(|t| t.dtype.name()).collect();
            for kernel in answer.kernels {
                // Off unless asked for: `scripts/gpu-test.sh` asks, in its part `clusters`.
                let form = kernel.on_clusters.map(|form| form.entry);
                let entries = [Some(kernel.entry), form].into_iter().flatten();
                all.extend(entries.map(|entry| (entry, types.join(","))));
            }
        }
        Ok(all)
    }
}

/// An F32 operand as the store holds it, the windows of it that the op sees, its live
/// dimension and its values.
#[derive(Clone)]
pub struct Operand {
    ne: Vec<usize>,
    /// Dimension, start, length.
    windows: Vec<[usize; 3]>,
    live: Option<usize>,
    values: Values,
}

/// Value number `i` of an operand.
type Values = Arc<dyn Fn(&mut Random, usize) -> f32 + Send + Sync>;

/// An operand of this shape, all of it seen.
pub fn x(ne: &[usize]) -> Operand {
    Operand {
        ne: ne.to_vec(),
        windows: Vec::new(),
        live: None,
        values: Arc::new(|random, _| random.unit()),
    }
}

impl Operand {
    /// The op sees `start .. start + len` of dimension `dim`.
    pub fn window(mut self, dim: usize, start: usize, len: usize) -> Operand {
        self.windows.push([dim, start, len]);
        self
    }

    /// Entries of `dim` beyond the live count hold NaN.
    pub fn live(mut self, dim: usize) -> Operand {
        self.live = Some(dim);
        self
    }

    /// Values by their number instead of random ones between -1 and 1.
    pub fn values(
        mut self,
        values: impl Fn(&mut Random, usize) -> f32 + Send + Sync + 'static,
    ) -> Operand {
        self.values = Arc::new(values);
        self
    }

    /// Shape, windows and live dimension, for the case's name.
    pub fn name(&self) -> String {
        let mut name = format!("{:?}", self.ne).replace(' ', "");
        for [dim, start, len] in &self.windows {
            name += &format!("/{dim}:{start}+{len}");
        }
        if let Some(dim) = self.live {
            name += &format!("/live{dim}");
        }
        name
    }

    /// Puts the values into the store, NaN for dead tokens.
    pub fn put(&self, store: &mut Store, name: &str, n_live: usize, random: &mut Random) {
        let n = self.ne.iter().product();
        let mut values: Vec<f32> = (0..n).map(|i| (self.values)(random, i)).collect();
        if let Some(dim) = self.live {
            let stride: usize = self.ne[..dim].iter().product();
            for (i, v) in values.iter_mut().enumerate() {
                if i / stride % self.ne[dim] >= n_live {
                    *v = f32::NAN;
                }
            }
        }
        store.f32(name, &self.ne, &values);
    }

    /// The operand in a graph, as the op is to see it.
    ///
    /// # Errors
    /// A window lies outside: a mistake in the case.
    pub fn take(&self, b: &mut Builder<'_>, store: &Store, name: &str) -> Result<TensorId> {
        let mut id = operand(b, store, name);
        if let Some(dim) = self.live {
            live(b, id, dim);
        }
        for &[dim, start, len] in &self.windows {
            id = b.slice(id, dim, start, len)?;
        }
        Ok(id)
    }
}

/// A case of one op over F32 operands, of which `n_live` tokens are live.
pub fn simple(label: &str, op: Op, nmse: f64, operands: Vec<Operand>, n_live: usize) -> Case {
    let shapes: Vec<String> = operands.iter().map(Operand::name).collect();
    let label = match label {
        "" => String::new(),
        label => format!("{label}/"),
    };
    Case {
        name: format!("{}/{label}{}", op.name(), shapes.join(",")),
        exact: false,
        nmse,
        make: Box::new(move || {
            let mut random = Random(0x9E37_79B9_7F4A_7C15);
            let mut store = Store::default();
            for (i, x) in operands.iter().enumerate() {
                x.put(&mut store, &i.to_string(), n_live, &mut random);
            }
            let operands = operands.clone();
            Problem {
                store,
                setup: Setup::tokens(n_live.max(1), n_live),
                build: Box::new(move |b, store| {
                    let all = operands.iter().enumerate();
                    let src = all.map(|(i, x)| x.take(b, store, &i.to_string()));
                    let src = src.collect::<Result<Vec<_>>>()?;
                    Ok(vec![b.op(op, &src)?])
                }),
            }
        }),
    }
}
