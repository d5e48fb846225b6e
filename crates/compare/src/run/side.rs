//! Names the two runs of a comparison: reference and candidate.

use std::fmt;

/// One of the two dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that is right.
    Reference,
    /// The one that is judged.
    Candidate,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Reference => "reference",
            Side::Candidate => "candidate",
        })
    }
}
