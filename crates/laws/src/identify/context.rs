//! Contexts: which head's probabilities meet which head's values, which values they are, and how often each is counted.

mod counts;
mod misread;
mod rows;
mod slots;
mod weights;

use std::sync::Arc;

use ndarray::{Array3, ArrayD, ArrayView2, Axis as Dimension, s};

use crate::case::{Axis, Case, Place};
use crate::describe::source;
use crate::fit::{ROOM, factor};
use crate::identify::after::Offers;
use crate::identify::attention::sources::{MEMORY, in_memory_from};
use crate::identify::heads::{Heads, paired};
use crate::identify::of_recovered;
use crate::identify::slots::caches;
use crate::identify::subject::{Subject, cube};
use crate::identify::sums::{moved, sparse};
use crate::identify::{OnPart, first_along};
use crate::law::{Form, Law};
use crate::solve::inverse;

/// Probabilities `[H,T,S]`, values `[S,K,d]`, and the key head of each head.
struct Operands {
    probs: Array3<f64>,
    values: Array3<f64>,
    key_head: Vec<usize>,
}

impl Operands {
    fn of(place: &Place) -> Option<Operands> {
        let [probs, values] = &place.inputs[..] else { return None };
        let (probs, values) = (cube(probs)?, cube(values)?);
        let (heads, key_heads) = (probs.shape()[0], values.shape()[1]);
        if key_heads == 0
            || probs.shape()[2] != values.shape()[0]
            || place.right.shape() != [probs.shape()[1], heads, values.shape()[2]]
        {
            return None;
        }
        let group = heads.div_ceil(key_heads);
        Some(Operands { probs, values, key_head: (0..heads).map(|h| (h / group).min(key_heads - 1)).collect() })
    }

    /// `[S,H,d]`: the values that each head meets.
    fn met(&self) -> Array3<f64> {
        self.values.select(Dimension(1), &self.key_head)
    }
}

/// `[T,H,d]`: probabilities of each head times its values `[S,H,d]`.
fn context(probs: &Array3<f64>, values: &Array3<f64>) -> Array3<f64> {
    let (heads, rows, _) = probs.dim();
    let mut out = Array3::zeros((rows, heads, values.shape()[2]));
    for h in 0..heads {
        out.slice_mut(s![.., h, ..]).assign(&probs.slice(s![h, .., ..]).dot(&values.slice(s![.., h, ..])));
    }
    out
}

/// Ways to pair heads that are tried at most.
const MOST_HEADS: usize = 1 << 14;
/// What a rule may cost by which values have other positions.
const MOST_OF_AN_ORDER: f64 = 14.0;
/// Queries and keys up to which single coefficients are fitted.
const MOST_KEYS: usize = 128;

/// The laws of a context.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let (Some(of), Some(own)) = (Operands::of(first), cube(&first.own)) else { return Vec::new() };
    let every: Vec<usize> = (0..own.shape()[0]).collect();
    let mut laws = heads(case, &of, &own, &every);
    let some = of_wrong_queries(case);
    if let Some((on, queries)) = some.filter(|_| laws.is_empty()) {
        laws.extend(heads(case, &of, &own, &queries).into_iter().map(|law| on.put(law)));
    }
    laws.extend(other_values(case));
    laws.extend(rows::rows(case, &of, &own));
    laws.extend(recovered(case, &of, &own));
    laws.extend(counts::coefficients(case, &of, &own));
    laws.extend(weights::in_blocks(case));
    laws.extend(misread::misread(case));
    laws.extend(weights::kept_short(case, &own));
    laws.extend(sparse(&Subject::output(case), case, "the context", 2, &terms));
    laws
}

