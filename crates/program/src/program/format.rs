//! The document program.json as it is written; `read` makes a program of it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// What every version has.
#[derive(Deserialize)]
pub(crate) struct Header {
    pub(crate) version: u64,
}

/// Version 1.
#[derive(Deserialize)]
pub(crate) struct Document {
    #[serde(default)]
    pub(crate) source: String,
    #[serde(default)]
    pub(crate) model: String,
    /// The folder of the model's files.
    #[serde(default)]
    pub(crate) folder: Option<std::path::PathBuf>,
    #[serde(default)]
    pub(crate) weights: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) constants: Vec<i64>,
    #[serde(default)]
    pub(crate) inputs: BTreeMap<String, String>,
    /// \[dtype, shape, strides, offset\], the last two optional.
    pub(crate) values: Vec<Vec<Value>>,
    #[serde(default)]
    pub(crate) files: Vec<String>,
    /// Module, functions, file.
    #[serde(default)]
    pub(crate) scopes: Vec<(String, Vec<String>, Option<i64>)>,
    pub(crate) ops: Vec<OpRecord>,
    pub(crate) steps: Vec<StepRecord>,
    #[serde(default)]
    pub(crate) taps: Vec<TapRecord>,
}

/// An operation.
#[derive(Deserialize)]
pub(crate) struct OpRecord {
    /// Name.
    pub(crate) o: String,
    /// Operands.
    #[serde(default)]
    pub(crate) i: Vec<Value>,
    /// Keywords.
    #[serde(default)]
    pub(crate) a: BTreeMap<String, Value>,
    /// Outputs.
    #[serde(default)]
    pub(crate) y: Vec<Value>,
    /// Operands written in place.
    #[serde(default)]
    pub(crate) w: Vec<i64>,
    /// Scalar given to Python.
    #[serde(default)]
    pub(crate) x: Option<Value>,
    /// Scope.
    #[serde(default)]
    pub(crate) s: Option<i64>,
    /// Line.
    #[serde(default)]
    pub(crate) l: Option<i64>,
}

/// A forward pass.
#[derive(Deserialize)]
pub(crate) struct StepRecord {
    pub(crate) ops: (i64, i64),
    #[serde(default)]
    pub(crate) tokens: i64,
    #[serde(default)]
    pub(crate) output: Option<Value>,
}

/// A named value.
#[derive(Deserialize)]
pub(crate) struct TapRecord {
    pub(crate) tap: String,
    pub(crate) step: i64,
    pub(crate) op: i64,
    pub(crate) v: Value,
}
