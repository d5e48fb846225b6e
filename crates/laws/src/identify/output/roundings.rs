//! The right value, rounded.

use std::sync::Arc;

use ndarray::ArrayD;

use crate::identify::subject::Subject;
use crate::law::{Form, Law};

/// The right value, rounded.
pub(super) fn roundings(subject: &Subject) -> Vec<Law> {
    let mut laws = Vec::new();
    let mut offer = |words: String, bits: f64, f: Whole| {
        let whole = |right: &ArrayD<f64>, own: &ArrayD<f64>, noise: f64| at_the_edge(f(right)?, &f, right, own, noise);
        if whole(&subject.right, &subject.own, subject.noise).is_some_and(|value| nearer(subject, &value)) {
            let said = format!("{} is {words}", subject.label);
            laws.push(match subject.is_output() {
                true => subject.law_of_place(Form::OutputRounding, said, bits, move |case, at, right| {
                    let place = &case.places[at];
                    at_the_edge(f(right)?, &f, right, &place.own, place.noise())
                }),
                false => subject.law(Form::OutputRounding, said, bits, move |right| f(right)),
            });
        }
    };
    for (words, bits, f) in roundings_of() {
        offer(words, bits, f);
    }
    laws
}

/// Values on the edge between two steps: which of the two it is, rounding before decides; that of the candidate is as right.
fn at_the_edge(
    value: ArrayD<f64>,
    f: &Whole,
    right: &ArrayD<f64>,
    own: &ArrayD<f64>,
    noise: f64,
) -> Option<ArrayD<f64>> {
    // In coarse arithmetic every value is on an edge.
    if own.shape() != value.shape() || noise > COARSE {
        return Some(value);
    }
    let size = (right.iter().map(|x| x * x).sum::<f64>() / right.len().max(1) as f64).sqrt();
    let room = |x: f64| EDGE * noise * (x.abs() + size);
    let (below, above) = (f(&right.mapv(|x| x - room(x)))?, f(&right.mapv(|x| x + room(x)))?);
    let mut out = value;
    ndarray::Zip::from(&mut out).and(own).and(&below).and(&above).for_each(|out, own, below, above| {
        let is_near = |x: f64| (x - own).abs() <= 2.0 * f64::from(f32::EPSILON) * own.abs();
        if below != above && (is_near(*below) || is_near(*above)) {
            *out = *own;
        }
    });
    Some(out)
}

/// Errors of rounding's size within which a value is on an edge.
const EDGE: f64 = 3.0;
/// Errors above this are of 16 bits.
const COARSE: f64 = 1e-5;

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
    for (words, bits, f) in digits() {
        all.push((words, bits, Arc::new(move |x| Some(x.mapv(|x| f(x))))));
    }
    for within in [
        Within::Row,
        Within::Position,
        Within::Block(16),
        Within::Block(32),
        Within::Block(64),
        Within::Block(128),
        Within::Block(256),
        Within::Tensor,
        Within::Positions,
    ] {
        for levels in [127.0, 128.0, 7.0, 8.0, 15.0, 31.0, 63.0, 3.0, 255.0] {
            let words = format!("rounded to whole steps of 1/{levels} of the largest size in {}", within.said());
            all.push((words, 11.0, Arc::new(move |x| in_steps(x, within, levels))));
        }
    }
    for steps in [127.0, 255.0, 128.0, 256.0, 15.0, 16.0] {
        let words = format!("rounded to multiples of 1/{steps}");
        all.push((words, 10.0, Arc::new(move |x| Some(x.mapv(|x| (x * steps).round_ties_even() / steps)))));
    }
    // Whole numbers of few bits with a step that was settled beforehand.
    for power in 2..=12u32 {
        let steps = f64::from(1u32 << power);
        for (bits, most) in [(8, 127.0), (4, 7.0)] {
            let words =
                format!("rounded to multiples of 1/{steps}, at most {most} of them ({bits} bits with a fixed step)");
            let of = move |x: f64| (x * steps).round_ties_even().clamp(-most, most) / steps;
            let of_all = move |x: &ArrayD<f64>| {
                // Of what stands at its ends nearly everywhere nobody can tell the steps.
                let within = x.iter().filter(|x| (*x * steps).abs() < most).count();
                (within * LEAST_WITHIN >= x.len()).then(|| x.mapv(of))
            };
            all.push((words, 11.0, Arc::new(of_all)));
        }
    }
    all
}

