//! Measures what a wrong operation computes instead, where no mistake of the catalogue gives its numbers: the law that its inputs and outputs show.

use firstdiff_compare::Place;
use firstdiff_core::softmax;
use firstdiff_evidence::Evidence;
use firstdiff_laws::{Axis, Case, Inner, Kind, Law, Operation, OtherWeight, Proof, measured};
use firstdiff_model::Profile;
use firstdiff_trace::{Site, Tap};
use ndarray::{Array2, ArrayD};

use crate::mistakes::{Mistake, Params};
use crate::other_weights::{Experts, OtherWeights};
use crate::paid::{evidence, price};
use crate::replay::Replay;
use crate::replay::operation::{judged_as, recorded_unit};
use crate::replay::right::compared;
use crate::tolerance::laws::{AS_LINEAR, LEAST_NOISE, MOST_NOISE, ROUNDED_BF16, ROUNDED_F16};

/// What an operation computes instead, with its proof.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The law.
    pub law: Law,
    /// What proves it.
    pub proof: Proof,
    /// The places that it was proved in, in the order of the proof's indices.
    pub places: Vec<Place>,
    /// How many axes each input has there, and the output.
    pub(crate) axes: Vec<usize>,
    /// What the rows there carry for a claim that shows one number a row.
    pub(crate) of_rows: Evidence,
}

impl Measured {
    /// Takes the places of the same law at another tap.
    pub(crate) fn take_in(&mut self, other: Measured) {
        let before = self.places.len();
        let behind = |places: Vec<usize>| places.into_iter().map(move |at| before + at);
        self.places.extend(other.places);
        self.proof.fitted.extend(behind(other.proof.fitted));
        self.proof.held_out.extend(behind(other.proof.held_out));
        self.proof.residual_nmse = self.proof.residual_nmse.max(other.proof.residual_nmse);
        self.proof.before_nmse = self.proof.before_nmse.max(other.proof.before_nmse);
        self.proof.gained += other.proof.gained;
        self.of_rows = self.of_rows.and(other.of_rows);
    }

    /// Whether a mistake that this law is, is proved by it: the law may be shown by many numbers of few rows, and the mistake by one number of each.
    pub(crate) fn proves(&self, mistake: &Mistake, params: &Params) -> bool {
        !mistake.shows_one_number_a_row || self.of_rows.against(price(mistake, params, 1)).is_paid()
    }
}

/// Numbers above which an operation is not measured: each candidate would take too long.
const MOST_NUMBERS: usize = 1 << 24;

/// One place of a wrong operation.
pub(crate) struct Wrong {
    pub(crate) place: Place,
    pub(crate) inputs: Vec<ArrayD<f64>>,
    pub(crate) right: ArrayD<f64>,
    pub(crate) own: ArrayD<f64>,
    /// NMSE that the replay allowed.
    pub(crate) allowed: f64,
    pub(crate) around: Vec<(String, ArrayD<f64>)>,
}

impl Wrong {
    /// How many axes each of its inputs has, and its output: a law speaks of those.
    pub(crate) fn axes(&self) -> Vec<usize> {
        self.inputs.iter().chain([&self.right]).map(ArrayD::ndim).collect()
    }
}

/// How the right operation is carried out on other inputs, by the index of the place.
pub(crate) type Apply<'a> = &'a dyn Fn(usize, &[ArrayD<f64>]) -> Option<ArrayD<f64>>;

/// An operation that is wrong in some places, and what is known of it there.
pub(crate) struct Faults<'a> {
    pub(crate) kind: Kind,
    pub(crate) site: Site,
    pub(crate) wrong: Vec<Wrong>,
    pub(crate) tokens: Option<Vec<u32>>,
    pub(crate) profile: Profile,
    pub(crate) apply: Apply<'a>,
    pub(crate) weights: Option<&'a OtherWeights<'a>>,
}

