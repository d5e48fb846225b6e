//! The right value, rounded.

use std::sync::Arc;

use ndarray::ArrayD;

use crate::identify::subject::Subject;
use crate::law::{Form, Law};

/// The right value, rounded.
pub(super) fn roundings(subject: &Subject) -> Vec<Law> {
    let mut laws = Vec::new();
    let mut offer = |words: String, bits: f64, f: Whole| {
        if f(&subject.right).is_some_and(|value| nearer(subject, &value)) {
            let made = move |right: &ArrayD<f64>| f(right);
            laws.push(subject.law(Form::OutputRounding, format!("{} is {words}", subject.label), bits, made));
        }
    };
    for (words, bits, f) in roundings_of() {
        offer(words, bits, f);
    }
    laws
}

/// Rounding is proved at its own size: what it leaves must be much less than what it takes away.
fn nearer(subject: &Subject, value: &ArrayD<f64>) -> bool {
    let (left, before) = (crate::fit::nmse(value, &subject.own), crate::fit::nmse(&subject.right, &subject.own));
    left <= (1e-2 * before).max(30.0 * subject.noise * subject.noise) && before > 30.0 * subject.noise * subject.noise
}

/// A function of a whole tensor.
pub(crate) type Whole = Arc<dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;

/// Ways to round a tensor, with their words and prices.
pub(crate) fn roundings_of() -> Vec<(String, f64, Whole)> {
    let mut all: Vec<(String, f64, Whole)> = Vec::new();
    for digits in 3..=17i32 {
        for cut in [false, true] {
            let words = format!("{} to {digits} binary digits", if cut { "cut" } else { "rounded" });
            let f = move |x: f64| {
                if x == 0.0 || !x.is_finite() {
                    return x;
                }
                let scale = 2f64.powi(digits - 1 - x.abs().log2().floor() as i32);
                (if cut { (x * scale).trunc() } else { (x * scale).round_ties_even() }) / scale
            };
            all.push((words, 9.0, Arc::new(move |x| Some(x.mapv(f)))));
        }
    }
    for block in [None, Some(16), Some(32), Some(64), Some(128), Some(256)] {
        for levels in [127.0, 128.0, 7.0, 8.0, 15.0, 31.0, 63.0] {
            let of = block.map_or_else(|| "its row".to_owned(), |block: usize| format!("its block of {block}"));
            let words = format!("rounded to whole steps of 1/{levels} of the largest size in {of}");
            all.push((words, 11.0, Arc::new(move |x| in_blocks(x, block, levels))));
        }
    }
    all
}

fn in_blocks(x: &ArrayD<f64>, block: Option<usize>, levels: f64) -> Option<ArrayD<f64>> {
    let row = *x.shape().last()?;
    let block = block.unwrap_or(row);
    if block == 0 || !row.is_multiple_of(block) {
        return None;
    }
    let mut values: Vec<f64> = x.iter().copied().collect();
    for block in values.chunks_mut(block) {
        let step = block.iter().fold(0.0f64, |most, x| most.max(x.abs())) / levels;
        if step > 0.0 {
            block.iter_mut().for_each(|x| *x = (*x / step).round_ties_even() * step);
        }
    }
    ArrayD::from_shape_vec(x.raw_dim(), values).ok()
}
