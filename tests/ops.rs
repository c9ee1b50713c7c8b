//! Every op of the CPU backend against a plain f64 reference, on every SIMD
//! path of this machine, with one and three threads (equal bits).

#[path = "ops/attn.rs"]
mod attn;
#[path = "ops/delta.rs"]
mod delta;
#[path = "ops/elementwise.rs"]
mod elementwise;
#[path = "ops/harness.rs"]
mod harness;
#[path = "ops/matmul.rs"]
mod matmul;
#[path = "ops/moe.rs"]
mod moe;
#[path = "ops/norm.rs"]
mod norm;
#[path = "ops/recurrent.rs"]
mod recurrent;
#[path = "ops/reduce.rs"]
mod reduce;
#[path = "ops/rope.rs"]
mod rope;
#[path = "ops/rows.rs"]
mod rows;
#[path = "ops/ssm_conv.rs"]
mod ssm_conv;
#[path = "ops/ssm_scan.rs"]
mod ssm_scan;
