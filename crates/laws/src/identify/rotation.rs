//! Rotations: which pairs of dimensions, by which angles, at which positions, for which heads?

use std::f64::consts::PI;
use std::sync::Arc;

use nalgebra::Complex;
use ndarray::{Array2, Array3, ArrayD, Axis as Dimension, Ix3};

use crate::case::{Axis, Case, Place};
use crate::describe::choice;
use crate::describe::set::{Set, describe as describe_set};
use crate::describe::source::describe as describe_source;
use crate::describe::table::{bits_of, describe as describe_table};
use crate::identify::further_off;
use crate::law::{Form, Law, Parameters, Support};
use crate::number::{Measured, SURE, shortest};

/// Which dimensions of a head are rotated together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pairing {
    words: &'static str,
    bits: f64,
    pub(super) first: Vec<usize>,
    pub(super) second: Vec<usize>,
    /// Whether the second is taken with the other sign.
    pub(super) is_reflected: bool,
}

/// Pairings of the first `d` dimensions, and of all.
fn pairings(d: usize) -> Vec<Pairing> {
    let half = d / 2;
    if half == 0 || !d.is_multiple_of(2) {
        return Vec::new();
    }
    let range = |f: &dyn Fn(usize) -> usize| (0..half).map(f).collect::<Vec<_>>();
    let mut all = vec![
        ("i and i + d/2", 0.0, range(&|i| i), range(&|i| i + half)),
        ("2i and 2i + 1", 2.0, range(&|i| 2 * i), range(&|i| 2 * i + 1)),
        ("i and d - 1 - i", 4.0, range(&|i| i), range(&|i| d - 1 - i)),
    ];
    if half.is_multiple_of(2) {
        let quarter = half / 2;
        let at = |i: usize| if i < quarter { i } else { i - quarter + half };
        all.push(("i and i + d/4 within each half", 4.0, range(&at), range(&|i| at(i) + quarter)));
    }
    let with = |(words, bits, first, second): (&'static str, f64, Vec<usize>, Vec<usize>)| {
        [false, true].map(|is_reflected| {
            let bits = bits + if is_reflected { 2.0 } else { 0.0 };
            Pairing { words, bits, first: first.clone(), second: second.clone(), is_reflected }
        })
    };
    all.into_iter().flat_map(with).collect()
}

/// What each pair is multiplied by at each position: a complex number, its angle's standard error, and what that leaves of all.
#[derive(Clone, Debug)]
struct Turns {
    z: Array2<Complex<f64>>,
    error: Array2<f64>,
    left: f64,
}

impl Pairing {
    fn complex(&self, x: &Array3<f64>, at: (usize, usize), pair: usize) -> Complex<f64> {
        let (t, h) = at;
        let second = x[[t, h, self.second[pair]]];
        Complex::new(x[[t, h, self.first[pair]]], if self.is_reflected { -second } else { second })
    }

    /// Measured over these heads.
    fn turns(&self, x: &Array3<f64>, y: &Array3<f64>, heads: &[usize], noise: f64) -> Turns {
        let (t, pairs) = (x.shape()[0], self.first.len());
        let (mut z, mut error) = (Array2::zeros((t, pairs)), Array2::zeros((t, pairs)));
        let (mut rest, mut all) = (0.0, 0.0);
        // y is not reflected: what comes out stands as it does.
        let out = Pairing { is_reflected: false, ..self.clone() };
        let size = (y.iter().map(|y| y * y).sum::<f64>() / y.len().max(1) as f64).sqrt();
        for at in 0..t {
            for pair in 0..pairs {
                let (mut cross, mut square) = (Complex::new(0.0, 0.0), 0.0);
                for &h in heads {
                    let (x, y) = (self.complex(x, (at, h), pair), out.complex(y, (at, h), pair));
                    cross += y * x.conj();
                    square += x.norm_sqr();
                }
                let turn = if square > 0.0 { cross / square } else { Complex::new(f64::NAN, f64::NAN) };
                let mut left = 0.0;
                for &h in heads {
                    let (x, y) = (self.complex(x, (at, h), pair), out.complex(y, (at, h), pair));
                    left += (y - turn * x).norm_sqr();
                    all += y.norm_sqr();
                }
                rest += left;
                let each = (left / heads.len().max(2) as f64).sqrt().max(noise * size);
                z[[at, pair]] = turn;
                error[[at, pair]] = each / square.max(f64::MIN_POSITIVE).sqrt() / turn.norm().max(1e-9);
            }
        }
        Turns { z, error, left: (rest / all.max(f64::MIN_POSITIVE)).sqrt() }
    }