impl Faults<'_> {
    /// The law that it follows.
    pub(crate) fn law(mut self) -> Option<Measured> {
        let axes = self.wrong.first()?.axes();
        let (law, proof) = self.with_case(measured)??;
        let (site, unit) = (self.site, recorded_unit(self.profile, false));
        let carried = self.wrong.iter().map(|wrong| evidence(site, [&wrong.own, &wrong.right, &wrong.own], unit, true));
        let of_rows = carried.fold(Evidence::default(), Evidence::and);
        let places = self.wrong.iter().map(|wrong| wrong.place).collect();
        Some(Measured { law, proof, places, axes, of_rows })
    }

    /// What a law that was measured in other places leaves in these, the worst NMSE; `None` where it does not give them.
    pub(crate) fn left_by(mut self, law: &Law) -> Option<f64> {
        self.with_case(|case| firstdiff_laws::holds(law, case))?
    }

    /// Carries out something on its case.
    fn with_case<R>(&mut self, with: impl FnOnce(&mut Case<'_>) -> R) -> Option<R> {
        let wrong = &mut self.wrong;
        let numbers = |wrong: &Wrong| wrong.own.len() + wrong.inputs.iter().map(ArrayD::len).sum::<usize>();
        if wrong.is_empty() || wrong.iter().any(|wrong| numbers(wrong) > MOST_NUMBERS) {
            return None;
        }
        if wrong.iter().any(|other| other.axes() != wrong[0].axes()) {
            return None;
        }
        // What the replay gives bit for bit has a tolerance of nothing; a law is carried out in f64.
        let floor = match self.profile {
            Profile::Bf16 => ROUNDED_BF16,
            Profile::F16 => ROUNDED_F16,
            _ => LEAST_NOISE,
        };
        wrong.iter_mut().for_each(|wrong| wrong.allowed = wrong.allowed.max(floor));
        let (tokens, first) = (self.tokens.take(), &self.wrong[0]);
        let shape = shape_of(self.kind, first);
        let is_linear = self.kind == Kind::Other && is_linear(first, self.apply);
        let kind = if is_linear { Kind::Linear } else { self.kind };
        let axes = axes_of(kind, self.site, shape.as_ref().map_or(first.right.ndim(), Vec::len));
        let asked = Asked { of: self, shape };
        let made = |wrong: &Wrong| firstdiff_laws::Place {
            layer: wrong.place.tap.layer.map(|layer| layer as usize),
            step: wrong.place.step as usize,
            inputs: wrong.inputs.clone(),
            right: asked.seen(wrong.right.clone()),
            own: asked.seen(wrong.own.clone()),
            tolerance: wrong.allowed.clamp(LEAST_NOISE, MOST_NOISE),
            around: wrong.around.clone(),
        };
        let mut case = Case::new(kind, axes, self.wrong.iter().map(made).collect(), tokens, &asked);
        Some(with(&mut case))
    }

    /// Whether scores are measured as the probabilities that they make.
    fn is_scores(&self) -> bool {
        self.site == Site::Scores
    }
}

/// The shape that a kind's output has for its laws, where it stands otherwise: heads of a context by themselves.
fn shape_of(kind: Kind, wrong: &Wrong) -> Option<Vec<usize>> {
    let [probs, values] = &wrong.inputs[..] else { return None };
    match (kind, probs.shape(), values.shape()) {
        (Kind::Context, &[heads, rows, _], &[_, _, width]) if wrong.right.len() == rows * heads * width => {
            Some(vec![rows, heads, width])
        }
        _ => None,
    }
}

/// Numbers up to which an operation is carried out again to see what it is.
const MOST_TRIED: usize = 1 << 20;

/// Whether an operation of one input is a product of each of its rows with something, and perhaps a vector added.
fn is_linear(wrong: &Wrong, apply: Apply<'_>) -> bool {
    let [x] = &wrong.inputs[..] else { return false };
    if x.ndim() < 2 || x.shape().first() != wrong.right.shape().first() || x.len() > MOST_TRIED {
        return false;
    }
    let of = |x: ArrayD<f64>| apply(0, &[x]).filter(|y| y.shape() == wrong.right.shape());
    let mut first = ArrayD::zeros(x.raw_dim());
    first.index_axis_mut(ndarray::Axis(0), 0).assign(&x.index_axis(ndarray::Axis(0), 0));
    let (Some(nothing), Some(twice), Some(alone)) = (of(ArrayD::zeros(x.raw_dim())), of(x * 2.0), of(first)) else {
        return false;
    };
    let mut by_row = nothing.clone();
    by_row.index_axis_mut(ndarray::Axis(0), 0).assign(&wrong.right.index_axis(ndarray::Axis(0), 0));
    let far = |a: &ArrayD<f64>, b: &ArrayD<f64>| {
        let off: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
        off > AS_LINEAR * b.iter().map(|b| b * b).sum::<f64>()
    };
    let is_some = wrong.right.iter().zip(&nothing).any(|(y, n)| y != n);
    is_some && !far(&(twice + &nothing), &(&wrong.right * 2.0)) && !far(&alone, &by_row)
}

