//! Another gain.

use std::sync::Arc;

use super::divisor::MOST;
use super::{Gain, Part, Right};
use crate::case::{Axis, Case};
use crate::describe::function;
use crate::describe::function::describe as describe_function;
use crate::describe::source::describe as describe_source;
use crate::describe::table::describe as describe_table;
use crate::fit::{dot, least_squares};
use crate::identify::output::roundings::roundings_of;
use crate::identify::pool;
use crate::number::{Measured, NUMBER};

pub(super) fn gain_laws(case: &Case<'_>, right: &Right, own: &[Measured]) -> Vec<Part<Gain>> {
    let fits = |due: &[f64]| due.len() == own.len() && own.iter().zip(due).all(|(own, due)| own.may_be(*due));
    if fits(&right.gain) {
        return vec![Part {
            words: None,
            bits: 0.0,
            f: Arc::new(|_, _, right| Some(right.gain.clone())),
            parameters: Vec::new(),
        }];
    }
    let mut laws: Vec<Part<Gain>> = Vec::new();
    let w = &right.gain;
    let ones = vec![1.0; own.len()];
    if fits(&ones) {
        let f: Gain = Arc::new(|_, _, right| Some(vec![1.0; right.gain.len()]));
        let words = "the gain is left out";
        laws.push(Part { words: Some(words.into()), bits: 3.0, f, parameters: vec![("gain_is", words.into())] });
    }
    if let Some(function) = describe_function(w, own) {
        let words = format!("the gain is {}", function.of("w"));
        let of = function.f;
        let f: Gain = Arc::new(move |_, _, right| Some(right.gain.iter().map(|w| of(*w)).collect()));
        let parameters = vec![("gain_is", words.clone().into())];
        laws.push(Part { words: Some(format!("{words} (w: the right gain)")), bits: function.bits, f, parameters });
    }
    laws.extend(gain_on_a_part(w, own));
    let row = |gain: &[f64]| ndarray::Array1::from(gain.to_vec()).insert_axis(ndarray::Axis(0)).into_dyn();
    for (said, bits, round) in roundings_of() {
        let rounded = |gain: &[f64]| round(&row(gain)).map(|x| x.iter().copied().collect::<Vec<f64>>());
        if rounded(w).is_some_and(|gain| fits(&gain)) {
            let f: Gain = Arc::new(move |_, _, right| round(&row(&right.gain)).map(|x| x.iter().copied().collect()));
            let words = format!("the gain is {said}");
            let parameters = vec![("gain_is", words.clone().into())];
            laws.push(Part { words: Some(words), bits: bits + 2.0, f, parameters });
        }
    }
    for (name, vector) in case.operation.vectors(case.fitted, own.len()) {
        for (words, bits, plus) in [("", 8.0, 0.0), ("1 plus ", 10.0, 1.0)] {
            if fits(&vector.iter().map(|v| v + plus).collect::<Vec<_>>()) {
                let known = name.clone();
                let f: Gain = Arc::new(move |case, place, right| {
                    let vector = case.operation.vector(place, right.gain.len(), &known)?;
                    Some(vector.into_iter().map(|v| v + plus).collect())
                });
                let parameters = vec![("gain_is", format!("{words}{name}").into())];
                laws.push(Part { words: Some(format!("the gain is {words}{name}")), bits, f, parameters });
            }
        }
    }
    let values: Vec<f64> = own.iter().map(|m| m.value).collect();
    let each = (own.iter().map(|m| m.error * m.error).sum::<f64>() / own.len() as f64).sqrt();
    let size = (dot(&values, &values) / values.len() as f64).sqrt();
    for (name, vector) in case.operation.vectors(case.fitted, own.len()) {
        let Some(fit) = least_squares(&[w, &vector], &values, each / size.max(f64::MIN_POSITIVE)) else { continue };
        let (a, b) = (fit.coefficients[0], fit.coefficients[1]);
        for (a, b) in [(a.number(), b.number()), (a.plain(), b.plain())] {
            let (by, other) = (a.value, b.value);
            if other != 0.0 && fits(&w.iter().zip(&vector).map(|(w, v)| by * w + other * v).collect::<Vec<_>>()) {
                let known = name.clone();
                let f: Gain = Arc::new(move |case, place, right| {
                    let vector = case.operation.vector(place, right.gain.len(), &known)?;
                    Some(right.gain.iter().zip(vector).map(|(w, v)| by * w + other * v).collect())
                });
                let words = format!("the gain is {} w + {} times {name} (w: the right gain)", a.words, b.words);
                laws.push(Part::new(words, 8.0 + a.bits + b.bits, f));
                break;
            }
        }
    }
    let table = |numbers: Vec<Measured>, usual: f64| describe_table(&numbers, Axis::Channel, Some(usual), None);
    let ratio = own
        .iter()
        .zip(w)
        .map(|(m, w)| if w.abs() > 1e-6 { Measured::new(m.value / w, m.error / w.abs()) } else { Measured::UNKNOWN });
    if let Some(table) = table(ratio.collect(), 1.0) {
        let values = table.values;
        let f: Gain = Arc::new(move |_, _, right| Some(right.gain.iter().zip(&values).map(|(w, by)| w * by).collect()));
        laws.push(Part::new(format!("the gain is w times {} (w: the right gain)", table.words), table.bits + 4.0, f));
    }
    let off = own.iter().zip(w).map(|(m, w)| m.plus(-w));
    if let Some(table) = table(off.collect(), 0.0) {
        let values = table.values;
        let f: Gain = Arc::new(move |_, _, right| Some(right.gain.iter().zip(&values).map(|(w, by)| w + by).collect()));
        laws.push(Part::new(format!("the gain is w plus {} (w: the right gain)", table.words), table.bits + 5.0, f));
    }
    // Gains of other channels; several may have the same.
    let nearest = |m: &Measured| {
        let mut fits = (0..w.len()).filter(|&c| m.may_be(w[c]));
        let first = fits.next()?;
        fits.next().is_none().then_some(first)
    };
    let from: Vec<Option<usize>> = own.iter().map(nearest).collect();
    if from.iter().flatten().count() * 2 > own.len() {
        let source = describe_source(&from, w.len(), Axis::Channel);
        if source.bits < NUMBER * own.len() as f64
            && !source.is_itself
            && fits(&source.from.iter().map(|&c| w[c]).collect::<Vec<_>>())
        {
            let of = source.from;
            let f: Gain = Arc::new(move |_, _, right| of.iter().map(|&c| right.gain.get(c).copied()).collect());
            laws.push(Part::new(
                format!("the gain of each channel i is that of {}", source.words),
                source.bits + 4.0,
                f,
            ));
        }
    }
    if let Some(found) = pool::found(case, w, own) {
        let f: Gain = Arc::new(move |case, place, right| (found.of)(case, place, &right.gain));
        let words = format!("of the gains {}", found.words);
        laws.push(Part::new(words, found.bits + 2.0, f));
    }
    laws.extend(products_of_layers(case, w, own));
    let mut sorted = w.clone();
    sorted.sort_by(f64::total_cmp);
    for (words, is_down) in [("in rising order", false), ("in falling order", true)] {
        if is_down {
            sorted.reverse();
        }
        if fits(&sorted) {
            let f: Gain = Arc::new(move |_, _, right| {
                let mut gain = right.gain.clone();
                gain.sort_by(f64::total_cmp);
                if is_down {
                    gain.reverse();
                }
                Some(gain)
            });
            laws.push(Part::new(format!("the gain is sorted, {words}"), 6.0, f));
        }
    }
    laws.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    laws.truncate(MOST);
    laws
}

