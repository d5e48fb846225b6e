//! Which other weights of a recorded program may an operation have used? By what each is called from the operation's own place.

use std::collections::BTreeSet;

use firstdiff_compare::Place;
use firstdiff_laws::Inner;
use firstdiff_program::{Operand, Slice};
use firstdiff_trace::Tap;
use ndarray::Array2;

use crate::laws::{OtherWeights, weight_called};
use crate::program::Recording;
use crate::program::held::Held;
use crate::program::mixture::Mixture;

/// A weight, and the tap that is made with it.
pub(super) struct Known {
    name: String,
    tap: Tap,
    shape: Vec<usize>,
}

/// The weights of one and of two axes: each belongs to the first tap that is made with it.
pub(super) fn known(recording: &Recording<'_>, held: &Held) -> Vec<Known> {
    let program = recording.program;
    let (mut known, mut seen): (Vec<Known>, BTreeSet<usize>) = (Vec::new(), BTreeSet::new());
    for at in (0..program.taps().len()).filter(|&at| held.place(at).step == 0) {
        let tap = held.place(at).tap;
        let slice = Slice::of(program, at, |other| other != at);
        let operands = slice.ops().flat_map(|op| &program.ops()[op].operands);
        let views = operands.filter_map(|operand| match operand {
            Operand::View(view) => Some(view.buffer),
            _ => None,
        });
        for name in views.filter_map(|buffer| program.weights().get(&buffer).filter(|_| seen.insert(buffer))) {
            let shape = recording.weights.view(name).map(|weight| weight.shape().to_vec());
            if let Some(shape) = shape.filter(|shape| (1..=2).contains(&shape.len())) {
                known.push(Known { name: name.clone(), tap, shape });
            }
        }
    }
    known
}

/// The weights of a program, as an operation's places see them.
pub(super) struct ByPlace<'r> {
    pub(super) recording: &'r Recording<'r>,
    pub(super) known: &'r [Known],
    pub(super) places: Vec<Place>,
    pub(super) mixture: Option<Mixture<'r>>,
}

impl ByPlace<'_> {
    /// Those nearby that have so many axes, by what they are called: of the layer, of its neighbours, and of no layer.
    fn nearby(&self, place: usize, axes: usize) -> impl Iterator<Item = (String, &Known)> {
        let own = self.places.get(place).map(|place| place.tap.layer);
        let last = self.known.iter().filter_map(|known| known.tap.layer).max().unwrap_or(0);
        self.known.iter().filter(move |known| known.shape.len() == axes).flat_map(move |known| {
            let (name, is_bias) = (known.tap.last_site().name(), known.name.ends_with("bias"));
            let called = own.map(|own| weight_called(name, axes, is_bias, (own, known.tap.layer), last));
            called.unwrap_or_default().into_iter().map(move |called| (called, known))
        })
    }

    fn values(&self, known: &Known) -> Option<Vec<f64>> {
        Some(self.recording.weights.read(&known.name).ok()?.to_floats().into_owned())
    }
}

impl OtherWeights for ByPlace<'_> {
    fn columns(&self, place: usize) -> Option<usize> {
        let own = self.places.get(place)?.tap;
        Some(self.known.iter().find(|known| known.tap == own && known.shape.len() == 2)?.shape[1])
    }

    fn matrices(&self, place: usize) -> Vec<(String, [usize; 2])> {
        let own = self.places.get(place).map(|place| place.tap);
        let others = self.nearby(place, 2).filter(|(_, known)| Some(known.tap) != own);
        others.map(|(name, known)| (name, [known.shape[0], known.shape[1]])).collect()
    }

    fn matrix(&self, place: usize, name: &str) -> Option<Array2<f64>> {
        let (_, known) = self.nearby(place, 2).find(|(said, _)| said == name)?;
        Array2::from_shape_vec((known.shape[0], known.shape[1]), self.values(known)?).ok()
    }

    fn experts(&self, place: usize) -> usize {
        self.mixture.as_ref().map_or(0, |mixture| mixture.experts(place))
    }

    fn hidden(&self, place: usize) -> usize {
        self.mixture.as_ref().and_then(|mixture| mixture.hidden(place)).unwrap_or(0)
    }

    fn part(&self, place: usize, inner: Inner) -> Option<Array2<f64>> {
        self.mixture.as_ref()?.part(place, inner)
    }

    fn part_of(&self, place: usize, inner: Inner, x: &Array2<f64>) -> Option<Array2<f64>> {
        self.mixture.as_ref()?.part_of(place, inner, x)
    }

    fn vectors(&self, place: usize, length: usize) -> Vec<(String, Vec<f64>)> {
        let of = |(name, known): (String, &Known)| {
            Some((name, self.values(known)?)).filter(|(_, values)| values.len() == length)
        };
        self.nearby(place, 1).filter(|(_, known)| known.shape == [length]).filter_map(of).collect()
    }
}
