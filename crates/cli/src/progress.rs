//! Is something still happening? A bar on standard error for dumps that take a moment, on a terminal only.

use std::io::IsTerminal;

use firstdiff_trace::Dump;
use indicatif::{ProgressBar, ProgressStyle};

/// Dumps below this are done before a bar would be seen.
const LARGE: usize = 64 << 20;

/// A bar, or nothing.
pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar for reading `dump`, if it is large and somebody is watching.
    pub(crate) fn new(dump: &Dump) -> Bar {
        let bytes: usize = dump.entries().iter().map(|e| e.shape.iter().product::<usize>() * e.dtype.size()).sum();
        if bytes < LARGE { Bar(None) } else { Bar::of("comparing {wide_bar} {pos}/{len} taps") }
    }

    /// A bar over tensors, if somebody is watching.
    pub(crate) fn of_tensors() -> Bar {
        Bar::of("comparing {wide_bar} {pos}/{len} tensors")
    }

    /// A bar with words, if somebody is watching.
    pub(crate) fn told() -> Bar {
        Bar::of("{msg} {wide_bar} {pos}/{len}")
    }

    fn of(template: &str) -> Bar {
        Bar(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            ProgressStyle::with_template(template).into_iter().for_each(|style| bar.set_style(style));
            bar
        }))
    }

    /// Says what is done now, and how far it is.
    pub(crate) fn tell(&self, what: &str, done: usize, total: usize) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_owned());
        }
        self.step(done, total);
    }

    pub(crate) fn step(&self, done: usize, total: usize) {
        if let Some(bar) = &self.0 {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
    }

    pub(crate) fn finish(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
        }
    }
}
