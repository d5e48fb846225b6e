//! Measures by how much the chosen scores (top-k) exceed the scores that were not chosen.

use std::collections::BTreeSet;

/// By how much the smallest of the `chosen` scores exceeds the largest of the `others`, as a share of the largest finite magnitude in the row; negative where
/// one of the others is larger. `None` where a chosen or other index has no score, or a NaN.
pub fn choice_margin(
    scores: &[f64],
    chosen: impl IntoIterator<Item = usize>,
    others: impl IntoIterator<Item = usize>,
) -> Option<f64> {
    let score = |at: usize| scores.get(at).copied().filter(|score| !score.is_nan());
    let least = chosen.into_iter().try_fold(f64::INFINITY, |least, at| Some(f64::min(least, score(at)?)))?;
    let most = others.into_iter().try_fold(f64::NEG_INFINITY, |most, at| Some(f64::max(most, score(at)?)))?;
    let largest = scores.iter().filter(|score| score.is_finite()).fold(0.0, |most: f64, score| most.max(score.abs()));
    Some(if least == most { 0.0 } else { (least - most) / largest })
}

/// The [`choice_margin`] of `chosen` above the rest of a row.
pub fn margin_of_best(scores: &[f64], chosen: &BTreeSet<usize>) -> Option<f64> {
    let others = (0..scores.len()).filter(|at| !chosen.contains(at));
    choice_margin(scores, chosen.iter().copied(), others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_is_a_share_of_the_largest_score() {
        let masked = f64::NEG_INFINITY;
        for (scores, chosen, margin) in [
            (&[4.0, 1.0, 3.0][..], &[0, 2][..], Some(0.5)),
            (&[4.0, 1.0, 3.0], &[0, 1], Some(-0.5)),
            // A masked value must not set the scale.
            (&[4.0, masked, 1.0, 3.0], &[0, 2], Some(-0.5)),
            (&[4.0, masked], &[1], Some(f64::NEG_INFINITY)),
            (&[masked, masked], &[1], Some(0.0)),
            (&[0.0, 0.0], &[1], Some(0.0)),
            (&[1.0, 2.0], &[0, 1], Some(f64::INFINITY)),
            (&[1.0, 2.0], &[2], None),
            (&[1.0, f64::NAN], &[0], None),
        ] {
            assert_eq!(margin_of_best(scores, &chosen.iter().copied().collect()), margin, "{scores:?} {chosen:?}");
        }
        assert_eq!(choice_margin(&[4.0, f64::NAN, 3.0], [2], [0]), Some(-0.25));
    }
}
