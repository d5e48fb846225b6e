//! Identifies rotations: which pairs of dimensions, by which angles, at which positions, for which heads.

mod positions;
mod sections;
mod tables;
mod turns;

use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayD, Axis as Dimension, Ix3};
use num_complex::Complex;

use self::positions::steps;
pub(super) use self::turns::pairings;
use self::turns::{Pairing, Turns, angles, wrap};
use crate::case::{Axis, Case, Place};
use crate::describe::set::{Set, describe as describe_set};
use crate::describe::table::describe as describe_table;
use crate::fit::ROOM;
use crate::identify::after::Offers;
use crate::identify::{OnPart, any_along, further_off};
use crate::law::{Form, Law, Status, Support};
use crate::number::{Measured, SURE};

/// What a rotation of a place does, as far as it can be told from what is right: pairs, and the frequency of each at positions 0, 1, 2 and so on.
#[derive(Clone, Debug)]
pub(super) struct Right {
    pub(super) pairing: Pairing,
    pub(super) frequencies: Vec<Measured>,
    pub(super) magnitude: Array2<f64>,
}

impl Right {
    /// The angle of each position and pair.
    pub(super) fn all_angles(&self) -> Array2<f64> {
        Array2::from_shape_fn(self.magnitude.dim(), |(t, pair)| t as f64 * self.frequencies[pair].value)
    }

    pub(super) fn of(place: &Place) -> Option<Right> {
        let (x, right) = operands(place, &place.right)?;
        let heads: Vec<usize> = (0..x.shape()[1]).collect();
        for pairing in pairings(x.shape()[2]) {
            let turns = pairing.turns(&x, &right, &heads, EXACT);
            if turns.left <= 1e-6 {
                let frequencies = frequencies(&turns, &positions(x.shape()[0]))?.0;
                return Some(Right { pairing, frequencies, magnitude: turns.z.mapv(|z| z.norm()) });
            }
        }
        None
    }

    /// The angle of a position and a pair.
    pub(super) fn angle(&self, t: usize, pair: usize) -> f64 {
        t as f64 * self.frequencies[pair].value
    }

    /// What a pair is combined by where these are its sine and its cosine.
    pub(super) fn by_sine(&self, t: usize, pair: usize, sine: f64, cosine: f64) -> Matrix {
        let (sin, cos) = (self.magnitude[[t, pair]] * sine, self.magnitude[[t, pair]] * cosine);
        [cos, -sin, sin, cos]
    }

    fn angles(&self, position: impl Fn(usize) -> f64, frequency: impl Fn(usize) -> f64) -> Array2<Complex<f64>> {
        let at =
            |(t, pair): (usize, usize)| Complex::from_polar(self.magnitude[[t, pair]], position(t) * frequency(pair));
        Array2::from_shape_fn(self.magnitude.dim(), at)
    }
}

/// The size of rounding in what is right.
const EXACT: f64 = 1e-9;

fn positions(n: usize) -> Vec<f64> {
    (0..n).map(|t| t as f64).collect()
}

/// What a pair (x1, x2) is combined by: y1 = a x1 + b x2, y2 = c x1 + d x2.
pub(super) type Matrix = [f64; 4];

/// A place's output where each position and pair is combined by a matrix, made of what is right.
pub(super) fn combined(place: &Place, of: &dyn Fn(&Right, usize, usize) -> Option<Matrix>) -> Option<ArrayD<f64>> {
    let right = Right::of(place)?;
    combined_of(place, &right, &|t, j| of(&right, t, j))
}

/// The same, where it is known what is right.
pub(super) fn combined_of(
    place: &Place,
    right: &Right,
    of: &dyn Fn(usize, usize) -> Option<Matrix>,
) -> Option<ArrayD<f64>> {
    let (x, mut out) = operands(place, &place.right)?;
    let (rows, heads, _) = x.dim();
    (right.magnitude.dim() == (rows, right.pairing.first.len())).then_some(())?;
    for t in 0..rows {
        for (j, (&first, &second)) in right.pairing.first.iter().zip(&right.pairing.second).enumerate() {
            let [a, b, c, d] = of(t, j)?;
            for h in 0..heads {
                let (x1, x2) = (x[[t, h, first]], x[[t, h, second]]);
                (out[[t, h, first]], out[[t, h, second]]) = (a * x1 + b * x2, c * x1 + d * x2);
            }
        }
    }
    Some(out.into_dyn())
}

