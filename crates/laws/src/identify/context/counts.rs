//! How often each value is counted: by its key, its distance, or its pair of query and key.

use ndarray::{Array2, Array3};

use super::{MOST_KEYS, Operands, ROOM, context, law};
use crate::case::{Axis, Case};
use crate::describe::mask;
use crate::describe::table::{bits_of, describe as describe_table};
use crate::fit::least_squares;
use crate::law::{Form, Law};
use crate::number::Measured;

/// Each value counted as often as a number for its key, its distance, or its pair of query and key.
pub(super) fn coefficients(case: &Case<'_>, of: &Operands, own: &Array3<f64>) -> Vec<Law> {
    let (heads, rows, keys) = of.probs.dim();
    if rows.max(keys) > MOST_KEYS {
        return Vec::new();
    }
    let noise = case.first().noise();
    let met = of.met();
    let wanted: Vec<f64> = own.iter().copied().collect();
    let mut laws = Vec::new();
    for (called, is_distance) in [("key", false), ("distance", true)] {
        let index = move |t: usize, s: usize| if is_distance { t.abs_diff(s) } else { s };
        let n = rows.max(keys);
        let column = |i: usize| -> Vec<f64> {
            let mut probs = of.probs.clone();
            probs.indexed_iter_mut().filter(|((_, t, s), _)| index(*t, *s) != i).for_each(|(_, p)| *p = 0.0);
            context(&probs, &met).iter().copied().collect()
        };
        let columns: Vec<(usize, Vec<f64>)> =
            (0..n).map(|i| (i, column(i))).filter(|(_, c)| c.iter().any(|x| *x != 0.0)).collect();
        let views: Vec<&[f64]> = columns.iter().map(|(_, c)| c.as_slice()).collect();
        let Some(fit) = least_squares(&views, &wanted, noise).filter(|fit| fit.left <= ROOM * noise) else { continue };
        let mut table = vec![Measured::UNKNOWN; n];
        columns.iter().zip(&fit.coefficients).for_each(|((i, _), m)| table[*i] = *m);
        let axis = if is_distance { Axis::Distance } else { Axis::Key };
        let described = describe_table(&table, axis, Some(1.0), None);
        let (said, bits, values, is_table) = match described {
            Some(described) => (described.words, described.bits + 4.0, described.values, false),
            None => {
                let values = table.iter().map(|m| if m.is_known() { m.value } else { 1.0 }).collect();
                (format!("a number for each {called}"), bits_of(&table), values, true)
            }
        };
        let law = law(
            Form::ContextWeights,
            format!("the values of each key are counted {said} times"),
            bits,
            move |_, _, of| {
                let mut probs = of.probs.clone();
                for ((_, t, s), p) in probs.indexed_iter_mut() {
                    *p *= values.get(index(t, s))?;
                }
                Some(context(&probs, &of.met()))
            },
        );
        let law = law.with("coefficient", said).with("by", called);
        laws.push(if is_table { law.table() } else { law });
    }
    laws.extend(pairs(case, of, own, noise, heads));
    laws
}

/// A coefficient for each pair of query and key, from all heads and dimensions: which pairs are left out, or counted otherwise.
fn pairs(case: &Case<'_>, of: &Operands, own: &Array3<f64>, noise: f64, heads: usize) -> Option<Law> {
    let (_, rows, keys) = of.probs.dim();
    let (met, width) = (of.met(), of.values.shape()[2]);
    let mut counted = Array2::from_elem((rows, keys), None);
    let mut all: Vec<Measured> = Vec::new();
    for t in 0..rows {
        let seen: Vec<usize> = (0..keys).filter(|&s| (0..heads).any(|h| of.probs[[h, t, s]] > 1e-9)).collect();
        let column = |s: usize| {
            (0..heads)
                .flat_map(|h| (0..width).map(move |d| (h, d)))
                .map(|(h, d)| of.probs[[h, t, s]] * met[[s, h, d]])
                .collect::<Vec<f64>>()
        };
        let columns: Vec<Vec<f64>> = seen.iter().map(|&s| column(s)).collect();
        let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let wanted: Vec<f64> =
            (0..heads).flat_map(|h| (0..width).map(move |d| (h, d))).map(|(h, d)| own[[t, h, d]]).collect();
        // Of a query that has nothing, nothing is counted.
        let coefficients = match wanted.iter().all(|y| *y == 0.0) {
            true => vec![Measured::new(0.0, noise); seen.len()],
            false => least_squares(&views, &wanted, noise).filter(|fit| fit.left <= ROOM * noise)?.coefficients,
        };
        for (&s, m) in seen.iter().zip(&coefficients) {
            // Too little is known of what is hardly seen.
            if m.error < 0.05 {
                let is_one = m.may_be(1.0);
                counted[[t, s]] = Some(is_one);
                if !is_one {
                    all.push(*m);
                }
            }
        }
    }
    let other = Measured::mean(all.iter().copied());
    if all.is_empty() || !all.iter().all(|m| m.may_be(other.value)) {
        return None;
    }
    let number = other.number();
    let value = number.value;
    let described = mask::describe(&counted, case.tokens_of(Axis::Key))?;
    let words = match value == 0.0 {
        true => format!("only values are counted of {}", described.words),
        false => format!("values are counted once of {}, and {} times elsewhere", described.words, number.words),
    };
    let sees = described.sees;
    Some(law(Form::ContextWeights, words, described.bits + number.bits + 6.0, move |_, _, of| {
        let mut probs = of.probs.clone();
        for ((_, t, s), p) in probs.indexed_iter_mut() {
            if !*sees.get((t, s))? {
                *p *= value;
            }
        }
        Some(context(&probs, &of.met()))
    }))
}
