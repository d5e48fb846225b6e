//! Shows progress: a bar on standard error for dumps that take a moment, or a line now and then where no terminal shows a bar.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use firstdiff_trace::Dump;
use indicatif::{ProgressBar, ProgressStyle};

/// Smaller dumps are done before a bar would be seen.
const LARGE: usize = 64 << 20;

/// The time between two lines in a log.
const NOW_AND_THEN: Duration = Duration::from_secs(15);

/// A bar, a line now and then, or nothing.
pub(crate) enum Bar {
    Drawn(ProgressBar),
    Lines(Mutex<Pace>),
    Silent,
}

/// The speed of the current task.
pub(crate) struct Pace {
    what: String,
    since: Instant,
    /// How much was done at that time.
    from: usize,
    /// When the last line was printed.
    last: Instant,
}

impl Pace {
    fn new() -> Pace {
        Pace { what: String::new(), since: Instant::now(), from: 0, last: Instant::now() }
    }

    /// A line with the task, how far it is, and how long the rest takes at this speed; `None` where the last line was a moment ago.
    fn line(&mut self, now: Instant, what: &str, done: usize, total: Option<usize>) -> Option<String> {
        if self.what != what || done < self.from {
            (self.what, self.since, self.from) = (what.to_owned(), now, done);
        }
        if now - self.last < NOW_AND_THEN {
            return None;
        }
        self.last = now;
        let done_here = (done - self.from) as f64;
        let left = |total: usize| (now - self.since).as_secs_f64() / done_here * total.saturating_sub(done) as f64;
        let left_in_words = total.map(left).filter(|left| *left > 0.0 && left.is_finite());
        let left_in_words = left_in_words.map_or(String::new(), |left| format!(", about {left:.0} s left"));
        let of_total = total.filter(|total| done <= *total).map_or(String::new(), |total| format!(" of {total}"));
        Some(format!("{what}: {done}{of_total}{left_in_words}"))
    }
}

impl Bar {
    /// A bar for reading `dump`, if it is large and there is a terminal.
    pub(crate) fn new(dump: &Dump) -> Bar {
        let bytes: usize = dump.entries().iter().map(|e| e.shape.iter().product::<usize>() * e.dtype.size()).sum();
        if bytes < LARGE { Bar::Silent } else { Bar::with_template("reading {wide_bar} {pos}/{len} taps, {eta} left") }
    }

    /// A bar over tensors, if there is a terminal.
    pub(crate) fn of_tensors() -> Bar {
        Bar::with_template("comparing {wide_bar} {pos}/{len} tensors, {eta} left")
    }

    /// A bar with words; in a log, a line now and then.
    pub(crate) fn with_text() -> Bar {
        match Bar::with_template("{msg} {wide_bar} {pos}/{len}, {eta} left") {
            Bar::Silent => Bar::Lines(Mutex::new(Pace::new())),
            bar => bar,
        }
    }

    fn with_template(template: &str) -> Bar {
        if !std::io::stderr().is_terminal() {
            return Bar::Silent;
        }
        let bar = ProgressBar::new(0);
        ProgressStyle::with_template(template).into_iter().for_each(|style| bar.set_style(style));
        Bar::Drawn(bar)
    }

    /// Shows the task, how far it is, and how long the rest takes where `total` is known.
    pub(crate) fn update(&self, what: &str, done: usize, total: Option<usize>) {
        match self {
            Bar::Drawn(bar) if bar.message() != what => {
                bar.set_message(what.to_owned());
                bar.reset_eta();
            }
            Bar::Lines(pace) => {
                let line = pace.lock().ok().and_then(|mut pace| pace.line(Instant::now(), what, done, total));
                if let Some(line) = line {
                    let _ = writeln!(std::io::stderr(), "firstdiff: {line}");
                }
            }
            Bar::Drawn(_) | Bar::Silent => {}
        }
        match (self, total) {
            (Bar::Drawn(bar), None) => {
                bar.unset_length();
                bar.set_position(done as u64);
            }
            (_, total) => self.step(done, total.unwrap_or(done)),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_of_what_is_done_now() {
        let mut pace = Pace::new();
        let start = pace.since;
        let mut line = |seconds: u64, what: &str, done: usize| {
            pace.line(start + Duration::from_secs(seconds), what, done, Some(100))
        };
        assert_eq!(line(10, "reading", 50), None);
        assert_eq!(line(16, "trying", 0).as_deref(), Some("trying: 0 of 100"));
        assert_eq!(line(20, "trying", 10), None);
        assert_eq!(line(36, "trying", 20).as_deref(), Some("trying: 20 of 100, about 80 s left"));
    }
}
