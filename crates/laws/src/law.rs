//! A law: what is computed instead, in words and as a function.

use std::sync::Arc;

use ndarray::ArrayD;
use serde_json::Value;

use crate::case::{Axis, Case};

/// Named numbers and words of a law.
pub type Parameters = Vec<(&'static str, Value)>;

/// What kind of law it is: a closed list, documented in docs/reference/laws.md.
macro_rules! forms {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// What kind of law it is. The list is closed; docs/reference/laws.md has each with its formula.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Form { $($(#[doc = $doc])* $variant,)* }

        impl Form {
            /// All of them.
            pub const ALL: &'static [Form] = &[$(Form::$variant,)*];

            /// The word in JSON.
            pub fn name(self) -> &'static str {
                match self { $(Form::$variant => $name,)* }
            }

            /// What it says, in a line.
            pub fn formula(self) -> &'static str {
                match self { $(Form::$variant => concat!($($doc),*),)* }
            }
        }
    };
}

forms! {
    /// y = f(right): each element by one function of the right one.
    OutputFunction = "output.function",
    /// y = c_i · right: a factor for each slice along an axis.
    OutputScale = "output.scale",
    /// y = right + b_i: a term for each slice along an axis.
    OutputBias = "output.bias",
    /// y_i = c · right_j: each slice is that of another place.
    OutputSource = "output.source",
    /// The right numbers in another order of axes.
    OutputAxes = "output.axes",
    /// y_i = a · right_i + b · right_{i+k}: neighbours are mixed.
    OutputMix = "output.mix",
    /// The right value rounded more than the arithmetic does.
    OutputRounding = "output.rounding",
    /// The operation is left out: an input goes through.
    Omitted = "operation.omitted",
    /// The operation is carried out twice.
    Twice = "operation.twice",
    /// An operand is read otherwise.
    OperationInput = "operation.input",
    /// A sum of other tensors than the right ones, or with other coefficients.
    Sum = "sum.terms",
    /// The divisor of a norm: another statistic, another epsilon, another place of it.
    NormDivisor = "norm.divisor",
    /// The gain of a norm.
    NormGain = "norm.gain",
    /// What a norm is computed of.
    NormInput = "norm.input",
    /// What a norm subtracts.
    NormCentre = "norm.centre",
    /// A norm over groups of channels.
    NormGroups = "norm.groups",
    /// Which dimensions a rotation pairs.
    RotationPairing = "rotation.pairing",
    /// The positions of a rotation.
    RotationPosition = "rotation.position",
    /// The frequencies of a rotation.
    RotationFrequency = "rotation.frequency",
    /// What a rotation multiplies lengths by.
    RotationMagnitude = "rotation.magnitude",
    /// A matrix for each pair that is no rotation.
    RotationMatrix = "rotation.matrix",
    /// Which keys a query sees.
    Mask = "mask",
    /// What masked scores are filled with.
    MaskFill = "mask.fill",
    /// A factor of the scores.
    ScoreScale = "score.scale",
    /// A term added to the scores.
    ScoreBias = "score.bias",
    /// A function of the scores.
    ScoreFunction = "score.function",
    /// What the scores are a product of.
    ScoreSource = "score.source",
    /// Which key head answers which query head.
    HeadMap = "head.map",
    /// What probabilities are divided by.
    Denominator = "probs.denominator",
    /// Another mixture of probabilities.
    ProbsMix = "probs.mix",
    /// Which values a context takes.
    ContextValues = "context.values",
    /// How often values are counted.
    ContextWeights = "context.weights",
    /// Another weight.
    LinearWeight = "linear.weight",
    /// Another input.
    LinearInput = "linear.input",
    /// Columns of the input.
    LinearColumns = "linear.columns",
    /// What a product adds to itself: a function of the right bias.
    LinearBias = "linear.bias",
    /// A function of the weight's values.
    LinearValues = "linear.values",
    /// The function of an activation.
    Activation = "activation.function",
    /// Which operand is activated.
    GateRoles = "gate.roles",
    /// Which experts a router chooses of its scores.
    Choice = "router.choice",
    /// Which experts' parts are added, how often, and what they are made with.
    Experts = "mixture.experts",
    /// The row of a table that is read for a token.
    EmbeddingRow = "embedding.row",
}

/// Where a law differs from the right operation; `None` is everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// Which layers.
    pub layers: Option<String>,
    /// Which heads.
    pub heads: Option<String>,
    /// Which positions.
    pub positions: Option<String>,
    /// Which channels.
    pub channels: Option<String>,
}

