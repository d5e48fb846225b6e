//! Lists why a tap is wrong on its own inputs, or why nothing is said of it. Reasons are data; their words stand here.

use std::fmt;

use firstdiff_compare::{Difference, Layout, TokenEdits, number};
use firstdiff_model::Profile;
use firstdiff_trace::Tap;

/// Why a tap is wrong, or why nothing is said of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// It is not what comes out of the candidate's own inputs.
    Differs(Difference),
    /// The same, while the other products are off as another arithmetic makes them.
    DiffersAlone(Difference),
    /// Its error is in one place.
    InOnePlace(InOnePlace),
    /// Right where the model has values, and wrong in what is beside them.
    Padding(String),
    /// As small as rounding, and not the right numbers.
    Unclear {
        /// NMSE against the right value.
        nmse: f64,
        /// The arithmetic.
        profile: Profile,
        /// NMSE that rounding costs in it.
        rounding: f64,
    },
    /// It is of other tokens than were told.
    OtherTokens(TokenEdits),
    /// It was not recorded.
    NotRecorded,
    /// It holds some positions only.
    Partial,
    /// What it reads cannot be used.
    Input {
        /// The tap that it reads.
        tap: Tap,
        /// What is wrong with that.
        why: UnfitInput,
    },
    /// It comes out in another layout than it was recorded in, which may be the mistake: nothing shows that it is the dump's own.
    LayoutUnconfirmed(Layout),
    /// The token of a step is not known.
    NoTokenOfStep(u32),
    /// It cannot be held against what comes out of its inputs; why, in words.
    NotEvaluated(String),
    /// An operation before it could not be carried out, and the reference's own value does not tell either; why, in words.
    NotComputed(String),
    /// It is not the reference's own value, though what it reads is; why nothing else is known of what is due.
    NotTheReferences(String),
    /// It has another shape than the recorded program gives it.
    OtherExtent,
    /// It reads rows that were sorted by their expert, and in which order the candidate has them nothing tells.
    OrderUnknown,
    /// Other whole numbers than are due, of which nobody says what they choose among.
    OtherNumbers,
    /// It holds something else than the numbers of what is chosen, or one of them twice.
    NoChoice {
        /// The first such row.
        row: usize,
    },
    /// Another number of experts for each token.
    OtherCount {
        /// How many it chooses.
        own: usize,
        /// How many the reference chooses.
        due: usize,
    },
    /// The program of the reference has no such tap.
    NotOfTheProgram {
        /// Whether the reference recorded it.
        is_of_reference: bool,
    },
    /// Other choices than the values before it make, where those leave none.
    OtherChoice {
        /// The row that chooses otherwise.
        row: usize,
        /// By how much what it chose is below what it should have, as a share of the largest value.
        margin: f64,
    },
}

impl Reason {
    /// Whether it was not recorded at all.
    pub fn is_absent(&self) -> bool {
        matches!(self, Reason::NotRecorded)
    }

    /// Whether the candidate alone has it, and nothing is due there.
    pub fn is_beside_the_reference(&self) -> bool {
        matches!(self, Reason::NotOfTheProgram { is_of_reference: false })
    }

    /// Whether neither the program nor the reference's own value tells what is due.
    pub fn is_not_computed(&self) -> bool {
        matches!(self, Reason::NotComputed(_))
    }

    /// Whether the reference's own value is all that it was held against.
    pub fn is_of_the_reference(&self) -> bool {
        matches!(self, Reason::NotTheReferences(_))
    }

    /// Whether nobody can tell rounding from a fault.
    pub fn is_unclear(&self) -> bool {
        matches!(self, Reason::Unclear { .. })
    }

    /// Whether the size of the error says all that the words do.
    pub fn is_size_alone(&self) -> bool {
        matches!(self, Reason::Differs(Difference::Nmse { .. } | Difference::Balanced { .. }))
    }
}

