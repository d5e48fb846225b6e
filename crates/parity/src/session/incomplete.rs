//! Limits the verdict on recordings that were not finished: they may have diverged, but are at parity only in what is there, and only if that was requested.

use firstdiff_compare::Verdict;
use firstdiff_trace::Dump;

use crate::words::safe;

/// The recordings of a judgement that were not finished.
#[derive(Debug, Default)]
pub struct Incomplete(Vec<String>);

impl Incomplete {
    /// The unfinished ones of these dumps, each given with its name (`the candidate`); `all` is how many taps a complete one would have, if that is known.
    pub fn find_in(dumps: &[(&str, &Dump)], all: Option<usize>) -> Incomplete {
        let torn = dumps.iter().filter(|(_, dump)| dump.meta().is_incomplete());
        Incomplete(torn.map(|(who, dump)| describe(who, dump, all)).collect())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A sentence for each: what it is, and what it holds.
    pub fn notes(&self) -> impl Iterator<Item = &String> {
        self.0.iter()
    }

    /// The verdict that remains of one on what is there. `partial`: parity of what is there was requested.
    pub fn verdict(&self, found: Verdict, partial: bool) -> Verdict {
        match found {
            Verdict::Parity if !self.is_empty() && !partial => Verdict::Incomparable(self.why_no_parity()),
            found => found,
        }
    }

    /// Why agreement of what is there is not called parity.
    pub fn why_no_parity(&self) -> String {
        format!(
            "{}; nothing wrong was found in what is there: record it again, or judge that alone by --partial",
            self.0.join("; ")
        )
    }

    /// The end of a line that reports parity.
    pub fn suffix(dumps: &[(&str, &Dump)]) -> String {
        let torn = dumps.iter().filter(|(_, dump)| dump.meta().is_incomplete());
        torn.map(|(who, _)| format!("; {who}'s recording is not complete")).collect()
    }
}

/// `the candidate's recording is not complete ..: 10 of 156 taps are there, the last layers.0.probs`.
fn describe(who: &str, dump: &Dump, all: Option<usize>) -> String {
    let count = dump.entries().len() + dump.parts().len();
    let of_all = all.filter(|&all| all > count).map_or(String::new(), |all| format!(" of {all}"));
    let there = match (count, dump.entries().last()) {
        (1, _) => format!("1{of_all} tap is there"),
        (_, Some(last)) => {
            let step = if last.step > 0 { format!(" (step {})", last.step) } else { String::new() };
            format!("{count}{of_all} taps are there, the last {}{step}", last.tap)
        }
        (_, None) => format!("{count}{of_all} taps are there"),
    };
    let how = match dump.meta().ended_by_itself {
        Some(true) => "the program ended without finish()",
        _ => "it was killed, failed, or still runs",
    };
    let path = safe(&dump.path().to_string_lossy());
    format!("{who}'s recording is not complete (\"complete\": false in {path}: {how}): {there}")
}
