//! Norms: what each row is divided by, what each channel is multiplied with, what is subtracted before, and what it is a norm of.

mod centre;
mod channels;
mod divisor;
mod drift;
mod gain;
mod misplaced;
mod rounded;
mod statistics;

use std::sync::Arc;

use ndarray::{Array2, ArrayD, Axis};

use self::centre::{groups, offsets};
use self::divisor::{FEWEST_ROWS, different, divisor_laws};
use self::gain::gain_laws;
use self::rounded::rounded;
use crate::case::{Case, Place};
use crate::fit::{ROOM, factor, least_squares};
use crate::identify::aliased::aliased;
use crate::identify::statistics::mean_square;
use crate::law::{Form, Law, Parameters, Status};
use crate::number::{Measured, NUMBER};

/// Rows and channels of a tensor: its last axis, and all others together.
fn matrix(x: &ArrayD<f64>) -> Option<Array2<f64>> {
    let width = *x.shape().last()?;
    let x = x.to_shape((x.len() / width.max(1), width)).ok()?.into_owned();
    (x.nrows() > 1 && width > 3).then_some(x)
}

/// y = f_t g_c x_tc: a factor for each row and each channel.
pub(crate) struct Product {
    pub(crate) rows: Vec<Measured>,
    pub(crate) gain: Vec<Measured>,
    pub(crate) left: f64,
}

pub(crate) fn product(x: &Array2<f64>, y: &Array2<f64>, noise: f64) -> Product {
    let (rows, width) = x.dim();
    let mut f: Vec<f64> = x
        .rows()
        .into_iter()
        .zip(y.rows())
        .map(|(x, y)| (y.dot(&y) / x.dot(&x).max(f64::MIN_POSITIVE)).sqrt())
        .collect();
    let mut g = vec![1.0; width];
    for _ in 0..ROUNDS {
        for (c, g) in g.iter_mut().enumerate() {
            let pairs = x.column(c).into_iter().zip(&f).map(|(x, f)| x * f).zip(y.column(c));
            *g = along(pairs);
        }
        for (t, f) in f.iter_mut().enumerate() {
            let pairs = x.row(t).into_iter().zip(&g).map(|(x, g)| x * g).zip(y.row(t));
            *f = along(pairs);
        }
    }
    let size = (y.iter().map(|y| y * y).sum::<f64>() / y.len() as f64).sqrt();
    let left: f64 = y.indexed_iter().map(|((t, c), y)| (y - f[t] * g[c] * x[[t, c]]).powi(2)).sum();
    let each = (left / y.len() as f64).sqrt().max(noise * size);
    let row = |t: usize| {
        let square: f64 = (0..width).map(|c| (x[[t, c]] * g[c]).powi(2)).sum();
        Measured::new(f[t], each / square.max(f64::MIN_POSITIVE).sqrt())
    };
    let channel = |c: usize| {
        let square: f64 = (0..rows).map(|t| (x[[t, c]] * f[t]).powi(2)).sum();
        Measured::new(g[c], each / square.max(f64::MIN_POSITIVE).sqrt())
    };
    let left = (left / y.len() as f64).sqrt() / size.max(f64::MIN_POSITIVE);
    Product { rows: (0..rows).map(row).collect(), gain: (0..width).map(channel).collect(), left }
}

/// The factor that brings the first of each pair nearest to the second.
fn along<'a>(pairs: impl Iterator<Item = (f64, &'a f64)>) -> f64 {
    let (cross, square) = pairs.fold((0.0, 0.0), |(cross, square), (x, y)| (cross + x * y, square + x * x));
    if square > 0.0 { cross / square } else { 0.0 }
}

/// Rounds of alternating least squares.
const ROUNDS: usize = 40;

/// What is right: the norm taken apart.
struct Right {
    is_centred: bool,
    epsilon: f64,
    gain: Vec<f64>,
    bias: Vec<f64>,
}