impl Support {
    /// The support of a law that has another one in each place: one where they are the same, else each with its place's name.
    pub(crate) fn of_each<'s>(all: impl Iterator<Item = (String, &'s Support)> + Clone) -> Support {
        let joined = |part: fn(&Support) -> &Option<String>| {
            let mut parts = all.clone().map(|(_, support)| part(support));
            let first = parts.next()?;
            if parts.all(|other| other == first) {
                return first.clone();
            }
            let said = |(place, support)| format!("{place}: {}", part(support).as_deref().unwrap_or("all"));
            Some(all.clone().map(said).collect::<Vec<_>>().join("; "))
        };
        Support {
            layers: joined(|support| &support.layers),
            heads: joined(|support| &support.heads),
            positions: joined(|support| &support.positions),
            channels: joined(|support| &support.channels),
        }
    }
}

/// How sure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A law.
    Measured,
    /// True, but numbers without a law.
    Table,
}

/// What a law predicts at a place.
pub(crate) type Predict = Arc<dyn Fn(&Case<'_>, usize) -> Option<ArrayD<f64>> + Send + Sync>;

/// What is computed instead.
#[derive(Clone)]
pub struct Law {
    /// The kind of law.
    pub form: Form,
    /// What it does, in a sentence without its end.
    pub words: String,
    /// Its numbers.
    pub parameters: Parameters,
    /// Where it differs.
    pub support: Support,
    /// What saying it costs.
    pub bits: f64,
    /// A law, or true numbers.
    pub status: Status,
    /// Other laws that predict the same here.
    pub equivalent: Vec<String>,
    /// What was measured, to be drawn; its `kind` says what it is.
    pub data: Option<Value>,
    pub(crate) predict: Predict,
}

/// How a law was proved.
#[derive(Clone, Debug)]
pub struct Proof {
    /// NMSE that it leaves, the worst of all places.
    pub residual_nmse: f64,
    /// NMSE of the right values, the worst of all places.
    pub before_nmse: f64,
    /// Bits that it explains.
    pub gained: f64,
    /// Places that it was fitted on, by their index in the case.
    pub fitted: Vec<usize>,
    /// Places that it was not.
    pub held_out: Vec<usize>,
}

impl std::fmt::Debug for Law {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Law { form, words, bits, .. } = self;
        f.debug_struct("Law").field("form", form).field("words", words).field("bits", bits).finish_non_exhaustive()
    }
}

impl Law {
    pub(crate) fn new(
        form: Form,
        words: impl Into<String>,
        bits: f64,
        predict: impl Fn(&Case<'_>, usize) -> Option<ArrayD<f64>> + Send + Sync + 'static,
    ) -> Law {
        Law::made(form, words.into(), bits, Arc::new(predict))
    }

    fn made(form: Form, words: String, bits: f64, predict: Predict) -> Law {
        Law {
            form,
            words,
            parameters: Vec::new(),
            support: Support::default(),
            bits,
            status: Status::Measured,
            equivalent: Vec::new(),
            data: None,
            predict,
        }
    }

    /// With a parameter.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Law {
        self.parameters.push((name, value.into()));
        self
    }

    /// With what was measured.
    pub(crate) fn drawn(self, data: Value) -> Law {
        Law { data: Some(data), ..self }
    }

    /// A parameter by its name.
    pub fn parameter(&self, name: &str) -> Option<&Value> {
        self.parameters
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
            .filter(|value| !value.is_null())
    }

    /// Whether it differs from the right operation everywhere.
    pub fn is_everywhere(&self) -> bool {
        self.support == Support::default()
    }

    /// That differs from the right operation in some places alone.
    pub(crate) fn on(self, support: Support) -> Law {
        Law { support, ..self }
    }

    /// On a part of an axis alone; `None` is all of it.
    pub(crate) fn within(mut self, axis: Axis, part: Option<String>) -> Law {
        self.support.add(axis, part);
        self
    }

    /// True numbers, not a law.
    pub(crate) fn table(self) -> Law {
        Law { status: Status::Table, ..self }
    }

    /// Whether it is another on a part of that one's places alone, which says nothing more.
    pub(crate) fn is_part_of(&self, whole: &Law) -> bool {
        let is_same = self.form == whole.form && self.parameters == whole.parameters && !self.parameters.is_empty();
        is_same && whole.is_everywhere() && !self.is_everywhere()
    }

    /// What it predicts at a place of a case.
    pub fn predicted(&self, case: &Case<'_>, place: usize) -> Option<ArrayD<f64>> {
        (self.predict)(case, place)
    }
}
