//! A launch before its operands have addresses: which kernel, which grid,
//! which arguments.

use crate::graph::{Graph, Op, Origin, RopeParams, Tensor, TensorId};

/// One launch; `cuda-kernels/` says what each entry does and takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    /// Name of the `extern "C"` kernel.
    pub entry: String,
    /// Blocks; only the first dimension may exceed 65,535.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: u32,
    /// Dynamic shared memory a block.
    pub shared_bytes: u32,
    /// The arguments are one job of `cuda-kernels/jobs.cuh`: neighbours that run the
    /// same kernel and do not touch each other's data may share a launch.
    pub job: bool,
    pub args: Vec<Arg>,
}

/// One argument of a kernel, in the order of its parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// The node's result as a [`View`].
    Dst,
    /// Operand `i` as a [`View`].
    Src(usize),
    /// A null pointer, where a kernel's operand is optional: `View` with null data.
    NoView,
    I32(i32),
    F32(f32),
    /// Address of these rotations' coefficients, which are uploaded once; without any an
    /// address that exists and is not read.
    Rope(Option<RopeParams>),
    /// Address of memory that was zeroed once and belongs to all launches of this kernel
    /// with this grid, each of which finds what the one before left.
    State {
        bytes: usize,
    },
    /// Address of the scratch memory shared by all nodes, plus an offset.
    Scratch {
        offset_bytes: usize,
    },
}

/// All launches of a node, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub kernels: Vec<Kernel>,
    /// Scratch memory the launches use between them.
    pub scratch_bytes: usize,
}

impl From<Kernel> for Answer {
    fn from(kernel: Kernel) -> Answer {
        Answer {
            kernels: vec![kernel],
            scratch_bytes: 0,
        }
    }
}

/// An op with the shapes of its operands, as the kernel choice sees it.
pub struct Node<'a> {
    pub op: Op,
    pub dst: &'a Tensor,
    pub src: Vec<&'a Tensor>,
    /// F32 activations in matrix products.
    pub exact: bool,
}

impl<'a> Node<'a> {
    /// A node of a graph; `None` for tensors that are no ops.
    pub fn of(graph: &'a Graph, id: TensorId, exact: bool) -> Option<Node<'a>> {
        let dst = graph.get(id);
        match dst.origin {
            Origin::Op(op) => Some(Node {
                op,
                dst,
                src: dst.src.iter().map(|&s| graph.get(s)).collect(),
                exact,
            }),
            _ => None,
        }
    }
}

/// What a kernel gets for a tensor; `cuda-kernels/common.cuh` has the same struct.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct View {
    pub data: u64,
    /// Address of the live count of `live_dim`; 0 when nothing is cut.
    pub live: u64,
    pub nb: [i64; 4],
    pub ne: [i32; 4],
    pub live_dim: i32,
    pub dtype: i32,
}

const _: () = assert!(size_of::<View>() == 72);

impl Kernel {
    /// A launch with no arguments yet.
    pub fn new(entry: impl Into<String>, grid: [usize; 3], block: u32) -> Kernel {
        Kernel {
            entry: entry.into(),
            grid: grid.map(|n| n as u32),
            block,
            shared_bytes: 0,
            job: false,
            args: Vec::new(),
        }
    }

    /// Appends arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = Arg>) -> Kernel {
        self.args.extend(args);
        self
    }

    /// Marks the arguments as a job.
    pub fn job(mut self) -> Kernel {
        self.job = true;
        self
    }

    /// Asks for dynamic shared memory.
    pub fn shared(mut self, bytes: usize) -> Kernel {
        self.shared_bytes = bytes as u32;
        self
    }
}

/// Rows of a tensor at full width (everything but dimension 0).
pub fn n_rows(t: &Tensor) -> usize {
    t.ne[1] * t.ne[2] * t.ne[3]
}