/// A place's output, made of what is right there and of the rows of its input.
fn output_of(
    case: &Case<'_>,
    at: usize,
    made: impl FnOnce(&Right, Array2<f64>) -> Option<Array2<f64>>,
) -> Option<ArrayD<f64>> {
    let (place, right) = (case.places.get(at)?, Right::of(case, at)?);
    let out = made(&right, matrix(place.inputs.first()?)?)?;
    out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
}

/// What a norm makes of its input before its gain: the input, or less its mean.
fn centred(x: &Array2<f64>) -> Array2<f64> {
    let mut out = x.clone();
    for mut row in out.rows_mut() {
        let mean = row.mean().unwrap_or(0.0);
        row.mapv_inplace(|x| x - mean);
    }
    out
}

impl Right {
    fn of(case: &Case<'_>, at: usize) -> Option<Right> {
        let place = case.places.get(at)?;
        let (mut x, mut y) = (matrix(place.inputs.first()?)?, matrix(&place.right)?);
        if x.dim() != y.dim() {
            return None;
        }
        let sizes: Vec<Measured> = x
            .rows()
            .into_iter()
            .map(|row| mean_square(&row.to_vec()))
            .map(|size| Measured::new(size, ALIKE * size))
            .collect();
        if different(&sizes) < FEWEST_ROWS {
            // Rows of few sizes do not tell scale and epsilon apart: the operation is asked of smaller ones too.
            for by in [1e-2, 1e-4] {
                let smaller = place.inputs.first()? * by;
                let Some(of) = case.operation.apply(at, std::slice::from_ref(&smaller)) else { continue };
                let (Some(smaller), Some(of)) = (matrix(&smaller), matrix(&of)) else { continue };
                if of.dim() != smaller.dim() {
                    continue;
                }
                x.append(Axis(0), smaller.view()).ok()?;
                y.append(Axis(0), of.view()).ok()?;
            }
        }
        let plain = product(&x, &y, EXACT);
        if plain.left < 1e-9 {
            return Right::scaled(&x, plain, false, vec![0.0; x.ncols()]);
        }
        // Less the mean, times a gain, plus a bias: rows that are divided by their own size first.
        let inner = centred(&x);
        let size = |row: &[f64]| mean_square(row).sqrt().max(f64::MIN_POSITIVE);
        let unit: Vec<f64> = inner.rows().into_iter().map(|row| 1.0 / size(&row.to_vec())).collect();
        let bias: Vec<f64> = (0..x.ncols())
            .map(|c| {
                let column: Vec<f64> = (0..x.nrows()).map(|t| inner[[t, c]] * unit[t]).collect();
                let ones = vec![1.0; x.nrows()];
                least_squares(&[&column, &ones], &y.column(c).to_vec(), EXACT)
                    .map_or(0.0, |fit| fit.coefficients[1].value)
            })
            .collect();
        let less = &y - &ndarray::ArrayView1::from(&bias);
        let of = product(&inner, &less, EXACT);
        (of.left < 1e-4).then(|| Right::scaled(&inner, of, true, bias))?
    }

    /// The gain with its scale: the divisor is the root of the mean square plus epsilon.
    fn scaled(x: &Array2<f64>, of: Product, is_centred: bool, bias: Vec<f64>) -> Option<Right> {
        let (slope, epsilon) = slope_and_epsilon(x, &of);
        let gain = of.gain.iter().map(|g| g.value / slope.sqrt()).collect();
        Some(Right { is_centred, epsilon, gain, bias })
    }

    fn inner(&self, x: &Array2<f64>) -> Array2<f64> {
        if self.is_centred { centred(x) } else { x.clone() }
    }

    /// The rows times a power of the gain's size.
    fn weighed(&self, x: &Array2<f64>, power: f64) -> Array2<f64> {
        if power == 0.0 {
            x.clone()
        } else {
            x * &ndarray::Array1::from_iter(self.gain.iter().map(|w| w.abs().powf(power)))
        }
    }

    fn divisor(&self, x: &Array2<f64>) -> Vec<f64> {
        roots(x, self.epsilon)
    }

