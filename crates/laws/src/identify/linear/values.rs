//! Values of the input or of the weight that are rounded, or go through a function.

use std::sync::Arc;

use ndarray::{Array2, ArrayD, Axis as Dimension};

use super::{ROOM, Sample, of_input, of_product, of_weight, weight_of};
use crate::case::Case;
use crate::describe::function::fitting;
use crate::identify::output::roundings::{Whole, digits, roundings_of};
use crate::law::{Form, Law};

/// Multiplications of a product that constants are searched for with.
const SEARCHED: usize = 1 << 18;

impl Sample {
    /// The sample on so few of its rows that a product has no more than so many multiplications, but some.
    pub(super) fn few(&self, most: usize) -> Sample {
        let count = (most / (self.x.len()).max(1)).clamp(4, self.rows.len().max(4));
        let rows: Vec<usize> = (0..self.rows.len()).step_by(self.rows.len().div_ceil(count).max(1)).collect();
        let pick = |x: &Array2<f64>| x.select(Dimension(1), &rows);
        Sample {
            x: self.x.clone(),
            weight: self.weight.select(Dimension(0), &rows),
            own: pick(&self.own),
            right: pick(&self.right),
            rows: rows.iter().map(|row| self.rows[*row]).collect(),
            weight_rows: self.weight_rows,
            is_wrong_to_the_end: self.is_wrong_to_the_end,
            noise: self.noise,
        }
    }

    /// A law of the input's values, or of the weight's.
    fn law_of_values(is_input: bool, words: String, bits: f64, f: Whole) -> Law {
        match is_input {
            true => of_input(Form::LinearValues, words, bits, move |case, at| f(case.places[at].inputs.first()?)),
            false => {
                of_weight(words, bits, move |case, at| f(&weight_of(case, at)?.into_dyn())?.into_dimensionality().ok())
            }
        }
    }

    /// The input or the weight kept in one of these ways: which of them, the way in words, and its law. `weight` is the whole weight, where the rows of the sample
    /// are not enough.
    pub(super) fn kept_as(
        &self,
        case: &Case<'_>,
        ways: &[(String, f64, Whole)],
        weight: Option<&Array2<f64>>,
    ) -> Vec<(bool, String, Law)> {
        let mut laws = Vec::new();
        let two = |x: ArrayD<f64>| x.into_dimensionality::<ndarray::Ix2>().ok();
        let made = |is_input: bool, f: &Whole| -> Option<Array2<f64>> {
            match (is_input, weight) {
                (true, _) => Some(two(f(&self.x.clone().into_dyn())?)?.dot(&self.weight.t())),
                (false, Some(w)) => {
                    let kept = two(f(&w.clone().into_dyn())?)?;
                    Some(self.x.dot(&kept.select(Dimension(0), &self.rows).t()))
                }
                (false, None) => Some(self.x.dot(&two(f(&self.weight.clone().into_dyn())?)?.t())),
            }
        };
        // A value on the edge between two steps may be either of them.
        let near = (0.1 * self.left(&self.x.dot(&self.weight.t()))).max(ROOM * self.noise);
        for is_input in [true, false] {
            let called = if is_input { "input" } else { "weight" };
            for (words, bits, f) in ways.iter().take_while(|_| case.has_time()) {
                if made(is_input, f).is_some_and(|made| self.left(&made) <= near) {
                    let law = Self::law_of_values(is_input, format!("the {called} is {words}"), bits + 2.0, f.clone());
                    laws.push((is_input, words.clone(), law));
                }
            }
        }
        laws
    }

    /// Values of the input or the weight that are rounded.
    pub(super) fn rounded(&self, case: &Case<'_>) -> Vec<Law> {
        let before = self.left(&self.x.dot(&self.weight.t()));
        let named = |(is_input, words, law): (bool, String, Law)| {
            law.with(if is_input { "input_rounded" } else { "rounded" }, words)
        };
        let mut laws: Vec<Law> = self.kept_as(case, &roundings_of(), None).into_iter().map(named).collect();
        for (words, bits, f) in digits() {
            let both = self.x.mapv(|x| f(x)).dot(&self.weight.mapv(|w| f(w)).t());
            if self.left(&both) <= (0.1 * before).max(ROOM * self.noise) {
                let said = format!("the input and the weight are {words}");
                let law =
                    of_product(said, bits + 3.0, move |x, weight| x.mapv(|x| f(x)).dot(&weight.mapv(|w| f(w)).t()));
                laws.push(law.with("rounded", words));
            }
        }
        laws
    }

    /// Values of the input or the weight that are a function of the right ones. Constants are searched for on few rows.
    pub(super) fn functions(&self, case: &Case<'_>) -> Vec<Law> {
        let mut laws = Vec::new();
        let few = self.few(SEARCHED);
        let bias = &few.right - &few.x.dot(&few.weight.t());
        let wanted = &few.own - &bias;
        let size = few.own.iter().map(|y| y * y).sum::<f64>().max(f64::MIN_POSITIVE);
        let share = |made: Array2<f64>| {
            let left: f64 = made.iter().zip(&wanted).map(|(made, wanted)| (made - wanted).powi(2)).sum();
            (left / size).sqrt()
        };
        let before = share(few.x.dot(&few.weight.t()));
        for is_input in [true, false] {
            let called = if is_input { "input" } else { "weight" };
            let base = if is_input { &self.x } else { &self.weight };
            let base: Vec<f64> = base.iter().copied().collect();
            let left = |f: &dyn Fn(f64) -> f64| match is_input {
                true => share(few.x.mapv(f).dot(&few.weight.t())),
                false => share(few.x.dot(&few.weight.mapv(f).t())),
            };
            for function in fitting(&base, before, ROOM * self.noise, &|| case.has_time(), &left) {
                let said = format!("the {called} is read as {}", function.of("x"));
                let f = function.f;
                let whole: Whole = Arc::new(move |x: &ArrayD<f64>| Some(x.mapv(|x| f(x))));
                laws.push(Self::law_of_values(is_input, said, function.bits, whole));
            }
        }
        laws
    }
}
