//! Defines the reasons for a tap's status as data, from the judge to the report. Their words are here and nowhere else.

use std::fmt;

use crate::align::chunks::Unaligned;
use crate::graph::Place;
use crate::judge::tensor::Difference;
use crate::layout::mismatch::ShapeMismatch;
use crate::layout::types::Layout;
use crate::run::misaligned::UnknownPositions;
use crate::run::side::Side;
use crate::words::{number, tokens_in_words};

/// What is known of the candidate's choice of experts where it may differ from the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherChoice {
    /// It differs, as the candidate's own scores, which agree, demand.
    ByRounding,
    /// It differs, and rounding may be the cause or not.
    Unclear,
    /// It was not recorded, and depends on rounding.
    NotRecorded,
}

/// Why a tap differs, is unchecked, or agrees in another layout than the reference's.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// It differs.
    Differs {
        /// How.
        difference: Difference,
        /// The layout in which it was measured, where that is not the one its shape says.
        layout: Option<Layout>,
    },
    /// It agrees in another layout, which is the dump's own.
    ReadIn(Layout),
    /// It is off by more than rounding; errors of its inputs may explain that or not.
    Inconclusive,
    /// Only one side recorded it.
    NotIn(Side),
    /// It is no tap of the model.
    NotOfTheModel,
    /// It is outside the vocabulary, and its axis of tokens is unknown.
    AxesUnknown,
    /// It is outside the vocabulary, the two sides hold different tensors under its name, and neither declares it as a tap.
    Undeclared,
    /// It holds none of the requested token positions.
    NoneOfTheRowsAsked,
    /// The two sides hold no token position in common.
    NoCommonPosition,
    /// Its step holds other tokens on the other side.
    OtherTokens,
    /// The shapes, or the rows they declare, do not fit.
    Shape(ShapeMismatch),
    /// Its positions on the two sides could not be aligned.
    Unaligned(Unaligned),
    /// The two sides declare different orders of the rows of Q and K, and yet it agrees as it stands.
    RowOrderContradicted,
    /// It agrees in this layout, and no later tap confirms it.
    Unconfirmed(Layout),
    /// It differs in another shape, and later taps agree: its axes may be in an order that was not found.
    OrderUnknown,
    /// The second right run itself is this far from the reference here.
    Drowned {
        /// Its NMSE, infinite where it could not be compared.
        nmse: f64,
    },
    /// Tokens are sent to other experts than in the reference: no fault, or undecided.
    OtherExperts {
        /// The tokens.
        tokens: Vec<usize>,
        /// What is known of the candidate's choice.
        choice: OtherChoice,
    },
    /// The same in another order that each side may choose: of the rows of an expert, or of the chosen experts.
    OrderOfExperts,
    /// Computed from tokens that were sent to other experts, first at this place.
    BehindOtherExperts(Place),
    /// Every rotation is right at position 0, and no other position is known.
    RotationAtZero,
    /// Nothing shows that both sides hold the same token positions.
    Unwitnessed(UnknownPositions),
    /// Nothing in a decode step agrees, and it is unknown whether both were fed the same token there.
    Continuation,
    /// A dump itself puts its values in doubt.
    InDoubt {
        /// Which of the two.
        side: Side,
        /// What it says about them.
        what: String,
    },
    /// A step of keys or values holds more than its positions have.
    MoreThanOwnRows {
        /// How many values it holds.
        values: usize,
        /// How many positions the step has.
        positions: usize,
        /// How many values these must have.
        due: usize,
    },
    /// The ranks' tensors were not joined.
    NotJoined(String),
    /// A rank's dump is not there.
    RankMissing {
        /// The ranks that were read.
        ranks: Vec<String>,
        /// How that is known.
        by: RankShortfall,
    },
    /// It is in the dump of one rank only, and may be that rank's summand.
    MayBeSummand {
        /// The rank.
        rank: String,
    },
    /// Both sides hold a flat tensor with an unknown number of positions.
    FlatOnBothSides {
        /// How many values.
        values: usize,
    },
    /// Both sides are known in part, but not in the same part.
    OtherPart,
    /// No known element is in both.
    NothingKnown,
    /// A list of values without a shape, of a tap with axes of heads, queries and keys.
    ListWithoutShape {
        /// How many values.
        values: usize,
    },
    /// The values are hardly larger than the digits that were not printed.
    PrintedTooCoarsely {
        /// How exactly they were printed.
        precision: String,
    },
    /// The words of another judge, such as `replay` on an operation with its own inputs.
    Other(String),
}

/// How it is known that a rank's dump is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankShortfall {
    /// The pieces of the tap do not cover the reference's extent along an axis.
    Extent {
        /// The axis.
        axis: usize,
        /// What the pieces hold along it.
        held: usize,
        /// What the reference holds.
        due: usize,
    },
    /// It is a sum over ranks, and the pieces of another place do not cover it.
    Summand(Place),
}

