//! Rows of the values' cache: solved position by position, each held to the rows that there are.

use ndarray::{Array1, Array2, Array3, s};

use super::{Operands, context, law};
use crate::case::Case;
use crate::identify::cells::{self, Cells};
use crate::law::{Form, Law};

/// Positions times key heads up to which rows are looked for.
const MOST: usize = 1 << 12;
/// Errors of rounding's size within which a row is another.
const ROOM: f64 = 8.0;
/// The largest error of a row, as a share of its size, with which it is told from others.
const SURE: f64 = 0.1;

/// Values of which some are other rows of the cache.
pub(super) fn rows(case: &Case<'_>, of: &Operands, own: &Array3<f64>) -> Option<Law> {
    let (heads, queries, keys) = of.probs.dim();
    let (key_heads, d) = (of.values.shape()[1], of.values.shape()[2]);
    // Query t is the last that sees key t for the first time.
    let is_causal = of.probs.indexed_iter().all(|((_, t, s), p)| s <= t || *p == 0.0);
    if queries != keys || !is_causal || keys * key_heads > MOST {
        return None;
    }
    let size = |x: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = x.fold((0.0, 0usize), |(sum, count), x| (sum + x * x, count + 1));
        (sum / count.max(1) as f64).sqrt()
    };
    let noise = case.first().noise() * size(&mut own.iter().copied());
    let scale = size(&mut of.values.iter().copied());
    let mut values = of.values.clone();
    let mut found = Array2::from_elem((keys, key_heads), None);
    for t in 0..keys {
        for head in 0..key_heads {
            // What is left for the newest value, by all heads that meet it.
            let (mut sum, mut weight) = (Array1::<f64>::zeros(d), 0.0);
            for h in (0..heads).filter(|h| of.key_head[*h] == head) {
                let probs = of.probs.slice(s![h, t, ..t]);
                let left = &own.slice(s![t, h, ..]) - &probs.dot(&values.slice(s![..t, head, ..]));
                let p = of.probs[[h, t, t]];
                sum.scaled_add(p, &left);
                weight += p * p;
            }
            if weight == 0.0 {
                continue;
            }
            let error = ROOM * noise / weight.sqrt();
            if error > SURE * scale {
                continue;
            }
            let from = cells::found((sum / weight).view(), error, (t, head), &of.values)?;
            found[[t, head]] = Some(from);
            let row =
                from.map_or_else(|| Array1::zeros(d), |(key, head)| of.values.slice(s![key, head, ..]).to_owned());
            values.slice_mut(s![t, head, ..]).assign(&row);
        }
    }
    let cells = Cells::of(&found)?;
    let words = format!("the values of each key and key head are {}", cells.words);
    Some(law(Form::ContextValues, words, 5.0 + cells.bits, move |_, _, of| {
        let values = cells.rows(&of.values)?;
        Some(context(&of.probs, &values.select(ndarray::Axis(1), &of.key_head)))
    }))
}
