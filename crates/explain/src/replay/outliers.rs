//! Finds errors in one place only. Rounding is everywhere: an element, or a row, that is off by far more than the rest is no rounding.

use firstdiff_model::Profile;
use ndarray::{ArrayD, ArrayView1, Dimension};

use crate::replay::reason::InOnePlace;
use crate::tolerance::replay::{ELEMENT_SIGMAS, FLIPS, ROW_SEEN, ROW_SIGMAS, ROW_SPREAD, ROW_WIDE};

/// What is wrong in one place of `own`, against the value in the profile's arithmetic and in f64, and the nearer of the two; `None` where the error is spread as rounding is.
///
/// Rows of probabilities (`probs`) add up to 1.
pub(crate) fn misplaced(
    profile: Profile,
    probs: bool,
    own: &ArrayD<f64>,
    [right, exact]: [&ArrayD<f64>; 2],
    nearer: &ArrayD<f64>,
) -> Option<InOnePlace> {
    let unit = match profile {
        Profile::F16 => 2f64.powi(-12),
        Profile::Bf16 => 2f64.powi(-9),
        Profile::Ggml { .. } => {
            return rows(own, nearer, exact)
                .find_map(|(at, [o, r, _])| alone(&at, o, r).or_else(|| scaled(&at, FLIPS, o, r)));
        }
        Profile::Exact | Profile::F32 => return None,
    };
    let rms = if probs {
        0.0
    } else {
        (exact.iter().filter(|x| x.is_finite()).map(|x| x * x).sum::<f64>() / exact.len() as f64).sqrt()
    };
    let factor = if probs { unnormalised } else { scaled };
    rows(own, right, exact)
        .find_map(|(at, [o, r, e])| far_off(&at, unit, rms, [o, r, e]).or_else(|| factor(&at, 2.2 * unit, o, r)))
}

/// No arithmetic leaves as much of a probability that is 0: compare's own limit.
pub(crate) use firstdiff_compare::UNDERFLOW as LEAK;

/// A probability that is exactly 0 and is not in `own`: a masked key takes part.
pub(crate) fn leaking(own: &ArrayD<f64>, exact: &ArrayD<f64>) -> Option<InOnePlace> {
    let leaks = own.indexed_iter().zip(exact).filter(|((_, o), e)| **e == 0.0 && **o > LEAK);
    let ((at, most), _) = leaks.max_by(|((_, a), _), ((_, b), _)| a.total_cmp(b))?;
    Some(InOnePlace::Leak { at: at.slice().to_vec(), probability: *most })
}

type Row<'a> = ArrayView1<'a, f64>;

