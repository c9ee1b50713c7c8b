//! Cuts a placed graph into segments, each a graph of one device.

use crate::error::{Error, Result};
use crate::graph::{Count, Graph, Input, Live, Origin, Tensor, TensorId};
use crate::quant::DType;
use std::collections::HashMap;

/// A run of nodes on one device, as a graph of its own. What earlier segments
/// computed is read as [`Input::Border`].
pub struct Segment {
    pub device: usize,
    pub graph: Graph,
    /// Numbers of the borders it reads.
    pub reads: Vec<usize>,
}

/// An output of a segment's graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    pub segment: usize,
    pub output: usize,
}

/// A tensor that later segments read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Border {
    pub from: Source,
    pub n_values: usize,
    /// Values of one live row and what counts the rows, where those are all
    /// that has to be moved.
    pub row: Option<(usize, Count)>,
}

/// A graph in pieces.
pub struct Split {
    /// In evaluation order.
    pub segments: Vec<Segment>,
    pub borders: Vec<Border>,
    /// Where the outputs of the whole graph are.
    pub results: Vec<Source>,
}

/// Cuts `graph` into segments of consecutive nodes on one device. Nodes of one
/// device keep their order, nodes of different devices only as far as they read
/// each other, so that there are few segments. Leaves and views belong to
/// whoever reads them.
///
/// # Errors
/// A tensor that would have to cross is neither F32 nor I32.
pub fn split(graph: &Graph, device_of: &[usize]) -> Result<Split> {
    let segments = order(graph, device_of);
    let mut segment_of = HashMap::new();
    for (at, (_, nodes)) in segments.iter().enumerate() {
        segment_of.extend(nodes.iter().map(|&id| (id, at)));
    }
    let mut cutter = Cutter {
        graph,
        segment_of,
        border_of: HashMap::new(),
        split: Split {
            segments: Vec::new(),
            borders: Vec::new(),
            results: Vec::new(),
        },
        maps: Vec::new(),
    };
    for (device, nodes) in segments {
        cutter.split.segments.push(Segment {
            device,
            graph: Graph::default(),
            reads: Vec::new(),
        });
        cutter.maps.push(HashMap::new());
        for id in nodes {
            cutter.node(id)?;
        }
    }
    for &id in &graph.outputs {
        let source = cutter.output(id)?;
        cutter.split.results.push(source);
    }
    Ok(cutter.split)
}

/// Nodes by segment: those of the current device as long as the next of them
/// has its operands, then those of the device whose next one comes first.
fn order(graph: &Graph, device_of: &[usize]) -> Vec<(usize, Vec<TensorId>)> {
    let n_devices = device_of.iter().max().map_or(0, |&d| d + 1);
    let mut queues = vec![std::collections::VecDeque::new(); n_devices];
    for id in graph.ids() {
        if matches!(graph.get(id).origin, Origin::Op(_)) {
            queues[device_of[id.at()]].push_back(id);
        }
    }
    let mut done = vec![false; graph.tensors.len()];
    let mut segments: Vec<(usize, Vec<TensorId>)> = Vec::new();
    loop {
        let ready = |&id: &TensorId| {
            graph.get(id).src.iter().all(|&s| {
                let computed = computed_by(graph, s);
                computed.is_none_or(|by| done[by.at()])
            })
        };
        // The first node of all that is left is ready, so somebody is.
        let fronts = queues.iter().enumerate();
        let next = fronts
            .filter_map(|(d, queue)| Some((*queue.front().filter(|id| ready(id))?, d)))
            .min_by_key(|&(id, d)| {
                let stays = segments.last().is_some_and(|(current, _)| *current == d);
                (!stays, id)
            });
        let Some((id, device)) = next else {
            return segments;
        };
        queues[device].pop_front();
        done[id.at()] = true;
        match segments.last_mut() {
            Some((current, nodes)) if *current == device => nodes.push(id),
            _ => segments.push((device, vec![id])),
        }
    }
}

