//! Norms: what each row is divided by, what each channel is multiplied with, what is subtracted before, and what it is a norm of.

use std::sync::Arc;

use ndarray::{Array2, ArrayD};

use crate::case::{Axis, Case, Place};
use crate::describe::function::{self, describe as describe_function};
use crate::describe::source::describe as describe_source;
use crate::describe::table::describe as describe_table;
use crate::describe::{choice, nth};
use crate::fit::{dot, factor, least_squares};
use crate::identify::output::OfRow;
use crate::law::{Form, Law, Parameters};
use crate::number::{Measured, NUMBER};

/// Rows and channels of a tensor: its last axis, and all others together.
fn matrix(x: &ArrayD<f64>) -> Option<Array2<f64>> {
    let width = *x.shape().last()?;
    let x = x.to_shape((x.len() / width.max(1), width)).ok()?.into_owned();
    (x.nrows() > 1 && width > 3).then_some(x)
}

/// y = f_t g_c x_tc: a factor for each row and each channel.
struct Product {
    rows: Vec<Measured>,
    gain: Vec<Measured>,
    left: f64,
}

fn product(x: &Array2<f64>, y: &Array2<f64>, noise: f64) -> Product {
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

/// Statistics that are as plain as this are taken of weighed rows too.
const PLAIN: f64 = 5.0;

/// Rounds of alternating least squares.
const ROUNDS: usize = 40;

/// What is right: the norm taken apart.
struct Right {
    is_centred: bool,
    epsilon: f64,
    gain: Vec<f64>,
    bias: Vec<f64>,
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

fn mean_square(row: &[f64]) -> f64 {
    dot(row, row) / row.len() as f64
}

impl Right {
    fn of(place: &Place) -> Option<Right> {
        let (x, y) = (matrix(place.inputs.first()?)?, matrix(&place.right)?);
        if x.dim() != y.dim() {
            return None;
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
        let squares: Vec<f64> = x.rows().into_iter().map(|row| mean_square(&row.to_vec())).collect();
        let wanted: Vec<f64> = of.rows.iter().map(|f| f.value.powi(-2)).collect();
        let ones = vec![1.0; squares.len()];
        // Rows of very different size count alike.
        let weight: Vec<f64> = wanted.iter().map(|w| 1.0 / w.abs().max(f64::MIN_POSITIVE)).collect();
        let by = |x: &[f64]| x.iter().zip(&weight).map(|(x, w)| x * w).collect::<Vec<f64>>();
        let (squares_by, ones_by) = (by(&squares), by(&ones));
        let fit = least_squares(&[&squares_by, &ones_by], &by(&wanted), EXACT);
        let (slope, epsilon) = match fit {
            Some(fit) if fit.coefficients[0].value > 0.0 => {
                let slope = fit.coefficients[0].value;
                (slope, (fit.coefficients[1].value / slope).max(0.0))
            }
            _ => (wanted[0] / squares[0].max(f64::MIN_POSITIVE), 0.0),
        };
        let gain = of.gain.iter().map(|g| g.value / slope.sqrt()).collect();
        Some(Right { is_centred, epsilon, gain, bias })
    }

    fn inner(&self, x: &Array2<f64>) -> Array2<f64> {
        if self.is_centred { centred(x) } else { x.clone() }
    }

    /// The rows, or the rows times the gain.
    fn weighed(&self, x: &Array2<f64>, is_weighed: bool) -> Array2<f64> {
        if is_weighed { x * &ndarray::ArrayView1::from(&self.gain) } else { x.clone() }
    }

    fn divisor(&self, x: &Array2<f64>) -> Vec<f64> {
        x.rows().into_iter().map(|row| (mean_square(&row.to_vec()) + self.epsilon).sqrt()).collect()
    }
}

/// The size of rounding in what is right.
const EXACT: f64 = 1e-12;
/// Errors of rounding's size that a norm may be left with before the proof.
const ROOM: f64 = 5.0;

/// A statistic of each row.
type Statistic = Arc<dyn Fn(&Array2<f64>) -> Vec<f64> + Send + Sync>;

/// What rows may be divided by.
fn statistics(width: usize) -> Vec<(String, f64, Statistic)> {
    let mut all: Vec<(String, f64, Statistic)> = Vec::new();
    let mut of_row = |words: &str, bits: f64, f: fn(&[f64]) -> f64| {
        all.push((
            words.to_owned(),
            bits,
            Arc::new(move |x| x.rows().into_iter().map(|row| f(&row.to_vec())).collect()),
        ));
    };
    of_row("the root mean square", 2.0, |row| mean_square(row).sqrt());
    of_row("one", 3.0, |_| 1.0);
    of_row("the mean square", 5.0, mean_square);
    of_row("the root of the root mean square", 6.0, |row| mean_square(row).powf(0.25));
    of_row("the length", 5.0, |row| dot(row, row).sqrt());
    of_row("the mean size", 5.0, |row| row.iter().map(|x| x.abs()).sum::<f64>() / row.len() as f64);
    of_row("the sum of sizes", 6.0, |row| row.iter().map(|x| x.abs()).sum());
    of_row("the largest size", 5.0, |row| row.iter().fold(0.0, |most: f64, x| most.max(x.abs())));
    of_row("the standard deviation", 5.0, |row| {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64).sqrt()
    });
    of_row("the standard deviation (over n - 1)", 6.0, |row| {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (row.len() - 1) as f64).sqrt()
    });
    of_row("the root mean square (over n - 1)", 6.0, |row| (dot(row, row) / (row.len() - 1) as f64).sqrt());
    of_row("the root mean square (over n + 1)", 6.0, |row| (dot(row, row) / (row.len() + 1) as f64).sqrt());
    of_row("the range", 6.0, |row| {
        let (low, high) = row.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x)));
        high - low
    });
    of_row("the median size", 7.0, |row| {
        let mut sizes: Vec<f64> = row.iter().map(|x| x.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        0.5 * (sizes[(sizes.len() - 1) / 2] + sizes[sizes.len() / 2])
    });
    of_row("the third root of the mean cubed size", 7.0, |row| {
        (row.iter().map(|x| x.abs().powi(3)).sum::<f64>() / row.len() as f64).cbrt()
    });
    of_row("the fourth root of the mean fourth power", 7.0, |row| {
        (row.iter().map(|x| x.powi(4)).sum::<f64>() / row.len() as f64).powf(0.25)
    });
    of_row("the size of the mean", 6.0, |row| (row.iter().sum::<f64>() / row.len() as f64).abs());
    of_row("the mean deviation", 7.0, |row| {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        row.iter().map(|x| (x - mean).abs()).sum::<f64>() / row.len() as f64
    });
    of_row("the geometric mean of sizes", 7.0, |row| {
        (row.iter().map(|x| x.abs().max(1e-30).ln()).sum::<f64>() / row.len() as f64).exp()
    });
    let sizes = |x: &Array2<f64>| x.rows().into_iter().map(|row| mean_square(&row.to_vec())).collect::<Vec<f64>>();
    let mut of_all = |words: &str, bits: f64, f: fn(Vec<f64>) -> Vec<f64>| {
        all.push((words.to_owned(), bits, Arc::new(move |x| f(sizes(x)).into_iter().map(f64::sqrt).collect())));
    };
    of_all("the root mean square of the row before", 7.0, |s| (0..s.len()).map(|t| s[t.saturating_sub(1)]).collect());
    of_all("the root mean square of the next row", 7.0, |s| {
        (0..s.len()).map(|t| s[(t + 1).min(s.len() - 1)]).collect()
    });
    of_all("the root mean square of the first row", 7.0, |s| vec![s[0]; s.len()]);
    of_all("the root mean square of the last row", 7.0, |s| vec![s[s.len() - 1]; s.len()]);
    of_all("the root mean square of all rows", 7.0, |s| vec![s.iter().sum::<f64>() / s.len() as f64; s.len()]);
    of_all("the root mean square of the rows so far", 7.0, |s| {
        let mut sum = 0.0;
        s.iter()
            .enumerate()
            .map(|(t, s)| {
                sum += s;
                sum / (t + 1) as f64
            })
            .collect()
    });
    for block in [2usize, 4, 8, 16, 32] {
        type Of = fn(usize, usize, usize) -> usize;
        let others: [(String, Of); 2] = [
            (format!("the first of its block of {block} rows"), |t, block, _| t / block * block),
            (format!("the same of the first {block} rows"), |t, block, rows| t % block.min(rows)),
        ];
        for (whose, of) in others {
            let made = move |sizes: Vec<f64>| {
                let rows = sizes.len();
                (0..rows).map(|t| sizes[of(t, block, rows)].sqrt()).collect()
            };
            all.push((format!("the root mean square of {whose}"), 9.0, Arc::new(move |x| made(sizes(x)))));
        }
        let words = format!("the root mean square of its block of {block} rows");
        all.push((
            words,
            9.0,
            Arc::new(move |x| {
                let of: Vec<f64> = sizes(x)
                    .chunks(block)
                    .flat_map(|s| vec![s.iter().sum::<f64>() / s.len() as f64; s.len()])
                    .collect();
                of.into_iter().map(f64::sqrt).collect()
            }),
        ));
    }
    for stride in 2..=8usize {
        for rest in 0..stride {
            let words = format!("the root mean square of every {} channel from {rest} on", nth(stride));
            all.push((
                words,
                12.0,
                Arc::new(move |x| {
                    let of = |row: Vec<f64>| {
                        mean_square(&row.into_iter().skip(rest).step_by(stride).collect::<Vec<_>>()).sqrt()
                    };
                    x.rows().into_iter().map(|row| of(row.to_vec())).collect()
                }),
            ));
        }
    }
    // Of part of the channels: which part is read off the row.
    for at in 1..width {
        let bits = 6.0 + choice(width);
        let part = move |over: fn(usize, usize) -> f64, is_first: bool| -> Statistic {
            Arc::new(move |x: &Array2<f64>| {
                let of = |row: Vec<f64>| {
                    let part = if is_first { &row[..at.min(row.len())] } else { &row[row.len().saturating_sub(at)..] };
                    (dot(part, part) / over(part.len(), row.len())).sqrt()
                };
                x.rows().into_iter().map(|row| of(row.to_vec())).collect()
            })
        };
        if width <= FEW || is_round(at) || at + 8 > width {
            all.push((format!("the root mean square of the first {at} channels"), bits, part(|n, _| n as f64, true)));
            all.push((format!("the root mean square of the last {at} channels"), bits, part(|n, _| n as f64, false)));
            all.push((
                format!("the root of the sum over the first {at} channels, over all of them"),
                bits + 1.0,
                part(|_, n| n as f64, true),
            ));
            all.push((
                format!("the root of the sum over the last {at} channels, over all of them"),
                bits + 1.0,
                part(|_, n| n as f64, false),
            ));
        }
    }
    all
}