/// Takes up a law by which each position and pair is combined by a matrix, where it is one.
pub(super) fn offer_pairs(
    offers: &mut Offers<'_>,
    form: Form,
    words: String,
    bits: f64,
    of: impl Fn(&Right, usize, usize) -> Option<Matrix> + Send + Sync + 'static,
) {
    offers.offer(form, words, bits, move |case, at| combined(&case.places[at], &of));
}

/// Input and output of a place.
pub(super) fn operands(place: &Place, y: &ArrayD<f64>) -> Option<(Array3<f64>, Array3<f64>)> {
    let of = |x: &ArrayD<f64>| x.clone().into_dimensionality::<Ix3>().ok();
    let (x, y) = (of(place.inputs.first()?)?, of(y)?);
    (x.shape() == y.shape() && x.shape()[0] > 2).then_some((x, y))
}

/// The frequency of each pair, and its angle at position 0, where angles are proportional to these positions.
fn frequencies(turns: &Turns, positions: &[f64]) -> Option<(Vec<Measured>, Vec<Measured>)> {
    let (mut all, mut offsets) = (Vec::new(), Vec::new());
    let angle = angles(turns);
    for pair in 0..angle.ncols() {
        let known: Vec<usize> = (0..positions.len()).filter(|&t| angle[[t, pair]].is_finite()).collect();
        // From step to step first, then over longer and longer spans, so that no turn is lost.
        let steps: Vec<f64> = known
            .windows(2)
            .filter(|w| positions[w[1]] > positions[w[0]])
            .map(|w| wrap(angle[[w[1], pair]] - angle[[w[0], pair]]) / (positions[w[1]] - positions[w[0]]))
            .collect();
        if steps.is_empty() {
            return None;
        }
        let mut sorted = steps.clone();
        sorted.sort_by(f64::total_cmp);
        let mut slope = sorted[sorted.len() / 2];
        let start = *known.first()?;
        let mut offset = wrap(angle[[start, pair]] - slope * positions[start]);
        let (mut slope_error, mut offset_error) = (f64::INFINITY, f64::INFINITY);
        let mut span = 2;
        loop {
            let within: Vec<usize> = known.iter().copied().take(span.min(known.len())).collect();
            let (mut s, mut sx, mut sxx, mut sr, mut sxr) = (0.0, 0.0, 0.0, 0.0, 0.0);
            for &t in &within {
                let weight = turns.error[[t, pair]].max(1e-12).powi(-2);
                let (x, rest) = (positions[t], wrap(angle[[t, pair]] - slope * positions[t] - offset));
                s += weight;
                sx += weight * x;
                sxx += weight * x * x;
                sr += weight * rest;
                sxr += weight * x * rest;
            }
            let det = s * sxx - sx * sx;
            if det > 0.0 {
                slope += (s * sxr - sx * sr) / det;
                offset = wrap(offset + (sxx * sr - sx * sxr) / det);
                (slope_error, offset_error) = ((s / det).sqrt(), (sxx / det).sqrt());
            }
            if span >= known.len() {
                break;
            }
            span *= 2;
        }
        let off = |t: &usize| wrap(angle[[*t, pair]] - slope * positions[*t] - offset).abs();
        if known.iter().any(|t| off(t) > 2.0 * SURE * turns.error[[*t, pair]] + 1e-7) {
            return None;
        }
        all.push(Measured::new(slope, slope_error));
        offsets.push(Measured::new(offset, offset_error));
    }
    Some((all, offsets))
}

/// The laws of a rotation.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let (Some(right), Some((x, own))) = (Right::of(first), operands(first, &first.own)) else { return Vec::new() };
    let wrong = further_off(&first.right, &first.own, first.noise());
    let meant = any_along(&wrong, 1);
    let heads = describe_set(&meant, Axis::Head, None);
    let every = Set::all(meant.len());
    let mut laws = Vec::new();
    for heads in std::iter::once(&every).chain((!heads.is_all()).then_some(&heads)) {
        let of: Vec<usize> = (0..heads.has.len()).filter(|&h| heads.has[h]).collect();
        for pairing in pairings(x.shape()[2]) {
            let turns = pairing.turns(&x, &own, &of, first.noise());
            if turns.left <= ROOM * first.noise() {
                let how = How { case, right: &right, pairing: &pairing, turns: &turns, heads };
                laws.extend(how.laws());
            }
        }
    }
    if laws.is_empty() {
        laws.extend(of_some_positions(case, &right, &x, &own));
    }
    if laws.is_empty() {
        laws.extend(sections::by_head(case, &right));
    }
    if laws.iter().all(|law| law.status == Status::Table) {
        laws.extend(tables::of_tables(case, &right));
    }
    laws
}

