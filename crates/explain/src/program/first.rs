//! The first tokens of a candidate alone: what a causal model makes of them does not depend on those behind.

use std::path::Path;

use firstdiff_trace::{DType, Dump, Meta, Tensor, Values};
use ndarray::{Axis, Slice};

use crate::program::arrays::array;
use crate::program::held::Held;
use crate::program::{Candidate, Recording};
use crate::replay::ReplayError;

/// What the candidate holds of the first tokens of its prefill, as the reference has it; `None` where it holds some positions alone, or numbers that were
/// rounded to 16 bits when they were recorded.
///
/// # Errors
/// When a file cannot be read.
pub fn first_tokens(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    count: usize,
) -> Result<Option<Dump>, ReplayError> {
    let held = Held::of(recording, candidate, None)?;
    if held.is_in_part() || candidate.is_padded {
        return Ok(None);
    }
    let told = candidate.dump.meta();
    let tokens = told.tokens.as_ref().map(|ids| ids.iter().take(count).copied().collect());
    let meta = Meta { tokens, precision: told.precision.clone(), ..Meta::default() };
    let mut first = Dump::assembled(Path::new("the first tokens"), meta, Vec::new())?;
    for (number, record) in recording.program.taps().iter().enumerate().filter(|(_, tap)| tap.step == 0) {
        let Some(own) = held.get(number) else { continue };
        let place = held.place(number);
        if !matches!(candidate.dtype(place), DType::F32 | DType::F64) {
            return Ok(None);
        }
        let (axes, mut values) = (place.tap.last_site().axes(), array(own));
        let Some(before) = record.view.shape.len().checked_sub(axes.len()) else { return Ok(None) };
        for (at, _) in axes.iter().enumerate().filter(|(_, axis)| matches!(**axis, 'T' | 'S')) {
            values = values.slice_axis(Axis(before + at), Slice::from(..count)).to_owned();
        }
        let shape = values.shape()[before..].to_vec();
        let tensor = Tensor::held(shape, Values::F64(values.iter().copied().collect::<Vec<_>>().into()));
        first.put(place.tap, 0, tensor.expect("as many as its shape"));
    }
    Ok(Some(first))
}