/// Widths up to which every part is tried; beyond only round ones, and those that leave out a few.
const FEW: usize = 256;

fn is_round(n: usize) -> bool {
    n.is_power_of_two() || n.is_multiple_of(64)
}

/// The laws of a norm.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let (Some(right), Some(own)) = (Right::of(first), matrix(&first.own)) else { return Vec::new() };
    let mut laws = Vec::new();
    let mut inputs = vec![(None, first.inputs[0].clone())];
    inputs.extend(
        first
            .around
            .iter()
            .filter(|(_, x)| x.shape() == first.inputs[0].shape())
            .map(|(name, x)| (Some(name.clone()), x.clone())),
    );
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
        laws.extend(offsets(case, &right, &own));
        laws.extend(groups(case, &right, &own));
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
            Some(name) => &place.around.iter().find(|(known, _)| known == name)?.1,
        };
        let x = matrix(x)?;
        Some(if self.is_centred { centred(&x) } else { x })
    }
}

/// Divisors of rows, or a gain, from a place's numbers.
type Rows = Arc<dyn Fn(&Right, &Array2<f64>) -> Option<Vec<f64>> + Send + Sync>;
type Gain = Arc<dyn Fn(&Case<'_>, usize, &Right) -> Option<Vec<f64>> + Send + Sync>;

struct Part<F> {
    words: Option<String>,
    bits: f64,
    f: F,
    parameters: Parameters,
}

fn of_product(case: &Case<'_>, right: &Right, inner: &Array2<f64>, of: &Product, shape: &Shape) -> Vec<Law> {
    // The scale between rows and gain is free: it is settled so that one of them is the right one, where it can be.
    let gains: Vec<f64> = of.gain.iter().map(|g| g.value).collect();
    let due: Vec<f64> = right.divisor(inner).iter().map(|d| 1.0 / d).collect();
    let rows: Vec<f64> = of.rows.iter().map(|f| f.value).collect();
    let by_gain = factor(&right.gain, &gains, 1e-9).coefficients[0].value;
    let by_rows = factor(&due, &rows, 1e-9).coefficients[0].value;
    let mean = gains.iter().sum::<f64>() / gains.len() as f64;
    let mut laws = Vec::new();
    for scale in [by_gain, 1.0 / by_rows, mean] {
        if !scale.is_finite() || scale == 0.0 {
            continue;
        }
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
        let right = Right::of(place)?;
        let x = shape_of.inner(place)?;
        let (divisors, gain) = (rows(&right, &x)?, gain_of(case, at, &right)?);
        let mut out = x;
        for (mut row, by) in out.rows_mut().into_iter().zip(&divisors) {
            for (x, (gain, bias)) in row.iter_mut().zip(gain.iter().zip(&right.bias)) {
                *x = *x / by * gain + if shape_of.has_bias { *bias } else { 0.0 };
            }
        }
        out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    });
    let law = law.with("divisor", divisor.words.clone()).with("gain", gain.words.clone());
    let mut law = law
        .with("input", shape.input.clone())
        .with("centred", shape.is_centred)
        .with("bias", shape.has_bias)
        .with("width", right.gain.len())
        .with("right_epsilon", right.epsilon);
    law.parameters.extend(divisor.parameters.iter().chain(&gain.parameters).cloned());
    law
}

