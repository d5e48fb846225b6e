//! Rows of any id: each token's row is looked for in the whole table, alone or added to the right one.

use std::collections::BTreeMap;
use std::sync::Arc;

use ndarray::{Array1, Array2, ArrayD, Ix2};

use super::{Ids, ids, law};
use crate::case::{Axis, Case};
use crate::describe::choice;
use crate::describe::set::describe as describe_set;
use crate::fit::ROOM;
use crate::identify::subject::Subject;
use crate::law::{Form, Law};

/// Numbers of a table that is read through.
const MOST: usize = 1 << 28;

/// Rows of these ids; `None` where one of them is not in the table.
fn read(case: &Case<'_>, place: usize, ids: &[i64]) -> Option<Array2<f64>> {
    let of = Array1::from_iter(ids.iter().map(|id| *id as f64)).into_dyn();
    let out = case.operation.apply(place, &[of])?;
    let width = out.len() / ids.len().max(1);
    out.to_shape((ids.len(), width)).ok().map(|out| out.into_owned())
}

/// How many rows the table has: the first id that cannot be read.
fn rows_of(case: &Case<'_>) -> Option<i64> {
    let is_inside = |id: i64| read(case, case.fitted, &[id]).is_some();
    let mut above = 1i64;
    while is_inside(above) {
        above = above.checked_mul(2).filter(|above| *above < i64::from(u32::MAX))?;
    }
    let mut below = above / 2;
    while above - below > 1 {
        let middle = (above + below) / 2;
        if is_inside(middle) { below = middle } else { above = middle }
    }
    Some(above)
}

/// Of each of these rows the ids whose rows are equal to it but for rounding, the first few.
fn found(case: &Case<'_>, wanted: &BTreeMap<i64, Vec<f64>>, error: f64, rows: i64) -> Option<BTreeMap<i64, i64>> {
    let mut all = BTreeMap::new();
    for begin in (0..rows).step_by(CHUNK) {
        if !case.has_time() {
            return None;
        }
        let ids: Vec<i64> = (begin..(begin + CHUNK as i64).min(rows)).collect();
        let table = read(case, case.fitted, &ids)?;
        for (id, row) in ids.iter().zip(table.rows()) {
            for (token, wanted) in wanted.iter().filter(|(_, wanted)| wanted.len() == row.len()) {
                let most = error * error * row.len() as f64;
                let mut off = 0.0;
                let is = row.iter().zip(wanted).all(|(a, b)| {
                    off += (a - b).powi(2);
                    off <= most
                });
                if is {
                    all.entry(*token).or_insert(*id);
                }
            }
        }
    }
    (all.len() == wanted.len()).then_some(all)
}

/// Rows that are read at once.
const CHUNK: usize = 512;

/// The laws of rows that stand anywhere in the table.
pub(super) fn laws(case: &Case<'_>, due: &[i64], subject: &Subject) -> Vec<Law> {
    let of = |x: &ArrayD<f64>| x.clone().into_dimensionality::<Ix2>().ok();
    let (Some(right), Some(own)) = (of(&subject.right), of(&subject.own)) else { return Vec::new() };
    if right.dim() != own.dim() || right.nrows() != due.len() {
        return Vec::new();
    }
    let Some(rows) = rows_of(case).filter(|rows| (*rows as usize).saturating_mul(right.ncols()) <= MOST) else {
        return Vec::new();
    };
    let size = |x: &Array2<f64>| (x.iter().map(|x| x * x).sum::<f64>() / x.len().max(1) as f64).sqrt();
    let error = ROOM * subject.noise * size(&own);
    let wrong: Vec<bool> = right
        .rows()
        .into_iter()
        .zip(own.rows())
        .map(|(a, b)| a.iter().zip(b).any(|(a, b)| (a - b).abs() > error))
        .collect();
    let mut laws = Vec::new();
    for is_added in [false, true] {
        let wanted = |at: usize| {
            let row = if is_added { &own.row(at) - &right.row(at) } else { own.row(at).to_owned() };
            (due[at], row.to_vec())
        };
        let of_wrong: BTreeMap<i64, Vec<f64>> = (0..due.len()).filter(|&at| wrong[at]).map(wanted).collect();
        let Some(found) = found(case, &of_wrong, error, rows).filter(|found| !found.is_empty()) else { continue };
        let meant: Vec<Option<bool>> = wrong.iter().map(|is| Some(*is)).collect();
        let part = describe_set(&meant, Axis::Token, case.tokens_of(Axis::Token));
        let on = part.words.as_ref().map_or_else(String::new, |on| format!(" ({on})"));
        for Way { words, bits, of, is_list } in ways(&found, rows) {
            let said = match is_added {
                true => format!("to the row of each token is added that of {words}{on}"),
                false => format!("the row read is that of {words}{on}"),
            };
            let has = part.has.clone();
            let other: Ids = Arc::new(move |ids| {
                let is = |at: usize| has.get(at) == Some(&true);
                ids.iter().enumerate().map(|(at, id)| if is(at) { of(*id) } else { *id }).collect()
            });
            let bits = bits + part.bits + if is_added { 3.0 } else { 0.0 };
            let has = part.has.clone();
            let law = if is_added {
                Law::new(Form::EmbeddingRow, said, bits, move |case, place| {
                    let added = read(case, place, &other(&ids(case, place)?))?;
                    let mut out: Array2<f64> = case.places[place].right.clone().into_dimensionality().ok()?;
                    (out.dim() == added.dim()).then_some(())?;
                    for at in (0..out.nrows()).filter(|at| has.get(*at) == Some(&true)) {
                        let mut row = out.row_mut(at);
                        row += &added.row(at);
                    }
                    Some(out.into_dyn())
                })
            } else {
                law(said, bits, other)
            };
            let law = law.within(Axis::Token, part.words.clone());
            laws.push(if is_list { law.table() } else { law });
        }
        if !laws.is_empty() {
            break;
        }
    }
    laws
}

