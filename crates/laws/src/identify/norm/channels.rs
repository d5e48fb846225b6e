//! How often each channel is counted in the divisor of a norm, and divisors of tensors with another number of heads.

use std::sync::Arc;

use ndarray::{Array2, ArrayD};

use super::{Part, ROOM, Right, Rows, matrix, product};
use crate::case::{Axis, Case, Place};
use crate::describe::function::describe as describe_function;
use crate::describe::table::describe as describe_table;
use crate::fit::{factor, weighed};
use crate::number::Measured;

/// Channels up to which each has a share of its own.
const MOST_CHANNELS: usize = 160;

/// How often each channel is counted.
type Shares = Arc<dyn Fn(&Right) -> Vec<f64> + Send + Sync>;

/// What rows are divided by at a place, where the gain is the right one.
fn divisors(case: &Case<'_>, at: usize) -> Option<(Array2<f64>, Vec<Measured>)> {
    let (right, place) = (Right::of(case, at)?, case.places.get(at)?);
    let (x, own) = (right.inner(&matrix(place.inputs.first()?)?), matrix(&place.own)?);
    let of = product(&x, &(&own - &ndarray::ArrayView1::from(&right.bias)), place.noise());
    let gains: Vec<f64> = of.gain.iter().map(|m| m.value).collect();
    let by = factor(&right.gain, &gains, 1e-9).coefficients[0].value;
    let is_gain = of.gain.iter().zip(&right.gain).all(|(m, w)| m.may_be(by * w));
    (of.left <= ROOM * place.noise() && is_gain && by != 0.0).then_some(())?;
    let divisor = |m: &Measured| Measured::new(1.0 / (m.value * by), m.error / (m.value.powi(2) * by.abs()));
    Some((x, of.rows.iter().map(divisor).collect()))
}

/// S^2 = the mean of a_c x_c^2, plus epsilon: each channel is counted so often. All places tell, where one has too few rows.
pub(super) fn channels_weighed(
    case: &Case<'_>,
    right: &Right,
    inner: &Array2<f64>,
    own: &[Measured],
) -> Vec<Part<Rows>> {
    let width = inner.ncols();
    let mut laws: Vec<Part<Rows>> = Vec::new();
    if width > MOST_CHANNELS || inner.nrows() * case.places.len() < width + MORE {
        return laws;
    }
    let (mut rows, mut squares): (Vec<Vec<f64>>, Vec<Measured>) = (Vec::new(), Vec::new());
    let mut add = |x: &Array2<f64>, own: &[Measured], epsilon: f64| {
        for (row, s) in x.rows().into_iter().zip(own) {
            rows.push(row.iter().map(|x| x * x / width as f64).collect());
            squares.push(Measured::new(s.value.powi(2) - epsilon, 2.0 * s.value.abs() * s.error));
        }
    };
    add(inner, own, right.epsilon);
    for at in (0..case.places.len()).filter(|at| *at != case.fitted) {
        let Some((x, own)) = divisors(case, at).filter(|_| case.has_time()) else { continue };
        add(&x, &own, right.epsilon);
    }
    if rows.len() < width + MORE {
        return laws;
    }
    let columns: Vec<Vec<f64>> = (0..width).map(|c| rows.iter().map(|row| row[c]).collect()).collect();
    let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
    let size = squares.iter().map(|s| (s.value / s.error.max(1e-300)).powi(2)).sum::<f64>() / squares.len() as f64;
    let most = ROOM / size.sqrt().max(1e-300);
    let Some(fit) = weighed(&views, &squares).filter(|fit| fit.left <= most) else { return laws };
    let mut add = |words: String, bits: f64, made: Shares| {
        laws.push(Part::new(
            format!("rows are divided by the root of the mean square in which each channel is counted {words}"),
            bits + 6.0,
            Arc::new(move |_, right, x| {
                let by = made(right);
                let of = |row: ndarray::ArrayView1<'_, f64>| row.iter().zip(&by).map(|(x, by)| by * x * x).sum::<f64>();
                let root = |row| (of(row) / x.ncols() as f64 + right.epsilon).max(0.0).sqrt();
                (by.len() == x.ncols()).then(|| x.rows().into_iter().map(root).collect())
            }),
        ));
    };
    if let Some(table) = describe_table(&fit.coefficients, Axis::Channel, Some(1.0), None) {
        let values = table.values;
        add(format!("{} times", table.words), table.bits, Arc::new(move |_| values.clone()));
    } else if let Some(function) = describe_function(&right.gain, &fit.coefficients) {
        let (words, f) = (function.of("w"), function.f);
        let said = format!("{words} times, w being the gain: it is weighed by the gain");
        add(said, function.bits, Arc::new(move |right| right.gain.iter().map(|w| f(*w)).collect()));
    }
    laws
}

/// Rows beyond the number of channels that tell their shares.
const MORE: usize = 6;

/// Which row of a tensor with `count` heads each row with `own` heads has; `None` where heads are no groups.
fn of_heads(x: &ArrayD<f64>, shape: &[usize]) -> Option<Vec<usize>> {
    let ([rows, own, width], [other_rows, count, other_width]) = (shape, x.shape()) else { return None };
    let is_group = own != count && (own.is_multiple_of(*count) || count.is_multiple_of(*own));
    (rows == other_rows && width == other_width && is_group).then_some(())?;
    Some((0..rows * own).map(|row| row / own * count + row % own * count / own).collect())
}

/// Rows divided by the root mean square of the head of another tensor that they go with.
pub(super) fn of_other_heads(case: &Case<'_>, right: &Right, own: &[Measured]) -> Vec<Part<Rows>> {
    let shape = case.first().right.shape().to_vec();
    let made = |place: &Place, right: &Right, name: &str| -> Option<Vec<f64>> {
        let (_, x) = place.around.iter().find(|(known, _)| known == name)?;
        let (from, of) = (of_heads(x, place.right.shape())?, right.divisor(&right.inner(&matrix(x)?)));
        from.into_iter().map(|row| of.get(row).copied()).collect()
    };
    let named = case.first().around.iter().filter(|(_, x)| of_heads(x, &shape).is_some());
    named
        .filter(|(name, _)| {
            made(case.first(), right, name).is_some_and(|due| own.iter().zip(due).all(|(own, due)| own.may_be(due)))
        })
        .map(|(name, _)| {
            let known = name.clone();
            let f: Rows = Arc::new(move |place, right, _| made(place, right, &known));
            let words = format!("rows are divided by what the head of {name} that they go with would be divided by");
            Part::new(words, 8.0, f)
        })
        .collect()
}
