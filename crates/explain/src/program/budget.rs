//! Limits how long a search goes on, counted in what its own evaluations take of a processor: what else runs on the machine does not change what is found.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cpu_time::ThreadTime;

/// Seconds that evaluations may take, on each of the threads that make them.
pub(crate) struct Budget {
    most: f64,
    threads: usize,
    /// Nanoseconds of all threads.
    spent: AtomicU64,
}

impl Budget {
    /// For a search that makes so many evaluations at once.
    pub(crate) fn of_threads(threads: usize, seconds: f64) -> Budget {
        Budget { most: seconds, threads: threads.max(1), spent: AtomicU64::new(0) }
    }

    /// Does `work`, which stays on this thread, and counts its time.
    pub(crate) fn spend<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = ThreadTime::now();
        let made = work();
        let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.spent.fetch_add(nanoseconds, Ordering::Relaxed);
        made
    }

    /// Whether no further evaluation is to be begun.
    pub(crate) fn is_spent(&self) -> bool {
        self.is_spent_by(1.0)
    }

    /// Whether evaluations took so many seconds.
    pub(crate) fn has_taken(&self, seconds: f64) -> bool {
        let spent = Duration::from_nanos(self.spent.load(Ordering::Relaxed));
        spent.as_secs_f64() > seconds * self.threads as f64
    }

    /// Whether more than a share of it is spent.
    pub(crate) fn is_spent_by(&self, share: f64) -> bool {
        self.has_taken(share * self.most)
    }
}