fn divisor_laws(case: &Case<'_>, right: &Right, inner: &Array2<f64>, own: &[Measured]) -> Vec<Part<Rows>> {
    let due = right.divisor(inner);
    if own.iter().zip(&due).all(|(own, due)| own.may_be(*due)) {
        return vec![Part {
            words: None,
            bits: 0.0,
            f: Arc::new(|right, x| Some(right.divisor(x))),
            parameters: Vec::new(),
        }];
    }
    let epsilon = Measured::new(right.epsilon, 1e-3 * right.epsilon).number().words;
    let mut laws: Vec<Part<Rows>> = Vec::new();
    let plain = statistics(inner.ncols());
    let weighed: Vec<_> = plain
        .iter()
        .filter(|(_, bits, _)| *bits <= PLAIN)
        .map(|(words, bits, f)| (format!("{words} of the row times the gain"), bits + 3.0, f.clone()))
        .collect();
    let all = plain.into_iter().map(|of| (of, false)).chain(weighed.into_iter().map(|of| (of, true)));
    for ((words, bits, statistic), is_weighed) in all {
        let of = statistic(&right.weighed(inner, is_weighed));
        if of.iter().any(|s| !s.is_finite()) {
            continue;
        }
        for is_inside in [true, false] {
            // S = sqrt(a s^2 + e), or S = a s + e.
            let power = if is_inside { 2 } else { 1 };
            let x: Vec<f64> = of.iter().map(|s| s.powi(power)).collect();
            let y: Vec<Measured> = own
                .iter()
                .map(|s| Measured::new(s.value.powi(power), s.error * f64::from(power) * s.value.abs().powi(power - 1)))
                .collect();
            for (a, e, price) in scale_and_epsilon(&x, &y, right.epsilon) {
                let made = |s: f64| {
                    let inner = a.value * s.powi(power) + e.value;
                    if is_inside { inner.max(0.0).sqrt() } else { inner }
                };
                if !own.iter().zip(&of).all(|(own, s)| own.may_be(made(*s))) {
                    continue;
                }
                let times = if a.words == "1" { String::new() } else { format!("{} times ", a.words) };
                let plus = if e.value == 0.0 { String::new() } else { format!(" plus {}", e.words) };
                let said = match is_inside && e.value != 0.0 {
                    true => format!("rows are divided by sqrt({times}s^2{plus}), s being {words}"),
                    false => format!("rows are divided by {times}{words}{plus}"),
                };
                let (statistic, a, e) = (statistic.clone(), a.value, e.value);
                laws.push(Part {
                    words: Some(format!("{said} (right: root mean square, epsilon {epsilon} inside)")),
                    bits: bits + price + if is_inside { 0.0 } else { 2.0 },
                    f: Arc::new(move |right, x| {
                        let made = |s: f64| {
                            let inner = a * s.powi(power) + e;
                            if is_inside { inner.max(0.0).sqrt() } else { inner }
                        };
                        Some(statistic(&right.weighed(x, is_weighed)).into_iter().map(made).collect())
                    }),
                    parameters: vec![
                        ("statistic", words.clone().into()),
                        ("scale", a.into()),
                        ("epsilon", e.into()),
                        ("epsilon_inside", is_inside.into()),
                    ],
                });
                break;
            }
        }
    }
    // Bounds of the right divisor.
    for (words, is_least) in [("at least", true), ("at most", false)] {
        let bound = own
            .iter()
            .map(|m| m.value)
            .fold(if is_least { f64::INFINITY } else { 0.0 }, if is_least { f64::min } else { f64::max });
        let number = Measured::new(bound, own[0].error).number();
        let b = number.value;
        let made = move |d: f64| if is_least { d.max(b) } else { d.min(b) };
        if own.iter().zip(&due).all(|(own, due)| own.may_be(made(*due))) {
            laws.push(Part {
                words: Some(format!("rows are divided by {words} {}", number.words)),
                bits: 4.0 + number.bits,
                f: Arc::new(move |right, x| Some(right.divisor(x).into_iter().map(made).collect())),
                parameters: Vec::new(),
            });
        }
    }
    if let Some(function) = describe_function(&due, own) {
        let f = function.f.clone();
        laws.push(Part {
            words: Some(format!("rows are divided by {} (d: the right divisor)", function.of("d"))),
            bits: function.bits + 6.0,
            f: Arc::new(move |right, x| Some(right.divisor(x).into_iter().map(|d| f(d)).collect())),
            parameters: Vec::new(),
        });
    }
    laws.extend(two_statistics(right, inner, own));
    laws.extend(epsilon_by_row(case, right, inner, own));
    // A factor of the right divisor, by position.
    let ratio: Vec<Measured> =
        own.iter().zip(&due).map(|(m, due)| Measured::new(due / m.value, m.error * due / m.value.powi(2))).collect();
    let rank = case.first().right.ndim();
    let (axis, tokens) = if rank == 2 { (Axis::Token, case.tokens_of(Axis::Token)) } else { (Axis::Row, None) };
    if let Some(table) = describe_table(&ratio, axis, Some(1.0), tokens) {
        let values = table.values;
        laws.push(Part {
            words: Some(format!("rows are {} times the right ones", table.words)),
            bits: table.bits + 4.0,
            f: Arc::new(move |right, x| {
                let due = right.divisor(x);
                (due.len() == values.len()).then(|| due.iter().zip(&values).map(|(d, by)| d / by).collect())
            }),
            parameters: Vec::new(),
        });
    }
    laws.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    laws.truncate(MOST);
    laws
}