/// The laws of the wrong positions alone, where these are a part.
fn of_some_positions(case: &Case<'_>, right: &Right, x: &Array3<f64>, own: &Array3<f64>) -> Vec<Law> {
    let Some((on, parts)) = OnPart::along(case, |axis| axis == 0) else { return Vec::new() };
    let has = parts[0].has.clone();
    let every = Set::all(x.shape()[1]);
    let of: Vec<usize> = (0..x.shape()[1]).collect();
    let mut laws = Vec::new();
    // Positions that are right say nothing of a pairing: they are taken as they came.
    let mut own = own.clone();
    for t in (0..own.shape()[0]).filter(|t| !has.get(*t).is_some_and(|has| *has)) {
        own.index_axis_mut(Dimension(0), t).assign(&x.index_axis(Dimension(0), t));
    }
    for pairing in pairings(x.shape()[2]) {
        let mut turns = pairing.turns(x, &own, &of, case.first().noise());
        if turns.left > ROOM * case.first().noise() {
            continue;
        }
        for (_, mut row) in turns.z.outer_iter_mut().enumerate().filter(|(t, _)| !has.get(*t).is_some_and(|has| *has)) {
            row.fill(Complex::new(f64::NAN, f64::NAN));
        }
        let how = How { case, right, pairing: &pairing, turns: &turns, heads: &every };
        laws.extend(how.laws().into_iter().map(|law| on.put(law)));
    }
    laws
}

/// Measured turns, of which the law is looked for.
struct How<'h> {
    case: &'h Case<'h>,
    right: &'h Right,
    pairing: &'h Pairing,
    turns: &'h Turns,
    heads: &'h Set,
}

/// Makes frequencies of the right ones.
type Frequencies = Arc<dyn Fn(&[f64]) -> Vec<f64> + Send + Sync>;
/// Makes a place's turns of what is right there.
type Made = Arc<dyn Fn(&Right) -> Option<Array2<Complex<f64>>> + Send + Sync>;

