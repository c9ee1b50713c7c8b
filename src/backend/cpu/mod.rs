//! The CPU backend: plain Rust reference for every op, with SIMD beside it.

mod attn;
mod bind;
pub mod buffer;
mod crowd;
mod delta;
mod demand;
mod elementwise;
pub mod exec;
pub mod matmul;
mod moe;
mod norm;
pub mod pool;
mod reduce;
mod rope;
mod rows;
mod shares;
pub mod simd;
mod simd_f16;
mod simd_math;
mod simd_reduce;
mod simd_scan;
mod softmax;
mod ssm;
pub mod view;

pub use bind::Storage;
pub use buffer::Buffer;
pub use demand::Demand;
pub use exec::{CpuBackend, lower};
pub use simd::Simd;
pub use view::{Counts, View};

use crate::graph::Op;
use buffer::Scratch;
use matmul::op as mul_mat;
use pool::Worker;
use rope::RopeTable;
use shares::Shares;
use view::View as Tensor;

/// What every kernel may look at besides its operands.
pub struct Ctx<'a> {
    pub simd: Simd,
    pub counts: Counts,
    /// 0, 1, 2, ...: the token list of products that take all rows.
    pub identity: &'a [u32],
    pub rope_tables: &'a [RopeTable],
    pub scratch: &'a Scratch,
    /// Of the rows of products.
    pub shares: &'a Shares,
}

/// A node bound to memory.
pub struct Node {
    pub op: Op,
    pub dst: Tensor,
    pub src: Vec<Tensor>,
    /// ROPE: which table holds its sines and cosines.
    pub rope_table: usize,
    /// MUL_MAT: its number in the shares.
    pub product: usize,
    /// All threads must have finished what came before.
    pub barrier_before: bool,
}

impl Node {
    /// Result cut to the live counts.
    fn dst(&self, ctx: &Ctx<'_>) -> Tensor {
        self.dst.cut(&ctx.counts)
    }

    /// Operand cut to the live counts.
    fn src(&self, ctx: &Ctx<'_>, i: usize) -> Tensor {
        self.src[i].cut(&ctx.counts)
    }
}

/// False for what only other backends ask the graph to be fused into.
fn runs(op: &Op) -> bool {
    !matches!(op, Op::FusedMulMat(_) | Op::PackF16 | Op::HeadRows(_))
}

/// Runs this thread's share of one node.
fn run_node(ctx: &Ctx<'_>, node: &Node, worker: &Worker<'_>) {
    match node.op {
        Op::MulMat => mul_mat::mul_mat(ctx, node, worker),
        Op::MulMatId => mul_mat::mul_mat_id(ctx, node, worker),
        Op::QuantizeQ8 { .. } => mul_mat::quantize_q8(ctx, node, worker),
        Op::QuantizeQ16 { .. } => mul_mat::quantize_q16(ctx, node, worker),
        Op::GetRows => rows::get_rows(ctx, node, worker),
        Op::SetRows => rows::set_rows(ctx, node, worker),
        Op::Cont => rows::cont(ctx, node, worker),
        Op::Concat => rows::concat(ctx, node, worker),
        Op::Cpy { .. } => rows::cpy(ctx, node, worker),
        Op::RmsNorm { eps } => norm::rms_norm(ctx, node, worker, eps),
        Op::Norm { eps } => norm::norm(ctx, node, worker, eps),
        Op::Rope(params) => rope::rope(ctx, node, worker, &params),
        Op::Attn(params, shape) => attn::attn(ctx, node, worker, &params, &shape),
        Op::Unary(kind) => elementwise::unary(ctx, node, worker, kind),
        Op::Glu(kind) => elementwise::glu(ctx, node, worker, kind),
        Op::Add => elementwise::binary(ctx, node, worker, |a, b| a + b),
        Op::Mul => elementwise::binary(ctx, node, worker, |a, b| a * b),
        Op::Div => elementwise::binary(ctx, node, worker, |a, b| a / b),
        Op::Scale { scale, bias } => elementwise::scale(ctx, node, worker, scale, bias),
        Op::SoftMax { scale } => softmax::soft_max(ctx, node, worker, scale),
        Op::MoeRoute { n_used, norm } => moe::route(ctx, node, worker, n_used, norm),
        Op::MoeSum => moe::sum(ctx, node, worker),
        Op::Argmax => reduce::argmax(ctx, node, worker),
        Op::TopK { .. } => reduce::top_k(ctx, node, worker),
        Op::SumRows => reduce::sum_rows(ctx, node, worker, 1.0),
        Op::Mean => reduce::mean(ctx, node, worker),
        Op::Sum => reduce::sum(ctx, node, worker),
        Op::Cumsum => reduce::cumsum(ctx, node, worker),
        Op::L2Norm { eps } => norm::l2_norm(ctx, node, worker, eps),
        Op::SsmConv(params) => ssm::conv(ctx, node, worker, &params),
        Op::SsmScan(params) => ssm::scan(ctx, node, worker, &params),
        Op::GatedDeltaNet(params) => delta::gated_delta_net(ctx, node, worker, &params),
        Op::FusedMulMat(_) | Op::PackF16 | Op::HeadRows(_) => {
            unreachable!("refused when the graph is bound")
        }
    }
}