/// An id, made of a token's.
type OfId = Box<dyn Fn(i64) -> i64 + Send + Sync>;

/// An id made of a token's, in words; a list of ids is no rule.
struct Way {
    words: String,
    bits: f64,
    of: OfId,
    is_list: bool,
}

/// What ids follow that were found, in words.
fn ways(found: &BTreeMap<i64, i64>, rows: i64) -> Vec<Way> {
    let mut all: Vec<(String, f64, OfId)> = Vec::new();
    let Some((first, to)) = found.iter().next().map(|(a, b)| (*a, *b)) else { return Vec::new() };
    let price = choice(usize::try_from(rows).unwrap_or(usize::MAX));
    let by = to - first;
    all.push((format!("token {to}"), 4.0 + price, Box::new(move |_| to)));
    all.push((
        format!("token id {} {}", if by < 0 { '-' } else { '+' }, by.abs()),
        5.0 + price,
        Box::new(move |id| id + by),
    ));
    let around = move |id: i64| (id + by).rem_euclid(rows);
    all.push((format!("(token id {by:+}) mod {rows}"), 7.0 + price, Box::new(around)));
    all.push((format!("{} less the token id", to + first), 6.0 + price, Box::new(move |id| to + first - id)));
    for modulus in 2..rows.min(MOST_MODULUS) {
        if found.iter().all(|(id, to)| id % modulus == *to) {
            all.push((format!("token id mod {modulus}"), 5.0 + price, Box::new(move |id| id % modulus)));
            break;
        }
    }
    all.extend(of_two_parts(found, price));
    all.retain(|(_, _, of)| found.iter().all(|(id, to)| of(*id) == *to));
    if all.is_empty() && found.len() <= MOST_LISTED {
        let listed: Vec<String> = found.iter().map(|(id, to)| format!("{to} for token {id}")).collect();
        let of = found.clone();
        let bits = 8.0 + 2.0 * price * found.len() as f64;
        let of: OfId = Box::new(move |id| of.get(&id).copied().unwrap_or(id));
        return vec![Way { words: format!("token {}", listed.join(", ")), bits, of, is_list: true }];
    }
    all.into_iter().map(|(words, bits, of)| Way { words, bits, of, is_list: false }).collect()
}

/// One row for ids up to one, another for those from one on: a table in two parts. Which of the ids between them is the bound cannot be told.
fn of_two_parts(found: &BTreeMap<i64, i64>, price: f64) -> Option<(String, f64, OfId)> {
    let (low, high) = (*found.values().next()?, *found.values().next_back()?);
    let most = found.iter().take_while(|(_, to)| **to == low).map(|(id, _)| *id).last()?;
    let least = found.keys().copied().find(|id| *id > most)?;
    // A bound is told by several ids on both sides of it.
    let below = found.range(..=most).count();
    if below < FEWEST || found.len() - below < FEWEST {
        return None;
    }
    let words = format!("token {low} for ids up to {most}, of token {high} for those from {least} on");
    Some((words, 6.0 + 3.0 * price, Box::new(move |id| if id < least { low } else { high })))
}

/// Ids on each side of a bound, at least.
const FEWEST: usize = 2;
/// The largest modulus that is looked for.
const MOST_MODULUS: i64 = 1 << 18;
/// Tokens that are listed one by one, at most.
const MOST_LISTED: usize = 4;
