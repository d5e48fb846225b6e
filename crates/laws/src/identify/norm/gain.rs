//! Another gain.

use std::sync::Arc;

use super::{Gain, Part, Right};
use crate::case::Case;
use crate::identify::vector::{Called, said};
use crate::number::Measured;

const GAIN: Called = Called { one: "gain", several: "gains", symbol: "w", nothing: 1.0 };

/// What a measured gain is.
pub(super) fn gain_laws(case: &Case<'_>, right: &Right, own: &[Measured]) -> Vec<Part<Gain>> {
    if own.len() == right.gain.len() && own.iter().zip(&right.gain).all(|(own, due)| own.may_be(*due)) {
        let f: Gain = Arc::new(|_, _, right| Some(right.gain.clone()));
        return vec![Part { words: None, bits: 0.0, f, parameters: Vec::new() }];
    }
    let part = |said: crate::identify::vector::Said| {
        let f: Gain = Arc::new(move |case, place, right| (said.made)(case, place, &right.gain));
        let parameters = said.is.map(|is| ("gain_is", is.into())).into_iter().collect();
        Part { words: Some(said.words), bits: said.bits, f, parameters }
    };
    said(case, &GAIN, &right.gain, own).into_iter().map(part).collect()
}
