//! A launch before its operands have addresses: which kernel, which grid,
//! which arguments.

use crate::graph::{Graph, Op, Origin, RopeParams, Tensor, TensorId};
use crate::quant::DType;

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
    /// The arguments are the fields of one struct, in order.
    pub packed: bool,
    pub args: Vec<Arg>,
    /// A launch that does the same with the same bits on GPUs whose blocks form clusters
    /// (`clusters.rs` says whether it is used).
    pub on_clusters: Option<Box<Kernel>>,
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
    /// Of a matrix product: rows of the products right beside it that share its x, its
    /// kernel and so, memory allowing, its launch (as Q, K and V do).
    pub rows_beside: usize,
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
                rows_beside: rows_beside(graph, id),
            }),
            _ => None,
        }
    }
}

/// Whether the codes of a type are multiplied as they are, with x as integers
/// (`cuda-kernels/mul_mat_vec_int.cu`); the others become f16 first.
pub fn multiplies_codes(dtype: DType) -> bool {
    matches!(dtype, DType::Q4K | DType::Q6K)
}

/// Name of the matrix-vector kernel for a type; those that multiply codes share one.
pub fn vec_family(dtype: DType) -> &'static str {
    match multiplies_codes(dtype) {
        true => "mixed",
        false => dtype.name(),
    }
}

/// Rows of the matrix products beside product `id` with the same op, x and kernel.
fn rows_beside(graph: &Graph, id: TensorId) -> usize {
    // What they must share, and the rows of this one.
    let of = |id: TensorId| {
        let t = graph.get(id);
        let (op, x_at) = match t.origin {
            Origin::Op(op @ Op::MulMat) => (op, 1),
            Origin::Op(op @ Op::FusedMulMat(f)) => (op, f.x_at()),
            _ => return None,
        };
        let w = graph.get(t.src[0]);
        Some(((op, vec_family(w.dtype), t.src[x_at]), w.ne[1]))
    };
    let Some((shared, _)) = of(id) else {
        return 0;
    };
    let beside = |ids: &mut dyn Iterator<Item = u32>| -> usize {
        ids.map(TensorId)
            .filter(|&id| matches!(graph.get(id).origin, Origin::Op(_)))
            .map_while(|id| of(id).filter(|(s, _)| *s == shared))
            .map(|(_, rows)| rows)
            .sum()
    };
    beside(&mut (0..id.0).rev()) + beside(&mut (id.0 + 1..graph.tensors.len() as u32))
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
            packed: false,
            args: Vec::new(),
            on_clusters: None,
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

    /// Makes the arguments fields of one struct.
    pub fn packed(mut self) -> Kernel {
        self.packed = true;
        self
    }

    /// Adds a form for GPUs whose blocks form clusters.
    pub fn on_clusters(mut self, form: Option<Kernel>) -> Kernel {
        self.on_clusters = form.map(Box::new);
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
