//! Defines the reports of `dump` and `import`: what was written.

use serde::Serialize;

use crate::report::{Header, names};

/// The report of `firstdiff dump`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dump {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// The folder that was written.
    pub output: String,
    /// How many taps.
    pub taps: usize,
}

/// The report of `firstdiff import`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Import {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// The folder that was written.
    pub output: String,
    /// The taps in it.
    pub taps: Vec<String>,
    /// Taps that are known in part only, and were left out.
    pub in_part: Vec<String>,
    /// Names that are no taps.
    pub unmapped: Vec<String>,
    /// What had to be assumed.
    pub warnings: Vec<String>,
}

impl Dump {
    pub(crate) fn new(output: &std::path::Path, taps: usize) -> Dump {
        Dump { header: Header::new("dump"), output: output.to_string_lossy().into_owned(), taps }
    }
}

impl Import {
    pub(crate) fn new(output: &std::path::Path, dump: &firstdiff_trace::Dump) -> Import {
        Import {
            header: Header::new("import"),
            output: output.to_string_lossy().into_owned(),
            taps: names(dump.entries().iter().map(|e| e.tap)),
            in_part: names(dump.parts().iter().map(|part| part.tap)),
            unmapped: dump.unmapped().to_vec(),
            warnings: dump.notes().to_vec(),
        }
    }
}
