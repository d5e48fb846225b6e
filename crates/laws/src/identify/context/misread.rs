//! Contexts whose weights are read from other keys' places, whose cache holds a part of each row, whose buffer was not cleared.

use std::sync::Arc;

use ndarray::{Array3, Axis as Dimension};

use super::{Operands, context, cube};
use crate::case::Case;
use crate::describe::choice;
use crate::identify::after::Offers;
use crate::identify::replaced::others;
use crate::identify::{any_along, first_along};
use crate::law::{Form, Law};

/// The laws of such contexts.
pub(super) fn misread(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    let Some(of) = Operands::of(case.first()) else { return Vec::new() };
    weights(&mut offers, of.probs.shape()[2]);
    cut_values(case, &of, &mut offers);
    not_cleared(case, &mut offers);
    offers.laws
}

/// Where the weight of a head, a query and a key is read: in the query's own heads by keys, laid out without gaps.
type At = Arc<dyn Fn(usize, usize, usize) -> usize + Send + Sync>;

/// Weights of other keys, or in rows of another length.
fn weights(offers: &mut Offers<'_>, keys: usize) {
    let mut all: Vec<(String, f64, At)> = Vec::new();
    for block in [2usize, 4, 8, 16].into_iter().filter(|block| *block < keys) {
        let last = block - 1;
        all.push((
            format!("the keys of each block of {block} all have the weight of its first: key s has that of key {block} (s div {block})"),
            8.0,
            Arc::new(move |h, _, s| h * keys + s / block * block),
        ));
        all.push((
            format!("the keys of each block of {block} all have the weight of its last: key s has that of key {block} (s div {block}) + {last}"),
            8.0,
            Arc::new(move |h, _, s| h * keys + (s / block * block + last).min(keys - 1)),
        ));
        all.push((
            format!("in each block of {block} keys the weights are in reverse order"),
            9.0,
            Arc::new(move |h, _, s| h * keys + (s / block * block + last - s % block).min(keys - 1)),
        ));
    }
    // Rows of weights that lie another number of elements apart than they are long.
    type Apart = fn(usize) -> usize;
    let apart: [(&str, Apart); 3] =
        [("t + 1 (the keys it sees)", |t| t + 1), ("t", |t| t), ("0 (those of head 0)", |_| 0)];
    for (words, of) in apart {
        all.push((
            format!("head h of query t reads its weights from element h times {words} on, where they begin at h times {keys}"),
            9.0,
            Arc::new(move |h, t, s| h * of(t) + s),
        ));
    }
    for to in [4usize, 8, 16, 32, 64, 128, 256] {
        let of = keys.next_multiple_of(to);
        if of != keys {
            all.push((
                format!("head h reads its weights from element {of} h on, where they begin at {keys} h: as if rows were filled up to {to}"),
                9.0,
                Arc::new(move |h, _, s| h * of + s),
            ));
        }
    }
    for (words, bits, at) in all {
        offers.offer(Form::ContextWeights, words, bits, move |case, place| {
            let of = Operands::of(&case.places[place])?;
            let (heads, rows, keys) = of.probs.dim();
            let probs = Array3::from_shape_fn((heads, rows, keys), |(h, t, s)| {
                let from = at(h, t, s);
                // A loop over the keys that are seen ends there.
                let is_read = of.probs[[h, t, s]] > 0.0 && from < heads * keys;
                if is_read { of.probs[[from / keys, t, from % keys]] } else { 0.0 }
            });
            Some(context(&probs, &of.met()).into_dyn())
        });
    }
}

/// Values of which a part of each joined row is cached, from some position on: the rest is 0. Which part is, wrong elements tell.
fn cut_values(case: &Case<'_>, of: &Operands, offers: &mut Offers<'_>) {
    let (keys, key_heads, width) = of.values.dim();
    let wrong = crate::identify::wrong(case.first());
    let first = first_along(&wrong, 0);
    let mut is_wrong = vec![false; key_heads * width];
    for (h, head) in wrong.axis_iter(Dimension(1)).enumerate() {
        for (i, lane) in head.axis_iter(Dimension(1)).enumerate() {
            is_wrong[of.key_head[h] * width + i] |= lane.iter().any(|is| *is);
        }
    }
    let (Some(begin), Some(last)) = (is_wrong.iter().position(|is| *is), is_wrong.iter().rposition(|is| *is)) else {
        return;
    };
    for from in if first == 0 { vec![0] } else { vec![0, first] } {
        let since = if from == 0 { String::new() } else { format!(" of positions from {from} on") };
        let words = format!("elements {begin} to {last} of the joined row of values{since} are 0");
        let bits = 8.0 + 2.0 * choice(is_wrong.len()) + if from == 0 { 0.0 } else { choice(keys) };
        offers.offer(Form::ContextValues, words, bits, move |case, place| {
            let of = Operands::of(&case.places[place])?;
            let mut values = of.values.clone();
            for ((s, k, i), value) in values.indexed_iter_mut() {
                if s >= from && (begin..=last).contains(&(k * width + i)) {
                    *value = 0.0;
                }
            }
            let cut = Operands { values, ..of };
            Some(context(&cut.probs, &cut.met()).into_dyn())
        });
    }
}

/// What another tensor left in the buffer is added, from some channel of each head on, or up to it.
fn not_cleared(case: &Case<'_>, offers: &mut Offers<'_>) {
    let first = case.first();
    let (Some(own), Some(right)) = (cube(&first.own), cube(&first.right)) else { return };
    let width = own.shape()[2];
    let wrong = crate::identify::further_off(&first.right, &first.own, first.noise());
    let is_wrong = any_along(&wrong, 2);
    let begin = is_wrong.iter().position(|is| *is == Some(true)).unwrap_or(0);
    let end = is_wrong.iter().rposition(|is| *is == Some(true)).map_or(width, |last| last + 1);
    if (begin == 0 && end == width) || right.dim() != own.dim() {
        return;
    }
    for (name, _) in others(case, case.fitted, &first.right) {
        let known = name.clone();
        let words = format!(
            "elements {begin} to {} of each head are added to what {name} has there: its buffer was not cleared",
            end - 1
        );
        offers.offer(Form::OutputBias, words, 9.0 + choice(width), move |case, place| {
            let right = &case.places[place].right;
            let (_, other) = others(case, place, right).find(|(name, _)| *name == known)?;
            let (mut out, other): (Array3<f64>, Array3<f64>) = (cube(right)?, cube(&other)?);
            for ((t, h, i), other) in other.indexed_iter() {
                if (begin..end).contains(&i) {
                    out[[t, h, i]] += other;
                }
            }
            Some(out.into_dyn())
        });
    }
}
