//! An operation that is wrong, in all places where it is.

use std::time::Duration;

use cpu_time::ProcessTime;
use ndarray::{Array2, ArrayD};

/// What an operation computes, as far as its laws differ. Shapes: T tokens, S keys, H heads, K key heads, d a head's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `[T,D]` of `[T,D]`, or `[T,H,d]` of the same: each row over a statistic of it, times a gain.
    Norm,
    /// `[T,F]` (or `[T,H,d]`) of `[T,D]`: a product with a weight.
    Linear,
    /// `[T,H,d]` of `[T,H,d]`: pairs of dimensions, rotated by angles that depend on the position.
    Rotation,
    /// `[H,T,S]` of queries `[T,H,d]` and keys `[S,K,d]`: probabilities of keys.
    Probs,
    /// `[T,H,d]` of probabilities `[H,T,S]` and values `[S,K,d]`.
    Context,
    /// `[T,F]` of one `[T,F]`: a function of each element.
    Activation,
    /// `[T,F]` of a gate and another operand, both `[T,F]`.
    Gate,
    /// The sum of two operands of the output's shape.
    Sum,
    /// `[T,D]` of token ids `[T]`: rows of a table.
    Embedding,
    /// `[T,D]` of `[T,D]`, weights `[T,k]` and a choice `[T,k]`: parts of experts, weighted and added.
    Mixture,
    /// `[T,k]` of scores `[T,E]`: the weights of what is chosen.
    Shares,
    /// `[T,k]` of scores `[T,E]`: the experts with the largest scores.
    Choice,
    /// Anything with one output.
    Other,
}

/// What a part of a mixture is made with: the matrices of which expert, and of which layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inner {
    /// Layers further on.
    pub layer: i32,
    /// Whose gate matrix.
    pub gate: usize,
    /// Whose up matrix.
    pub up: usize,
    /// Whose down matrix.
    pub down: usize,
    /// How gate and up are taken from what the two matrices give.
    pub taken: Taken,
    /// How many of the hidden elements the down matrix reads; `None` for all.
    pub hidden: Option<usize>,
}

/// Which of the outputs of a gate and an up matrix, F each, are taken as the gate and as the up of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Taken {
    /// Each its own.
    Right,
    /// Each the other's.
    Exchanged,
    /// Both the gate's.
    GateTwice,
    /// Both the up's.
    UpTwice,
    /// The even and the odd outputs of both, side by side.
    InTurn,
    /// The first and the second half of both, output by output in turn.
    Halves,
}

impl Taken {
    /// Where output i of the gate (0) or of the up (1) is found among the 2F outputs of both, side by side.
    pub fn from(self, which: usize, i: usize, f: usize) -> usize {
        match self {
            Taken::Right => which * f + i,
            Taken::Exchanged => (1 - which) * f + i,
            Taken::GateTwice => i,
            Taken::UpTwice => f + i,
            Taken::InTurn => 2 * i + which,
            Taken::Halves => {
                let at = which * f + i;
                at % 2 * f + at / 2
            }
        }
    }
}

impl Inner {
    /// One expert as it is.
    pub fn of(expert: usize) -> Inner {
        Inner { layer: 0, gate: expert, up: expert, down: expert, taken: Taken::Right, hidden: None }
    }
}

/// What an axis of a tensor counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Tokens of the sequence.
    Token,
    /// Tokens that ask.
    Query,
    /// Tokens that are seen.
    Key,
    /// Tokens between a query and a key.
    Distance,
    /// Heads.
    Head,
    /// The width of a head.
    Dim,
    /// The width of a row.
    Channel,
    /// Layers.
    Layer,
    /// Pairs of a rotation.
    Pair,
    /// Rows of the vocabulary.
    Row,
    /// Experts.
    Expert,
}

impl Axis {
    /// What one of it is called.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Token => "position",
            Axis::Query => "query",
            Axis::Key => "key",
            Axis::Distance => "distance",
            Axis::Head => "head",
            Axis::Dim => "dimension",
            Axis::Channel => "channel",
            Axis::Layer => "layer",
            Axis::Pair => "pair",
            Axis::Row => "row",
            Axis::Expert => "expert",
        }
    }

    /// Whether it counts positions of the sequence.
    pub fn is_position(self) -> bool {
        matches!(self, Axis::Token | Axis::Query | Axis::Key)
    }
}

/// One place where the operation is wrong.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Which layer of the model; `None` outside the layers.
    pub layer: Option<usize>,
    /// The prefill (0), or which decode step.
    pub step: usize,
    /// What the candidate recorded of the operation's inputs, in the order of [`Kind`].
    pub inputs: Vec<ArrayD<f64>>,
    /// What is due for these inputs, in f64.
    pub right: ArrayD<f64>,
    /// What the candidate has.
    pub own: ArrayD<f64>,
    /// NMSE that rounding may leave between a right value and the recorded one.
    pub tolerance: f64,
    /// Other recorded tensors nearby, by what they are called from here ("h of the layer before").
    pub around: Vec<(String, ArrayD<f64>)>,
}