/// S = a s1 + b s2, or S^2 = a s1^2 + b s2^2: two statistics of each row, one of them the root mean square.
fn two_statistics(right: &Right, inner: &Array2<f64>, own: &[Measured]) -> Vec<Part<Rows>> {
    let mut laws: Vec<Part<Rows>> = Vec::new();
    let all: Vec<_> = statistics(inner.ncols()).into_iter().filter(|(_, bits, _)| *bits <= KNOWN).collect();
    let due = right.divisor(inner);
    for (words, bits, statistic) in all {
        let of = statistic(inner);
        for power in [1, 2] {
            let raised = |x: &[f64]| x.iter().map(|x| x.powi(power)).collect::<Vec<f64>>();
            let y: Vec<Measured> = own
                .iter()
                .map(|s| Measured::new(s.value.powi(power), s.error * f64::from(power) * s.value.abs().powi(power - 1)))
                .collect();
            let weight: Vec<f64> = y.iter().map(|y| 1.0 / y.error.max(1e-300)).collect();
            let by = |x: &[f64]| x.iter().zip(&weight).map(|(x, w)| x * w).collect::<Vec<f64>>();
            let wanted = by(&y.iter().map(|y| y.value).collect::<Vec<_>>());
            let size = (dot(&wanted, &wanted) / wanted.len() as f64).sqrt();
            let Some(fit) = least_squares(&[&by(&raised(&due)), &by(&raised(&of))], &wanted, 1.0 / size.max(1e-300))
            else {
                continue;
            };
            let (a, b) = (fit.coefficients[0], fit.coefficients[1]);
            for (a, b) in [(a.number(), b.number()), (a.plain(), b.plain())] {
                let (one, other) = (a.value, b.value);
                let made = move |d: f64, s: f64| {
                    let sum = one * d.powi(power) + other * s.powi(power);
                    if power == 2 { sum.max(0.0).sqrt() } else { sum }
                };
                if one == 0.0
                    || other == 0.0
                    || !own.iter().zip(due.iter().zip(&of)).all(|(own, (d, s))| own.may_be(made(*d, *s)))
                {
                    continue;
                }
                let term = |n: &crate::number::Number, words: &str| {
                    if n.value == 1.0 { words.to_owned() } else { format!("{} times {words}", n.words) }
                };
                let said = match power {
                    1 => format!("rows are divided by {} plus {}", term(&a, "the right divisor"), term(&b, &words)),
                    _ => format!(
                        "rows are divided by the root of {} plus {}",
                        term(&a, "the right divisor squared"),
                        term(&b, &format!("the square of {words}"))
                    ),
                };
                let statistic = statistic.clone();
                laws.push(Part {
                    words: Some(said),
                    bits: 8.0 + bits + a.bits + b.bits,
                    f: Arc::new(move |right: &Right, x: &Array2<f64>| {
                        let (due, of) = (right.divisor(x), statistic(x));
                        Some(due.into_iter().zip(of).map(|(d, s)| made(d, s)).collect())
                    }),
                    parameters: Vec::new(),
                });
                break;
            }
        }
    }
    laws
}