/// Rows along the last axis, numbered, where all is finite.
fn rows<'a>(
    own: &'a ArrayD<f64>,
    right: &'a ArrayD<f64>,
    exact: &'a ArrayD<f64>,
) -> impl Iterator<Item = (Vec<usize>, [Row<'a>; 3])> {
    let shape = own.shape()[..own.ndim().saturating_sub(1)].to_vec();
    let index = move |mut row: usize| {
        let mut index = vec![0; shape.len()];
        for (at, &size) in index.iter_mut().zip(&shape).rev() {
            (*at, row) = (row % size.max(1), row / size.max(1));
        }
        index
    };
    let triples = own.rows().into_iter().zip(right.rows()).zip(exact.rows()).enumerate();
    triples.map(move |(row, ((o, r), e))| (index(row), [o, r, e]))
}

/// One element beyond what rounding costs in its row, or costs a number of its size, or of the size of all: sums cancel.
fn far_off(at: &[usize], unit: f64, rms: f64, [own, right, exact]: [Row<'_>; 3]) -> Option<InOnePlace> {
    let finite = |x: f64| x.is_finite();
    let seen: Vec<usize> = (0..own.len()).filter(|&i| finite(own[i]) && finite(right[i]) && finite(exact[i])).collect();
    let square: f64 = seen.iter().map(|&i| (right[i] - exact[i]).powi(2)).sum();
    let sigma = (square / seen.len().max(1) as f64).sqrt();
    seen.into_iter().find_map(|i| {
        let off = (own[i] - right[i]).abs().min((own[i] - exact[i]).abs());
        let due = sigma.max(unit * exact[i].abs()).max(unit * rms);
        (due > 0.0 && off > ELEMENT_SIGMAS * due).then(|| InOnePlace::Element { at: place(at, i), times: off / due })
    })
}

/// A row whose values are all too large, or too small, by more than `least`.
fn scaled(at: &[usize], least: f64, own: Row<'_>, right: Row<'_>) -> Option<InOnePlace> {
    let pairs = || own.iter().zip(&right).filter(|(o, r)| o.is_finite() && r.is_finite());
    let (mut xx, mut xy, mut fourth) = (0.0, 0.0, 0.0);
    for (o, r) in pairs() {
        (xx, xy, fourth) = (xx + r * r, xy + r * o, fourth + r.powi(4));
    }
    if xx == 0.0 || xx * xx < ROW_SPREAD * fourth {
        return None;
    }
    let factor = xy / xx;
    let left: f64 = pairs().map(|(o, r)| (o - factor * r).powi(2)).sum();
    let sigma = (left / xx / (xx * xx / fourth)).sqrt();
    let off = (factor - 1.0).abs();
    (off > least && off > ROW_SIGMAS * sigma).then(|| InOnePlace::RowFactor { row: at.to_vec(), factor })
}

/// A row of probabilities that does not add up to 1, by more than `least`.
fn unnormalised(at: &[usize], least: f64, own: Row<'_>, right: Row<'_>) -> Option<InOnePlace> {
    let (sum, due) = (own.sum(), right.sum());
    ((sum - due).abs() > least * due).then(|| InOnePlace::RowSum { row: at.to_vec(), sum })
}

/// One element that holds most of a row's error. A value on the edge of a step of quantised activations shows in all of a row's products.
fn alone(at: &[usize], own: Row<'_>, right: Row<'_>) -> Option<InOnePlace> {
    let (mut error, mut energy, mut worst) = (0.0, 0.0, (0, 0.0));
    for (i, (o, r)) in own.iter().zip(&right).enumerate().filter(|(_, (o, r))| o.is_finite() && r.is_finite()) {
        let square = (o - r).powi(2);
        (error, energy) = (error + square, energy + r * r);
        if square > worst.1 {
            worst = (i, square);
        }
    }
    (own.len() >= ROW_WIDE && error > ROW_SEEN * energy && worst.1 > 0.5 * error)
        .then(|| InOnePlace::MostOfItsRow { at: place(at, worst.0) })
}

fn place(row: &[usize], element: usize) -> Vec<usize> {
    row.iter().copied().chain([element]).collect()
}

#[cfg(test)]
mod tests {
    use firstdiff_trace::to_bf16;
    use ndarray::{Array2, s};

    use super::*;

    fn noise(seed: u64) -> ArrayD<f64> {
        let mut state = seed;
        let draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
        };
        Array2::from_shape_simple_fn((16, 64), draw).into_dyn()
    }

    fn rounded(x: &ArrayD<f64>) -> ArrayD<f64> {
        x.mapv(|x| to_bf16(x).to_f64())
    }

    #[test]
    fn rounding_is_everywhere_and_a_fault_is_not() {
        let exact = noise(1);
        let right = rounded(&exact);
        // Rounded once more after a product that was off by less than half a step.
        let other = rounded(&exact.mapv(|x| x * 1.001));
        let found = |own: &ArrayD<f64>| misplaced(Profile::Bf16, false, own, [&right, &exact], &right);
        assert_eq!(found(&other), None);
        let mut element = other.clone();
        element[[3, 5]] += 0.05;
        assert!(matches!(found(&element), Some(InOnePlace::Element { at, .. }) if at == [3, 5]));
        let mut row = right.clone();
        row.slice_mut(s![7..8, ..]).mapv_inplace(|x| x * 1.01);
        assert!(matches!(found(&row), Some(InOnePlace::RowFactor { row, .. }) if row == [7]));
    }

    #[test]
    fn in_ggml_one_value_alone_is_no_edge() {
        let exact = noise(2);
        let profile = Profile::Ggml { cache: firstdiff_model::Cache::F32 };
        let found = |own: &ArrayD<f64>| misplaced(profile, false, own, [&exact, &exact], &exact);
        let mut edge = exact.clone();
        let moved = noise(3);
        edge.slice_mut(s![4..5, ..]).zip_mut_with(&moved.slice(s![4..5, ..]), |x, y| *x += 1e-4 * y);
        assert_eq!(found(&edge), None);
        let mut element = exact.clone();
        element[[4, 9]] += 1e-3;
        assert_eq!(found(&element), Some(InOnePlace::MostOfItsRow { at: vec![4, 9] }));
    }

    #[test]
    fn probabilities_add_up() {
        let exact = noise(4).mapv(f64::exp);
        let exact = &exact / &exact.sum_axis(ndarray::Axis(1)).insert_axis(ndarray::Axis(1));
        let right = rounded(&exact);
        let found = |own: &ArrayD<f64>| misplaced(Profile::Bf16, true, own, [&right, &exact], &right);
        assert_eq!(found(&exact), None);
        let mut row = right.clone();
        row.slice_mut(s![2..3, ..]).mapv_inplace(|x| x * 1.01);
        assert_eq!(found(&row).unwrap().to_string(), "row [2] adds up to 1.0100");
    }
}
