//! Logs how a tap's judgement developed: one entry for each stage of the comparison that changed it.

use std::fmt;

use crate::report::reason::Reason;

/// A stage of the comparison that may change the judgement of a tap, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Its two tensors are judged, in the layout that fits.
    Tensors,
    /// The dump itself may put it in doubt.
    DumpInDoubt,
    /// A router's choice is judged by the scores it was made from.
    Choice,
    /// It is judged again, with the errors that its operation may have passed on.
    InputError,
    /// Later taps confirm the layout in which it agrees, or do not.
    Layout,
    /// Both sides must hold the same token positions.
    Positions,
    /// Both sides must have been fed the same token.
    Continuation,
    /// The results of other experts cannot be compared.
    BehindChoices,
    /// No operation may have read what differs behind a mask.
    Masked,
    /// At position 0 every rotation is right.
    FirstPosition,
    /// In another shape, its axes may be in an order that was not found.
    AxisOrder,
    /// Replicas on several ranks must be equal.
    Replicas,
}

impl Stage {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Tensors => "tensors",
            Stage::DumpInDoubt => "dump_in_doubt",
            Stage::Choice => "choice",
            Stage::InputError => "input_error",
            Stage::Layout => "layout",
            Stage::Positions => "positions",
            Stage::Continuation => "continuation",
            Stage::BehindChoices => "behind_choices",
            Stage::Masked => "masked",
            Stage::FirstPosition => "first_position",
            Stage::AxisOrder => "axis_order",
            Stage::Replicas => "replicas",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Tensors => "as recorded",
            Stage::DumpInDoubt => "the dump's own note",
            Stage::Choice => "choice of experts",
            Stage::InputError => "with the error of what it reads",
            Stage::Layout => "layout, by later taps",
            Stage::Positions => "token positions",
            Stage::Continuation => "token of the step",
            Stage::BehindChoices => "tokens of other experts",
            Stage::Masked => "masked elements",
            Stage::FirstPosition => "position 0 alone",
            Stage::AxisOrder => "order of axes",
            Stage::Replicas => "replicas",
        })
    }
}

/// The state of a tap after a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Bit for bit.
    Exact,
    /// Within what is allowed.
    Rounding,
    /// Beyond what is allowed.
    Differs,
    /// Beyond rounding; errors of its inputs may explain it or not.
    Inconclusive,
    /// Not compared.
    Unchecked,
}

impl Standing {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Exact => "exact",
            Standing::Rounding => "rounding",
            Standing::Differs => "differs",
            Standing::Inconclusive => "inconclusive",
            Standing::Unchecked => "unchecked",
        }
    }
}

/// What a stage decided about a tap.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEntry {
    /// The stage.
    pub stage: Stage,
    /// The state of the tap after it.
    pub to: Standing,
    /// Why.
    pub reason: Option<Reason>,
    /// NMSE, where the tap was compared.
    pub nmse: Option<f64>,
    /// The NMSE that is allowed, where the tap was compared.
    pub allowed: Option<f64>,
}

impl LogEntry {
    /// Whether another stage decided the same.
    pub(crate) fn has_same_decision(&self, other: &LogEntry) -> bool {
        let numbers = |entry: &LogEntry| (entry.to, entry.nmse, entry.allowed);
        numbers(self) == numbers(other) && self.reason == other.reason
    }
}
