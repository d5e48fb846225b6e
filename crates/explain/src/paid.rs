//! Holds what the numbers that a cause gives carry against what its own numbers cost, and says so where it is not paid for.

use firstdiff_compare::is_masked;
use firstdiff_evidence::{Account, Evidence, choice, number};
use firstdiff_trace::Site;
use ndarray::{ArrayD, ArrayViewD, Axis};
use serde_json::Value;

use crate::mistakes::{Mistake, Params, Values};
use crate::replay::right::distance;
use crate::tolerance::search::{COMPUTED_AGAIN, ENOUGH_ROWS};

/// What the numbers of a tap carry for a claim, each moved by rounding by this share of itself. Nothing where the shapes differ. Of a claim that shows one number
/// a row, what its rows carry.
pub(crate) fn evidence(
    site: Site,
    [own, right, claimed]: [&ArrayD<f64>; 3],
    unit: f64,
    shows_one_number_a_row: bool,
) -> Evidence {
    if own.shape() != right.shape() || own.shape() != claimed.shape() {
        return Evidence::default();
    }
    let shown = |x: &f64| if is_masked(site, *x) { f64::NEG_INFINITY } else { *x };
    let numbers = own.iter().zip(right).zip(claimed);
    let carried = Evidence::of(numbers.map(|((own, right), claimed)| [shown(own), shown(right), shown(claimed)]), unit);
    if !shows_one_number_a_row {
        return carried;
    }
    match rows_off(site, own, right, unit) {
        // What is within rounding shows itself in which numbers are rounded otherwise, not in the size of a row.
        0 => carried,
        rows => carried.at_most(rows, unit),
    }
}

/// How many rows are off of which no two are the same: that many numbers of any value are shown by them.
fn rows_off(site: Site, own: &ArrayD<f64>, right: &ArrayD<f64>, unit: f64) -> usize {
    let axis = Axis(site.position_axis().min(own.ndim().saturating_sub(1)));
    let is_same = |a: &ArrayViewD<'_, f64>, b: &ArrayViewD<'_, f64>| {
        distance(site, &a.to_owned(), &b.to_owned()) <= (COMPUTED_AGAIN * unit).powi(2)
    };
    let mut off: Vec<ArrayViewD<'_, f64>> = Vec::new();
    for (own, right) in own.axis_iter(axis).zip(right.axis_iter(axis)) {
        if off.len() < ENOUGH_ROWS && !is_same(&own, &right) && !off.iter().any(|known| is_same(known, &right)) {
            off.push(right);
        }
    }
    off.len()
}

/// What a mistake costs, one of so many forms that were tried: the choice of it, and each number that may be any.
pub(crate) fn price(mistake: &Mistake, params: &Params, forms: usize) -> f64 {
    fn numbers(value: &Value) -> f64 {
        match value {
            Value::Number(value) => value.as_f64().map_or(0.0, number),
            Value::Array(values) => values.iter().map(numbers).sum(),
            _ => 0.0,
        }
    }
    let is_free =
        |name: &str| mistake.param(name).is_some_and(|param| matches!(param.values, Values::Free | Values::Other(_)));
    choice(forms) + params.iter().filter(|(name, _)| is_free(name)).map(|(_, value)| numbers(value)).sum::<f64>()
}

/// What is said of something that gives all numbers, and is not proved by them.
pub(crate) fn unpaid(account: Account, others: usize) -> String {
    let also = match others {
        0 => String::new(),
        1 => ", and so does another mistake".to_owned(),
        others => format!(", and so do {others} other mistakes"),
    };
    format!("it comes so near{also}, but so would chance: {account}; record more positions, or more taps")
}
