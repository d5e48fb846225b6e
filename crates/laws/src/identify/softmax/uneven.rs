//! Softmaxes that do not treat all keys alike: a sum that is not complete when it divides, a tail that is done otherwise.

use std::sync::Arc;

use super::OfRow;
use crate::identify::statistics::{largest, over_sum, powers};

/// What a row's weights become of its keys and scores, with words and prices.
pub(super) fn uneven(keys: usize) -> Vec<(String, f64, OfRow)> {
    let mut all: Vec<(String, f64, OfRow)> = Vec::new();
    // Sums that each weight is divided by.
    type Sums = fn(&[f64], usize) -> f64;
    let sums: [(&str, Sums); 4] = [
        ("the sum over keys 0 to s, as far as it has come", |of, at| of[..=at].iter().sum()),
        ("the sum over the keys before it, its own where there are none", |of, at| of[..at.max(1)].iter().sum()),
        ("the sum over keys from s on", |of, at| of[at..].iter().sum()),
        ("the sum of its own and the next key's", |of, at| of[at] + of.get(at + 1).copied().unwrap_or(0.0)),
    ];
    for (words, sum) in sums {
        let said = format!("the weight of key s is exp(score), divided by {words}");
        all.push((
            said,
            8.0,
            Arc::new(move |_, _, scores| {
                let of = powers(scores, largest(scores));
                (0..of.len()).map(|at| of[at] / sum(&of, at)).collect()
            }),
        ));
    }
    // A loop by so many keys, and what is left over.
    for step in [2usize, 4, 8, 16, 32, 64, 128] {
        let cut = keys / step * step;
        let ends = [("all keys", keys > step && cut < keys), ("the keys that are seen", keys > step)];
        for (of_which, _) in ends.into_iter().filter(|(_, is)| *is) {
            let of_seen = of_which != "all keys";
            for (words, f) in TAILS {
                let said = match of_seen {
                    true => format!(
                        "behind the last whole block of {step} of {of_which}, keys {words}; all are divided by their sum"
                    ),
                    false => format!("keys from {cut} on {words}; all are divided by their sum"),
                };
                all.push((
                    said,
                    9.0,
                    Arc::new(move |_, seen, scores| {
                        let from = if of_seen { seen.len() / step * step } else { cut };
                        let is_tail = |at: usize| if of_seen { at >= from } else { seen[at] >= from };
                        let most = largest(scores);
                        let each = |(at, s): (usize, &f64)| if is_tail(at) { f(*s, most) } else { (s - most).exp() };
                        over_sum(scores.iter().enumerate().map(each).collect())
                    }),
                ));
            }
        }
    }
    all
}

/// What the keys of a tail have, of a score and the largest.
type OfTail = fn(f64, f64) -> f64;
const TAILS: [(&str, OfTail); 3] = [
    ("have exp(score) where the others have exp(score - largest)", |s, _| s.exp()),
    ("have their scores less the largest, without exp", |s, most| s - most),
    ("have their scores, without exp", |s, _| s),
];