/// Statistics up to this price are taken together with the right divisor.
const KNOWN: f64 = 7.0;

/// Another epsilon for each row.
fn epsilon_by_row(case: &Case<'_>, right: &Right, inner: &Array2<f64>, own: &[Measured]) -> Option<Part<Rows>> {
    let squares: Vec<f64> = right.divisor(inner).iter().map(|d| d * d - right.epsilon).collect();
    let epsilons: Vec<Measured> = own
        .iter()
        .zip(&squares)
        .map(|(s, square)| Measured::new(s.value * s.value - square, 2.0 * s.value.abs() * s.error))
        .collect();
    let rank = case.first().right.ndim();
    let (axis, tokens) = if rank == 2 { (Axis::Token, case.tokens_of(Axis::Token)) } else { (Axis::Row, None) };
    let table = describe_table(&epsilons, axis, Some(right.epsilon), tokens)
        .filter(|table| table.number.is_none() || table.part.is_some())?;
    let values = table.values;
    Some(Part {
        words: Some(format!("epsilon is {} inside the root", table.words)),
        bits: table.bits + 6.0,
        f: Arc::new(move |right, x| {
            let due = right.divisor(x);
            let with = |(d, e): (&f64, &f64)| (d * d - right.epsilon + e).max(0.0).sqrt();
            (due.len() == values.len()).then(|| due.iter().zip(&values).map(with).collect())
        }),
        parameters: Vec::new(),
    })
}

