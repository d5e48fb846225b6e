//! Defines the reported cause of a fault: its proof, and what to change.

use std::collections::BTreeMap;

use firstdiff_compare::number;
use serde::Serialize;
use serde_json::Value;

/// Parameters of a mistake, by name.
pub type Params = BTreeMap<&'static str, Value>;

/// How sure a cause is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CauseCertainty {
    /// With the mistake imitated, no more than rounding is left.
    Reproduced,
    /// In weights: it is seen directly, and needs no imitation.
    Seen,
    /// No mistake of the catalogue matches, but a measured law gives all of its numbers.
    Measured,
    /// A mistake explains part of the error, but is not the cause.
    Closest,
    /// Nothing in the catalogue explains any of it.
    #[default]
    Unknown,
}

/// What is known of the cause of one fault.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnosis {
    /// The id of the mistake, where it is proved: with it imitated, no more than rounding is left.
    pub cause: Option<&'static str>,
    /// Its parameters, by name.
    pub params: Params,
    /// How sure it is.
    #[serde(rename = "match")]
    pub matched: CauseCertainty,
    /// NMSE that is left with the mistake imitated, the worst of all places.
    pub residual_nmse: Option<f64>,
    /// What is left at each place.
    pub residuals: Vec<Residual>,
    /// Ids of other mistakes that give the same numbers.
    pub alternatives: Vec<&'static str>,
    /// The same with their parameters; for `closest`, the nearest ones.
    pub also: Vec<CauseOf>,
    /// What is computed differently, in words.
    pub what: Option<&'static str>,
    /// The same with id and parameters.
    pub summary: Option<String>,
    /// What is left with it imitated, in words.
    pub proof: Option<String>,
    /// What to change.
    pub fix: Option<String>,
    /// Set where it is no mistake: all products with weights are in another arithmetic.
    pub arithmetic: Option<OtherArithmetic>,
    /// For taps that are only recorded wrongly, what follows from the right value there.
    pub misrecorded: Vec<String>,
    /// For taps whose error is undone before anything else reads it, what undoes it.
    pub taken_back: Vec<String>,
    /// What the operation computes instead, where that was measured.
    pub measured: Option<MeasuredLaw>,
}

/// What an operation computes instead.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeasuredLaw {
    /// The kind of law, of a closed list: docs/reference/laws.md.
    pub form: &'static str,
    /// What it does, in words.
    pub words: String,
    /// Its numbers, by name.
    pub parameters: Params,
    /// Where it differs from the right operation; "all" is everywhere.
    pub support: Support,
    /// NMSE that it leaves, the worst of all places; for scores, in their probabilities.
    pub residual_nmse: f64,
    /// NMSE of the right values, the worst of all places.
    pub before_nmse: f64,
    /// Whether both are measured in the probabilities of scores.
    #[serde(skip)]
    pub is_of_scores: bool,
    /// What stating it costs, and what it explains.
    pub bits: Bits,
    /// Where it was fitted, and where it holds without being fitted.
    pub proved_on: ProvedOn,
    /// Other laws that give the same numbers here.
    pub equivalent: Vec<String>,
    /// `measured`: a law; `table`: true numbers without a law.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["measured", "table"])))]
    pub status: &'static str,
    /// What was measured, to be drawn: its `kind`, and numbers.
    #[cfg_attr(feature = "schema", schemars(with = "Option<Drawn>"))]
    pub data: Option<Value>,
}

/// What was measured of a law, to be drawn.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[expect(dead_code, reason = "describes `MeasuredLaw::data`")]
enum Drawn {
    /// The frequency of each pair of a rotation.
    Angles { right: Vec<f64>, measured: Vec<f64> },
    /// A function.
    Curve { x: Vec<f64>, y: Vec<f64> },
    /// Of each head, a row of 0 and 1 for each query.
    Mask { sees: Vec<Vec<String>> },
    /// The gain of each channel.
    Gain { right: Vec<f64>, measured: Vec<f64> },
}

/// Where a law differs from the right operation.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Support {
    /// Which layers.
    pub layers: String,
    /// Which heads.
    pub heads: String,
    /// Which positions.
    pub positions: String,
    /// Which channels.
    pub channels: String,
}

/// Description length.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bits {
    /// What stating the law costs.
    pub paid: f64,
    /// What it explains.
    pub gained: f64,
}

/// Places of a law, by their taps.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProvedOn {
    /// Where it was fitted.
    pub fitted: Vec<String>,
    /// Where it holds without being fitted.
    pub held_out: Vec<String>,
}

/// A mistake of the catalogue.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CauseOf {
    /// Its id.
    pub cause: &'static str,
    /// Its parameters.
    pub params: Params,
    /// Both in words.
    pub words: String,
}

/// What a mistake leaves of the error at one place.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Residual {
    /// The tap that shows it, and its step.
    pub at: String,
    /// NMSE without the mistake imitated.
    pub base_nmse: f64,
    /// NMSE that it leaves there.
    pub residual_nmse: f64,
}

/// All products with weights in another arithmetic.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OtherArithmetic {
    /// How many products could be judged.
    pub products: usize,
    /// How many are off.
    pub off: usize,
    /// Whether every other operation that could be judged is right.
    pub alone: bool,
    /// The least and the largest NMSE of those that are off.
    pub nmse: [f64; 2],
    /// The rounding that comes nearest.
    pub looks_like: Option<String>,
    /// What it leaves of the error, at the median.
    pub left_share: f64,
    /// The same in words: what, and which it looks like.
    pub words: [String; 2],
    /// What to do about it.
    pub next: String,
}

impl Diagnosis {
    /// A fault of unknown cause.
    pub fn unknown(nmse: Option<f64>) -> Diagnosis {
        Diagnosis { residual_nmse: nmse, ..Diagnosis::default() }
    }
}

impl Diagnosis {
    /// Whether an operation is wrong: the taps are not just recorded wrongly, and nothing undoes the error.
    pub fn is_blamed(&self) -> bool {
        self.misrecorded.is_empty() && self.taken_back.is_empty()
    }
}

/// Where a law of scores is measured.
pub const IN_PROBABILITIES: &str = " in the probabilities that the scores make";

impl MeasuredLaw {
    /// How sure it is, in words.
    pub fn proof(&self) -> String {
        let of_what = if self.is_of_scores { IN_PROBABILITIES } else { "" };
        let before = match self.before_nmse.is_finite() {
            true => format!(" of {}", number(self.before_nmse)),
            false => ", where without it some value is not finite".to_owned(),
        };
        let left = format!("leaves NMSE {}{before}{of_what}", number(self.residual_nmse));
        let on = match self.proved_on.held_out.len() {
            0 => {
                let places = match self.proved_on.fitted.len() {
                    0 | 1 => "one place".to_owned(),
                    n => format!("{n} places"),
                };
                let Bits { gained, paid } = self.bits;
                format!("{places}, whose numbers carry {gained} bits for it, and it costs {paid}")
            }
            1 => format!(
                "measured at {}, proved at {}",
                self.proved_on.fitted.join(", "),
                self.proved_on.held_out.join(", ")
            ),
            n => format!("measured at {}, proved at {n} others", self.proved_on.fitted.join(", ")),
        };
        format!("{left}; {on}")
    }
}
