//! Which other weights of a recorded program may an operation have used? By what each is called from the operation's own place.

use std::collections::BTreeSet;

use firstdiff_compare::Place;
use firstdiff_laws::Inner;
use firstdiff_program::{Operand, Slice};
use firstdiff_trace::Tap;
use ndarray::Array2;

use crate::laws::OtherWeights;
use crate::program::Recording;
use crate::program::held::Held;
use crate::program::mixture::Mixture;

/// A weight, and the tap that is made with it.
struct Known {
    name: String,
    tap: Tap,
    shape: Vec<usize>,
}

/// The weights of a program, as an operation's places see them.
pub(super) struct ByPlace<'r> {
    recording: &'r Recording<'r>,
    known: Vec<Known>,
    places: Vec<Place>,
    mixture: Option<Mixture<'r>>,
}

impl<'r> ByPlace<'r> {
    /// The weights of one and of two axes: each belongs to the first tap that is made with it.
    pub(super) fn of(
        recording: &'r Recording<'r>,
        held: &Held,
        places: Vec<Place>,
        mixture: Option<Mixture<'r>>,
    ) -> ByPlace<'r> {
        let program = recording.program;
        let (mut known, mut seen): (Vec<Known>, BTreeSet<usize>) = (Vec::new(), BTreeSet::new());
        for at in (0..program.taps().len()).filter(|&at| held.place(at).step == 0) {
            let tap = held.place(at).tap;
            for op in Slice::of(program, at, |other| other != at).ops() {
                for operand in &program.ops()[op].operands {
                    let Operand::View(view) = operand else { continue };
                    let Some(name) = program.weights().get(&view.buffer).filter(|_| seen.insert(view.buffer)) else {
                        continue;
                    };
                    let Some(shape) = recording.weights.view(name).map(|weight| weight.shape().to_vec()) else {
                        continue;
                    };
                    if (1..=2).contains(&shape.len()) {
                        known.push(Known { name: name.clone(), tap, shape });
                    }
                }
            }
        }
        ByPlace { recording, known, places, mixture }
    }

    /// Those nearby that have so many axes, by what they are called: of the layer, of its neighbours, and of no layer.
    fn nearby(&self, place: usize, axes: usize) -> impl Iterator<Item = (String, &Known)> {
        let own = self.places.get(place).map(|place| place.tap.layer);
        let layers = self.known.iter().filter_map(|known| known.tap.layer);
        let last = layers.max();
        self.known.iter().filter(move |known| known.shape.len() == axes).filter_map(move |known| {
            let whose = match (own?, known.tap.layer) {
                (a, b) if a == b => "",
                (_, None) => "",
                (Some(own), Some(layer)) if layer == own + 1 => " of the next layer",
                (Some(own), Some(layer)) if layer + 1 == own => " of the layer before",
                (None, Some(0)) => " of the first layer",
                (None, layer) if layer == last => " of the last layer",
                _ => return None,
            };
            let what = match (axes, known.name.ends_with("bias")) {
                (1, false) => "the gain of ",
                (1, true) => "the bias of ",
                _ => "",
            };
            Some((format!("{what}{}{whose}", known.tap.last_site().name()), known))
        })
    }

    fn values(&self, known: &Known) -> Option<Vec<f64>> {
        Some(self.recording.weights.read(&known.name).ok()?.to_floats().into_owned())
    }
}

impl OtherWeights for ByPlace<'_> {
    fn matrices(&self, place: usize) -> Vec<String> {
        let Some(own) = self.places.get(place).map(|place| place.tap) else { return Vec::new() };
        let Some(columns) = self.known.iter().find(|k| k.tap == own && k.shape.len() == 2).map(|k| k.shape[1]) else {
            return Vec::new();
        };
        let fits = |known: &Known| known.tap != own && known.shape[1] == columns;
        self.nearby(place, 2).filter(|(_, known)| fits(known)).map(|(name, _)| name).collect()
    }

    fn matrix(&self, place: usize, name: &str) -> Option<Array2<f64>> {
        let (_, known) = self.nearby(place, 2).find(|(said, _)| said == name)?;
        Array2::from_shape_vec((known.shape[0], known.shape[1]), self.values(known)?).ok()
    }

    fn experts(&self, place: usize) -> usize {
        self.mixture.as_ref().map_or(0, |mixture| mixture.experts(place))
    }

    fn part(&self, place: usize, inner: Inner) -> Option<Array2<f64>> {
        self.mixture.as_ref()?.part(place, inner)
    }

    fn vectors(&self, place: usize, length: usize) -> Vec<(String, Vec<f64>)> {
        let of = |(name, known): (String, &Known)| {
            Some((name, self.values(known)?)).filter(|(_, values)| values.len() == length)
        };
        self.nearby(place, 1).filter(|(_, known)| known.shape == [length]).filter_map(of).collect()
    }
}
