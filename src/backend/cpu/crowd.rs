//! How many threads a run gets on a machine that others use too.
//!
//! Threads meet hundreds of times a token. When one has no processor, all wait for it, for
//! a time slice of some milliseconds: two threads beside one busy process on two cores
//! decode at a sixth of what they do alone, one thread at two thirds. So a pool whose
//! threads wait for processors, and for each other, leaves one out, and tries now and then
//! whether there is room again.

use std::time::Duration;

/// Part of all threads' time that may be slept away at barriers while threads wait for
/// processors: beyond it a thread fewer does more.
const MOST_SLEPT: f64 = 0.25;
/// Part of a run that threads together may wait for processors. They sleep for other
/// reasons too: too little work for all, or weights that come from the disk.
const MOST_WAITED: f64 = 0.125;
/// Runs in a row beyond both before a thread is left out: one may be bad luck.
const PATIENCE: u32 = 2;
/// Runs before one more thread is tried again, the first time and at most.
const FIRST_REST: u32 = 16;
const LONGEST_REST: u32 = 1024;

/// How long this thread has been ready to run without a processor, since it began; zero
/// where the system does not say (proc_pid_schedstat(5)).
pub fn waited() -> Duration {
    #[cfg(target_os = "linux")]
    return schedstat::waited().unwrap_or_default();
    #[cfg(not(target_os = "linux"))]
    Duration::ZERO
}

#[cfg(target_os = "linux")]
mod schedstat {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    thread_local! {
        static FILE: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    }

    /// The second of three numbers, nanoseconds.
    pub fn waited() -> Option<Duration> {
        let mut text = [0; 64];
        let n = FILE.with(|file| file.as_ref()?.read_at(&mut text, 0).ok())?;
        let text = std::str::from_utf8(&text[..n]).ok()?;
        let waited = text.split_ascii_whitespace().nth(1)?;
        waited.parse().ok().map(Duration::from_nanos)
    }
}

/// Decides from how much runs sleep and wait.
pub struct Crowd {
    most: usize,
    now: usize,
    /// Runs in a row that slept and waited too much.
    slow: u32,
    /// Runs until one more thread is tried, and what they were at first.
    rest: u32,
    rested: u32,
    /// The last change was one thread more.
    trying: bool,
}

impl Crowd {
    /// For a pool of `most` threads.
    pub fn new(most: usize) -> Crowd {
        Crowd {
            most,
            now: most,
            slow: 0,
            rest: 0,
            rested: FIRST_REST,
            trying: false,
        }
    }

    /// Threads of the next run.
    pub fn n_threads(&self) -> usize {
        self.now
    }

    /// Takes in a run that took `elapsed` and in which all threads together slept at
    /// barriers for `slept` and waited for a processor for `waited`.
    pub fn ran(&mut self, elapsed: Duration, slept: Duration, waited: Duration) {
        let part = |time: Duration| time.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
        if part(slept) > MOST_SLEPT * self.now as f64 && part(waited) > MOST_WAITED {
            self.slow += 1;
            if self.now > 1 && (self.trying || self.slow >= PATIENCE) {
                // A trial that failed is not soon repeated.
                let rested = if self.trying {
                    2 * self.rested
                } else {
                    FIRST_REST
                };
                self.rested = rested.min(LONGEST_REST);
                self.change(self.now - 1, false);
            }
            return;
        }
        if self.trying {
            (self.trying, self.rested, self.rest) = (false, FIRST_REST, FIRST_REST);
        }
        self.slow = 0;
        self.rest = self.rest.saturating_sub(1);
        if self.rest == 0 && self.now < self.most {
            self.change(self.now + 1, true);
        }
    }

    fn change(&mut self, n_threads: usize, trying: bool) {
        (self.now, self.slow, self.trying, self.rest) = (n_threads, 0, trying, self.rested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Duration = Duration::from_millis(10);

    /// Threads of each of so many runs on a machine with `free` processors: more threads
    /// sleep half of their time.
    fn runs(crowd: &mut Crowd, free: usize, n: usize) -> Vec<usize> {
        let run = |_| {
            let used = crowd.n_threads();
            let slept = if used > free {
                RUN * used as u32 / 2
            } else {
                Duration::ZERO
            };
            crowd.ran(RUN, slept, slept / 2);
            used
        };
        (0..n).map(run).collect()
    }

    #[test]
    fn alone_all_threads_run() {
        assert_eq!(runs(&mut Crowd::new(8), 8, 100), vec![8; 100]);
    }

    #[test]
    fn a_busy_machine_gets_fewer_threads_until_there_is_room() {
        let mut crowd = Crowd::new(8);
        assert_eq!(runs(&mut crowd, 6, 5), [8, 8, 7, 7, 6]);
        let busy = runs(&mut crowd, 6, 2000);
        // Trials become rare.
        assert!(busy.iter().filter(|&&n| n > 6).count() < 10);
        assert!(busy.iter().all(|&n| n == 6 || n == 7));
        let room = runs(&mut crowd, 8, 3 * LONGEST_REST as usize);
        assert_eq!(room.last(), Some(&8));
    }

    #[test]
    fn one_slow_run_changes_nothing() {
        let mut crowd = Crowd::new(2);
        crowd.ran(RUN, RUN, RUN);
        assert_eq!(runs(&mut crowd, 2, 3), [2, 2, 2]);
    }

    #[test]
    fn threads_that_only_lack_work_stay() {
        let mut crowd = Crowd::new(64);
        for _ in 0..100 {
            crowd.ran(RUN, RUN * 60, RUN / 20);
        }
        assert_eq!(crowd.n_threads(), 64);
    }

    /// Two threads on one processor, as long as the system says so.
    #[test]
    #[cfg(target_os = "linux")]
    fn waiting_for_a_processor_is_seen() {
        let n_threads = 2 * std::thread::available_parallelism().map_or(2, |n| n.get());
        let wait = || {
            let begun = waited();
            let started = std::time::Instant::now();
            while started.elapsed() < Duration::from_millis(100) {}
            waited() - begun
        };
        let sum: Duration = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(wait)).collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("no panic"))
                .sum()
        });
        let told = std::path::Path::new("/proc/thread-self/schedstat").exists();
        assert!(!told || sum > Duration::from_millis(10), "{sum:?}");
    }

    #[test]
    fn a_thread_is_always_left() {
        assert_eq!(runs(&mut Crowd::new(2), 0, 50).last(), Some(&1));
    }
}