/// What the right value is called in [`Difference::words`].
const RIGHT: &str = "the right value";

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Differs(difference) => f.write_str(&difference.words(RIGHT)),
            Reason::DiffersAlone(difference) => {
                write!(f, "{}; the other products are off without structure", difference.words(RIGHT))
            }
            Reason::InOnePlace(place) => place.fmt(f),
            Reason::Padding(what) => write!(f, "right where the model has values, but {what}"),
            Reason::Unclear { nmse, profile, rounding } => {
                let (nmse, rounding) = (number(*nmse), number(*rounding));
                write!(f, "inconclusive: NMSE {nmse}, where {} rounding costs {rounding}", profile.name())
            }
            Reason::NotRecorded => f.write_str("not recorded"),
            Reason::Partial => f.write_str("holds some positions only"),
            Reason::Input { tap, why } => write!(f, "{tap}, which it reads, {why}"),
            Reason::LayoutUnconfirmed(layout) => {
                write!(f, "comes out only if {}; nothing that reads it confirms that", layout.words("model"))
            }
            Reason::NoTokenOfStep(step) => write!(f, "no token is known for step {step}"),
            Reason::OtherTokens(edits) => write!(f, "it is of other tokens: the candidate was fed {edits}"),
            Reason::NotEvaluated(why) | Reason::NotComputed(why) => f.write_str(why),
            Reason::NotTheReferences(why) => {
                write!(f, "not the reference's own value, though what it reads is; it cannot be computed: {why}")
            }
            Reason::OtherExtent => f.write_str("has another shape than the recorded program gives it"),
            Reason::OrderUnknown => f.write_str(
                "reads rows that were sorted by their expert, and nothing tells in which order they were recorded",
            ),
            Reason::OtherNumbers => f.write_str("holds other whole numbers, and what they choose among is not known"),
            Reason::NoChoice { row } => {
                write!(f, "row {row} holds what is no number of any that can be chosen, or one of them twice")
            }
            Reason::OtherCount { own, due } => {
                write!(f, "it chooses {own} of the experts for each token where the reference chooses {due}")
            }
            Reason::NotOfTheProgram { is_of_reference: true } => f.write_str("not in the program of the reference"),
            Reason::NotOfTheProgram { is_of_reference: false } => f.write_str("not in the reference"),
            Reason::OtherChoice { row, margin } => write!(
                f,
                "row {row} chooses others: what it takes is {} of the largest value below what it leaves",
                number(*margin)
            ),
        }
    }
}

/// Why what an operation reads cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfitInput {
    /// Only some of its positions are known.
    #[error("holds some positions only")]
    Partial,
    /// Nothing right can come out of it.
    #[error("holds NaN, infinities, or rows without a key")]
    NotFinite,
    /// Keys of padding are part of it, which are not compared.
    #[error("takes up keys of padding that are not masked")]
    Padding,
}

/// An error in one place, where rounding is everywhere. Places are along all axes of the tap.
#[derive(Clone, Debug, PartialEq)]
pub enum InOnePlace {
    /// A probability where there is none.
    Leak {
        /// The element.
        at: Vec<usize>,
        /// The probability.
        probability: f64,
    },
    /// One element is off.
    Element {
        /// The element.
        at: Vec<usize>,
        /// So many times what rounding costs there.
        times: f64,
    },
    /// One row has a factor.
    RowFactor {
        /// The row.
        row: Vec<usize>,
        /// Its factor.
        factor: f64,
    },
    /// The probabilities of one row do not add up to 1.
    RowSum {
        /// The row.
        row: Vec<usize>,
        /// What they add up to.
        sum: f64,
    },
    /// One element holds most of its row's error.
    MostOfItsRow {
        /// The element.
        at: Vec<usize>,
    },
}

impl fmt::Display for InOnePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InOnePlace::Leak { at, probability } => {
                write!(f, "element {at:?} is {probability:.1e} where the probability is 0: a masked key takes part")
            }
            InOnePlace::Element { at, times } => {
                write!(f, "element {at:?} is off by {times:.0} times what rounding costs there")
            }
            InOnePlace::RowFactor { row, factor } => write!(f, "row {row:?} is {factor:.4} times what it should be"),
            InOnePlace::RowSum { row, sum } => write!(f, "row {row:?} adds up to {sum:.4}"),
            InOnePlace::MostOfItsRow { at } => write!(f, "element {at:?} holds most of its row's error"),
        }
    }
}
