//! Is something still happening? A bar on standard error for dumps that take a moment; a line now and then where nobody sees a bar.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use firstdiff_trace::Dump;
use indicatif::{ProgressBar, ProgressStyle};

/// Dumps below this are done before a bar would be seen.
const LARGE: usize = 64 << 20;

/// Between two lines in a log.
const NOW_AND_THEN: Duration = Duration::from_secs(15);

/// A bar, a line now and then, or nothing.
pub(crate) enum Bar {
    Drawn(ProgressBar),
    Lines(Mutex<Instant>),
    Silent,
}

impl Bar {
    /// A bar for reading `dump`, if it is large and somebody is watching.
    pub(crate) fn new(dump: &Dump) -> Bar {
        let bytes: usize = dump.entries().iter().map(|e| e.shape.iter().product::<usize>() * e.dtype.size()).sum();
        if bytes < LARGE { Bar::Silent } else { Bar::of("comparing {wide_bar} {pos}/{len} taps") }
    }

    /// A bar over tensors, if somebody is watching.
    pub(crate) fn of_tensors() -> Bar {
        Bar::of("comparing {wide_bar} {pos}/{len} tensors")
    }

    /// A bar with words; in a log a line now and then.
    pub(crate) fn told() -> Bar {
        match Bar::of("{msg} {wide_bar} {pos}/{len}") {
            Bar::Silent => Bar::Lines(Mutex::new(Instant::now())),
            bar => bar,
        }
    }

    fn of(template: &str) -> Bar {
        if !std::io::stderr().is_terminal() {
            return Bar::Silent;
        }
        let bar = ProgressBar::new(0);
        ProgressStyle::with_template(template).into_iter().for_each(|style| bar.set_style(style));
        Bar::Drawn(bar)
    }

    /// Says what is done now, and how far it is.
    pub(crate) fn tell(&self, what: &str, done: usize, total: usize) {
        match self {
            Bar::Drawn(bar) => bar.set_message(what.to_owned()),
            Bar::Lines(last) => {
                if let Ok(mut last) = last.lock()
                    && last.elapsed() >= NOW_AND_THEN
                {
                    *last = Instant::now();
                    let _ = writeln!(std::io::stderr(), "firstdiff: {what}: {done} of {total}");
                }
            }
            Bar::Silent => {}
        }
        self.step(done, total);
    }

    pub(crate) fn step(&self, done: usize, total: usize) {
        if let Bar::Drawn(bar) = self {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
    }

    pub(crate) fn finish(self) {
        if let Bar::Drawn(bar) = self {
            bar.finish_and_clear();
        }
    }
}