    /// Rows over these divisors, times a gain; with the bias or without.
    fn applied(&self, mut x: Array2<f64>, divisors: &[f64], gain: &[f64], has_bias: bool) -> Array2<f64> {
        for (mut row, by) in x.rows_mut().into_iter().zip(divisors) {
            for (x, (gain, bias)) in row.iter_mut().zip(gain.iter().zip(&self.bias)) {
                *x = *x / by * gain + if has_bias { *bias } else { 0.0 };
            }
        }
        x
    }
}

/// `1/rows^2 = slope (mean square + epsilon)`: the scale that rows and gain share, and the epsilon.
fn slope_and_epsilon(x: &Array2<f64>, of: &Product) -> (f64, f64) {
    let squares: Vec<f64> = x.rows().into_iter().map(|row| mean_square(&row.to_vec())).collect();
    let wanted: Vec<f64> = of.rows.iter().map(|f| f.value.powi(-2)).collect();
    let ones = vec![1.0; squares.len()];
    // Rows of very different size count alike.
    let weight: Vec<f64> = wanted.iter().map(|w| 1.0 / w.abs().max(f64::MIN_POSITIVE)).collect();
    let by = |x: &[f64]| x.iter().zip(&weight).map(|(x, w)| x * w).collect::<Vec<f64>>();
    let (squares_by, ones_by) = (by(&squares), by(&ones));
    let fit = least_squares(&[&squares_by, &ones_by], &by(&wanted), EXACT);
    match fit {
        Some(fit) if fit.coefficients[0].value > 0.0 => {
            let slope = fit.coefficients[0].value;
            (slope, (fit.coefficients[1].value / slope).max(0.0))
        }
        _ => (wanted[0] / squares[0].max(f64::MIN_POSITIVE), 0.0),
    }
}

/// The root of each row's mean square plus a number.
fn roots(x: &Array2<f64>, epsilon: f64) -> Vec<f64> {
    x.rows().into_iter().map(|row| (mean_square(&row.to_vec()) + epsilon).sqrt()).collect()
}

/// The share up to which rows are of one size.
const ALIKE: f64 = 1e-4;
/// The size of rounding in what is right.
const EXACT: f64 = 1e-12;

/// The laws of a norm.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let (Some(right), Some(own)) = (Right::of(case, case.fitted), matrix(&first.own)) else { return Vec::new() };
    let mut laws = Vec::new();
    let mut inputs = vec![(None, first.inputs[0].clone())];
    inputs.extend(
        first
            .around
            .iter()
            .filter(|(_, x)| x.shape() == first.inputs[0].shape())
            .map(|(name, x)| (Some(name.clone()), x.clone())),
    );
    inputs.extend(aliased(first, &first.inputs[0]).into_iter().map(|(name, x)| (Some(name), x)));
    for (name, x) in inputs {
        let Some(x) = matrix(&x).filter(|x| x.dim() == own.dim()) else { continue };
        for is_centred in [right.is_centred, !right.is_centred] {
            for has_bias in [true, false] {
                if !has_bias && right.bias.iter().all(|b| *b == 0.0) {
                    continue;
                }
                let inner = if is_centred { centred(&x) } else { x.clone() };
                let less = if has_bias { &own - &ndarray::ArrayView1::from(&right.bias) } else { own.clone() };
                let of = product(&inner, &less, first.noise());
                if of.left <= ROOM * first.noise() {
                    let shape = Shape { input: name.clone(), is_centred, has_bias };
                    laws.extend(of_product(case, &right, &inner, &of, &shape));
                }
            }
        }
    }
    if laws.is_empty() {
        laws.extend(of_sums(case, &right, &own));
        laws.extend(offsets(case, &right, &own));
        laws.extend(groups(case, &right, &own));
    }
    if laws.iter().all(|law| law.status == Status::Table) {
        laws.extend(rounded(case));
        laws.extend(drift::drifting(case));
        laws.extend(misplaced::misplaced(case));
    }
    laws
}

