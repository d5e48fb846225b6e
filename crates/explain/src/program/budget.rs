//! Limits how long a search goes on, counted in what its own evaluations take of a processor: what else runs on the machine does not change what is found.

use std::cell::Cell;
use std::time::Duration;

use cpu_time::ThreadTime;

/// Seconds that evaluations may take.
pub(crate) struct Budget {
    most: Duration,
    spent: Cell<Duration>,
}

impl Budget {
    /// For a search that makes one evaluation after another.
    pub(crate) fn of_one_thread(seconds: f64) -> Budget {
        Budget { most: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX), spent: Cell::default() }
    }

    /// Does `work`, which stays on this thread, and counts its time.
    pub(crate) fn spend<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = ThreadTime::now();
        let made = work();
        self.spent.set(self.spent.get() + begun.elapsed());
        made
    }

    /// Whether no further evaluation is to be begun.
    pub(crate) fn is_spent(&self) -> bool {
        self.is_spent_by(1.0)
    }

    /// Whether evaluations took so many seconds.
    pub(crate) fn has_taken(&self, seconds: f64) -> bool {
        self.spent.get().as_secs_f64() > seconds
    }

    /// Whether more than a share of it is spent.
    pub(crate) fn is_spent_by(&self, share: f64) -> bool {
        self.spent.get().as_secs_f64() > share * self.most.as_secs_f64()
    }
}
