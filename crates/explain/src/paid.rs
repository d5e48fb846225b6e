//! Holds what the numbers that a cause gives carry against what its own numbers cost, and says so where it is not paid for.

use firstdiff_compare::is_masked;
use firstdiff_evidence::{Account, Evidence, choice, number};
use firstdiff_trace::Site;
use ndarray::ArrayD;
use serde_json::Value;

use crate::mistakes::{Mistake, Params, Values};

/// What the numbers of a tap carry for a claim, each moved by rounding by this share of itself. Nothing where the shapes differ.
pub(crate) fn evidence(site: Site, [own, right, claimed]: [&ArrayD<f64>; 3], unit: f64) -> Evidence {
    if own.shape() != right.shape() || own.shape() != claimed.shape() {
        return Evidence::default();
    }
    let shown = |x: &f64| if is_masked(site, *x) { f64::NEG_INFINITY } else { *x };
    let numbers = own.iter().zip(right).zip(claimed);
    Evidence::of(numbers.map(|((own, right), claimed)| [shown(own), shown(right), shown(claimed)]), unit)
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
    format!("it gives these numbers{also}, but so would chance: {account}; record more positions, or more taps")
}
