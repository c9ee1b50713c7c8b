//! The one thread pool that runs every graph.
//!
//! A run is one parallel region: all threads walk the nodes of the graph and
//! meet at barriers. Waiting spins for a bounded time, so that a step between
//! two nodes costs well under a microsecond, and then sleeps, so that an idle
//! or oversubscribed machine is left alone. Where threads wait for processors,
//! runs get fewer of them.

use super::crowd::{self, Crowd};
use crate::error::{Error, Result};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Turns of `spin_loop` before a waiting thread sleeps: a turn is 40 to 140
/// cycles, so this is 0.1 to 0.3 ms, longer than any gap between two nodes and
/// the usual gap (sampling, printing) between two decode steps.
const SPINS: u32 = 5_000;

/// A value that threads can wait on: spin first, then sleep.
#[derive(Default)]
struct Gate {
    value: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    fn get(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// Sets a value that has not been there, and wakes whoever sleeps.
    fn set(&self, value: u64) {
        self.value.store(value, Ordering::SeqCst);
        // A sleeper counts itself before it looks at the value a last time, so
        // either it sees the new value or this load sees the sleeper.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }

    /// Waits until the value differs from `old`, at first for `spins` turns. Gives how
    /// long it slept.
    fn wait(&self, old: u64, spins: u32) -> Duration {
        for _ in 0..spins {
            if self.value.load(Ordering::Acquire) != old {
                return Duration::ZERO;
            }
            std::hint::spin_loop();
        }
        let asleep = Instant::now();
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.get() == old {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        asleep.elapsed()
    }
}

/// What numbers of jobs count in: more than there are threads.
const RUNS: u64 = 1 << 16;

type Job = *const (dyn Fn(&Worker<'_>) + Sync);

struct Shared {
    n_threads: usize,
    /// The number of the job that has started last, times [`RUNS`], and of its threads.
    start: Gate,
    /// Barriers that all threads have arrived at.
    barrier: Gate,
    arrived: AtomicUsize,
    /// Nanoseconds that threads slept at barriers, and waited for a processor.
    slept: AtomicU64,
    waited: AtomicU64,
    stop: AtomicBool,
    job: UnsafeCell<Option<Job>>,
}

// SAFETY: `job` is written only by the owner between two runs, while no worker
// reads it: those of a run read it after `start` has named them and before the final
// barrier, which waits for them.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed while `Pool::run` is on the stack.
unsafe impl Send for Shared {}

/// One thread's view of a run.
pub struct Worker<'a> {
    /// Number of this thread, from 0.
    pub ith: usize,
    /// Number of threads of this run.
    pub nth: usize,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// Waits until every thread has come here.
    pub fn barrier(&self) {
        let slept = self.meet().as_nanos() as u64;
        if slept > 0 {
            self.shared.slept.fetch_add(slept, Ordering::Relaxed);
        }
    }

    /// A barrier that gives how long the thread slept at it.
    fn meet(&self) -> Duration {
        if self.nth == 1 {
            return Duration::ZERO;
        }
        let turn = self.shared.barrier.get();
        if self.shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.nth {
            self.shared.arrived.store(0, Ordering::Relaxed);
            self.shared.barrier.set(turn + 1);
            Duration::ZERO
        } else {
            self.shared.barrier.wait(turn, SPINS)
        }
    }

    /// This thread's share of `n` pieces, in whole multiples of `step`.
    pub fn share(&self, n: usize, step: usize) -> std::ops::Range<usize> {
        let blocks = n.div_ceil(step);
        let cut = |i: usize| (blocks * i / self.nth * step).min(n);
        cut(self.ith)..cut(self.ith + 1)
    }
}

/// Ends the process when a job panics: the other threads would wait for ever
/// at the next barrier. A panic in a job is a bug of ours, never bad input.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// A fixed set of threads; the caller of [`Pool::run`] is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    crowd: Crowd,
}

impl Pool {
    /// Starts `n_threads - 1` threads (at least one thread in all).
    pub fn new(n_threads: usize) -> Result<Pool> {
        let shared = Arc::new(Shared {
            n_threads: n_threads.clamp(1, RUNS as usize - 1),
            start: Gate::default(),
            barrier: Gate::default(),
            arrived: AtomicUsize::new(0),
            slept: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            job: UnsafeCell::new(None),
        });
        let mut pool = Pool {
            crowd: Crowd::new(shared.n_threads),
            shared,
            workers: Vec::new(),
        };
        for ith in 1..pool.shared.n_threads {
            let shared = pool.shared.clone();
            let worker = std::thread::Builder::new()
                .name(format!("cpu-{ith}"))
                .spawn(move || work(&shared, ith))
                .map_err(|e| Error::io("starting a compute thread; lower -t", e))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads, the caller's included; a run has no more, and fewer on a busy machine.
    pub fn n_threads(&self) -> usize {
        self.shared.n_threads
    }

    /// Runs `job` on threads as many as the machine has room for, and waits for them.
    /// `&mut` keeps runs apart.
    pub fn run(&mut self, job: &(dyn Fn(&Worker<'_>) + Sync)) {
        let started = Instant::now();
        let nth = self.crowd.n_threads();
        // SAFETY: the lifetime is dropped from the type only; the final barrier
        // below keeps `job` alive until no worker can use it any more.
        let erased: Job =
            unsafe { std::mem::transmute::<*const (dyn Fn(&Worker<'_>) + Sync + '_), Job>(job) };
        // SAFETY: no run is under way (`&mut self`), so no worker reads `job`.
        unsafe { *self.shared.job.get() = Some(erased) };
        self.start(nth);
        run_job(&self.shared, (0, nth), job);
        let taken = |sum: &AtomicU64| Duration::from_nanos(sum.swap(0, Ordering::Relaxed));
        let (slept, waited) = (taken(&self.shared.slept), taken(&self.shared.waited));
        self.crowd.ran(started.elapsed(), slept, waited);
        let next = self.crowd.n_threads();
        if next != nth {
            tracing::debug!("{next} threads for {nth}: others use the machine too, or no more");
        }
    }

    fn start(&self, nth: usize) {
        let number = self.shared.start.get() / RUNS + 1;
        self.shared.start.set(number * RUNS + nth as u64);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.start(0);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

fn run_job(shared: &Shared, (ith, nth): (usize, usize), job: &(dyn Fn(&Worker<'_>) + Sync)) {
    let _guard = AbortOnPanic;
    let worker = Worker { ith, nth, shared };
    let before = (nth > 1).then(crowd::waited);
    job(&worker);
    if let Some(before) = before {
        let waited = crowd::waited().saturating_sub(before).as_nanos() as u64;
        shared.waited.fetch_add(waited, Ordering::Relaxed);
    }
    // What is slept here would be counted too late.
    worker.meet();
}

fn work(shared: &Shared, ith: usize) {
    let (mut seen, mut spins) = (0, SPINS);
    loop {
        shared.start.wait(seen, spins);
        // The current run, as runs without this thread do not wait for it.
        seen = shared.start.get();
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let nth = (seen % RUNS) as usize;
        // A thread that is left out leaves its processor alone.
        spins = if ith < nth { SPINS } else { 0 };
        if ith >= nth {
            continue;
        }
        // SAFETY: `start` names this thread, so the owner has written `job` and will
        // not touch it before this thread has passed the final barrier.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: `Pool::run` keeps the closure alive until that barrier.
            run_job(shared, (ith, nth), unsafe { &*job });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_sees_what_the_others_wrote_before_the_barrier() {
        let mut pool = Pool::new(4).expect("threads");
        let cells: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        for round in 1..200 {
            pool.run(&|w: &Worker<'_>| {
                cells[w.ith].store(round, Ordering::Relaxed);
                w.barrier();
                let cells = cells[..w.nth].iter();
                let sum: usize = cells.map(|c| c.load(Ordering::Relaxed)).sum();
                assert_eq!(sum, w.nth * round);
                w.barrier();
            });
        }
    }

    #[test]
    fn sleeping_threads_wake_up() {
        let mut pool = Pool::new(3).expect("threads");
        // As many runs as do not yet take the machine for a busy one.
        for _ in 0..2 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let hits = AtomicUsize::new(0);
            pool.run(&|w: &Worker<'_>| {
                if w.ith == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                w.barrier();
                hits.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(hits.load(Ordering::Relaxed), 3);
        }
    }

    /// Twice as many threads as processors, and two more that never rest: whoever waits
    /// must leave its processor to those it waits for.
    #[test]
    fn a_crowded_machine_does_not_hold_up_barriers() {
        let n_cpus = std::thread::available_parallelism().map_or(2, |n| n.get());
        let mut pool = Pool::new(2 * n_cpus).expect("threads");
        let (done, steps) = (AtomicBool::new(false), AtomicUsize::new(0));
        let all_steps = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            for _ in 0..20 {
                pool.run(&|w: &Worker<'_>| {
                    for _ in 0..5 {
                        w.barrier();
                    }
                    steps.fetch_add(1, Ordering::Relaxed);
                    if w.ith == 0 {
                        all_steps.fetch_add(w.nth, Ordering::Relaxed);
                    }
                });
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(steps.into_inner(), all_steps.into_inner());
    }

    /// More threads than processors wait for those, and for each other.
    #[test]
    #[cfg(target_os = "linux")]
    fn threads_without_a_processor_are_left_out() {
        let n_cpus = std::thread::available_parallelism().map_or(2, |n| n.get());
        let mut pool = Pool::new(2 * n_cpus).expect("threads");
        let mut run = || {
            let used = AtomicUsize::new(0);
            pool.run(&|w: &Worker<'_>| {
                used.store(w.nth, Ordering::Relaxed);
                for _ in 0..5 {
                    let started = Instant::now();
                    while started.elapsed() < Duration::from_millis(2) {}
                    w.barrier();
                }
            });
            used.into_inner()
        };
        let told = std::path::Path::new("/proc/thread-self/schedstat").exists();
        assert!(!told || (0..100).any(|_| run() < 2 * n_cpus));
    }

    #[test]
    fn shares_cover_everything_once() {
        let mut pool = Pool::new(3).expect("threads");
        let seen: Vec<AtomicUsize> = (0..101).map(|_| AtomicUsize::new(0)).collect();
        pool.run(&|w: &Worker<'_>| {
            for i in w.share(101, 16) {
                seen[i].fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
    }
}