impl Place {
    /// The size of an error that rounding may make, as a share of the values: the root of the tolerance.
    pub fn noise(&self) -> f64 {
        self.tolerance.sqrt()
    }
}

/// A weight of the model beside an operation's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherWeight {
    /// What it is called from the operation's place.
    pub name: String,
    /// Whether it is read with rows for columns.
    pub is_transposed: bool,
}

impl std::fmt::Display for OtherWeight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.name, if self.is_transposed { ", transposed" } else { "" })
    }
}

/// The right operation, as the model has it.
pub trait Operation {
    /// What it gives for other inputs than the recorded ones; `None` where that cannot be computed.
    fn apply(&self, place: usize, inputs: &[ArrayD<f64>]) -> Option<ArrayD<f64>>;

    /// Whether the candidate's value is this prediction but for rounding, by the judge that found it wrong.
    fn agrees(&self, place: usize, predicted: &ArrayD<f64>) -> bool;

    /// Other weights that read as many columns, by what they are called from this place ("k", "q of layer +1").
    fn other_weights(&self, place: usize) -> Vec<OtherWeight> {
        let _ = place;
        Vec::new()
    }

    /// One of those.
    fn other_weight(&self, place: usize, weight: &OtherWeight) -> Option<Array2<f64>> {
        let _ = (place, weight);
        None
    }

    /// How many experts a mixture has at a place; 0 where it is none.
    fn experts(&self, place: usize) -> usize {
        let _ = place;
        0
    }

    /// How many elements an expert has between its up and its down matrix; 0 where that is not known.
    fn hidden(&self, place: usize) -> usize {
        let _ = place;
        0
    }

    /// What an expert gives for every token of a place, unweighted `[T,D]`.
    fn part(&self, place: usize, inner: Inner) -> Option<Array2<f64>> {
        let _ = (place, inner);
        None
    }

    /// What an expert gives for other rows `[T,D]` than those that a mixture reads at a place.
    fn part_of(&self, place: usize, inner: Inner, x: &Array2<f64>) -> Option<Array2<f64>> {
        let _ = (place, inner, x);
        None
    }

    /// Vectors of the model that have this length, by what they are called from this place ("attn_norm of layer +1").
    fn vectors(&self, place: usize, length: usize) -> Vec<(String, Vec<f64>)> {
        let _ = (place, length);
        Vec::new()
    }

    /// One of those.
    fn vector(&self, place: usize, length: usize, name: &str) -> Option<Vec<f64>> {
        Some(self.vectors(place, length).into_iter().find(|(known, _)| known == name)?.1)
    }
}

/// An operation, and all places where a candidate is wrong in it. One of them is what laws are fitted on.
pub struct Case<'a> {
    /// What it computes.
    pub kind: Kind,
    /// The axes of its output.
    pub axes: Vec<Axis>,
    /// Where it is wrong, in the order of the run.
    pub places: Vec<Place>,
    /// The token ids by position, where they are known.
    pub tokens: Option<Vec<u32>>,
    /// The right one.
    pub operation: &'a dyn Operation,
    /// The place that laws are fitted on, by its index.
    pub(crate) fitted: usize,
    /// When it was taken up, by the clock of the processor.
    pub(crate) begun: ProcessTime,
}

impl<'a> Case<'a> {
    /// The operation in these places.
    pub fn new(
        kind: Kind,
        axes: Vec<Axis>,
        places: Vec<Place>,
        tokens: Option<Vec<u32>>,
        operation: &'a dyn Operation,
    ) -> Case<'a> {
        Case { kind, axes, places, tokens, operation, fitted: 0, begun: ProcessTime::now() }
    }
}

/// The processor's time in which candidates are looked for: what nothing explains costs no more, and what is found does not depend on what else runs on the machine.
const AT_MOST: Duration = Duration::from_secs(8);

impl Case<'_> {
    /// Whether further kinds of laws may be looked for.
    pub(crate) fn has_time(&self) -> bool {
        self.begun.elapsed() < AT_MOST
    }

    /// Whether the first half of that time is not over: what is tried before other kinds of laws leaves them the rest.
    pub(crate) fn has_half_of_time(&self) -> bool {
        self.begun.elapsed() < AT_MOST / 2
    }

    /// The same at other places, by another operation.
    pub(crate) fn at<'c>(&self, places: Vec<Place>, operation: &'c dyn Operation) -> Case<'c> {
        let Case { kind, axes, tokens, fitted, begun, .. } = self;
        Case {
            kind: *kind,
            axes: axes.clone(),
            places,
            tokens: tokens.clone(),
            operation,
            fitted: *fitted,
            begun: *begun,
        }
    }

    /// The place that laws are fitted on.
    pub(crate) fn first(&self) -> &Place {
        &self.places[self.fitted]
    }

    /// The token ids, where an axis counts tokens.
    pub(crate) fn tokens_of(&self, axis: Axis) -> Option<&[u32]> {
        self.tokens.as_deref().filter(|_| axis.is_position())
    }
}