impl How<'_> {
    fn laws(&self) -> Vec<Law> {
        let right: Vec<f64> = self.right.frequencies.iter().map(|m| m.value).collect();
        let mut laws = Vec::new();
        if let Some((magnitude, said, bits)) = self.magnitude() {
            let mut found = self.positions(&right);
            for (words, positions, price) in steps(self.turns.z.nrows()) {
                if let Some((measured, offsets)) = frequencies(self.turns, &positions) {
                    found.extend(self.frequencies(&right, &measured, &offsets, words, &positions, price));
                    break;
                }
            }
            found.extend(self.sections(&right));
            if self.holds(&self.right.angles(|t| t as f64, |pair| right[pair])) {
                let made = |right: &Right| Some(right.angles(|t| t as f64, |pair| right.frequencies[pair].value));
                found.push(self.law(Form::RotationPairing, "the angles are right".into(), 0.0, Arc::new(made)));
            }
            for mut law in found {
                if let Some(said) = &said {
                    law.words = format!("{}; {said}", law.words);
                    law.parameters.push(("magnitude", said.clone().into()));
                    if law.bits == self.price() {
                        law.form = Form::RotationMagnitude;
                    }
                }
                law.bits += bits;
                laws.push(self.with_magnitude(law, magnitude.clone()));
            }
        }
        laws
    }

    fn price(&self) -> f64 {
        let same = *self.pairing == self.right.pairing;
        self.heads.bits + if same { 0.0 } else { 2.0 + self.pairing.bits }
    }

    fn holds(&self, z: &Array2<Complex<f64>>) -> bool {
        let off = |(at, z): ((usize, usize), &Complex<f64>)| {
            let own = self.turns.z[at];
            !own.re.is_finite() || !is_turned((&(own * z.conj()), &self.turns.error[at]))
        };
        z.dim() == self.turns.z.dim() && z.indexed_iter().all(off)
    }

    /// A law of the angles, with lengths as they are in the right one.
    fn law(&self, form: Form, words: String, bits: f64, made: Made) -> Law {
        let same = *self.pairing == self.right.pairing;
        let reflected = if self.pairing.is_reflected { ", the second with the other sign" } else { "" };
        let turned = |pair: usize| self.turns.z.column(pair).iter().zip(self.turns.error.column(pair)).any(is_turned);
        let pairs = format!("dimensions {}{reflected} are rotated together", self.pairing.said(turned));
        let words = match (same, words.is_empty()) {
            (true, _) => words,
            (false, _) => {
                let right = self.right.pairing.said(|pair| !self.right.frequencies[pair].may_be(0.0));
                format!("{pairs} (right: {right}); {words}")
            }
        };
        let form = if same { form } else { Form::RotationPairing };
        let mut support = Support::default();
        support.add(Axis::Head, self.heads.words.clone());
        let (pairing, heads) = (self.pairing.clone(), self.heads.has.clone());
        let words = format!("{words}{}", support.said());
        let law = Law::new(form, words, bits + self.price(), move |case, place| {
            let place = &case.places[place];
            let here = Right::of(place)?;
            predicted(place, &pairing, &heads, &made(&here)?)
        });
        law.with("pairs", self.pairing.words).with("reflected", self.pairing.is_reflected).on(support)
    }

    /// The same law with other lengths.
    fn with_magnitude(&self, law: Law, magnitude: Option<Array2<f64>>) -> Law {
        let Some(magnitude) = magnitude else { return law };
        let (inner, pairing, heads) = (law.predict.clone(), self.pairing.clone(), self.heads.has.clone());
        let predict = move |case: &Case<'_>, at: usize| {
            let place = &case.places[at];
            let (x, unscaled) = operands(place, &inner(case, at)?)?;
            let of: Vec<usize> = (0..heads.len()).filter(|&h| heads[h]).collect();
            let z = pairing.turns(&x, &unscaled, &of, EXACT).z;
            if z.dim() != magnitude.dim() {
                return None;
            }
            let scaled = ndarray::Zip::from(&z).and(&magnitude).map_collect(|z, by| z / z.norm().max(1e-300) * *by);
            predicted(place, &pairing, &heads, &scaled)
        };
        Law { predict: Arc::new(predict), ..law }
    }

    /// Lengths: as they are in the right one (`None`), or otherwise.
    #[allow(clippy::type_complexity)]
    fn magnitude(&self) -> Option<(Option<Array2<f64>>, Option<String>, f64)> {
        let (t, pairs) = self.turns.z.dim();
        let ratio = |t: usize, pair: usize| {
            let z = self.turns.z[[t, pair]].norm();
            if !z.is_finite() {
                return Measured::UNKNOWN;
            }
            Measured::new(z / self.right.magnitude[[t, pair]].max(1e-300), self.turns.error[[t, pair]] * z.max(1e-9))
        };
        let all = (0..t).flat_map(|t| (0..pairs).map(move |pair| (t, pair)));
        let fits = |of: &dyn Fn(usize, usize) -> f64| all.clone().all(|(t, pair)| ratio(t, pair).may_be(of(t, pair)));
        if fits(&|_, _| 1.0) {
            return Some((None, None, 0.0));
        }
        let tokens = self.case.tokens_of(Axis::Token);
        let by_position: Vec<Measured> =
            (0..t).map(|t| Measured::mean((0..pairs).map(|pair| ratio(t, pair)))).collect();
        let by_pair: Vec<Measured> = (0..pairs).map(|pair| Measured::mean((0..t).map(|t| ratio(t, pair)))).collect();
        let rows = describe_table(&by_position, Axis::Token, Some(1.0), tokens);
        let columns = describe_table(&by_pair, Axis::Pair, Some(1.0), None);
        let tables = [rows.map(|table| (table, true)), columns.map(|table| (table, false))];
        let best = tables.into_iter().flatten().min_by(|a, b| a.0.bits.total_cmp(&b.0.bits));
        let (table, is_row) =
            best.filter(|(table, is_row)| fits(&|t, pair| table.values[if *is_row { t } else { pair }]))?;
        let values = Array2::from_shape_fn((t, pairs), |(t, pair)| {
            table.values[if is_row { t } else { pair }] * self.right.magnitude[[t, pair]]
        });
        Some((Some(values), Some(format!("lengths are {} times the right ones", table.words)), table.bits + 4.0))
    }
}

/// Whether a measured turn is surely one.
fn is_turned((z, error): (&Complex<f64>, &f64)) -> bool {
    z.arg().abs() > 2.0 * SURE * error + 1e-7
}

fn predicted(place: &Place, pairing: &Pairing, heads: &[bool], z: &Array2<Complex<f64>>) -> Option<ArrayD<f64>> {
    let (x, right) = operands(place, &place.right)?;
    let of: Vec<usize> = (0..heads.len()).filter(|&h| heads[h]).collect();
    (heads.len() == x.shape()[1]).then(|| pairing.turned(&x, &right, &of, z))?.map(Array3::into_dyn)
}