fn law(
    form: Form,
    words: String,
    bits: f64,
    made: impl Fn(&Case<'_>, usize, Operands) -> Option<Array3<f64>> + Send + Sync + 'static,
) -> Law {
    Law::new(form, words, bits, move |case, at| Some(made(case, at, Operands::of(&case.places[at])?)?.into_dyn()))
}

/// The queries that are wrong, where that is a part of them.
fn of_wrong_queries(case: &Case<'_>) -> Option<(OnPart, Vec<usize>)> {
    let (on, parts) = OnPart::along(case, |axis| axis == 0)?;
    Some((on, (0..parts[0].has.len()).filter(|&t| parts[0].has[t]).collect()))
}

/// Which heads meet, at these queries.
fn heads(case: &Case<'_>, of: &Operands, own: &Array3<f64>, queries: &[usize]) -> Vec<Law> {
    let (heads, key_heads) = (of.probs.shape()[0], of.values.shape()[1]);
    if heads * heads * key_heads > MOST_HEADS {
        return Vec::new();
    }
    let noise = case.first().noise();
    let flat = |x: ndarray::ArrayView2<'_, f64>| x.select(Dimension(0), queries).into_iter().collect::<Vec<f64>>();
    let left = |head: usize, other: usize, key: usize| {
        let product = of.probs.slice(s![other, .., ..]).dot(&of.values.slice(s![.., key, ..]));
        let fit = factor(&flat(product.view()), &flat(own.slice(s![.., head, ..])), noise);
        (fit.left, fit.coefficients[0])
    };
    let said = ["head h meets values of key head", "its probabilities are those of", "times"];
    let Some(found) = paired(&of.key_head, key_heads, &|_| true, ROOM * noise, said, &left) else { return Vec::new() };
    let Heads { words, bits, said, of: from, key_heads, by } = found;
    vec![
        law(Form::HeadMap, words, bits, move |_, _, of| {
            let fits = from.len() == of.probs.shape()[0] && key_heads.iter().all(|k| *k < of.values.shape()[1]);
            let mut out = fits
                .then(|| context(&of.probs.select(Dimension(0), &from), &of.values.select(Dimension(1), &key_heads)))?;
            for (h, by) in by.iter().enumerate() {
                out.slice_mut(s![.., h, ..]).mapv_inplace(|x| x * by);
            }
            Some(out)
        })
        .with("key_head", said),
    ]
}

/// Values of other positions, or other tensors in their place.
fn other_values(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let n = first.inputs[1].shape().first().copied().unwrap_or(0);
    let rule = |source: source::Source| (source.words, source.bits, source.from.into_iter().map(Some).collect());
    let mut families: Vec<slots::Family> =
        source::orders(n, Axis::Token.name(), MOST_OF_AN_ORDER).into_iter().map(rule).collect();
    for by in 1..n.min(65) {
        let words = format!("position i-{by} (nothing before the first)");
        families.push((words, 7.0 + crate::describe::choice(by), (0..n).map(|i| i.checked_sub(by)).collect()));
    }
    families.extend(slots::pages(n));
    families.extend(slots::moved(n));
    // The plainest first: of many positions time may not reach for all.
    families.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut offers = Offers::of(case);
    let mut offer = |law: Law| {
        offers.take_up(law);
    };
    for (words, bits, from) in families {
        let shown = words.clone();
        offer(
            law(
                Form::ContextValues,
                format!("the values of each key i are those of {words}"),
                bits,
                move |_, _, of| {
                    let met = of.met();
                    if met.shape()[0] != from.len() {
                        return None;
                    }
                    let mut values = Array3::zeros(met.dim());
                    for (s, from) in from.iter().enumerate() {
                        if let Some(from) = from {
                            values.slice_mut(s![s, .., ..]).assign(&met.slice(s![*from, .., ..]));
                        }
                    }
                    Some(context(&of.probs, &values))
                },
            )
            .with("source", shown),
        );
    }
    // The newest slots of the cache are not written yet when they are read.
    for (newest, back) in [(1usize, 1usize), (1, 2), (2, 1), (2, 2)] {
        let words = match newest {
            1 => format!("in place of its own value each query has that of {back} before"),
            _ => format!("in place of the values of the last {newest} positions each query has those of {back} before"),
        };
        offer(law(Form::ContextValues, words, 9.0 + (newest + back) as f64, move |_, _, of| {
            let met = of.met();
            let mut out = context(&of.probs, &met);
            for ((h, t, s), p) in
                of.probs.indexed_iter().filter(|((_, t, s), _)| s <= t && t - s < newest && *s >= back)
            {
                let change = &met.slice(s![s - back, h, ..]) - &met.slice(s![s, h, ..]);
                out.slice_mut(s![t, h, ..]).scaled_add(*p, &change);
            }
            Some(out)
        }));
    }
    // What each query finds in the slots of a cache.
    let found_wrong = first_along(&crate::identify::wrong(first), 0);
    for (words, bits, slot) in caches(found_wrong, n) {
        offer(law(Form::ContextValues, format!("the values {words}"), bits, move |_, _, of| {
            let met = of.met();
            let mut out = context(&of.probs, &met);
            for ((h, t, s), p) in of.probs.indexed_iter() {
                let there = slot(t, s);
                if *p == 0.0 || there == Some(s) {
                    continue;
                }
                let own = met.slice(s![s, h, ..]);
                let change = match there {
                    Some(at) if at < met.shape()[0] => &met.slice(s![at, h, ..]) - &own,
                    _ => own.mapv(|x| -x),
                };
                out.slice_mut(s![t, h, ..]).scaled_add(*p, &change);
            }
            Some(out)
        }));
    }
    for ((order, words), from) in MEMORY.into_iter().flat_map(|memory| [(memory, 0), (memory, found_wrong)]) {
        let on = if from > 0 { format!(" for keys from {from} on") } else { String::new() };
        let words = format!("the memory of the values, positions by heads by dimensions, is read as {words}{on}");
        let bits = 8.0 + if from > 0 { crate::describe::choice(n) } else { 0.0 };
        offer(law(Form::ContextValues, words, bits, move |_, _, of| {
            let values = in_memory_from(&of.values, order, from)?;
            Some(context(&of.probs, &values.select(Dimension(1), &of.key_head)))
        }));
    }
    laws_of_rows(case, &mut offer);
    for (name, tensor) in &first.around {
        let Some(tensor) = cube(tensor) else { continue };
        let (heads, key_heads) = (first.inputs[0].shape()[0], first.inputs[1].shape()[1]);
        if tensor.shape()[0] != n
            || ![heads, key_heads].contains(&tensor.shape()[1])
            || tensor.shape()[2] != first.inputs[1].shape()[2]
        {
            continue;
        }
        let known = name.clone();
        offer(
            law(Form::ContextValues, format!("the values are {name}"), 8.0, move |case, at, of| {
                let (_, tensor) = case.places[at].around.iter().find(|(name, _)| *name == known)?;
                let tensor = cube(tensor)?;
                let values = if tensor.shape()[1] == of.probs.shape()[0] {
                    tensor
                } else {
                    tensor.select(Dimension(1), &of.key_head)
                };
                (values.shape()[0] == of.probs.shape()[2]).then(|| context(&of.probs, &values))
            })
            .with("values", name.clone()),
        );
    }
    offers.laws
}

/// Values of another row for each key and head: of all rows, position by position, as they lie in memory.
fn laws_of_rows(case: &Case<'_>, offer: &mut impl FnMut(Law)) {
    let [probs, values] = &case.first().inputs[..] else { return };
    let (heads, keys, key_heads) = (probs.shape()[0], values.shape()[0], values.shape()[1]);
    let group = heads.div_ceil(key_heads.max(1)).max(1);
    for (by_key, by_head) in [(key_heads, 1), (heads, 1), (1, 1), (1, keys), (1, key_heads), (1, heads)] {
        for in_groups in [false, true] {
            if (by_key, by_head, in_groups) == (key_heads, 1, true) {
                continue;
            }
            let times = |by: usize, what: &str| if by == 1 { what.to_owned() } else { format!("{by} {what}") };
            let whose = if in_groups { format!("(h div {group})") } else { "h".to_owned() };
            let words = format!(
                "head h meets for key s row {} + {} of all rows of values, nothing behind the last (right: row {} + h div {group})",
                times(by_key, "s"),
                times(by_head, &whose),
                times(key_heads, "s")
            );
            offer(law(Form::ContextValues, words, 9.0, move |_, _, of| {
                let (keys, key_heads, width) = of.values.dim();
                let rows = of.values.to_shape((keys * key_heads, width)).ok()?;
                let values = Array3::from_shape_fn((keys, of.key_head.len(), width), |(s, h, i)| {
                    let at = by_key * s + by_head * if in_groups { h / group } else { h };
                    rows.get([at, i]).copied().unwrap_or(0.0)
                });
                Some(context(&of.probs, &values))
            }));
        }
    }
}

/// The values that must have been read: probabilities of a causal head are a triangle, which is solved row by row.
fn recovered(case: &Case<'_>, of: &Operands, own: &Array3<f64>) -> Vec<Law> {
    let (heads, rows, keys) = of.probs.dim();
    if rows != keys || rows > MOST_KEYS {
        return Vec::new();
    }
    let mut values = Array3::zeros((rows, heads, of.values.shape()[2]));
    let mut worst = 1.0f64;
    for h in 0..heads {
        let probs = of.probs.slice(s![h, .., ..]);
        let Some(inverse) = inverse(probs) else { return Vec::new() };
        let norm = |matrix: ArrayView2<'_, f64>| matrix.iter().map(|x| x * x).sum::<f64>().sqrt();
        worst = worst.max(norm(probs) * norm(inverse.view()) / rows as f64);
        values.slice_mut(s![.., h, ..]).assign(&inverse.dot(&own.slice(s![.., h, ..])));
    }
    let noise = case.first().noise() * worst;
    if !noise.is_finite() || noise > MOST_NOISE {
        return Vec::new();
    }
    let subject = Subject {
        label: "the value read",
        form: Some(Form::ContextValues),
        bits: 4.0,
        is_part: false,
        axes: vec![Axis::Token, Axis::Head, Axis::Dim],
        right: of.met().into_dyn(),
        own: values.into_dyn(),
        noise,
        right_at: Arc::new(|case, place| Some(Operands::of(&case.places[place])?.met().into_dyn())),
        output: Arc::new(|case, place, values| {
            let of = Operands::of(&case.places[place])?;
            Some(context(&of.probs, &cube(&values)?).into_dyn())
        }),
    };
    of_recovered(&subject, case)
}

/// Recovered values of more noise than this tell nothing.
const MOST_NOISE: f64 = 0.02;

/// What may be added to a context.
fn terms(case: &Case<'_>, place: usize) -> Vec<(String, ArrayD<f64>)> {
    let here = &case.places[place];
    let Some(of) = Operands::of(here) else { return Vec::new() };
    let values = of.met().into_dyn();
    let mut all = vec![
        ("the right context".to_owned(), here.right.clone()),
        ("the value of the token itself".to_owned(), values.clone()),
    ];
    all.extend(moved("the value", &values));
    all.extend(moved("the right context", &here.right));
    all.extend(here.around.iter().cloned());
    all.retain(|(_, term)| term.shape() == here.own.shape());
    all
}