/// One of so many values, at the least, lies within the ends of a rounding with a fixed step.
const LEAST_WITHIN: usize = 4;

/// A function of one value.
pub(crate) type OfValue = Arc<dyn Fn(f64) -> f64 + Send + Sync>;

/// Ways to keep fewer binary digits, with their words and prices.
pub(crate) fn digits() -> Vec<(String, f64, OfValue)> {
    let mut all: Vec<(String, f64, OfValue)> = Vec::new();
    for digits in 3..=17i32 {
        for cut in [false, true] {
            let of_a_type = match digits {
                8 => " (bf16's)",
                11 => " (f16's)",
                _ => "",
            };
            let words = format!("{} to {digits} binary digits{of_a_type}", if cut { "cut" } else { "rounded" });
            all.push((words, 9.0, Arc::new(move |x| to_digits(x, digits, cut))));
        }
    }
    for (words, digits, least, most) in [("E4M3", 4, -9, 448.0), ("E5M2", 3, -16, 57344.0)] {
        let words = format!(
            "rounded to 8 bits ({words}: {digits} binary digits, steps of 2^{least} at the least, up to {most})"
        );
        let f = move |x: f64| {
            let step = 2f64.powi(least);
            // Below the least exponent steps are all of one size.
            let is_below = x.abs() < step * 2f64.powi(digits - 1);
            let value = if is_below { (x / step).round_ties_even() * step } else { to_digits(x, digits, false) };
            value.clamp(-most, most)
        };
        all.push((words, 9.0, Arc::new(f)));
    }
    all
}

/// A number in so many binary digits.
pub(crate) fn to_digits(x: f64, digits: i32, cut: bool) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let scale = 2f64.powi(digits - 1 - x.abs().log2().floor() as i32);
    (if cut { (x * scale).trunc() } else { (x * scale).round_ties_even() }) / scale
}

/// What has one step.
#[derive(Clone, Copy)]
enum Within {
    Row,
    /// All rows of a position, its heads; not where a position is one row.
    Position,
    Block(usize),
    Tensor,
    /// Each element of a row by itself, over all positions.
    Positions,
}

impl Within {
    fn said(self) -> String {
        match self {
            Within::Row => "its row".to_owned(),
            Within::Position => "its position, all heads together".to_owned(),
            Within::Block(size) => format!("its block of {size}"),
            Within::Tensor => "the whole tensor".to_owned(),
            Within::Positions => "its channel over all positions".to_owned(),
        }
    }
}

fn in_steps(x: &ArrayD<f64>, within: Within, levels: f64) -> Option<ArrayD<f64>> {
    let row = *x.shape().last()?;
    if let Within::Positions = within {
        let positions = *x.shape().first().filter(|n| **n > 1)?;
        let flat = x.to_shape((positions, x.len() / positions)).ok()?;
        let turned = flat.t().as_standard_layout().into_owned().into_dyn();
        let back = in_steps(&turned, Within::Row, levels)?.into_dimensionality::<ndarray::Ix2>().ok()?;
        return back.t().as_standard_layout().into_owned().to_shape(x.raw_dim()).ok().map(|x| x.into_owned());
    }
    let block = match within {
        Within::Row => row,
        Within::Position => x.shape().get(1..).filter(|rest| rest.len() > 1)?.iter().product(),
        Within::Block(size) => Some(size).filter(|size| row.is_multiple_of(*size))?,
        Within::Tensor => x.len(),
        Within::Positions => return None,
    };
    if block == 0 {
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