    /// The heads of `x` with their pairs multiplied.
    fn turned(
        &self,
        x: &Array3<f64>,
        right: &Array3<f64>,
        heads: &[usize],
        z: &Array2<Complex<f64>>,
    ) -> Option<Array3<f64>> {
        let mut out = right.clone();
        if z.dim() != (x.shape()[0], self.first.len()) || x.shape() != right.shape() {
            return None;
        }
        for t in 0..x.shape()[0] {
            for &h in heads.iter().filter(|h| **h < x.shape()[1]) {
                for pair in 0..self.first.len() {
                    let y = self.complex(x, (t, h), pair) * z[[t, pair]];
                    out[[t, h, self.first[pair]]] = y.re;
                    out[[t, h, self.second[pair]]] = y.im;
                }
            }
        }
        Some(out)
    }
}

/// The angle in -pi..pi.
fn wrap(angle: f64) -> f64 {
    (angle + PI).rem_euclid(2.0 * PI) - PI
}

fn angles(turns: &Turns) -> Array2<f64> {
    turns.z.mapv(|z| z.arg())
}

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
    let meant: Vec<Option<bool>> =
        wrong.axis_iter(Dimension(1)).map(|head| Some(head.iter().any(|wrong| *wrong))).collect();
    let heads = describe_set(&meant, Axis::Head, None);
    let every = Set { words: None, bits: 0.0, has: vec![true; meant.len()] };
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
        laws.extend(crate::identify::rotation_otherwise::laws(case));
    }
    laws
}

