//! Writes a report as JSON, with sorted keys.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::output::{Inputs, write};

/// The text of a report.
///
/// # Errors
/// When it holds something that JSON cannot.
pub fn text(report: &impl Serialize) -> Result<String> {
    // Through a value: that sorts the keys, including flattened ones.
    let mut text = serde_json::to_string_pretty(&serde_json::to_value(report)?)?;
    text.push('\n');
    Ok(text)
}

/// Writes a report to a file, if one is requested, that must not be one of `inputs`; or to standard output for `-`.
///
/// # Errors
/// When it cannot be written, or is read by the command.
pub fn to_file(path: Option<&Path>, report: &impl Serialize, inputs: &Inputs) -> Result<()> {
    path.map_or(Ok(()), |path| write(path, &text(report)?, inputs))
}