/// The node behind `id`, through views.
fn computed_by(graph: &Graph, mut id: TensorId) -> Option<TensorId> {
    loop {
        match graph.get(id).origin {
            Origin::View { .. } => id = graph.get(id).src[0],
            Origin::Op(_) => return Some(id),
            _ => return None,
        }
    }
}

struct Cutter<'a> {
    graph: &'a Graph,
    segment_of: HashMap<TensorId, usize>,
    border_of: HashMap<TensorId, usize>,
    split: Split,
    /// By segment: tensors of the whole graph and what they are in its own.
    maps: Vec<HashMap<TensorId, TensorId>>,
}

impl Cutter<'_> {
    fn push(&mut self, segment: usize, id: TensorId, tensor: Tensor) -> TensorId {
        let tensors = &mut self.split.segments[segment].graph.tensors;
        tensors.push(tensor);
        let new = TensorId(tensors.len() as u32 - 1);
        self.maps[segment].insert(id, new);
        new
    }

    /// Appends a node to the last segment.
    fn node(&mut self, id: TensorId) -> Result<()> {
        let segment = self.maps.len() - 1;
        let mut tensor = self.graph.get(id).clone();
        for s in &mut tensor.src {
            *s = self.import(segment, *s)?;
        }
        self.push(segment, id, tensor);
        Ok(())
    }

    /// What `id` is in a segment; brings it there when it is new.
    fn import(&mut self, segment: usize, id: TensorId) -> Result<TensorId> {
        if let Some(&known) = self.maps[segment].get(&id) {
            return Ok(known);
        }
        let mut tensor = self.graph.get(id).clone();
        if let Origin::Op(op) = tensor.origin {
            // A cache that another segment has written to is the cache itself.
            return match op.writes_in_place() {
                Some(at) => self.import(segment, tensor.src[at]),
                None => self.border(segment, id),
            };
        }
        for s in &mut tensor.src {
            *s = self.import(segment, *s)?;
        }
        Ok(self.push(segment, id, tensor))
    }

    fn border(&mut self, segment: usize, id: TensorId) -> Result<TensorId> {
        let tensor = self.graph.get(id);
        let number = match self.border_of.get(&id) {
            Some(&number) => number,
            None => {
                let from = self.output(id)?;
                self.split.borders.push(Border {
                    from,
                    n_values: tensor.n_values(),
                    row: tensor.live.and_then(|live| live_row(tensor, live)),
                });
                let number = self.split.borders.len() - 1;
                self.border_of.insert(id, number);
                number
            }
        };
        let mut leaf = tensor.clone();
        leaf.origin = Origin::Input(Input::Border(number));
        leaf.src = Vec::new();
        self.split.segments[segment].reads.push(number);
        Ok(self.push(segment, id, leaf))
    }

    /// Makes `id` an output of the segment that computes it.
    fn output(&mut self, id: TensorId) -> Result<Source> {
        let tensor = self.graph.get(id);
        let by = computed_by(self.graph, id).and_then(|by| self.segment_of.get(&by).copied());
        let crosses = matches!(tensor.dtype, DType::F32 | DType::I32) && tensor.is_contiguous();
        let Some(segment) = by.filter(|_| crosses) else {
            return Err(Error::Shape {
                op: "output",
                detail: format!("{} is not a computed F32 or I32", tensor.name),
            });
        };
        let id = self.import(segment, id)?;
        let outputs = &mut self.split.segments[segment].graph.outputs;
        let known = outputs.iter().position(|&o| o == id);
        let output = known.unwrap_or_else(|| {
            outputs.push(id);
            outputs.len() - 1
        });
        Ok(Source { segment, output })
    }
}

/// Values of one live row, when the live rows come first in memory.
fn live_row(tensor: &Tensor, live: Live) -> Option<(usize, Count)> {
    let last = tensor.ne[live.dim + 1..].iter().all(|&n| n == 1);
    last.then(|| (tensor.ne[..live.dim].iter().product(), live.count))
}
