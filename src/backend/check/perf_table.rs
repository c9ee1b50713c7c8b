//! The shapes that `ops perf` times: each a line of op and shape, as `-o` and `--shape`
//! take them.

use super::sample::Sample;
use super::shapes;
use crate::error::Result;

/// Op and shape. The first ones have targets on an H200 in the project's plan; the
/// others are what layers of 8B models and their likes run.
pub const ROWS: &[(&str, &str)] = &[
    // Mamba-2 heads: a small model, the same at decode, a wide one, Nemotron 3 Nano at
    // prefill and at 16 sequences, mamba2-2.7b.
    ("SSM_SCAN", "d_state=128,head_dim=64,n_head=48,n_tokens=512"),
    ("SSM_SCAN", "d_state=128,head_dim=64,n_head=48,n_tokens=1"),
    (
        "SSM_SCAN",
        "d_state=128,head_dim=80,n_head=128,n_tokens=512",
    ),
    (
        "SSM_SCAN",
        "d_state=128,head_dim=64,n_head=64,n_group=8,n_tokens=4096",
    ),
    (
        "SSM_SCAN",
        "d_state=128,head_dim=64,n_head=64,n_group=8,n_tokens=1,n_seqs=16",
    ),
    (
        "SSM_SCAN",
        "d_state=128,head_dim=64,n_head=80,n_tokens=4096",
    ),
    // Mamba-1: mamba-2.8b, and a batch of narrow ones.
    (
        "SSM_SCAN",
        "d_state=16,head_dim=1,n_head=5120,n_tokens=4096",
    ),
    (
        "SSM_SCAN",
        "d_state=16,head_dim=1,n_head=256,n_tokens=2048,n_seqs=16",
    ),
    ("CUMSUM", "200000,16"),
    ("CUMSUM", "65536,8"),
    ("CUMSUM", "2000000,1"),
    ("CUMSUM", "15200000,1"),
    ("CUMSUM", "152000,1"),
    ("ARGMAX", "32000,512"),
    ("ARGMAX", "151936,1"),
    ("ARGMAX", "151936,16"),
    ("SUM_ROWS", "8192,8192"),
    ("MEAN", "8192,8192"),
    ("SUM_ROWS", "128,8192"),
    ("SUM_ROWS", "151936,1"),
    ("SSM_CONV", "channels=5120,n_tokens=4096"),
    ("SSM_CONV", "channels=5120,n_tokens=1"),
    (
        "GATED_DELTA_NET",
        "d_k=128,d_v=128,n_k_head=16,n_v_head=32,n_tokens=512",
    ),
    (
        "GATED_DELTA_NET",
        "d_k=128,d_v=128,n_k_head=16,n_v_head=32,n_tokens=1",
    ),
    ("MUL_MAT", "q4_K:4096,14336,1"),
    ("MUL_MAT", "q4_K:4096,14336,8"),
    ("MUL_MAT", "q4_K:4096,14336,512"),
    ("MUL_MAT", "q6_K:4096,14336,1"),
    ("MUL_MAT", "q6_K:4096,14336,512"),
    ("MUL_MAT", "f16:4096,14336,1"),
    ("MUL_MAT", "f16:4096,14336,512"),
    ("MUL_MAT_ID", "q4_K:2048,768,128,8,1"),
    ("MUL_MAT_ID", "q4_K:2048,768,128,8,512"),
    ("MOE_ROUTE", "128,8,512"),
    ("MOE_SUM", "2048,8,512"),
    ("ATTN", "head_dim=128,n_head=32,n_head_kv=8,n_kv=4096,n=1"),
    ("ATTN", "head_dim=128,n_head=32,n_head_kv=8,n_kv=512,n=512"),
    ("RMS_NORM", "4096,1"),
    ("RMS_NORM", "4096,512"),
    ("NORM", "4096,512"),
    ("L2_NORM", "128,16384"),
    ("ROPE", "128,32,512"),
    ("SOFT_MAX", "4096,512"),
    ("TOP_K", "151936,1,40"),
    ("GET_ROWS", "q4_K:4096,128256,512"),
    ("SET_ROWS", "f16:1024,512"),
    ("GLU", "14336,512"),
    ("UNARY", "silu:14336,512"),
    ("ADD", "4096,512"),
    ("MUL", "4096,512"),
    ("SCALE", "4096,512"),
    ("CONT", "4096,512"),
];

/// The samples of the table, or of those `ops` in it when there are any.
///
/// # Errors
/// A line of the table is no shape of its op: a mistake in the table.
pub fn samples(ops: &[&str], most_bytes: usize) -> Result<Vec<Sample>> {
    let wanted = |op: &str| ops.is_empty() || ops.contains(&op);
    let rows = ROWS.iter().filter(|row| wanted(row.0));
    rows.map(|(op, shape)| shapes::find(op)?.sample(shape, most_bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_shape_of_its_op_and_fits_the_cpu() {
        let all = samples(&[], 1 << 30).expect("the table");
        assert_eq!(all.len(), ROWS.len());
        for (sample, row) in all.iter().zip(ROWS) {
            assert_eq!((sample.op, sample.shape.as_str()), *row);
            assert!(sample.bytes > 0);
        }
        let scan = &all[1];
        let state = 4 * 128 * 64 * 48;
        // State read and written; x and y, dt, a, b and c, two offsets and a slot.
        let rest = 4 * (2 * 64 * 48 + 48 + 48 + 2 * 128 + 3);
        assert_eq!(scan.bytes, 2 * state + rest);
    }
}
