//! Times the CPU matmul: `cargo test --release --test matmul_speed -- --ignored --nocapture`.
//!
//! `MATMUL_TYPES=Q4_K,Q6_K` and `MATMUL_THREADS=2` choose; weights are read in
//! turn from a buffer larger than any cache, as the layers of a model are.

use std::time::Instant;

use llama_rs::backend::cpu::matmul::{
    ActKind, Acts, MatMul, ROW_TILE, act_kind, q8_bytes, quantize_row, scratch_bytes,
};
use llama_rs::backend::cpu::simd::Simd;
use llama_rs::quant::DType;

/// Bytes of weights to go through.
const POOL_BYTES: usize = 1 << 29;
/// k and m of SmolLM2's, qwen2-1.5b's and gemma-3-270m's feed-forward.
const SHAPES: [(usize, usize); 3] = [(576, 1536), (1536, 8960), (640, 2048)];

/// Random bytes whose 16-bit pieces are all small f16 numbers too.
fn pool() -> Vec<u8> {
    let mut state = 1u64;
    let mut bytes = Vec::with_capacity(POOL_BYTES);
    for _ in 0..1 << 19 {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        bytes.extend(((state >> 32) as u16 & 0xA3FF | 0x2000).to_le_bytes());
    }
    while bytes.len() < POOL_BYTES {
        bytes.extend_from_within(..1 << 20);
    }
    bytes
}

/// Seconds a matmul, over `threads` threads that each do their part of all rows.
fn seconds(simd: Simd, dtype: DType, (k, m): (usize, usize), n: usize, pool: &[u8]) -> f64 {
    let threads: usize = std::env::var("MATMUL_THREADS").map_or(1, |t| t.parse().unwrap());
    let x: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut buf = vec![0; q8_bytes(k, n)];
    let acts = match act_kind(dtype, k, false) {
        ActKind::Q8 => {
            for (i, x) in x.chunks_exact(k).enumerate() {
                // SAFETY: the buffer is exactly of that size.
                unsafe { quantize_row(simd, x, buf.as_mut_ptr(), k, n, i) };
            }
            Acts::Q8 { buf: &buf, n }
        }
        ActKind::F32 => Acts::F32 { x: &x, stride: k },
    };
    let bytes = dtype.row_bytes(k).unwrap() * m;
    let matrices = if n == 1 {
        pool.len() / bytes
    } else {
        (pool.len() / bytes).min(2000 / n)
    };
    let tokens: Vec<u32> = (0..n as u32).collect();
    let part = m.div_ceil(threads).next_multiple_of(ROW_TILE);
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for t in 0..threads {
                let tokens = &tokens;
                scope.spawn(move || {
                    let mut y = vec![0.0; m * n];
                    let mut scratch = vec![0; scratch_bytes(dtype, k, n)];
                    let rows = (t * part).min(m)..((t + 1) * part).min(m);
                    for w in pool.chunks_exact(bytes).take(matrices) {
                        let mm = MatMul {
                            simd,
                            dtype,
                            w,
                            k,
                            m,
                            acts,
                        };
                        let y = y.as_mut_ptr();
                        // SAFETY: `y` is the thread's own and has m * n values.
                        unsafe { mm.run(rows.clone(), tokens, tokens, y, m, &mut scratch) };
                    }
                });
            }
        });
        best = best.min(start.elapsed().as_secs_f64() / matrices as f64);
    }
    best
}

#[test]
#[ignore = "a measurement: run it alone, in release"]
fn speed() {
    let wanted = std::env::var("MATMUL_TYPES").unwrap_or_default();
    let simd = Simd::detect().unwrap();
    let pool = pool();
    let start = Instant::now();
    let sum: u64 = pool
        .as_chunks::<8>()
        .0
        .iter()
        .fold(0, |s, b| s ^ u64::from_le_bytes(*b));
    let read = pool.len() as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("{simd:?}; one thread reads {read:.1} GB/s ({})", sum & 1);
    for &dtype in DType::ALL.iter().filter(|&&d| d != DType::I32) {
        if !wanted.is_empty() && !wanted.split(',').any(|name| name == dtype.name()) {
            continue;
        }
        for (k, m) in SHAPES {
            let Some(row_bytes) = dtype.row_bytes(k) else {
                continue;
            };
            let one = seconds(simd, dtype, (k, m), 1, &pool);
            let many = seconds(simd, dtype, (k, m), 128, &pool);
            println!(
                "{:7} {k:5} x {m:5}: n=1 {:6.1} GB/s {:6.1} GOP/s, n=128 {:6.1} GOP/s",
                dtype.name(),
                (row_bytes * m) as f64 / one / 1e9,
                (2 * k * m) as f64 / one / 1e9,
                (2 * k * m * 128) as f64 / many / 1e9,
            );
        }
    }
}