/// The norm of the input plus a share of another recorded tensor: a branch that is added twice, or not yet.
fn of_sums(case: &Case<'_>, right: &Right, own: &Array2<f64>) -> Vec<Law> {
    let first = case.first();
    let mut laws = Vec::new();
    let gain = ndarray::ArrayView1::from(&right.gain);
    let Some(x) = matrix(&first.inputs[0]).map(|x| right.inner(&x)) else { return laws };
    if right.gain.contains(&0.0) || x.dim() != own.dim() {
        return laws;
    }
    let wanted = (own - &ndarray::ArrayView1::from(&right.bias)) / gain;
    for (name, other) in first.around.iter().filter(|(_, z)| z.shape() == first.inputs[0].shape()) {
        let Some(z) = matrix(other).map(|z| right.inner(&z)) else { continue };
        let share = |t: usize| -> Option<Measured> {
            let (x, z, y) = (x.row(t).to_vec(), z.row(t).to_vec(), wanted.row(t).to_vec());
            let fit = least_squares(&[&x, &z], &y, first.noise()).filter(|fit| fit.left <= ROOM * first.noise())?;
            let [a, b] = fit.coefficients[..] else { return None };
            Some(b.over(a))
        };
        let Some(shares) = (0..x.nrows()).map(share).collect::<Option<Vec<_>>>() else { continue };
        let one = Measured::mean(shares.iter().copied());
        if one.may_be(0.0) || !shares.iter().all(|m| m.may_be(one.value)) {
            continue;
        }
        let number = one.number();
        let by = number.value;
        let said = match by {
            1.0 => format!("plus {name}"),
            -1.0 => format!("less {name}"),
            _ => format!("plus {} times {name}", number.words),
        };
        let known = name.clone();
        let law = Law::new(
            Form::NormInput,
            format!("it is computed of its input {said}"),
            8.0 + number.bits,
            move |case, at| {
                let place = &case.places[at];
                let right = Right::of(case, at)?;
                let (_, other) = place.around.iter().find(|(name, _)| *name == known)?;
                let sum = place.inputs.first()? + &(other * by);
                let x = right.inner(&matrix(&sum)?);
                let divisors = right.divisor(&x);
                let out = right.applied(x, &divisors, &right.gain, true);
                out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
            },
        );
        laws.push(law.with("input", name.clone()).with("share", by));
    }
    laws
}

/// What of the input is divided and multiplied.
#[derive(Clone)]
struct Shape {
    /// Another tensor than the input.
    input: Option<String>,
    is_centred: bool,
    has_bias: bool,
}

impl Shape {
    fn words(&self, right: &Right) -> Vec<String> {
        let mut words = Vec::new();
        words.extend(self.input.as_ref().map(|name| format!("it is computed of {name}")));
        words.extend((self.is_centred && !right.is_centred).then(|| "the row's mean is subtracted before".to_owned()));
        words.extend((!self.is_centred && right.is_centred).then(|| "the row's mean is not subtracted".to_owned()));
        words.extend(
            (!self.has_bias && right.bias.iter().any(|b| *b != 0.0)).then(|| "the bias is left out".to_owned()),
        );
        words
    }

    fn inner(&self, place: &Place) -> Option<Array2<f64>> {
        let x = match &self.input {
            None => place.inputs.first()?,
            Some(name) => match place.around.iter().find(|(known, _)| known == name) {
                Some((_, x)) => x,
                None => &aliased(place, place.inputs.first()?).into_iter().find(|(known, _)| known == name)?.1,
            },
        };
        let x = matrix(x)?;
        Some(if self.is_centred { centred(&x) } else { x })
    }
}