/// The axes of an output.
fn axes_of(kind: Kind, site: Site, rank: usize) -> Vec<Axis> {
    let axes: &[Axis] = match (kind, rank) {
        (Kind::Probs, 3) => &[Axis::Head, Axis::Query, Axis::Key],
        (Kind::Rotation | Kind::Context, 3) => &[Axis::Token, Axis::Head, Axis::Dim],
        (_, 3) if matches!(site, Site::Qk | Site::Scores | Site::Probs) => &[Axis::Head, Axis::Query, Axis::Key],
        (_, 3) => &[Axis::Token, Axis::Head, Axis::Dim],
        (_, 2) if site == Site::Logits => &[Axis::Token, Axis::Row],
        (_, 2) if matches!(site.name(), "router_logits" | "router_probs" | "router_scores") => {
            &[Axis::Token, Axis::Expert]
        }
        (_, 2) => &[Axis::Token, Axis::Channel],
        (_, 1) => &[Axis::Channel],
        _ => &[Axis::Token, Axis::Channel, Axis::Channel, Axis::Channel],
    };
    axes.iter().copied().chain(std::iter::repeat(Axis::Channel)).take(rank).collect()
}

/// What a tap's operation computes, by what the tap is and how many tensors it reads.
pub(crate) fn kind_of(site: Site, inputs: &[ArrayD<f64>], right: &ArrayD<f64>) -> Kind {
    let same = |x: &ArrayD<f64>| x.shape() == right.shape();
    let by_row = |x: &ArrayD<f64>| x.ndim() == 2 && right.ndim() == 2 && x.shape()[0] == right.shape()[0];
    match (site, inputs) {
        (Site::Probs | Site::Scores, [q, k]) if q.ndim() == 3 && k.ndim() == 3 => Kind::Probs,
        (Site::QRope | Site::KRope, [x]) if same(x) => Kind::Rotation,
        (Site::Context, [probs, values]) if probs.ndim() == 3 && values.ndim() == 3 => Kind::Context,
        (Site::H0, [ids]) if ids.ndim() == 1 => Kind::Embedding,
        (Site::FfnAct, [gate, up]) if same(gate) && same(up) => Kind::Gate,
        (Site::FfnAct, [x]) if same(x) => Kind::Activation,
        (Site::AttnNorm | Site::FfnNorm | Site::FinalNorm | Site::QNorm | Site::KNorm, [x]) if same(x) => Kind::Norm,
        (_, [x]) if same(x) && site.name().ends_with("norm") => Kind::Norm,
        (Site::FfnOut, [x, weights, chosen]) if same(x) && weights.ndim() == 2 && weights.shape() == chosen.shape() => {
            Kind::Mixture
        }
        (site, [x]) if site.name() == "router_topk" && by_row(x) => Kind::Choice,
        (site, [x]) if site.name() == "router_weights" && by_row(x) && x.shape()[1] > right.shape()[1] => Kind::Shares,
        (Site::HAttn | Site::H, [a, b]) if same(a) && same(b) => Kind::Sum,
        (
            Site::Q | Site::K | Site::V | Site::AttnOut | Site::FfnGate | Site::FfnUp | Site::FfnOut | Site::Logits,
            [x],
        ) if x.shape().first() == right.shape().first() => Kind::Linear,
        _ => Kind::Other,
    }
}

