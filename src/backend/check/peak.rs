//! What the memory of this machine gives, as figures of ops are held to.

use crate::backend::cpu::pool::{Pool, Worker};
use crate::error::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes that are copied, and read: beyond the caches of most processors.
const BYTES: usize = 256 << 20;
const REPEATS: usize = 5;

/// Bytes per second that `n_threads` threads read, or copy (read and written), whichever
/// is more: some ops only read. The best of some.
///
/// # Errors
/// A thread cannot be started.
pub fn cpu_bandwidth(n_threads: usize) -> Result<f64> {
    let words = BYTES / 8;
    // Written once, so that the pages are there.
    let src: Vec<u64> = (0..words as u64).collect();
    let mut dst = vec![1u64; words / 2];
    let piece = words.div_ceil(n_threads.max(1));
    let mut best = read_bandwidth(&src, n_threads)?;
    for _ in 0..REPEATS {
        // Half of the words, read and written.
        let copied = bytes_per_second(BYTES, || {
            std::thread::scope(|scope| {
                let parts = dst.chunks_mut(piece.div_ceil(2));
                for (to, from) in parts.zip(src.chunks(piece.div_ceil(2))) {
                    scope.spawn(|| to.copy_from_slice(&from[..to.len()]));
                }
            });
        });
        std::hint::black_box(&mut dst);
        best = best.max(copied);
    }
    Ok(best)
}

/// Bytes per second that `n_threads` threads read: what decoding, which reads every
/// weight once a token, is held to.
///
/// # Errors
/// A thread cannot be started.
pub fn cpu_read_bandwidth(n_threads: usize) -> Result<f64> {
    read_bandwidth(&(0..(BYTES / 8) as u64).collect::<Vec<_>>(), n_threads)
}

/// The best of some, by threads that wait as those that run graphs do.
fn read_bandwidth(words: &[u64], n_threads: usize) -> Result<f64> {
    let mut pool = Pool::new(n_threads)?;
    let total = AtomicU64::new(0);
    let mut best = 0.0f64;
    for _ in 0..REPEATS {
        let read = bytes_per_second(8 * words.len(), || {
            pool.run(&|worker: &Worker<'_>| {
                // Whole cache lines.
                let share = worker.share(words.len(), 8);
                total.fetch_add(sum(&words[share]), Ordering::Relaxed);
            });
        });
        best = best.max(read);
    }
    std::hint::black_box(total);
    Ok(best)
}

/// The sum over eight lanes, which the compiler turns into vectors.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 8];
    for eight in words.chunks_exact(8) {
        for (lane, word) in lanes.iter_mut().zip(eight) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

fn bytes_per_second(bytes: usize, work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    bytes as f64 / started.elapsed().as_secs_f64().max(1e-9)
}