impl Reason {
    /// Whether the words begin with the NMSE of the whole.
    pub fn names_the_nmse(&self) -> bool {
        matches!(self, Reason::Differs { difference: Difference::Nmse { .. } | Difference::Balanced { .. }, .. })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Differs { difference, layout: Some(layout) } => write!(f, "{difference} (read so: {layout})"),
            Reason::Differs { difference, layout: None } => difference.fmt(f),
            Reason::ReadIn(layout) => write!(f, "{layout}; undone"),
            Reason::Inconclusive => {
                f.write_str("inconclusive: beyond rounding, but input error could explain it")
            }
            Reason::NotIn(side) => write!(f, "not in the {side}"),
            Reason::NotOfTheModel => f.write_str("not a tap of this model"),
            Reason::AxesUnknown => {
                f.write_str("not a name of the vocabulary: which of its axes is that of the tokens is not known")
            }
            Reason::Undeclared => f.write_str(
                "the two sides differ, but no dump.json says that this is a tap: it may be a buffer that nothing reads (list it in 'taps' or 'graph')",
            ),
            Reason::NoneOfTheRowsAsked => f.write_str("it holds none of the token positions asked for"),
            Reason::NoCommonPosition => f.write_str("the two sides hold no token position in common"),
            Reason::OtherTokens => f.write_str("its step stands for other tokens"),
            Reason::Shape(mismatch) => f.write_str(&mismatch.words("reference")),
            Reason::Unaligned(why) => why.fmt(f),
            Reason::RowOrderContradicted => f.write_str(
                "it agrees as it stands, though the two dumps say that its rows are in different orders ('qk_rows'): correct one of them",
            ),
            Reason::Unconfirmed(layout) => {
                write!(f, "matches only if {layout}; no later tap confirms it")
            }
            Reason::OrderUnknown => f.write_str(
                "its shape is not the reference's, and as far as the two could be aligned they differ, though what follows agrees: it may be in another \
                 order of axes",
            ),
            Reason::Drowned { nmse } if nmse.is_finite() => {
                write!(f, "the second right run is itself off by NMSE {} here: nothing can be told", number(*nmse))
            }
            Reason::Drowned { .. } => {
                f.write_str("the second right run is itself not comparable here: nothing can be told")
            }
            Reason::OtherExperts { tokens, choice } => {
                let is = match choice {
                    OtherChoice::ByRounding => "other experts than in the reference, as the candidate's own scores ask for, which agree: rounding, no fault",
                    OtherChoice::Unclear => "other experts than in the reference, which rounding may explain, or not: record the scores that the choice is made of",
                    OtherChoice::NotRecorded => "which experts was not recorded, and rounding decides it: record this tap",
                };
                write!(f, "{}: {is}", tokens_in_words(tokens))
            }
            Reason::OrderOfExperts => f.write_str(
                "the reference's values in another order, which is each engine's own: what is made of them is compared",
            ),
            Reason::BehindOtherExperts(place) => {
                write!(f, "made of tokens that went to other experts at {place}: cannot be compared")
            }
            Reason::RotationAtZero => {
                f.write_str("agrees at position 0, where every rotation is right, and no other is known")
            }
            Reason::Unwitnessed(why) => why.fmt(f),
            Reason::Continuation => f.write_str(
                "nothing of this step agrees, and it is not stated that both were fed the same token there: name the tokens of both runs (--tokens, --decode-tokens), or \
                 record h0",
            ),
            Reason::InDoubt { side: Side::Candidate, what } => f.write_str(what),
            Reason::InDoubt { side: Side::Reference, what } => write!(f, "of the reference: {what}"),
            Reason::MoreThanOwnRows { values, positions, due } => write!(
                f,
                "{values} values in a step of {positions} position{}, which has {due}: a cache with earlier positions or room, which cannot be checked; write the step's own rows",
                if *positions == 1 { "" } else { "s" },
            ),
            Reason::NotJoined(why) | Reason::Other(why) => f.write_str(why),
            Reason::RankMissing { ranks, by } => {
                let joined = match &ranks[..] {
                    [one] => format!("the dump of one rank ({one}) was read"),
                    ranks => format!("the dumps of {} ranks were joined", ranks.len()),
                };
                match by {
                    RankShortfall::Extent { axis, held, due } => write!(
                        f,
                        "{joined}, which hold {held} of the {due} along axis {axis}: is a rank's dump missing?"
                    ),
                    RankShortfall::Summand(by) => {
                        write!(f, "a sum over ranks: {joined}, and by {by} a rank's dump is missing")
                    }
                }
            }
            Reason::MayBeSummand { rank } => write!(
                f,
                "the dump of one rank ({rank}) was read, and nothing says whether this is a sum over ranks: say so ('dims' in dump.json: 'T D partial', or 'T D')"
            ),
            Reason::FlatOnBothSides { values } => write!(
                f,
                "{values} values without a shape on both sides, and nothing says of how many token positions: name the tokens (--tokens IDS, or 'tokens' in \
                 dump.json), or say --rows last where it is one row"
            ),
            Reason::OtherPart => f.write_str("known in part on both sides, and not the same part"),
            Reason::NothingKnown => f.write_str("none of its elements is known"),
            Reason::ListWithoutShape { values } => write!(
                f,
                "{values} values without a shape: its heads, positions and keys cannot be told; write its shape"
            ),
            Reason::PrintedTooCoarsely { precision } => {
                write!(f, "printed with {precision}, and its values are hardly larger: they show nothing")
            }
        }
    }
}

/// What this run could not have shown, or what else should be known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// This many taps hold only some token positions.
    SomePositions {
        /// How many.
        taps: usize,
    },
    /// The first tap that differs is outside the vocabulary, and is ordered by its name only.
    OrderUnknown,
    /// Any other note, in words.
    Note(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::SomePositions { taps } => {
                write!(f, "{taps} taps hold some token positions only: the others were not compared")
            }
            Warning::OrderUnknown => f.write_str(
                "the order in which these taps are computed is not stated, so they stand in the order of their names: the first that differs need not be where the \
                 fault is ('taps' in dump.json lists them as recorded, 'graph' says what reads what)",
            ),
            Warning::Note(text) => f.write_str(text),
        }
    }
}

impl From<String> for Warning {
    fn from(text: String) -> Warning {
        Warning::Note(text)
    }
}

impl From<ShapeMismatch> for Reason {
    fn from(mismatch: ShapeMismatch) -> Reason {
        Reason::Shape(mismatch)
    }
}
