//! How long may a search go on? Counted in what its own evaluations take of a processor: what else runs on the machine does not change what is found. A
//! large model's, whose evaluations keep all threads busy, by the clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;

/// Seconds that evaluations may take, each thread's counted.
pub(crate) struct Budget {
    most: Duration,
    spent: AtomicU64,
}

impl Budget {
    /// For every thread of the pool `seconds`.
    pub(crate) fn of_each_thread(seconds: f64) -> Budget {
        Budget::of_one_thread(seconds * rayon::current_num_threads() as f64)
    }

    /// For a search that makes one evaluation after another.
    pub(crate) fn of_one_thread(seconds: f64) -> Budget {
        Budget { most: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX), spent: AtomicU64::new(0) }
    }

    /// Does `work`, which stays on this thread, and counts its time.
    pub(crate) fn spend<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = ThreadTime::now();
        let made = work();
        let taken = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.spent.fetch_add(taken, Ordering::Relaxed);
        made
    }

    /// Whether no further evaluation is to be begun.
    pub(crate) fn is_spent(&self) -> bool {
        self.is_spent_by(1.0)
    }

    /// Whether more than a share of it is spent.
    pub(crate) fn is_spent_by(&self, share: f64) -> bool {
        Duration::from_nanos(self.spent.load(Ordering::Relaxed)).as_secs_f64() > share * self.most.as_secs_f64()
    }
}

/// When a search is to end, if it is.
pub(crate) struct Clock(Option<Instant>);

impl Clock {
    /// So many seconds from now; never where there are none to say.
    pub(crate) fn of(seconds: Option<f64>) -> Clock {
        let end = |seconds| Instant::now().checked_add(Duration::try_from_secs_f64(seconds).ok()?);
        Clock(seconds.and_then(end))
    }

    /// Seconds until then: without end where it never is.
    pub(crate) fn left(&self) -> f64 {
        self.0.map_or(f64::INFINITY, |end| end.saturating_duration_since(Instant::now()).as_secs_f64())
    }
}
