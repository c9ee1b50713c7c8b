//! Whether launches of clusters (`cuda-kernels/mul_mat_vec_cluster.cu`) can take the place
//! of others.
//!
//! Only with `LLAMA_RS_CLUSTERS=on`: the same bits and, in a harness, 30 to 40 % faster for 8
//! and 16 tokens; in the program they have not run on a GPU yet.

use super::context::Context;
use super::kernel::Kernel;

/// From here on clusters and bulk copies exist.
const MIN_CAPABILITY: (u32, u32) = (9, 0);
/// Of these GPUs as many clusters run at once as `ops/mul_mat_cluster.rs` counts on.
const MIN_MULTIPROCESSORS: u32 = 132;
/// Static shared memory of the kernels, rounded up.
const STATIC_BYTES: u32 = 11 << 10;

/// `kernel`, or its form on clusters where the GPU and this binary have that.
pub fn choose<'a>(context: &Context, kernel: &'a Kernel) -> &'a Kernel {
    match &kernel.on_clusters {
        Some(form) if runs(context, form) => form,
        _ => kernel,
    }
}

fn runs(context: &Context, form: &Kernel) -> bool {
    let wanted = std::env::var_os("LLAMA_RS_CLUSTERS").is_some_and(|v| v == "on");
    wanted
        && context.compute_capability() >= MIN_CAPABILITY
        && context.max_shared_bytes() >= form.shared_bytes + STATIC_BYTES
        && context
            .multiprocessors()
            .is_ok_and(|n| n >= MIN_MULTIPROCESSORS)
        && context.function(&form.entry).is_ok()
}
