//! Defines the report of `align`: the taps proposed for tensors of unknown name.

use firstdiff_compare::{Evidence, Guess, Naming, Proposal};
use serde::Serialize;

use crate::report::Header;

/// The report of `firstdiff align`.
#[derive(Clone, Debug, Serialize)]
pub struct Align {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// Names, in the order of their taps.
    pub names: Vec<Proposed>,
    /// Names whose values another name holds too.
    pub aliases: Vec<Aliased>,
    /// Names about which nothing is known.
    pub unknown: Vec<String>,
    /// In which form tensors hold the taps, where not as they are.
    pub notes: Vec<String>,
}

/// A name that is proposed for a tap.
#[derive(Clone, Debug, Serialize)]
pub struct Proposed {
    /// The name, with `{N}` for the layer where it fits all of them.
    pub name: String,
    /// The tap, with `{N}` in the same way.
    pub tap: String,
    /// Why.
    #[serde(flatten)]
    pub by: Named,
}

/// Why a name is proposed for a tap.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "by", rename_all = "lowercase")]
pub enum Named {
    /// The same values, in any order.
    Content {
        /// NMSE between the sorted values: the worst of the matched tensors.
        nmse: f64,
        /// The second-best tap.
        next: Option<NextTap>,
        /// How many tensors of this name matched.
        matched: usize,
        /// How many there are.
        of: usize,
    },
    /// Only its size.
    Size {
        /// Elements.
        elements: usize,
    },
    /// A guess by the words in the name.
    Words,
    /// A guess by the order of writing.
    Order,
}

/// The second-best tap.
#[derive(Clone, Debug, Serialize)]
pub struct NextTap {
    /// Its name.
    pub tap: String,
    /// NMSE between the sorted values.
    pub nmse: f64,
}

/// A name whose values another name holds too.
#[derive(Clone, Debug, Serialize)]
pub struct Aliased {
    /// The name.
    pub name: String,
    /// The name that was chosen instead.
    pub same_as: String,
}

impl Align {
    pub(crate) fn of(naming: &Naming) -> Align {
        let aliases = naming.aliases.iter();
        Align {
            header: Header::of("align"),
            names: naming.proposals.iter().map(Proposed::of).collect(),
            aliases: aliases.map(|a| Aliased { name: a.name.clone(), same_as: a.same_as.clone() }).collect(),
            unknown: naming.unknown.clone(),
            notes: naming.notes.clone(),
        }
    }
}

impl Proposed {
    fn of(proposal: &Proposal) -> Proposed {
        let by = match &proposal.evidence {
            Evidence::Content { nmse, next, matched: (matched, of) } => Named::Content {
                nmse: *nmse,
                next: next.map(|(tap, nmse)| NextTap { tap: tap.to_string(), nmse }),
                matched: *matched,
                of: *of,
            },
            Evidence::Size { elements } => Named::Size { elements: *elements },
            Evidence::Guess(Guess::Words) => Named::Words,
            Evidence::Guess(Guess::Order) => Named::Order,
        };
        Proposed { name: proposal.name.clone(), tap: proposal.tap.clone(), by }
    }
}
