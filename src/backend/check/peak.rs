//! What the memory of this machine gives, as figures of ops are held to.

use crate::backend::cpu::pool::{Pool, Worker};
use crate::error::{Error, Result};
use memmap2::{MmapMut, MmapOptions};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes that are copied, and read: beyond the caches of most processors.
const BYTES: usize = 256 << 20;
const REPEATS: usize = 5;
/// An odd number, of which one is in the middle.
const READS: usize = 25;
/// Places that a thread reads from side by side: a processor follows several streams, and
/// has more under way than with one (34 and 46 GB/s on two Zen 4 cores).
const STREAMS: usize = 4;

/// Bytes per second that `n_threads` threads read, or copy (read and written), whichever
/// is more: some ops only read. The best of some copies.
///
/// # Errors
/// A thread cannot be started.
pub fn cpu_bandwidth(n_threads: usize) -> Result<f64> {
    let words = BYTES / 8;
    let src = Words::new()?;
    let src = src.get();
    let mut dst = vec![[1u8; 8]; words / 2];
    let piece = words.div_ceil(n_threads.max(1));
    let mut best = read_bandwidth(src, n_threads)?;
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
    read_bandwidth(Words::new()?.get(), n_threads)
}

/// As many bytes as are read, in large pages where the system gives some: a file's pages
/// lie together in its cache, and small ones would time the look-up of addresses.
struct Words(MmapMut);

impl Words {
    fn new() -> Result<Words> {
        let map = MmapOptions::new().len(BYTES).map_anon();
        let mut map = map.map_err(|e| Error::io("memory to measure its speed", e))?;
        // Small pages do as well where there are no others.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        // Written once, so that the pages are there.
        for (i, word) in map.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (i as u64).to_ne_bytes();
        }
        Ok(Words(map))
    }

    /// Eight bytes each.
    fn get(&self) -> &[[u8; 8]] {
        self.0.as_chunks().0
    }
}

/// The median of some, as times of tests are, by threads that wait as those that run graphs
/// do: on a shared machine the best of many short reads is what no longer one gets.
fn read_bandwidth(words: &[[u8; 8]], n_threads: usize) -> Result<f64> {
    let mut pool = Pool::new(n_threads)?;
    let total = AtomicU64::new(0);
    let mut reads = [0.0f64; READS];
    for read in &mut reads {
        *read = bytes_per_second(8 * words.len(), || {
            pool.run(&|worker: &Worker<'_>| {
                // Whole cache lines.
                let share = worker.share(words.len(), 8);
                total.fetch_add(sum(&words[share]), Ordering::Relaxed);
            });
        });
    }
    std::hint::black_box(total);
    reads.sort_by(f64::total_cmp);
    Ok(reads[READS / 2])
}

/// The sum over the words of several streams, cache line by cache line, in eight lanes,
/// which the compiler turns into vectors.
fn sum(words: &[[u8; 8]]) -> u64 {
    let lines = words.as_chunks::<8>().0;
    let each = lines.len() / STREAMS;
    let mut lanes = [0u64; 8];
    for at in 0..each {
        for i in 0..STREAMS {
            let line = &lines[i * each + at];
            for l in 0..8 {
                lanes[l] = lanes[l].wrapping_add(u64::from_ne_bytes(line[l]));
            }
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

fn bytes_per_second(bytes: usize, work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    bytes as f64 / started.elapsed().as_secs_f64().max(1e-9)
}