/// Laws of a part that are kept.
const MOST: usize = 4;

/// `y = a x + e`, the plainest first: as it is, with the right epsilon, with another, with another scale, with both.
#[allow(clippy::type_complexity)]
fn scale_and_epsilon(
    x: &[f64],
    y: &[Measured],
    epsilon: f64,
) -> Vec<(crate::number::Number, crate::number::Number, f64)> {
    let exact = |value: f64, words: String| crate::number::Number { value, words, bits: 0.0 };
    let (one, nothing) = (exact(1.0, "1".into()), exact(0.0, "0".into()));
    let eps = exact(epsilon, Measured::new(epsilon, 1e-3 * epsilon).number().words);
    let mut all = vec![(one.clone(), eps.clone(), 0.0), (one.clone(), nothing.clone(), 2.0)];
    let off = Measured::mean(y.iter().zip(x).map(|(y, x)| y.plus(-x)));
    if off.is_known() {
        for e in [off.number(), off.plain()] {
            all.push((one.clone(), e.clone(), e.bits));
        }
    }
    for e in [&eps, &nothing] {
        let ratio = Measured::mean(
            y.iter()
                .zip(x)
                .filter(|(_, x)| **x != 0.0)
                .map(|(y, x)| Measured::new((y.value - e.value) / x, y.error / x.abs())),
        );
        if ratio.is_known() {
            for a in [ratio.number(), ratio.plain()] {
                all.push((a.clone(), e.clone(), a.bits + 2.0));
            }
        }
    }
    let weight: Vec<f64> = y.iter().map(|y| 1.0 / y.error.max(1e-300)).collect();
    let by = |x: &[f64]| x.iter().zip(&weight).map(|(x, w)| x * w).collect::<Vec<f64>>();
    let (columns, ones) = (by(x), weight.clone());
    let wanted = by(&y.iter().map(|y| y.value).collect::<Vec<_>>());
    let size = (dot(&wanted, &wanted) / wanted.len() as f64).sqrt();
    if let Some(fit) = least_squares(&[&columns, &ones], &wanted, 1.0 / size.max(1e-300)) {
        let (a, e) = (fit.coefficients[0], fit.coefficients[1]);
        for (a, e) in [(a.number(), e.number()), (a.plain(), e.plain())] {
            let price = a.bits + e.bits;
            all.push((a, e, price));
        }
    }
    all
}

