//! Defines a finding of one check: where, what, how sure, in words and in numbers.

use firstdiff_trace::Tap;

use crate::graph::Place;

/// How sure a finding is, most certain first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// No right engine of any architecture does this; or, where the dump names its architecture, no right engine of that one.
    Certain,
    /// Most right engines do not do this.
    Likely,
    /// Worth knowing.
    Note,
}

impl Certainty {
    /// `certain`, `likely` or `note`.
    pub fn name(self) -> &'static str {
        match self {
            Certainty::Certain => "certain",
            Certainty::Likely => "likely",
            Certainty::Note => "note",
        }
    }
}

/// Something noticed in a single dump.
#[derive(Clone, Debug)]
pub struct InspectFinding {
    /// How sure it is.
    pub sure: Certainty,
    /// A short name of the kind of finding: `not-finite`, `future-attended` ...
    pub what: &'static str,
    /// The tap it was seen in; for a whole run, its first tap.
    pub place: Place,
    /// Other taps concerned.
    pub others: Vec<Tap>,
    /// What was seen, in words and numbers.
    pub detail: String,
    /// The kind of mistake that causes this.
    pub points_to: &'static str,
    /// The numbers by name.
    pub numbers: Vec<(&'static str, f64)>,
}

impl InspectFinding {
    pub(super) fn new(sure: Certainty, what: &'static str, place: Place, detail: impl Into<String>) -> InspectFinding {
        let detail = detail.into();
        InspectFinding { sure, what, place, others: Vec::new(), detail, points_to: "", numbers: Vec::new() }
    }

    pub(super) fn to(mut self, points_to: &'static str) -> InspectFinding {
        self.points_to = points_to;
        self
    }

    pub(super) fn with_others(mut self, others: impl IntoIterator<Item = Tap>) -> InspectFinding {
        self.others.extend(others);
        self
    }

    pub(super) fn number(mut self, name: &'static str, value: f64) -> InspectFinding {
        self.numbers.push((name, value));
        self
    }
}
