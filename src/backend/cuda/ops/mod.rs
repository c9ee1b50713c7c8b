//! Which kernels run an op: one function answers both "can CUDA run this?" and
//! "what is launched?". It looks at shapes and types only, so it needs no device.

mod attn;
mod attn_token;
mod delta;
mod elementwise;
mod grids;
mod heads;
mod moe;
mod mul_mat;
mod mul_mat_cluster;
mod norm;
mod reduce;
mod rows;
mod ssm_chunk;
mod ssm_conv;
mod ssm_scan;

use super::kernel::{Answer, Node, n_rows};
use crate::graph::Op;

pub use attn_token::ENTRY as ATTN_TOKEN;
pub use mul_mat::{MOST_EXPERTS, X_GROUP, x_group_bytes};

/// Most tokens that the matrix-vector kernels take, 8 a block; more are multiplied in tiles.
/// Sixteen read weights twice, which still is a quarter faster than tiles of 64.
pub const VEC_TOKENS: usize = 16;

/// Longest dimension, and most rows of a result: kernels count with 32 bits, and in
/// steps that may pass the end.
const MOST: usize = 1 << 30;

/// The launches that evaluate `node`; `None` when CUDA has no kernel for it.
pub fn kernels(node: &Node<'_>) -> Option<Answer> {
    let mut operands = node.src.iter().chain([&node.dst]);
    if operands.any(|t| t.ne.iter().any(|&n| n > MOST)) || n_rows(node.dst) > MOST {
        return None;
    }
    match node.op {
        Op::MulMat => mul_mat::mul_mat(node),
        Op::FusedMulMat(f) => mul_mat::fused(node, &f),
        Op::MulMatId => mul_mat::mul_mat_id(node),
        Op::PackF16 => mul_mat::pack_f16(node),
        // Quantized activations are the CPU's.
        Op::QuantizeQ8 { .. } | Op::QuantizeQ16 { .. } => None,
        Op::GetRows => rows::get_rows(node),
        Op::SetRows => rows::set_rows(node),
        Op::Cont => rows::cont(node),
        Op::Concat => rows::concat(node),
        Op::Cpy { .. } => rows::cpy(node),
        Op::RmsNorm { eps } => norm::rms_norm(node, eps),
        Op::Norm { eps } => norm::norm(node, eps),
        Op::Rope(params) => heads::rope(node, &params),
        Op::HeadRows(params) => heads::head_rows(node, &params),
        Op::Attn(params, shape) => attn::attn(node, &params, &shape),
        Op::Unary(kind) => elementwise::unary(node, kind),
        Op::Glu(kind) => elementwise::glu(node, kind),
        Op::Add | Op::Mul | Op::Div => elementwise::binary(node),
        Op::Scale { scale, bias } => elementwise::scale(node, scale, bias),
        Op::SoftMax { scale } => norm::soft_max(node, scale),
        Op::MoeRoute { .. } => moe::route(node),
        Op::MoeSum => moe::sum(node),
        Op::Argmax => reduce::argmax(node),
        Op::TopK { .. } => reduce::top_k(node),
        Op::SumRows => reduce::sum_rows(node),
        Op::Mean => reduce::mean(node),
        Op::Sum => reduce::sum(node),
        Op::Cumsum => reduce::cumsum(node),
        Op::L2Norm { eps } => norm::l2_norm(node, eps),
        Op::SsmConv(params) => ssm_conv::ssm_conv(node, &params),
        Op::SsmScan(params) => ssm_scan::ssm_scan(node, &params),
        Op::GatedDeltaNet(params) => delta::gated_delta_net(node, &params),
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Op, Origin, Tensor};
    use crate::quant::DType;

    /// A computed f32 tensor.
    pub fn tensor(ne: [usize; 4]) -> Tensor {
        Tensor {
            name: "".into(),
            dtype: DType::F32,
            ne,
            nb: Tensor::packed(DType::F32, ne),
            live: None,
            origin: Origin::Op(Op::Cont),
            src: Vec::new(),
        }
    }
}
