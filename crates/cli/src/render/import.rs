//! Renders the answer of `import`: what was written, and what was left out.

use std::collections::BTreeSet;
use std::path::Path;

use firstdiff_trace::Dump;

use crate::session::incomplete::Incomplete;
use crate::words::{safe, shorten, taps_in_words, with_suggestion};

/// What was read from `dump` and written to `output`, and what was left out.
pub(crate) fn summary(output: &Path, dump: &Dump) -> String {
    let parts: Vec<String> = dump.parts().iter().map(|part| part.tap.to_string()).collect();
    let steps: BTreeSet<u32> = dump.entries().iter().map(|e| e.step).collect();
    let of_steps = if steps.len() > 1 { format!(" of {} steps", steps.len()) } else { String::new() };
    let mut text = format!("{}{of_steps} written to {}\n", taps_in_words(dump.entries().len()), output.display());
    for note in Incomplete::find_in(&[("the source", dump)], None).notes() {
        text += &format!("note: {note}; what was written says so too\n");
    }
    for note in dump.notes() {
        text += &format!("note: {}\n", safe(note));
    }
    if !parts.is_empty() {
        text += &format!("left out, as known in part only: {}; compare the source itself\n", shorten(&parts, 4));
    }
    if !dump.unmapped().is_empty() {
        let names: Vec<String> = dump.unmapped().iter().map(|n| with_suggestion(n)).collect();
        text += &format!("left out, names that are no taps: {}\n", safe(&shorten(&names, 6)));
        text += "next: name them in a firstdiff.toml (--map), or let `firstdiff align REF SOURCE` propose names by content\n";
    }
    text
}
