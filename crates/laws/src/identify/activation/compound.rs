//! Activations of two terms: a sum of two plain functions, or one over one and another. What a formula gives without its brackets, with another sign, or with
//! the wrong of two terms.

use crate::fit::{ROOM, least_squares};
use crate::number::{Measured, Number};

/// A plain function, and what it is called.
type Term = (&'static str, fn(f64) -> f64);

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn exp(x: f64) -> f64 {
    x.min(60.0).exp()
}

const TERMS: [Term; 26] = [
    ("1", |_| 1.0),
    ("x", |x| x),
    ("|x|", f64::abs),
    ("x^2", |x| x * x),
    ("x^3", |x| x * x * x),
    ("e^x", exp),
    ("e^-x", |x| exp(-x)),
    ("e^-|x|", |x| (-x.abs()).exp()),
    ("e^(-x^2)", |x| (-x * x).exp()),
    ("x e^x", |x| x * exp(x)),
    ("x e^-x", |x| x * exp(-x)),
    ("2^x", |x| x.min(60.0).exp2()),
    ("2^-x", |x| (-x).min(60.0).exp2()),
    ("sigmoid(x)", sigmoid),
    ("x sigmoid(x)", |x| x * sigmoid(x)),
    ("sigmoid(x)^2", |x| sigmoid(x).powi(2)),
    ("x sigmoid(x)^2", |x| x * sigmoid(x).powi(2)),
    ("x^2 sigmoid(x)", |x| x * x * sigmoid(x)),
    ("sigmoid(|x|)", |x| sigmoid(x.abs())),
    ("x sigmoid(|x|)", |x| x * sigmoid(x.abs())),
    ("|x| sigmoid(x)", |x| x.abs() * sigmoid(x)),
    ("tanh(x)", f64::tanh),
    ("x tanh(x)", |x| x * x.tanh()),
    ("relu(x)", |x| x.max(0.0)),
    ("softplus(x)", |x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
    ("x softplus(x)", |x| x * (x.max(0.0) + (-x.abs()).exp().ln_1p())),
];

/// Two terms with a factor each: their sum, or the first over one and the second.
#[derive(Clone, Debug)]
pub(super) struct Compound {
    pub(super) words: String,
    pub(super) bits: f64,
    terms: [(f64, usize); 2],
    is_quotient: bool,
}

impl Compound {
    pub(super) fn of(&self, x: f64) -> f64 {
        let [(a, f), (b, g)] = self.terms.map(|(by, at)| (by, TERMS[at].1));
        if self.is_quotient { a * f(x) / (1.0 + b * g(x)) } else { a * f(x) + b * g(x) }
    }
}

/// What the function's value was at `x`, and how much a change of it counts; those that hardly count are left out.
pub(super) fn found(x: &[f64], value: &[f64], weight: &[f64], noise: f64) -> Vec<Compound> {
    let columns: Vec<Vec<f64>> =
        TERMS.iter().map(|(_, f)| x.iter().zip(weight).map(|(x, w)| w * f(*x)).collect()).collect();
    let wanted: Vec<f64> = value.iter().zip(weight).map(|(y, w)| w * y).collect();
    let over: Vec<Vec<f64>> = columns.iter().map(|c| c.iter().zip(value).map(|(c, y)| -c * y).collect()).collect();
    let step = (x.len() / FEW).max(1);
    let few = |x: &[f64]| x.iter().copied().step_by(step).collect::<Vec<f64>>();
    let (few_columns, few_over): (Vec<_>, Vec<_>) =
        (columns.iter().map(|c| few(c)).collect(), over.iter().map(|c| few(c)).collect());
    let few_wanted = few(&wanted);
    let mut all = Vec::new();
    for is_quotient in [false, true] {
        for a in 0..TERMS.len() {
            for b in 0..TERMS.len() {
                if (!is_quotient && b <= a) || (is_quotient && b == 0) {
                    continue;
                }
                let (second, few_second) = if is_quotient { (&over, &few_over) } else { (&columns, &few_columns) };
                let first = least_squares(&[&few_columns[a], &few_second[b]], &few_wanted, noise);
                if first.is_none_or(|fit| fit.left > ROOM * noise) {
                    continue;
                }
                let Some(fit) =
                    least_squares(&[&columns[a], &second[b]], &wanted, noise).filter(|fit| fit.left <= ROOM * noise)
                else {
                    continue;
                };
                if fit.coefficients.iter().any(|c| c.may_be(0.0)) {
                    continue;
                }
                let numbers: Vec<Number> = fit.coefficients.iter().map(Measured::number).collect();
                let term = |at: usize, n: &Number| match n.value {
                    1.0 => TERMS[at].0.to_owned(),
                    -1.0 => format!("-{}", TERMS[at].0),
                    _ => format!("{} {}", n.words, TERMS[at].0),
                };
                let (one, other) = (term(a, &numbers[0]), term(b, &numbers[1]));
                let words = match is_quotient {
                    true => format!("({one})/(1 + {other})"),
                    false => format!("{one} + {other}"),
                };
                all.push(Compound {
                    words: words.replace("+ -", "- "),
                    bits: 11.0 + numbers[0].bits + numbers[1].bits,
                    terms: [(numbers[0].value, a), (numbers[1].value, b)],
                    is_quotient,
                });
            }
        }
    }
    all
}

/// Values that two terms are tried on first.
const FEW: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_without_their_brackets_are_sums_of_two() {
        let x: Vec<f64> = (0..400).map(|i| 2.0 * f64::sin(f64::from(i) * 1.7) + 0.3).collect();
        let words = |f: fn(f64) -> f64| {
            let value: Vec<f64> = x.iter().map(|x| f(*x)).collect();
            let mut all = found(&x, &value, &vec![1.0; x.len()], 1e-9);
            all.sort_by(|a, b| a.bits.total_cmp(&b.bits));
            all.first().map(|found| found.words.clone())
        };
        assert_eq!(words(|x| x + (-x).exp()).as_deref(), Some("x + e^-x"));
        assert_eq!(words(|x| x / (1.0 + 2.0 * (-x).exp())).as_deref(), Some("(x)/(1 + 2 e^-x)"));
    }
}
