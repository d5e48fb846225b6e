//! Experts whose input is multiplied by what a router says of them: the weight taken in front of them, where the model has it behind.

use ndarray::{Array2, ArrayD};

use super::{Routed, made_of};
use crate::case::Case;
use crate::identify::after::Offers;
use crate::law::Form;

/// Factors of an expert's input and of its part, of the weight.
#[derive(Clone, Copy)]
struct Weighed {
    input: fn(f64) -> f64,
    part: fn(f64) -> f64,
}

impl Weighed {
    fn value(self, case: &Case<'_>, at: usize) -> Option<ArrayD<f64>> {
        let place = &case.places[at];
        let routed = Routed::of(case, at)?;
        let (tokens, input) = (routed.tokens(), place.inputs.first()?);
        let x = input.to_shape((tokens, input.len() / tokens.max(1))).ok()?.into_owned();
        let mut out: Option<Array2<f64>> = None;
        for slot in 0..routed.slots() {
            let mut weighed = x.clone();
            for (t, mut row) in weighed.rows_mut().into_iter().enumerate() {
                row.mapv_inplace(|x| x * (self.input)(routed.weights[[t, slot]]));
            }
            let mut made = made_of(case, at, &routed, &vec![slot; tokens], &weighed)?;
            for (t, mut row) in made.rows_mut().into_iter().enumerate() {
                row.mapv_inplace(|y| y * (self.part)(routed.weights[[t, slot]]));
            }
            out = Some(out.map_or_else(|| made.clone(), |out| out + &made));
        }
        out?.into_dyn().to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    }
}

/// Laws of inputs that are weighed.
pub(super) fn inputs(offers: &mut Offers<'_>) {
    let ways: [(&str, f64, Weighed); 4] = [
        (
            "the input of each expert is multiplied by its weight, and its part is not",
            6.0,
            Weighed { input: |w| w, part: |_| 1.0 },
        ),
        (
            "the input of each expert is multiplied by its weight, and its part again",
            7.0,
            Weighed { input: |w| w, part: |w| w },
        ),
        (
            "the input of each expert is multiplied by the root of its weight, and its part too",
            9.0,
            Weighed { input: f64::sqrt, part: f64::sqrt },
        ),
        ("the input of each expert is divided by its weight", 8.0, Weighed { input: |w| 1.0 / w, part: |w| w }),
    ];
    for (words, bits, way) in ways {
        offers.offer(Form::Experts, words.to_owned(), bits, move |case, at| way.value(case, at));
    }
}
