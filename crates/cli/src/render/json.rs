//! How is a report written for programs? As JSON, its keys sorted.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::output::{Inputs, write};

/// The text of a report.
///
/// # Errors
/// When it holds what JSON cannot.
pub fn text(report: &impl Serialize) -> Result<String> {
    // By way of a value: that sorts the keys, and what is flattened stands among the rest.
    let mut text = serde_json::to_string_pretty(&serde_json::to_value(report)?)?;
    text.push('\n');
    Ok(text)
}

/// Writes a report to a file, where there is to be one, that is none of `inputs`, or to standard output for `-`.
///
/// # Errors
/// When it cannot be written, or is read by the command.
pub fn to_file(path: Option<&Path>, report: &impl Serialize, inputs: &Inputs) -> Result<()> {
    path.map_or(Ok(()), |path| write(path, &text(report)?, inputs))
}
