//! Defines the report of `align`: the taps proposed for tensors of unknown name.

use firstdiff_compare::{Alias, Naming, Proposal};
use serde::Serialize;

use crate::report::Header;

/// The report of `firstdiff align`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Align {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// Names, in the order of their taps.
    pub names: Vec<Proposal>,
    /// Names whose values another name holds too.
    pub aliases: Vec<Alias>,
    /// Names about which nothing is known.
    pub unknown: Vec<String>,
    /// In which form tensors hold the taps, where not as they are.
    pub notes: Vec<String>,
}

impl Align {
    pub(crate) fn new(naming: &Naming) -> Align {
        Align {
            header: Header::new("align"),
            names: naming.proposals.clone(),
            aliases: naming.aliases.clone(),
            unknown: naming.unknown.clone(),
            notes: naming.notes.clone(),
        }
    }
}