/// The right gain, and on some channels none or a function of it.
fn gain_on_a_part(w: &[f64], own: &[Measured]) -> Option<Part<Gain>> {
    let (function, set) = function::on_a_part(w, own, Axis::Channel)?;
    let words = format!("the gain is {} for {}, else w (w: the right gain)", function.of("w"), set.words.clone()?);
    let (f, has) = (function.f, set.has);
    let f: Gain = Arc::new(move |_, _, right| {
        let gain = right.gain.iter().zip(&has).map(|(w, has)| if *has { f(*w) } else { *w });
        (has.len() == right.gain.len()).then(|| gain.collect())
    });
    Some(Part::new(words, function.bits + set.bits + 3.0, f))
}

/// The right gain times other vectors: one, or all of those of a kind in the layers before.
fn products_of_layers(case: &Case<'_>, w: &[f64], own: &[Measured]) -> Vec<Part<Gain>> {
    let all = case.operation.vectors(case.fitted, w.len());
    let fits = |due: &[f64]| own.iter().zip(due).all(|(own, due)| own.may_be(*due));
    let times = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).collect::<Vec<f64>>();
    let mut laws = Vec::new();
    for (name, vector) in &all {
        if fits(&times(w, vector)) {
            let known = name.clone();
            let f: Gain = Arc::new(move |case, place, right| {
                Some(times(&right.gain, &case.operation.vector(place, right.gain.len(), &known)?))
            });
            laws.push(Part::new(format!("the gain is w times {name} (w: the right gain)"), 9.0, f));
        }
    }
    laws
}
