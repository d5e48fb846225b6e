//! Checks one dump for mistakes that show without a reference and without weights.
//!
//! Every check is a short function that returns findings. None of them is a verdict: a dump without findings may still be wrong everywhere. Tensors are read
//! one at a time, or the two or three that a check needs.

mod attention;
mod buffers;
mod finding;
mod probe;
mod rope;
mod seen;
mod stream;
mod tally;
mod values;

use firstdiff_trace::{Dump, DumpError, Entry, Rows, Site};

pub use attention::FUTURE_ATTENDED;
pub use finding::{Certainty, InspectFinding};

use crate::graph::Place;
use seen::{InspectedDump, TensorRows};
use tally::{Summary, ValueCounts};

/// The findings of a dump, and what could not be checked.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// In the order of the vocabulary, step by step.
    pub findings: Vec<InspectFinding>,
    /// What was not recorded, and so not checked.
    pub unseen: Vec<String>,
    /// How many tensors were read.
    pub taps: usize,
}

impl Inspection {
    /// How many findings are this sure.
    pub fn count(&self, sure: Certainty) -> usize {
        self.findings.iter().filter(|f| f.sure == sure).count()
    }
}

/// Checks every tap of `dump`. `rows` are the token positions it holds, where its dump.json does not say; `progress` gets the number of taps done, and of
/// all.
///
/// # Errors
/// When a tensor cannot be read.
pub fn inspect(
    dump: &Dump,
    rows: Option<&Rows>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Inspection, DumpError> {
    let run = InspectedDump::new(dump, rows);
    let (mut findings, mut known) = (probe::few_tokens(&run), Vec::<Summary>::new());
    let all = dump.entries().len();
    for (at, entry) in dump.entries().iter().enumerate() {
        progress(at, all);
        let tensor = dump.read(entry)?;
        let values = tensor.values();
        let seen = TensorRows::new(&run, entry, &values);
        let tally = ValueCounts::count(&seen);
        findings.extend(values::check(&run, &seen, &tally, &known));
        match entry.tap.site {
            Site::Probs => findings.extend(attention::check(&run, &seen, &tally)?),
            Site::Scores => findings.extend(attention::unmasked_scores(&run, &seen)),
            Site::QRope | Site::KRope => findings.extend(rope::check(&run, &seen)?),
            Site::HAttn | Site::H => findings.extend(stream::sum(&run, &seen)?),
            _ => {}
        }
        known.push(Summary::new(entry, &seen, &tally, &tensor.bytes()));
    }
    progress(all, all);
    let open = dump.open_taps();
    for entry in &open {
        let tensor = dump.read(entry)?;
        let values = tensor.values();
        let seen = TensorRows::new(&run, entry, &values);
        findings.extend(values::check_unknown_axes(&run, &seen, &ValueCounts::count(&seen)));
    }
    findings.extend(stream::check_levels(&known));
    let shared = buffers::find_shared_buffers(&run, &known, &findings);
    findings.extend(shared);
    rope::set_certainty(&mut findings, &run);
    values::only_first_not_finite(&mut findings);
    findings.sort_by_key(|f| f.place);
    Ok(Inspection { findings, unseen: probe::not_recorded(&run), taps: all + open.len() })
}

/// The place of an entry.
fn place_of(entry: &Entry) -> Place {
    Place { step: entry.step, tap: entry.tap }
}

/// How many token positions an entry holds, where its shape is the vocabulary's or has a batch axis of 1 before it.
fn position_count(entry: &Entry) -> Option<usize> {
    let shape = seen::squeezed(entry);
    (shape.len() == entry.tap.site.axes().len()).then(|| shape[entry.tap.site.position_axis()])
}
