//! The other weights that an operation may have used, by what each is called from the operation's own place.

use std::collections::HashSet;

use firstdiff_laws::Inner;
use firstdiff_trace::Tap;
use ndarray::Array2;

/// A weight, and a tap that is made with it.
pub(crate) struct Known {
    /// Which of the weights it is: one may be of several taps.
    pub(crate) weight: usize,
    pub(crate) tap: Tap,
    pub(crate) is_bias: bool,
    pub(crate) shape: Vec<usize>,
}

/// What the experts of places give, where a mixture is wrong.
pub(crate) trait Experts {
    /// How many there are.
    fn count(&self, place: usize) -> usize;
    /// How many elements an expert has between its up and its down matrix.
    fn hidden(&self, place: usize) -> Option<usize>;
    /// What an expert gives for every token, unweighted `[T,D]`.
    fn part(&self, place: usize, inner: Inner) -> Option<Array2<f64>>;
    /// The same of other rows than those that the experts of the place read.
    fn part_of(&self, place: usize, inner: Inner, x: &Array2<f64>) -> Option<Array2<f64>>;
}

/// Weights beside an operation's own, as its places see them.
pub(crate) struct OtherWeights<'a> {
    pub(crate) known: &'a [Known],
    /// The values of a weight.
    pub(crate) values: &'a dyn Fn(usize) -> Option<Vec<f64>>,
    /// The tap of each place that has weights.
    pub(crate) places: Vec<Tap>,
    pub(crate) experts: Option<&'a dyn Experts>,
}

impl OtherWeights<'_> {
    /// Those nearby that have so many axes, by what they are called: of the layer, of its neighbours, and of no layer.
    fn nearby(&self, place: usize, axes: usize) -> Vec<(String, &Known)> {
        let Some(own) = self.places.get(place) else { return Vec::new() };
        let last = self.known.iter().filter_map(|known| known.tap.layer).max().unwrap_or(0);
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        for known in self.known.iter().filter(|known| known.shape.len() == axes) {
            let called = called(known.tap.last_site().name(), axes, known.is_bias, (own.layer, known.tap.layer), last);
            if !called.is_empty() && seen.insert(known.weight) {
                all.extend(called.into_iter().map(|called| (called, known)));
            }
        }
        all
    }

    /// The operation's own matrix.
    fn own(&self, place: usize) -> Option<&Known> {
        let own = self.places.get(place)?;
        self.known.iter().find(|known| known.tap == *own && known.shape.len() == 2)
    }

    /// How many columns the operation's own matrix has.
    pub(crate) fn columns(&self, place: usize) -> Option<usize> {
        Some(self.own(place)?.shape[1])
    }

    /// Other matrices, and how many rows and columns each has.
    pub(crate) fn matrices(&self, place: usize) -> Vec<(String, [usize; 2])> {
        let own = self.own(place).map(|own| (own.weight, own.tap));
        let is_own = |known: &Known| own.is_some_and(|(weight, tap)| known.weight == weight || known.tap == tap);
        let others = self.nearby(place, 2).into_iter().filter(|(_, known)| !is_own(known));
        others.map(|(name, known)| (name, [known.shape[0], known.shape[1]])).collect()
    }

    /// One of those.
    pub(crate) fn matrix(&self, place: usize, name: &str) -> Option<Array2<f64>> {
        let (_, known) = self.nearby(place, 2).into_iter().find(|(called, _)| called == name)?;
        Array2::from_shape_vec((known.shape[0], known.shape[1]), (self.values)(known.weight)?).ok()
    }

    /// Vectors of this length, the operation's own among them.
    pub(crate) fn vectors(&self, place: usize, length: usize) -> Vec<(String, Vec<f64>)> {
        let fit = self.nearby(place, 1).into_iter().filter(|(_, known)| known.shape == [length]);
        fit.filter_map(|(name, known)| Some((name, (self.values)(known.weight)?))).collect()
    }
}

/// What a weight of so many axes is called from a layer, by the name of what it makes: by how far away its layer is, and, of a vector, as that of the first
/// or the last layer; nothing where it is too far away. `last` is the last layer.
fn called(name: &str, axes: usize, is_bias: bool, (own, there): (Option<u32>, Option<u32>), last: u32) -> Vec<String> {
    let near = match (own, there) {
        (a, b) if a == b => Some(""),
        (_, None) => Some(""),
        (Some(own), Some(layer)) if layer == own + 1 => Some(" of the next layer"),
        (Some(own), Some(layer)) if layer + 1 == own => Some(" of the layer before"),
        _ => None,
    };
    // A pointer that stays is in the same layer from everywhere.
    let is_other = own != there && (own.is_none() || axes == 1);
    let at_the_end = match there.filter(|_| is_other) {
        Some(0) => Some(" of the first layer"),
        Some(layer) if layer == last => Some(" of the last layer"),
        _ => None,
    };
    let what = match (axes, is_bias) {
        (1, false) => "the gain of ",
        (1, true) => "the bias of ",
        _ => "",
    };
    near.into_iter().chain(at_the_end).map(|whose| format!("{what}{name}{whose}")).collect()
}
