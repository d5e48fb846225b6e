//! Weighs what is claimed of a tensor: the bits that its numbers carry against what the claim costs.

use std::collections::BTreeSet;

use firstdiff_evidence::{Account, Evidence, choice, fitted};

use super::diagnose::{Diagnosis, Pair};
use crate::tolerance::weights::{ENOUGH_ELEMENTS, FORMS, LEAST_ALLOWED};

/// What a claim costs beside the choice of its form.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Numbers of its own.
    pub(crate) numbers: usize,
    /// Bits of the places where it holds, or of an order.
    pub(crate) places: f64,
}

impl Cost {
    /// In bits, where its numbers are stated as finely as this share of themselves.
    pub(super) fn bits(self, unit: f64) -> f64 {
        fitted(self.numbers, unit) + self.places
    }
}

/// What is claimed of a pair against what its numbers carry; `None` of what claims nothing. `nmse` and `allowed` are those of the two as they stand.
pub(super) fn account(pair: &Pair<'_>, nmse: Option<f64>, allowed: Option<f64>, found: &Diagnosis) -> Option<Account> {
    let cost = found.cost?;
    let b = pair.right.in_order(pair.expected_order()).values();
    // Of another shape, what is right stands nowhere in it.
    let is_like = pair.left.shape() == pair.right.shape();
    let a = if is_like { pair.left.values() } else { vec![f32::NAN; b.len()] };
    let allowed = allowed.unwrap_or(0.0).max(LEAST_ALLOWED);
    let evidence = by_rows(&a, &b, pair.right.row_len().max(1), allowed.sqrt().min(0.5));
    let (evidence, unit) = match (nmse, found.residual) {
        (Some(nmse), Some(left)) => (evidence.leaving(nmse, left), (allowed / nmse).sqrt()),
        _ => (evidence, allowed.sqrt()),
    };
    // A number of the claim is as fine as what it explains is larger than rounding.
    Some(evidence.against(choice(FORMS) + cost.bits(unit.min(1.0))))
}

/// What B's values carry where A's are off: of the rows that are not one, each by itself. Where a row stands says that it is that row.
fn by_rows(a: &[f32], b: &[f32], width: usize, unit: f64) -> Evidence {
    let every = (a.len() / ENOUGH_ELEMENTS).clamp(1, (a.len() / width).max(1));
    let mut seen = BTreeSet::new();
    let some = a.chunks(width).zip(b.chunks(width)).step_by(every);
    let rows = some.filter(|(a, b)| a != b && seen.insert(a.iter().chain(*b).map(|x| x.to_bits()).collect::<Vec<_>>()));
    let all = rows.fold(Evidence::default(), |sum, (a, b)| {
        let numbers = a.iter().zip(b).map(|(a, b)| [f64::from(*b), f64::from(*a), f64::from(*b)]);
        sum.and(Evidence::of(numbers, unit))
    });
    Evidence { numbers: all.numbers * every, bits: all.bits * every as f64, only: all.only.filter(|_| every == 1) }
}