fn gain_laws(case: &Case<'_>, right: &Right, own: &[Measured]) -> Vec<Part<Gain>> {
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
    for (name, vector) in case.operation.vectors(case.fitted, own.len()) {
        for (words, bits, plus) in [("", 8.0, 0.0), ("1 plus ", 10.0, 1.0)] {
            if fits(&vector.iter().map(|v| v + plus).collect::<Vec<_>>()) {
                let known = name.clone();
                let f: Gain = Arc::new(move |case, place, right| {
                    let all = case.operation.vectors(place, right.gain.len());
                    Some(all.into_iter().find(|(other, _)| *other == known)?.1.into_iter().map(|v| v + plus).collect())
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
                    let all = case.operation.vectors(place, right.gain.len());
                    let (_, vector) = all.into_iter().find(|(other, _)| *other == known)?;
                    Some(right.gain.iter().zip(vector).map(|(w, v)| by * w + other * v).collect())
                });
                let words = format!("the gain is {} w + {} times {name} (w: the right gain)", a.words, b.words);
                laws.push(Part { words: Some(words), bits: 8.0 + a.bits + b.bits, f, parameters: Vec::new() });
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
        laws.push(Part {
            words: Some(format!("the gain is w times {} (w: the right gain)", table.words)),
            bits: table.bits + 4.0,
            f,
            parameters: Vec::new(),
        });
    }
    let off = own.iter().zip(w).map(|(m, w)| m.plus(-w));
    if let Some(table) = table(off.collect(), 0.0) {
        let values = table.values;
        let f: Gain = Arc::new(move |_, _, right| Some(right.gain.iter().zip(&values).map(|(w, by)| w + by).collect()));
        laws.push(Part {
            words: Some(format!("the gain is w plus {} (w: the right gain)", table.words)),
            bits: table.bits + 5.0,
            f,
            parameters: Vec::new(),
        });
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
            laws.push(Part {
                words: Some(format!("the gain of each channel i is that of {}", source.words)),
                bits: source.bits + 4.0,
                f,
                parameters: Vec::new(),
            });
        }
    }
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
            laws.push(Part {
                words: Some(format!("the gain is sorted, {words}")),
                bits: 6.0,
                f,
                parameters: Vec::new(),
            });
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
    Some(Part { words: Some(words), bits: function.bits + set.bits + 3.0, f, parameters: Vec::new() })
}

/// A statistic of the row that is added or subtracted before.
const OFFSETS: [OfRow; 7] = [
    ("mean", |row| row.iter().sum::<f64>() / row.len() as f64),
    ("median", |row| {
        let mut row = row.to_vec();
        row.sort_by(f64::total_cmp);
        0.5 * (row[(row.len() - 1) / 2] + row[row.len() / 2])
    }),
    ("first value", |row| row[0]),
    ("last value", |row| row[row.len() - 1]),
    ("smallest value", |row| row.iter().copied().fold(f64::INFINITY, f64::min)),
    ("largest value", |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
    ("one", |_| 1.0),
];

/// y / w = f (x + a m): a number of each row is added before.
fn offsets(case: &Case<'_>, right: &Right, own: &Array2<f64>) -> Vec<Law> {
    let first = case.first();
    let Some(x) = matrix(&first.inputs[0]) else { return Vec::new() };
    let noise = first.noise();
    let (mut slopes, mut offsets) = (Vec::new(), Vec::new());
    for (x, y) in x.rows().into_iter().zip(own.rows()) {
        let (x, y): (Vec<f64>, Vec<f64>) = (x.iter().zip(&right.gain).map(|(x, w)| x * w).collect(), y.to_vec());
        let Some(fit) = least_squares(&[&x, &right.gain], &y, noise) else { return Vec::new() };
        if fit.left > ROOM * noise {
            return Vec::new();
        }
        slopes.push(fit.coefficients[0]);
        offsets.push(fit.coefficients[1]);
    }
    let mut laws = Vec::new();
    for (called, f) in OFFSETS {
        let of: Vec<f64> = x.rows().into_iter().map(|row| f(&row.to_vec())).collect();
        let share: Vec<Measured> = offsets
            .iter()
            .zip(&slopes)
            .zip(&of)
            .map(|((o, s), m)| Measured::new(o.value / (s.value * m), o.error / (s.value * m).abs()))
            .collect();
        let by = Measured::mean(share.iter().copied());
        let number = by.number();
        if !share.iter().all(|m| m.may_be(number.value)) {
            continue;
        }
        let a = number.value;
        let moved = move |x: &Array2<f64>| {
            let mut out = x.clone();
            for mut row in out.rows_mut() {
                let by = a * f(&row.to_vec());
                row.mapv_inplace(|x| x + by);
            }
            out
        };
        let divisors: Vec<Measured> =
            slopes.iter().map(|s| Measured::new(1.0 / s.value, s.error / s.value.powi(2))).collect();
        for is_after in [true, false] {
            let inner = if is_after { moved(&x) } else { x.clone() };
            for divisor in divisor_laws(case, right, &inner, &divisors) {
                let rows = divisor.f.clone();
                let then = divisor.words.clone().map_or_else(String::new, |words| format!("; {words}"));
                let of = if is_after { "" } else { ", which the divisor does not see" };
                let words = format!("{} times the row's {called} is added before{of}{then}", number.words);
                laws.push(Law::new(Form::NormCentre, words, 8.0 + number.bits + divisor.bits, move |case, at| {
                    let place = &case.places[at];
                    let right = Right::of(place)?;
                    let x = matrix(&place.inputs[0])?;
                    let inner = moved(&x);
                    let divisors = rows(&right, if is_after { &inner } else { &x })?;
                    let mut out = inner;
                    for (mut row, by) in out.rows_mut().into_iter().zip(&divisors) {
                        row.iter_mut().zip(&right.gain).for_each(|(x, gain)| *x = *x / by * gain);
                    }
                    out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
                }));
            }
        }
    }
    laws
}

/// Groups of channels, each by its own root mean square.
fn groups(case: &Case<'_>, right: &Right, own: &Array2<f64>) -> Vec<Law> {
    let Some(x) = matrix(&case.first().inputs[0]) else { return Vec::new() };
    let width = x.ncols();
    let by_groups = |x: &Array2<f64>, right: &Right, size: usize| {
        let mut out = right.inner(x);
        for mut row in out.rows_mut() {
            let mut values = row.to_vec();
            for group in values.chunks_mut(size) {
                let by = (mean_square(group) + right.epsilon).sqrt();
                group.iter_mut().for_each(|x| *x /= by);
            }
            row.iter_mut().zip(values.iter().zip(&right.gain)).for_each(|(x, (v, gain))| *x = v * gain);
        }
        out
    };
    let noise = case.first().noise();
    let sizes = (2..width).filter(|size| width.is_multiple_of(*size));
    let fits = |size: &usize| {
        let due = by_groups(&x, right, *size);
        let left: f64 = due.iter().zip(own).map(|(a, b)| (a - b).powi(2)).sum();
        left.sqrt() <= ROOM * noise * own.iter().map(|y| y * y).sum::<f64>().sqrt()
    };
    sizes
        .filter(fits)
        .map(|size| {
            let words = format!("each group of {size} channels is divided by its own root mean square");
            let law = Law::new(Form::NormGroups, words, 6.0 + choice(size), move |case, at| {
                let place = &case.places[at];
                let out = by_groups(&matrix(&place.inputs[0])?, &Right::of(place)?, size);
                out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
            });
            law.with("group", size)
        })
        .collect()
}
