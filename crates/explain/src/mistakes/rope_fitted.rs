//! What was a rotation by? Its base, a factor, and a shift of all positions, read off what each pair was turned by.

use firstdiff_core::rope_inv_freq;
use firstdiff_model::Rope;
use ndarray::{ArrayD, ArrayView3, Ix3};
use serde_json::json;

use super::rope::{computed, pair, shifted, theta_edit, times};
use super::{List, Seen, snapped};
use crate::minimum::least;
use crate::tolerance::mistakes::{ANGLES_LEAVE, NO_EXTRA_FACTOR, SAME_BASE, SHIFT_LEAVES};

/// What each pair was turned by tells base and position; the length, the factor.
pub(super) fn fitted(list: &mut List<'_>, right: &Rope, seen: &Seen<'_>) {
    let cube = |x: &ArrayD<f64>| -> Option<ndarray::Array3<f64>> { x.clone().into_dimensionality::<Ix3>().ok() };
    let (Some(before), Some(after)) = (seen.inputs.first().and_then(cube), cube(seen.own)) else { return };
    if let Some(c) = length_factor(&before.view(), &after.view()) {
        let (_, due) = rope_inv_freq::<f64>(right.rotary_dim, right.theta, &right.scaling);
        let extra = snapped(c / due, 1e-5);
        if (extra - 1.0).abs() > NO_EXTRA_FACTOR {
            times(list, json!(extra), extra);
        }
    }
    for right in [Some(right.clone()), computed(right)].into_iter().flatten() {
        let Some(theta) = base(&right, &before.view(), &after.view(), seen.chunk.start) else { continue };
        // The plainest first: where cosines have 16 bits, a base is not known to more than two or three digits.
        let mut known = vec![right.theta];
        // Angles in f32 tell a base to five digits or so; a small one, that turns fast, to more.
        let five = snapped(format!("{theta:.5e}").parse().unwrap_or(theta), 1e-5);
        if (five - right.theta).abs() <= SAME_BASE * theta {
            continue;
        }
        for near in [snapped(five, 2e-2), snapped(five, 2e-3), five, theta] {
            if !known.contains(&near) {
                known.push(near);
                theta_edit(list, &right, near);
            }
        }
    }
    if let Some(shift) = shift(right, &before.view(), &after.view(), seen.chunk.start).filter(|s| s.abs() > 2) {
        shifted(list, shift);
    }
}

fn length_factor(before: &ArrayView3<'_, f64>, after: &ArrayView3<'_, f64>) -> Option<f64> {
    let (a, b) = (before.iter().map(|x| x * x).sum::<f64>(), after.iter().map(|x| x * x).sum::<f64>());
    (a > 0.0 && b.is_finite()).then(|| (b / a).sqrt())
}

/// The angle pair `i` was turned by at row `t`.
fn angle(right: &Rope, before: &ArrayView3<'_, f64>, after: &ArrayView3<'_, f64>, t: usize, i: usize) -> f64 {
    let (first, second) = pair(right.pairing, i, right.rotary_dim / 2);
    let (mut dot, mut cross) = (0.0, 0.0);
    for head in 0..before.dim().1 {
        let (a, b) = (before[[t, head, first]], before[[t, head, second]]);
        let (c, d) = (after[[t, head, first]], after[[t, head, second]]);
        dot += a * c + b * d;
        cross += a * d - b * c;
    }
    cross.atan2(dot)
}

/// The base whose frequencies, scaled as the config says, give the angles seen: first by the rows that no pair has gone around, then by all.
fn base(right: &Rope, before: &ArrayView3<'_, f64>, after: &ArrayView3<'_, f64>, start: usize) -> Option<f64> {
    const ROWS: usize = 24;
    let rows: Vec<usize> = (0..before.dim().0).filter(|t| start + t > 0).take(ROWS).collect();
    let first = rows.iter().copied().take(3).collect::<Vec<_>>();
    let pairs = right.rotary_dim / 2;
    let seen = |t: usize| -> Vec<f64> { (0..pairs).map(|i| angle(right, before, after, t, i)).collect() };
    let angles: Vec<(f64, Vec<f64>)> = rows.iter().map(|&t| ((start + t) as f64, seen(t))).collect();
    let off = |log: f64, rows: usize| -> f64 {
        let (frequencies, _) = rope_inv_freq::<f64>(right.rotary_dim, log.exp(), &right.scaling);
        let row = |(p, angles): &(f64, Vec<f64>)| -> f64 {
            angles.iter().zip(&frequencies).map(|(a, w)| (0.5 * (a - p * w)).sin().powi(2)).sum()
        };
        angles.iter().take(rows).map(row).sum()
    };
    const STEPS: u32 = 600;
    let log = |step: u32| f64::from(step) / f64::from(STEPS) * 1e9f64.ln() + 2f64.ln();
    let rough = (0..=STEPS).map(log).min_by(|a, b| off(*a, first.len()).total_cmp(&off(*b, first.len())))?;
    let fine = least(|x| off(x, first.len()), rough - 0.05, rough + 0.05, 1e-10);
    let finer = least(|x| off(x, rows.len()), fine - 1e-4, fine + 1e-4, 1e-10);
    let theta = finer.exp();
    ((theta - right.theta).abs() > SAME_BASE * theta
        && off(theta.ln(), rows.len()) < ANGLES_LEAVE * (rows.len() * pairs) as f64)
        .then_some(theta)
}

/// By how many positions all rows are off, by the angles of two pairs.
fn shift(right: &Rope, before: &ArrayView3<'_, f64>, after: &ArrayView3<'_, f64>, start: usize) -> Option<i64> {
    let frequencies = rope_inv_freq::<f64>(right.rotary_dim, right.theta, &right.scaling).0;
    let last = before.dim().0.checked_sub(1)?;
    let angles: Vec<f64> = (0..frequencies.len()).map(|i| angle(right, before, after, last, i)).collect();
    let off = |shift: i64| -> f64 {
        let p = (start + last) as f64 + shift as f64;
        angles.iter().zip(&frequencies).map(|(a, w)| 1.0 - (a - p * w).cos()).sum()
    };
    let best = (-4096i64..=4096).min_by(|&a, &b| off(a).total_cmp(&off(b)))?;
    (off(best) < SHIFT_LEAVES && best != 0).then_some(best)
}
