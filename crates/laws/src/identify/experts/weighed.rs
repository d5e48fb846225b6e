//! Experts whose input is multiplied by what a router says of them: the weight taken in front of them, where the model has it behind.

use ndarray::{Array2, ArrayD, Axis};

use super::Routed;
use crate::case::{Case, Inner};
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
        for expert in 0..routed.experts {
            let of: Vec<(usize, f64)> =
                routed.all().filter(|at| routed.chosen[*at] == expert).map(|at| (at.0, routed.weights[at])).collect();
            if of.is_empty() {
                continue;
            }
            let mut weighed = x.clone();
            for (t, weight) in &of {
                weighed.index_axis_mut(Axis(0), *t).mapv_inplace(|x| x * (self.input)(*weight));
            }
            let part = case.operation.part_of(at, Inner::of(expert), &weighed)?;
            let out = out.get_or_insert_with(|| Array2::zeros(part.dim()));
            (out.dim() == part.dim()).then_some(())?;
            of.iter().for_each(|(t, weight)| out.row_mut(*t).scaled_add((self.part)(*weight), &part.row(*t)));
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
