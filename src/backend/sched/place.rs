//! Which node runs where: weights and caches hold their nodes, glue follows.

use crate::graph::{CacheId, Graph, Op, Origin, TensorId};
use std::collections::{BTreeSet, HashMap};

/// The device that runs every op: the CPU.
pub const HOST: usize = 0;

/// What decides about nodes. Devices are numbered; [`HOST`] is the CPU.
pub struct Rules<'a> {
    /// Where the matrix that an op reads lies, by GGUF name.
    pub weight: &'a dyn Fn(&str, &Op) -> usize,
    /// Where a cache tensor lies.
    pub cache: &'a dyn Fn(CacheId) -> usize,
    /// Whether a device has a kernel for a node.
    pub runs: &'a dyn Fn(usize, &Graph, TensorId) -> bool,
}

/// Who runs each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// By tensor; of leaves and views it means nothing.
    pub device_of: Vec<usize>,
    /// What runs on the CPU only for want of a kernel, as `ATTN` or `MUL_MAT of Q3_K`.
    pub refused: BTreeSet<String>,
}

/// Gives every node a device: where its matrix or its cache lies, else where
/// its first computed operand runs, unless moving it to its readers saves data
/// on the way. What a device has no kernel for runs on [`HOST`].
pub fn place(graph: &Graph, rules: &Rules<'_>) -> Placed {
    let mut placer = Placer {
        graph,
        rules,
        device_of: vec![None; graph.tensors.len()],
        free: vec![false; graph.tensors.len()],
        readers: readers(graph),
        refused: BTreeSet::new(),
    };
    graph.ids().for_each(|id| placer.follow_operands(id));
    let backwards = (0..graph.tensors.len() as u32).rev().map(TensorId);
    backwards.for_each(|id| placer.follow_readers(id));
    let device_of = placer.device_of.iter();
    Placed {
        device_of: device_of.map(|d| d.unwrap_or(HOST)).collect(),
        refused: placer.refused,
    }
}

struct Placer<'a> {
    graph: &'a Graph,
    rules: &'a Rules<'a>,
    device_of: Vec<Option<usize>>,
    /// Nodes that nothing holds where they are.
    free: Vec<bool>,
    readers: Vec<Vec<TensorId>>,
    refused: BTreeSet<String>,
}

impl Placer<'_> {
    fn follow_operands(&mut self, id: TensorId) {
        let Origin::Op(op) = self.graph.get(id).origin else {
            return;
        };
        let anchor = anchor(self.graph, id, &op, self.rules);
        self.free[id.at()] = anchor.is_none();
        let first = computed_operands(self.graph, id).next();
        let wanted = anchor.or_else(|| first.and_then(|at| self.device_of[at.at()]));
        if let Some(device) = wanted {
            self.settle(id, &op, device);
        }
    }

    fn settle(&mut self, id: TensorId, op: &Op, device: usize) {
        let runs = device == HOST || (self.rules.runs)(device, self.graph, id);
        if !runs {
            self.free[id.at()] = false;
            self.refused.insert(described(self.graph, id, op));
        }
        self.device_of[id.at()] = Some(if runs { device } else { HOST });
    }

    /// Moves a free node to the device of all its readers when no more data
    /// has to go there than its result.
    fn follow_readers(&mut self, id: TensorId) {
        let Origin::Op(op) = self.graph.get(id).origin else {
            return;
        };
        let reader = |r: &TensorId| self.device_of[r.at()];
        let mut devices = self.readers[id.at()].iter().filter_map(reader);
        let to = devices.next();
        let Some(to) = to.filter(|&to| devices.all(|d| d == to)) else {
            return self.settle_rest(id, &op, to);
        };
        let Some(from) = self.device_of[id.at()] else {
            return self.settle(id, &op, to);
        };
        let movable = self.free[id.at()]
            && from != to
            && !self
                .graph
                .outputs
                .iter()
                .any(|&o| self.graph.owner(o) == id)
            && (to == HOST || (self.rules.runs)(to, self.graph, id))
            && self.bytes_to_bring(id, to) <= self.graph.get(id).bytes();
        if movable {
            self.device_of[id.at()] = Some(to);
        }
    }

    /// A node without computed operands whose readers differ, or that has none.
    fn settle_rest(&mut self, id: TensorId, op: &Op, to: Option<usize>) {
        if self.device_of[id.at()].is_none() {
            self.settle(id, op, to.unwrap_or(HOST));
        }
    }

    /// Bytes of operands that are on `to` only if this node runs there.
    fn bytes_to_bring(&self, id: TensorId, to: usize) -> usize {
        let is_there = |o: &TensorId| {
            self.device_of[o.at()] == Some(to)
                || self.readers[o.at()]
                    .iter()
                    .any(|r| *r != id && self.device_of[r.at()] == Some(to))
        };
        let operands: BTreeSet<TensorId> = computed_operands(self.graph, id).collect();
        let missing = operands.iter().filter(|o| !is_there(o));
        missing.map(|o| self.graph.get(*o).bytes()).sum()
    }
}