/// Errors of rounding's size that a pairing may leave.
const ROOM: f64 = 5.0;

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
            !own.re.is_finite() || wrap(own.arg() - z.arg()).abs() <= 2.0 * SURE * self.turns.error[at] + 1e-7
        };
        z.dim() == self.turns.z.dim() && z.indexed_iter().all(off)
    }

    /// A law of the angles, with lengths as they are in the right one.
    fn law(&self, form: Form, words: String, bits: f64, made: Made) -> Law {
        let same = *self.pairing == self.right.pairing;
        let reflected = if self.pairing.is_reflected { ", the second with the other sign" } else { "" };
        let pairs = format!("dimensions {}{reflected} are rotated together", self.pairing.words);
        let words = match (same, words.is_empty()) {
            (true, _) => words,
            (false, _) => format!("{pairs} (right: {}); {words}", self.right.pairing.words),
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

    /// Angles of other positions, at the right frequencies.
    fn positions(&self, right: &[f64]) -> Vec<Law> {
        let angle = angles(self.turns);
        let mut laws = Vec::new();
        let Some(measured) =
            (0..angle.nrows()).map(|t| position(&angle, &self.turns.error, t, right)).collect::<Option<Vec<_>>>()
        else {
            return laws;
        };
        let tokens = self.case.tokens_of(Axis::Token);
        let of = |values: Vec<f64>| -> Made {
            Arc::new(move |right: &Right| {
                (values.len() == right.magnitude.nrows())
                    .then(|| right.angles(|t| values[t], |pair| right.frequencies[pair].value))
            })
        };
        let mut offer = |words: String, bits: f64, shift: Option<f64>, values: Vec<f64>| {
            if self.holds(&self.right.angles(|t| values[t], |pair| right[pair])) {
                let parameter = words.clone();
                let law = self.law(Form::RotationPosition, words, bits, of(values));
                laws.push(law.with("position", parameter).with("shift", shift));
            }
        };
        if let Some(table) = describe_table(&measured, Axis::Token, None, tokens) {
            offer(format!("positions are {}", table.words), table.bits, None, table.values);
        }
        let off: Vec<Measured> = measured.iter().enumerate().map(|(t, m)| m.plus(-(t as f64))).collect();
        if let Some(table) = describe_table(&off, Axis::Token, Some(0.0), tokens) {
            let values = table.values.iter().enumerate().map(|(t, by)| t as f64 + by).collect();
            let shift = table.number.filter(|_| table.part.is_none()).map(|number| number.value);
            offer(format!("positions are the right ones plus {}", table.words), table.bits + 2.0, shift, values);
        }
        let still: Vec<Option<bool>> =
            measured.iter().enumerate().map(|(t, m)| (t > 0).then(|| m.may_be(0.0))).collect();
        if still.contains(&Some(true)) {
            let set = describe_set(&still, Axis::Token, tokens);
            let values = set.has.iter().enumerate().map(|(t, is)| if *is { 0.0 } else { t as f64 }).collect();
            let at = set.words.map_or_else(String::new, |words| format!(" at {words}"));
            offer(format!("nothing is rotated{at}"), set.bits + 1.0, None, values);
        }
        let whole = |m: &Measured| {
            let near = m.value.round();
            (m.may_be(near) && near >= 0.0 && m.error < 0.1).then_some(near as usize)
        };
        let from: Vec<Option<usize>> = measured.iter().map(whole).collect();
        if from.iter().all(Option::is_some) {
            let n = from.len().max(from.iter().flatten().max().map_or(0, |most| most + 1));
            let source = describe_source(&from, n, Axis::Token);
            let values = source.from.iter().map(|&p| p as f64).collect();
            if source.is_itself {
                return laws;
            }
            offer(format!("each position i is rotated as {}", source.words), source.bits, None, values);
        }
        laws
    }

    /// Other frequencies, at these positions.
    fn frequencies(
        &self,
        right: &[f64],
        measured: &[Measured],
        offsets: &[Measured],
        positions_are: Option<&str>,
        positions: &[f64],
        price: f64,
    ) -> Vec<Law> {
        let d = 2 * right.len();
        let mut laws = Vec::new();
        let begins = positions_are.map_or_else(String::new, |words| format!("positions are {words}; "));
        let (shift, shift_words, shift_bits) = match self.shift(offsets, measured) {
            Some(shift) => shift,
            None => return laws,
        };
        let own: Vec<f64> = measured.iter().map(|m| m.value).collect();
        let data = serde_json::json!({"kind": "angles", "right": right, "measured": own});
        let mut offer = |form: Form, words: String, bits: f64, numbers: Parameters, of: Frequencies| {
            let (positions, shift) = (positions.to_vec(), shift.clone());
            let made = move |right: &Right| {
                let own: Vec<f64> = right.frequencies.iter().map(|m| m.value).collect();
                let frequencies = of(&own);
                let dim = right.magnitude.dim();
                (dim == (positions.len(), frequencies.len()) && shift.len() == frequencies.len()).then(|| {
                    Array2::from_shape_fn(dim, |(t, pair)| {
                        let angle = positions[t] * frequencies[pair] + shift[pair];
                        Complex::from_polar(right.magnitude[[t, pair]], angle)
                    })
                })
            };
            if made(self.right).is_some_and(|z| self.holds(&z)) {
                let words = format!("{begins}{words}{shift_words}");
                let mut law = self.law(form, words, bits + price + shift_bits, Arc::new(made)).drawn(data.clone());
                law.parameters.extend(numbers);
                law.parameters.push(("shifted", (!shift_words.is_empty()).into()));
                law.parameters.extend(positions_are.map(|words| ("position", words.into())));
                laws.push(law);
            }
        };
        let ratio: Vec<Measured> =
            measured
                .iter()
                .zip(right)
                .map(|(m, right)| {
                    if *right == 0.0 {
                        Measured::UNKNOWN
                    } else {
                        Measured::new(m.value / right, m.error / right.abs())
                    }
                })
                .collect();
        if let Some(table) = describe_table(&ratio, Axis::Pair, Some(1.0), None) {
            let values = table.values.clone();
            let is_right = table.number.as_ref().is_some_and(|n| n.value == 1.0) && table.part.is_none();
            let words = match is_right {
                true => "frequencies are right".to_owned(),
                false => format!("angles are {} times the right ones", table.words),
            };
            let form = if is_right { Form::RotationPosition } else { Form::RotationFrequency };
            let by = move |own: &[f64]| own.iter().zip(&values).map(|(own, by)| own * by).collect();
            let factor = table.number.filter(|_| table.part.is_none()).map(|number| ("factor", number.value.into()));
            offer(form, words, table.bits + 2.0, factor.into_iter().collect(), Arc::new(by));
        }
        if let Some((base, first)) = base_of(measured) {
            let model = base_of(&right.iter().map(|r| Measured::new(*r, 1e-12 * r.abs())).collect::<Vec<_>>());
            let has = model
                .as_ref()
                .map_or_else(String::new, |(base, _)| format!(" (the model has {})", base.number().words));
            for (base, first) in [(base.number(), first.number()), (base.plain(), first.plain())] {
                let times = if first.value == 1.0 { String::new() } else { format!("{} times ", first.words) };
                let words = format!("frequencies are {times}{}^(-2j/{d}) for pair j{has}", base.words);
                let bits = 6.0 + base.bits + if first.value == 1.0 { 0.0 } else { first.bits };
                let of = move |own: &[f64]| {
                    let pairs = own.len() as f64;
                    (0..own.len()).map(|j| first.value * base.value.powf(-(j as f64) / pairs)).collect()
                };
                let right_base = model.as_ref().map(|(base, _)| base.value);
                let numbers =
                    vec![("base", base.value.into()), ("first", first.value.into()), ("right_base", right_base.into())];
                offer(Form::RotationFrequency, words, bits, numbers, Arc::new(of));
            }
        }
        // Which pair's frequency is the nearest?
        let nearest = |m: &Measured| (0..right.len()).find(|&j| m.may_be(right[j]) && m.error < 0.02 * right[j].abs());
        let from: Vec<Option<usize>> = measured.iter().map(nearest).collect();
        if from.iter().all(Option::is_some) {
            let source = describe_source(&from, right.len(), Axis::Pair);
            if !source.is_itself {
                let (words, of) = (format!("the frequency of pair j is that of {}", source.words), source.from);
                let by = move |own: &[f64]| of.iter().map(|&j| own.get(j).copied().unwrap_or(f64::NAN)).collect();
                offer(Form::RotationFrequency, words, source.bits + 3.0, Vec::new(), Arc::new(by));
            }
        }
        if let Some(table) = describe_table(measured, Axis::Pair, None, None) {
            let values = table.values;
            let words = format!("frequencies are {}", table.words);
            offer(
                Form::RotationFrequency,
                words,
                table.bits + 5.0,
                Vec::new(),
                Arc::new(move |_: &[f64]| values.clone()),
            );
        }
        let off: Vec<Measured> = measured.iter().zip(right).map(|(m, right)| m.plus(-right)).collect();
        if let Some(table) = describe_table(&off, Axis::Pair, Some(0.0), None) {
            let values = table.values;
            let by = move |own: &[f64]| own.iter().zip(&values).map(|(own, by)| own + by).collect();
            offer(
                Form::RotationFrequency,
                format!("frequencies are the right ones plus {}", table.words),
                table.bits + 4.0,
                Vec::new(),
                Arc::new(by),
            );
        }
        let values: Vec<f64> = measured.iter().map(|m| m.value).collect();
        if laws.is_empty() {
            let listed = values.iter().take(8).map(|x| shortest(*x)).collect::<Vec<_>>().join(", ");
            let bits = bits_of(measured) + choice(d);
            let (form, table) = (Form::RotationFrequency, values.clone());
            let positions = positions.to_vec();
            let made = move |right: &Right| {
                (right.magnitude.dim() == (positions.len(), table.len())).then(|| {
                    Array2::from_shape_fn(right.magnitude.dim(), |(t, pair)| {
                        Complex::from_polar(right.magnitude[[t, pair]], positions[t] * table[pair] + shift[pair])
                    })
                })
            };
            let words = format!("{begins}a frequency for each pair ({listed}){shift_words}");
            laws.push(
                self.law(form, words, bits + price + shift_bits, Arc::new(made)).with("frequencies", values).table(),
            );
        }
        laws
    }

    /// The angle of each pair at position 0, in words behind a law.
    fn shift(&self, offsets: &[Measured], frequencies: &[Measured]) -> Option<(Vec<f64>, String, f64)> {
        if offsets.iter().all(|m| m.may_be(0.0)) {
            return Some((vec![0.0; offsets.len()], String::new(), 0.0));
        }
        // At the frequencies that are used, whatever they are.
        let over: Vec<Measured> = offsets
            .iter()
            .zip(frequencies)
            .map(|(m, by)| Measured::new(m.value / by.value, m.error / by.value.abs().max(1e-300)))
            .collect();
        let positions = describe_table(&over, Axis::Pair, Some(0.0), None).map(|table| {
            let values = table.values.iter().zip(frequencies).map(|(at, by)| at * by.value).collect();
            (values, format!("; positions {} further on", table.words), table.bits + 2.0)
        });
        let angles = describe_table(offsets, Axis::Pair, Some(0.0), None)
            .map(|table| (table.values, format!("; angles plus {}", table.words), table.bits + 2.0));
        positions.into_iter().chain(angles).min_by(|a, b| a.2.total_cmp(&b.2))
    }
}

/// Positions that an engine may count.
fn steps(n: usize) -> Vec<(Option<&'static str>, Vec<f64>, f64)> {
    let of = |f: fn(usize) -> usize| (0..n).map(|t| f(t) as f64).collect::<Vec<_>>();
    vec![
        (None, of(|t| t), 0.0),
        (Some("counted in pairs (position div 2)"), of(|t| t / 2), 4.0),
        (Some("counted in fours (position div 4)"), of(|t| t / 4), 5.0),
    ]
}

/// The position that a row's angles belong to: told roughly by slow pairs, and finely by fast ones.
fn position(angle: &Array2<f64>, error: &Array2<f64>, t: usize, right: &[f64]) -> Option<Measured> {
    let mut order: Vec<usize> =
        (0..right.len()).filter(|&j| right[j].abs() > 0.0 && angle[[t, j]].is_finite()).collect();
    order.sort_by(|&a, &b| right[a].abs().total_cmp(&right[b].abs()));
    let slowest = *order.first()?;
    let mut at = Measured::new(angle[[t, slowest]] / right[slowest], error[[t, slowest]] / right[slowest].abs());
    for &pair in order.iter().skip(1) {
        let turn = 2.0 * PI / right[pair].abs();
        let near = angle[[t, pair]] / right[pair];
        let value = near + ((at.value - near) / turn).round() * turn;
        let own = Measured::new(value, error[[t, pair]] / right[pair].abs());
        // A pair whose turn cannot be told yet says nothing.
        if SURE * at.error < 0.5 * turn {
            at = Measured::mean([at, own].into_iter());
        }
    }
    at.is_known().then_some(at)
}

/// Base and first frequency of a geometric row.
fn base_of(measured: &[Measured]) -> Option<(Measured, Measured)> {
    let n = measured.len();
    if n < 3 || measured.iter().any(|m| m.value.is_nan() || m.value <= 0.0 || m.error > 0.2 * m.value) {
        return None;
    }
    let (mut s, mut sx, mut sxx, mut sy, mut sxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (j, m) in measured.iter().enumerate() {
        let (x, y, weight) = (j as f64, m.value.ln(), (m.error / m.value).max(1e-13).powi(-2));
        s += weight;
        sx += weight * x;
        sxx += weight * x * x;
        sy += weight * y;
        sxy += weight * x * y;
    }
    let det = s * sxx - sx * sx;
    let (slope, first) = ((s * sxy - sx * sy) / det, (sxx * sy - sx * sxy) / det);
    let fits = measured.iter().enumerate().all(|(j, m)| m.may_be((first + slope * j as f64).exp()));
    let pairs = n as f64;
    let base = (-slope * pairs).exp();
    fits.then(|| {
        let base = Measured::new(base, base * pairs * (s / det).sqrt());
        (base, Measured::new(first.exp(), first.exp() * (sxx / det).sqrt()))
    })
}

fn predicted(place: &Place, pairing: &Pairing, heads: &[bool], z: &Array2<Complex<f64>>) -> Option<ArrayD<f64>> {
    let (x, right) = operands(place, &place.right)?;
    let of: Vec<usize> = (0..heads.len()).filter(|&h| heads[h]).collect();
    (heads.len() == x.shape()[1]).then(|| pairing.turned(&x, &right, &of, z))?.map(Array3::into_dyn)
}
