//! Defines the report of `weights`: how two files of weights differ.

use std::collections::BTreeMap;

use firstdiff_compare::Verdict;
use firstdiff_explain::mistakes::find;
use firstdiff_explain::weights::{Compared, Comparison, Finding, Note, Side, State};
use serde::Serialize;

use crate::report::{CauseCertainty, Conclusion, Header};

/// The report of `firstdiff weights`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Weights {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// What is concluded.
    #[serde(flatten)]
    pub conclusion: Conclusion,
    /// The right weights.
    pub a: WeightFile,
    /// The weights in question.
    pub b: WeightFile,
    /// How many tensors are in which state.
    pub counts: TensorCounts,
    /// Whether nearly all matrices are unlike, and no known mistake explains them.
    pub another_model: bool,
    /// How many are unlike, where that is so.
    pub unlike: Option<UnrelatedMatrices>,
    /// What is wrong.
    pub findings: Vec<Difference>,
    /// Every tensor of both.
    pub tensors: Vec<Tensor>,
    /// What was not checked, by reason.
    pub not_checked: Vec<NotChecked>,
    /// What to do next.
    pub next: Option<&'static str>,
    /// Other notes.
    pub warnings: Vec<String>,
}

/// One of the two.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WeightFile {
    /// Where it was read.
    pub path: String,
    /// Its format.
    pub format: &'static str,
    /// How many tensors it holds.
    pub tensors: usize,
    /// Names of weights that the file holds twice, and that were not checked.
    pub doubles: Vec<String>,
}

/// Matrices that have nothing in common.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "unlike"))]
pub struct UnrelatedMatrices {
    /// How many.
    pub unlike: usize,
    /// Of how many.
    pub of: usize,
}

/// Tensors that were not checked for one reason.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NotChecked {
    /// The reason.
    pub reason: String,
    /// The tensors.
    pub tensors: Vec<String>,
}

/// How many tensors are in which state.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TensorCounts {
    /// The same values.
    pub identical: usize,
    /// The same, except for the rounding of the element type.
    pub rounded: usize,
    /// One side uses another of its own tensors for it, as the other side in fact does.
    pub tied: usize,
    /// Not the same.
    pub wrong: usize,
    /// Not checked.
    pub unchecked: usize,
}

/// Something wrong, with all tensors it is wrong in.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Difference {
    /// The id of the mistake, where it was proved.
    pub cause: Option<&'static str>,
    /// How sure it is.
    #[serde(rename = "match")]
    pub matched: CauseCertainty,
    /// The tensors, by their names at Hugging Face.
    pub tensors: Vec<String>,
    /// What was found, in words.
    pub note: String,
    /// NMSE that is left with the mistake imitated.
    pub residual_nmse: Option<f64>,
}

/// One tensor.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tensor {
    /// Its name at Hugging Face, or its own.
    pub tensor: String,
    /// Its name in A.
    pub a: Option<String>,
    /// Its name in B.
    pub b: Option<String>,
    /// Its element types in the two.
    pub types: [Option<&'static str>; 2],
    /// Its shape in the first file that has it.
    pub shape: Vec<usize>,
    /// `tied`: one side uses another of its own tensors for it, as the other side in fact does.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["exact", "rounding", "tied", "diverged", "unchecked"])))]
    pub status: &'static str,
    /// Why it was not checked.
    pub reason: Option<String>,
    /// NMSE of B against A.
    pub nmse: Option<f64>,
    /// NMSE that the element types may cause.
    pub allowed_nmse: Option<f64>,
}

impl Weights {
    pub(crate) fn new(sides: &[Side; 2], comparison: &Comparison, verdict: &Verdict) -> Weights {
        Weights {
            header: Header::new("weights"),
            conclusion: Conclusion::new(verdict),
            a: WeightFile::new(&sides[0]),
            b: WeightFile::new(&sides[1]),
            counts: TensorCounts::count(comparison),
            another_model: comparison.another_model().is_some(),
            unlike: comparison.another_model().map(|found| UnrelatedMatrices { unlike: found.unlike, of: found.of }),
            findings: comparison.findings.iter().map(Difference::new).collect(),
            tensors: comparison.tensors.iter().map(Tensor::new).collect(),
            not_checked: NotChecked::all(comparison),
            next: comparison.findings.iter().find_map(|f| find(f.cause?)?.in_file),
            warnings: comparison.warnings.iter().map(Note::to_string).collect(),
        }
    }
}

impl WeightFile {
    fn new(side: &Side) -> WeightFile {
        WeightFile {
            path: side.path().to_string_lossy().into_owned(),
            format: side.format(),
            tensors: side.len(),
            doubles: side.doubles().to_vec(),
        }
    }
}

impl TensorCounts {
    fn count(comparison: &Comparison) -> TensorCounts {
        TensorCounts {
            identical: comparison.count(|s| *s == State::Identical),
            rounded: comparison.count(|s| *s == State::Rounded),
            tied: comparison.count(|s| *s == State::Tied),
            wrong: comparison.count(|s| *s == State::Wrong),
            unchecked: comparison.count(|s| matches!(s, State::Unchecked(_))),
        }
    }
}

impl Difference {
    fn new(finding: &Finding) -> Difference {
        let matched = match (finding.cause, finding.residual_nmse) {
            (Some(_), Some(_)) => CauseCertainty::Reproduced,
            (Some(_), None) => CauseCertainty::Seen,
            _ => CauseCertainty::Unknown,
        };
        Difference {
            cause: finding.cause,
            matched,
            tensors: finding.tensors.clone(),
            note: finding.note.clone(),
            residual_nmse: finding.residual_nmse,
        }
    }
}

impl Tensor {
    fn new(tensor: &Compared) -> Tensor {
        let (status, reason) = match &tensor.state {
            State::Identical => ("exact", None),
            State::Rounded => ("rounding", None),
            State::Tied => ("tied", None),
            State::Wrong => ("diverged", None),
            State::Unchecked(reason) => ("unchecked", Some(reason.clone())),
        };
        let [a, b] = tensor.names.clone();
        Tensor {
            tensor: tensor.name.clone(),
            a,
            b,
            types: tensor.types,
            shape: tensor.shape.clone(),
            status,
            reason,
            nmse: tensor.nmse,
            allowed_nmse: tensor.allowed,
        }
    }
}

impl NotChecked {
    fn all(comparison: &Comparison) -> Vec<NotChecked> {
        let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for tensor in &comparison.tensors {
            if let State::Unchecked(reason) = &tensor.state {
                reasons.entry(reason).or_default().push(tensor.name.clone());
            }
        }
        reasons.into_iter().map(|(reason, tensors)| NotChecked { reason: reason.to_owned(), tensors }).collect()
    }
}
