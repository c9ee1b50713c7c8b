//! Times the CPU matmul: `cargo test --release --test matmul_speed -- --ignored --nocapture`.
//!
//! `MATMUL_TYPES=Q4_K,Q6_K` chooses types. Weights are read in turn from a buffer
//! larger than any cache, as the layers of a model are.

use std::time::Instant;

use llama_rs::backend::cpu::matmul::{
    ActKind, Acts, MatMul, Piece, ROW_TILE, act_kind, q8_bytes, q16_bytes, quantize_row,
    quantize_row16, scratch_bytes,
};
use llama_rs::backend::cpu::simd::Simd;
use llama_rs::quant::DType;

/// Bytes of weights to go through.
const POOL_BYTES: usize = 1 << 29;
/// Measurements of each, of which the best counts.
const PASSES: usize = 1000;
/// Weights read in one measurement of one token: less than a millisecond,
/// which other load on the machine often leaves uninterrupted.
const PASS_BYTES: usize = 1 << 21;
/// Weights that stay in the L2 cache.
const CACHED_BYTES: usize = 1 << 17;
/// Multiplications in one measurement of many tokens.
const PASS_PRODUCTS: usize = 1 << 26;
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

/// Seconds for one row of W and `n` tokens, on one thread.
fn row_seconds(simd: Simd, dtype: DType, (k, m): (usize, usize), n: usize, pool: &[u8]) -> f64 {
    let x: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut buf = vec![0; q16_bytes(k, n)];
    let acts = match act_kind(dtype, k, false) {
        ActKind::Q8 => {
            for (i, x) in x.chunks_exact(k).enumerate() {
                // SAFETY: the buffer is exactly of that size.
                unsafe { quantize_row(simd, x, buf.as_mut_ptr(), k, n, i) };
            }
            Acts::Q8 { buf: &buf, n }
        }
        ActKind::Q16 => {
            for (i, x) in x.chunks_exact(k).enumerate() {
                // SAFETY: the buffer is exactly of that size.
                unsafe { quantize_row16(simd, x, buf.as_mut_ptr(), k, n, i) };
            }
            Acts::Q16 { buf: &buf, n }
        }
        ActKind::F32 => Acts::F32 { x: &x, stride: k },
    };
    let row_bytes = dtype.row_bytes(k).unwrap();
    let rows = match n {
        1 => PASS_BYTES / row_bytes,
        _ => PASS_PRODUCTS / (k * n),
    };
    let rows = rows.max(1).next_multiple_of(ROW_TILE).min(m);
    let tokens: Vec<u32> = (0..n as u32).collect();
    let mut y = vec![1.0; m * n];
    let mut scratch = vec![1; scratch_bytes(dtype, k, n)];
    let mut best = f64::INFINITY;
    for w in pool.chunks_exact(rows * row_bytes).cycle().take(PASSES) {
        let mm = MatMul {
            simd,
            dtype,
            w,
            k,
            m: rows,
            acts,
        };
        let start = Instant::now();
        // SAFETY: `y` has m * n values.
        unsafe {
            mm.run(
                &mut Piece::whole(0..rows),
                &tokens,
                &tokens,
                y.as_mut_ptr(),
                m,
                &mut scratch,
            )
        };
        best = best.min(start.elapsed().as_secs_f64() / rows as f64);
    }
    best
}

/// GB/s of f32 that become 8 bits.
fn quantizing(simd: Simd) -> f64 {
    let x: Vec<f32> = (0..1536).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut buf = vec![0; q8_bytes(x.len(), 1)];
    let seconds = (0..PASSES).map(|_| {
        let start = Instant::now();
        for _ in 0..16 {
            // SAFETY: the buffer is exactly of that size.
            unsafe { quantize_row(simd, &x, buf.as_mut_ptr(), x.len(), 1, 0) };
            std::hint::black_box(&mut buf);
        }
        start.elapsed().as_secs_f64()
    });
    (16 * 4 * x.len()) as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9
}

#[test]
#[ignore = "a measurement: run it alone, in release"]
fn speed() {
    let wanted = std::env::var("MATMUL_TYPES").unwrap_or_default();
    let simd = Simd::detect().unwrap();
    let pool = pool();
    println!("{simd:?}; quantizing reads {:.1} GB/s", quantizing(simd));
    for &dtype in DType::ALL.iter().filter(|&&d| d != DType::I32) {
        if !wanted.is_empty() && !wanted.split(',').any(|name| name == dtype.name()) {
            continue;
        }
        for (k, m) in SHAPES {
            let Some(row_bytes) = dtype.row_bytes(k) else {
                continue;
            };
            let one = row_seconds(simd, dtype, (k, m), 1, &pool);
            // The same rows again and again: what the kernel does when memory
            // does not hold it up.
            let cached_rows = (CACHED_BYTES / row_bytes).next_multiple_of(ROW_TILE);
            let same: Vec<u8> = pool[..row_bytes * cached_rows.min(m)].to_vec();
            let cached = row_seconds(simd, dtype, (k, cached_rows.min(m)), 1, &same);
            let many = row_seconds(simd, dtype, (k, m), 128, &pool);
            println!(
                "{:7} {k:5} x {m:5}: n=1 {:5.1} GB/s ({:5.1} cached), n=128 {:6.1} GOP/s",
                dtype.name(),
                row_bytes as f64 / one / 1e9,
                row_bytes as f64 / cached / 1e9,
                (2 * k * 128) as f64 / many / 1e9,
            );
        }
    }
}