/// What a tap is called from another: those of its layer, of the one before, and of no layer; the stream two layers before; behind the layers, those of the last one.
pub(crate) fn called_from(own: Tap, there: Tap, last: Option<u32>) -> Option<String> {
    let name = there.last_site().name();
    // The stream before the layers is called as the one between them.
    let stream = |before: Option<u32>| there.site == Site::H0 && own.layer == before;
    Some(match (own.layer, there.layer) {
        _ if stream(Some(0)) => "h of the layer before".to_owned(),
        _ if stream(Some(1)) => "h two layers before".to_owned(),
        (_, None) => name.to_owned(),
        (Some(own), Some(layer)) if own == layer => name.to_owned(),
        (None, Some(layer)) if Some(layer) == last => format!("{name} of the last layer"),
        (None, Some(layer)) if Some(layer + 1) == last && there.last_site() == Site::H => {
            format!("{name} of the last layer but one")
        }
        (Some(own), Some(layer)) if own == layer + 1 => format!("{name} of the layer before"),
        (Some(own), Some(layer)) if own == layer + 2 && there.last_site() == Site::H => {
            format!("{name} two layers before")
        }
        _ => return None,
    })
}

/// The right operation, asked by the laws.
struct Asked<'a> {
    of: &'a Faults<'a>,
    shape: Option<Vec<usize>>,
}

impl Asked<'_> {
    fn experts_of(&self) -> Option<&dyn Experts> {
        self.of.weights?.experts
    }

    /// A tensor as the laws see it.
    fn seen(&self, x: ArrayD<f64>) -> ArrayD<f64> {
        if self.of.is_scores() {
            return softmax(x.view());
        }
        match &self.shape {
            Some(shape) if shape.iter().product::<usize>() == x.len() => {
                x.to_shape(shape.clone()).map(|x| x.into_owned()).unwrap_or_default()
            }
            _ => x,
        }
    }
}

impl Operation for Asked<'_> {
    fn apply(&self, place: usize, inputs: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
        // Slices that were picked lie in another order in memory.
        let inputs: Vec<ArrayD<f64>> = inputs.iter().map(|x| x.as_standard_layout().into_owned()).collect();
        (self.of.apply)(place, &inputs).map(|x| self.seen(x))
    }

    fn other_weights(&self, place: usize) -> Vec<OtherWeight> {
        let Some(weights) = self.of.weights else { return Vec::new() };
        let columns = weights.columns(place);
        let both = |(name, extents): (String, [usize; 2])| {
            let read = move |is_transposed: bool| {
                let fits = columns == Some(extents[usize::from(!is_transposed)]);
                fits.then(|| OtherWeight { name: name.clone(), is_transposed })
            };
            [false, true].into_iter().filter_map(read).collect::<Vec<_>>()
        };
        let mut all: Vec<OtherWeight> = weights.matrices(place).into_iter().flat_map(both).collect();
        all.sort_by_key(|weight| weight.is_transposed);
        all
    }

    fn other_weight(&self, place: usize, weight: &OtherWeight) -> Option<Array2<f64>> {
        let matrix = self.of.weights?.matrix(place, &weight.name)?;
        Some(if weight.is_transposed { matrix.reversed_axes() } else { matrix })
    }

    fn experts(&self, place: usize) -> usize {
        self.experts_of().map_or(0, |experts| experts.count(place))
    }

    fn part(&self, place: usize, inner: Inner) -> Option<Array2<f64>> {
        self.experts_of()?.part(place, inner)
    }

    fn hidden(&self, place: usize) -> usize {
        self.experts_of().and_then(|experts| experts.hidden(place)).unwrap_or(0)
    }

    fn part_of(&self, place: usize, inner: Inner, x: &Array2<f64>) -> Option<Array2<f64>> {
        self.experts_of()?.part_of(place, inner, x)
    }

    fn vectors(&self, place: usize, length: usize) -> Vec<(String, Vec<f64>)> {
        self.of.weights.map(|weights| weights.vectors(place, length)).unwrap_or_default()
    }

    fn agrees(&self, place: usize, predicted: &ArrayD<f64>) -> bool {
        let Faults { site, wrong, profile, .. } = self.of;
        let wrong = &wrong[place];
        let own = if self.of.is_scores() { softmax(wrong.own.view()) } else { wrong.own.clone() };
        let Ok(predicted) = predicted.to_shape(own.raw_dim()) else { return false };
        let site = if self.of.is_scores() { Site::Probs } else { *site };
        compared(site, &predicted.into_owned(), &own, judged_as(*profile), wrong.allowed).0.outcome.agrees()
    }
}

/// NMSE that the replay allowed at a place.
pub(crate) fn allowed_at(replay: &Replay, place: Place) -> Option<f64> {
    replay.taps.iter().find(|tap| tap.report.place == place)?.report.allowed.filter(|allowed| allowed.is_finite())
}