/// Owners of the operands that other nodes compute, in operand order.
fn computed_operands(graph: &Graph, id: TensorId) -> impl Iterator<Item = TensorId> {
    let owners = graph.get(id).src.iter().map(|&s| graph.owner(s));
    owners.filter(|&o| graph.get(o).is_computed())
}

/// Nodes that read each computed tensor, directly or through views.
fn readers(graph: &Graph) -> Vec<Vec<TensorId>> {
    let mut readers = vec![Vec::new(); graph.tensors.len()];
    for id in graph.ids() {
        if matches!(graph.get(id).origin, Origin::Op(_)) {
            computed_operands(graph, id).for_each(|o| readers[o.at()].push(id));
        }
    }
    readers
}

/// Where a node must be for the sake of its cache or its matrix.
fn anchor(graph: &Graph, id: TensorId, op: &Op, rules: &Rules<'_>) -> Option<usize> {
    if let Some(cache) = caches_of(graph, id).next() {
        return Some((rules.cache)(cache));
    }
    let matrix = graph.get(*graph.get(id).src.first()?);
    let reads_matrix = matches!(op, Op::MulMat | Op::MulMatId | Op::GetRows);
    (reads_matrix && matrix.origin == Origin::Weight).then(|| (rules.weight)(&matrix.name, op))
}

/// Cache tensors that a node reads or writes.
fn caches_of(graph: &Graph, id: TensorId) -> impl Iterator<Item = CacheId> {
    let owners = graph.get(id).src.iter().map(|&s| graph.get(graph.owner(s)));
    owners.filter_map(|t| match t.origin {
        Origin::Cache(id) => Some(id),
        _ => None,
    })
}

/// Where each cache tensor of these graphs lies: as `wanted`, unless a device
/// has no kernel for a node that touches it (then `refused` hears of it). Caches
/// of one node lie together.
pub fn cache_devices(
    graphs: &[&Graph],
    wanted: &dyn Fn(CacheId) -> usize,
    runs: &dyn Fn(usize, &Graph, TensorId) -> bool,
    refused: &mut BTreeSet<String>,
) -> HashMap<CacheId, usize> {
    let mut nodes: Vec<Keeper<'_>> = graphs.iter().flat_map(|graph| keepers(graph)).collect();
    let mut devices = HashMap::new();
    loop {
        let before = devices.clone();
        for node in &mut nodes {
            let at = |c: &CacheId| devices.get(c).copied().unwrap_or_else(|| wanted(*c));
            let first = at(&node.caches[0]);
            let runs = first == HOST
                || *node
                    .runs
                    .get_or_insert_with(|| runs(first, node.graph, node.id));
            if !runs {
                refused.insert(described(node.graph, node.id, &node.op));
            }
            let kept = runs && node.caches.iter().all(|c| at(c) == first);
            for &cache in &node.caches {
                devices.insert(cache, if kept { first } else { HOST });
            }
        }
        // Caches only ever move to the host, so this comes to rest.
        if devices == before {
            return devices;
        }
    }
}

/// A node that touches caches.
struct Keeper<'a> {
    graph: &'a Graph,
    id: TensorId,
    op: Op,
    caches: Vec<CacheId>,
    /// The answer of the device that its caches lie on; they only ever move to the host,
    /// so no other is asked.
    runs: Option<bool>,
}

fn keepers(graph: &Graph) -> impl Iterator<Item = Keeper<'_>> {
    graph.ids().filter_map(move |id| {
        let Origin::Op(op) = graph.get(id).origin else {
            return None;
        };
        let caches: Vec<CacheId> = caches_of(graph, id).collect();
        (!caches.is_empty()).then_some(Keeper {
            graph,
            id,
            op,
            caches,
            runs: None,
        })
    })
}

/// `MUL_MAT of Q4_K`: the op, and the type of the weight it reads.
fn described(graph: &Graph, id: TensorId, op: &Op) -> String {
    let mut operands = graph.get(id).src.iter().map(|&s| graph.get(s));
    match operands.find(|t| t.origin == Origin::Weight && t.dtype.is_quantized()) {
        Some(weight) => format!("{} of {}", op.name(), weight.dtype.name()),
        None => op.name().to_string(),
    }
}