/// Divisors of rows, or a gain, from a place's numbers.
type Rows = Arc<dyn Fn(&Place, &Right, &Array2<f64>) -> Option<Vec<f64>> + Send + Sync>;
type Gain = Arc<dyn Fn(&Case<'_>, usize, &Right) -> Option<Vec<f64>> + Send + Sync>;

struct Part<F> {
    words: Option<String>,
    bits: f64,
    f: F,
    parameters: Parameters,
}

impl<F> Part<F> {
    fn new(words: String, bits: f64, f: F) -> Part<F> {
        Part { words: Some(words), bits, f, parameters: Vec::new() }
    }
}

fn of_product(case: &Case<'_>, right: &Right, inner: &Array2<f64>, of: &Product, shape: &Shape) -> Vec<Law> {
    // The scale between rows and gain is free: it is settled so that one of them is the right one, where it can be.
    let gains: Vec<f64> = of.gain.iter().map(|g| g.value).collect();
    let due: Vec<f64> = right.divisor(inner).iter().map(|d| 1.0 / d).collect();
    let rows: Vec<f64> = of.rows.iter().map(|f| f.value).collect();
    let by_gain = factor(&right.gain, &gains, 1e-9).coefficients[0].value;
    let by_rows = factor(&due, &rows, 1e-9).coefficients[0].value;
    let mean = gains.iter().sum::<f64>() / gains.len() as f64;
    // Where neither is, so that the rows are divided by the root of their mean square and an epsilon.
    let by_squares = slope_and_epsilon(inner, of).0.sqrt();
    let (mut laws, mut tried) = (Vec::new(), Vec::new());
    for scale in [by_gain, 1.0 / by_rows, mean, by_squares] {
        let is_tried = tried.iter().any(|other: &f64| (scale / other - 1.0).abs() < EXACT);
        if !scale.is_finite() || scale == 0.0 || is_tried {
            continue;
        }
        tried.push(scale);
        // y = (f scale) (g / scale) x
        let divisors: Vec<Measured> = of
            .rows
            .iter()
            .map(|f| Measured::new(1.0 / (f.value * scale), f.error / (f.value.powi(2) * scale.abs())))
            .collect();
        let gain: Vec<Measured> =
            of.gain.iter().map(|g| Measured::new(g.value / scale, g.error / scale.abs())).collect();
        let gain_is = gain;
        let gains = gain_laws(case, right, &gain_is);
        if gains.is_empty() {
            continue;
        }
        for divisor in divisor_laws(case, right, inner, &divisors) {
            for gain in &gains {
                // Rows of few sizes do not tell a number of the divisor and one of the gain apart.
                if different(&divisors) < FEWEST_ROWS && divisor.bits >= NUMBER && gain.bits >= NUMBER {
                    continue;
                }
                let own: Vec<f64> = gain_is.iter().map(|m| m.value).collect();
                let data = serde_json::json!({"kind": "gain", "right": right.gain.clone(), "measured": own});
                laws.push(law(right, shape, &divisor, gain).drawn(data));
            }
        }
    }
    laws
}

fn law(right: &Right, shape: &Shape, divisor: &Part<Rows>, gain: &Part<Gain>) -> Law {
    let mut words = shape.words(right);
    let form = match (&divisor.words, &gain.words) {
        _ if shape.input.is_some() => Form::NormInput,
        _ if shape.is_centred != right.is_centred => Form::NormCentre,
        (None, Some(_)) => Form::NormGain,
        _ => Form::NormDivisor,
    };
    words.extend(divisor.words.clone());
    words.extend(gain.words.clone());
    let bits = divisor.bits
        + gain.bits
        + if shape.input.is_some() { 6.0 } else { 0.0 }
        + if shape.is_centred != right.is_centred { 3.0 } else { 0.0 };
    let (rows, gain_of, shape_of) = (divisor.f.clone(), gain.f.clone(), shape.clone());
    let law = Law::new(form, words.join("; "), bits, move |case, at| {
        let place = &case.places[at];
        let right = Right::of(case, at)?;
        let x = shape_of.inner(place)?;
        let (divisors, gain) = (rows(place, &right, &x)?, gain_of(case, at, &right)?);
        let out = right.applied(x, &divisors, &gain, shape_of.has_bias);
        out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    });
    let law = law.with("divisor", divisor.words.clone()).with("gain", gain.words.clone());
    let mut law = law
        .with("input", shape.input.clone())
        .with("centred", shape.is_centred)
        .with("bias", shape.has_bias)
        .with("width", right.gain.len())
        .with("right_epsilon", Measured::new(right.epsilon, 1e-6 * right.epsilon).number().value);
    law.parameters.extend(divisor.parameters.iter().chain(&gain.parameters).cloned());
    law
}
