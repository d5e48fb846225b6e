//! Rows of tables, and what they are multiplied with.

use std::collections::BTreeMap;

use firstdiff_program::{At, Change, Operand, View};
use ndarray::{ArrayD, Axis, IxDyn};
use serde_json::json;

use super::taps::MOST_ROWS;
use crate::mistakes::embedding::{EMBED_MULTIPLIER, EMBED_SCALE, TOKENS_DIFFER, others};
use crate::mistakes::linear::{WEIGHT_STRIDE, WEIGHT_TRANSPOSED};
use crate::mistakes::recorded::{POSITION_EMBEDDING_OFFSET, TOKEN_TYPES_DIFFER};
use crate::mistakes::stored::STORAGE_TYPE;
use crate::program::change::{computed, numbers};
use crate::program::context::Context;
use crate::program::form::Form;
use crate::program::forms::stored::read_as;

pub(super) fn forms(context: &Context<'_>, op: usize) -> Vec<Form> {
    match context.base(op) {
        "embedding" => of_rows(context, op),
        "index" if context.tensor(op, 0).is_some_and(|table| context.is_weight(table)) => of_rows(context, op),
        "mul" => of_factor(context, op).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Rows of a table by their ids, in the shape of the ids in whose place they stand; `None` where one of them is not in it.
pub(crate) fn picked(table: &ArrayD<f64>, like: &ArrayD<f64>, ids: impl Iterator<Item = i64>) -> Option<ArrayD<f64>> {
    let count = table.len_of(Axis(0));
    let rows: Vec<usize> = ids.map(|id| usize::try_from(id).ok().filter(|row| *row < count)).collect::<Option<_>>()?;
    let shape: Vec<usize> = like.shape().iter().chain(&table.shape()[1..]).copied().collect();
    table.select(Axis(0), &rows).into_shape_with_order(IxDyn(&shape)).ok()
}

fn of_rows(context: &Context<'_>, op: usize) -> Vec<Form> {
    let mut ids = context.op(op).operands.iter().skip(1).flat_map(Operand::views);
    let (Some(table), Some(ids), None) = (context.tensor(op, 0), ids.next(), ids.next()) else { return Vec::new() };
    let is_token = context.program.is_token_input(ids.buffer);
    let shifted = |by: i64| {
        computed(&[table, ids], move |x| {
            // One row for all of several tokens is that of their kind, no position's.
            let is_one_kind = x[1].len() > 1 && x[1].iter().all(|id| Some(id) == x[1].first());
            if !is_token && is_one_kind {
                return None;
            }
            picked(&x[0], &x[1], x[1].iter().map(|&id| id as i64 + by))
        })
    };
    if context.program.is_type_input(ids.buffer) {
        let all = |(words, row): (&str, i64)| {
            let one_kind = computed(&[table, ids], move |x| picked(&x[0], &x[1], x[1].iter().map(|_| row)));
            Form::one(&TOKEN_TYPES_DIFFER, vec![("types", json!(words))], op, one_kind)
        };
        return [("all 0", 0), ("all 1", 1)].map(all).to_vec();
    }
    if is_token {
        let kinds = [(1, "ids-one-too-high"), (-1, "ids-one-too-low")];
        let form = |(by, kind): (i64, &str)| Form::one(&TOKENS_DIFFER, vec![("kind", json!(kind))], op, shifted(by));
        let all = of_prompts(context, op, [table, ids]).into_iter().chain(kinds.into_iter().map(form));
        let others = [of_size(context, op), of_memory(context, op)];
        return all.chain(others.into_iter().flatten().flatten()).collect();
    }
    let form = |by: i64| Form::one(&POSITION_EMBEDDING_OFFSET, vec![("offset", json!(by))], op, shifted(by));
    let start = context.start(context.step_of(op));
    let restarted =
        Form::one(&POSITION_EMBEDDING_OFFSET, vec![("kind", json!("restarts"))], op, shifted(-(start as i64)));
    let mut offsets = vec![-1, 1, -2, 2];
    offsets.extend(looked_up(context, op, [table, ids]).filter(|by| !offsets.contains(by)));
    offsets.into_iter().map(form).chain((start > 0).then_some(restarted)).collect()
}

/// Prompts of the same length that a tokenizer gives instead.
fn of_prompts(context: &Context<'_>, op: usize, [table, ids]: [&View; 2]) -> Vec<Form> {
    let Some(fed) = context.table(op, ids).filter(|_| context.step_of(op) == 0) else { return Vec::new() };
    let prompt: Vec<u32> = fed.iter().map(|&id| id as u32).collect();
    let form = |(kind, other): (&str, Vec<u32>)| {
        let picked = computed(&[table, ids], move |x| picked(&x[0], &x[1], other.iter().map(|&id| i64::from(id))));
        Form::one(&TOKENS_DIFFER, vec![("kind", json!(kind))], op, picked)
    };
    others(&prompt).into_iter().filter(|(_, other)| *other != prompt).map(form).collect()
}

/// By how many rows of the table the added ones are off, in most places: what the candidate has beyond the rest of the sum is looked up in it.
fn looked_up(context: &Context<'_>, op: usize, operands: [&View; 2]) -> Option<i64> {
    let (due, mut read) = (context.due()?, context.read(op, &operands)?.into_iter());
    let (table, ids) = (read.next()?, read.next()?);
    let width = *table.shape().last().filter(|&&width| table.ndim() == 2 && width > 0)?;
    let fits = due.shape() == context.own.shape() && due.shape().last() == Some(&width) && !ids.is_empty();
    let places = (fits && table.len() <= MOST_ROWS).then(|| due.len() / width)?;
    let (due, ids) = (due.as_slice()?, ids.iter().map(|&id| id as usize).collect::<Vec<_>>());
    let (own, rows) = (context.own.as_slice()?, table.as_slice()?);
    let mut votes: BTreeMap<i64, usize> = BTreeMap::new();
    for place in (0..places).step_by(places.div_ceil(LOOKED_UP).max(1)) {
        let (id, at) = (ids[place % ids.len()], place * width..(place + 1) * width);
        let added = rows.get(id * width..(id + 1) * width)?.iter().zip(&own[at.clone()]).zip(&due[at]);
        let added: Vec<f64> = added.map(|((row, own), due)| row + own - due).collect();
        let apart = |row: &[f64]| row.iter().zip(&added).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        let all = rows.chunks(width).map(apart).enumerate();
        let nearest = all.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(row, _)| row)?;
        *votes.entry(nearest as i64 - id as i64).or_default() += 1;
    }
    votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(by, _)| by).filter(|by| *by != 0)
}

/// Places of which it is looked up which row of the table was added.
const LOOKED_UP: usize = 16;

/// The table's memory read otherwise: at another distance of rows, by columns, or as another type of 16 bits.
fn of_memory(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (table, ids) = (context.tensor(op, 0)?, context.tensor(op, 1)?);
    context.is_weight(table).then_some(())?;
    type Place = fn(usize, usize, [usize; 2]) -> usize;
    let read = |place: Place, bits: fn(f64) -> f64| {
        computed(&[table, ids], move |x| {
            let (&[rows, width], flat) = (x[0].shape(), x[0].as_slice()?) else { return None };
            let shape: Vec<usize> = x[1].shape().iter().copied().chain([width]).collect();
            let at = |(&id, column): (&f64, usize)| {
                let place = place(id as usize, column, [rows, width]);
                bits(flat.get(place).copied().unwrap_or(0.0))
            };
            let values = x[1].iter().flat_map(|id| (0..width).map(move |column| (id, column))).map(at).collect();
            ArrayD::from_shape_vec(IxDyn(&shape), values).ok()
        })
    };
    let as_is: fn(f64) -> f64 = |x| x;
    let strided = |what: &str, place: Place| {
        Form::one(&WEIGHT_STRIDE, vec![("leading_dimension", json!(what))], op, read(place, as_is))
    };
    let by_columns = read(|id, column, [rows, _]| column * rows + id, as_is);
    let mut forms = vec![
        strided("in-1", |id, column, [_, width]| id * (width - 1) + column),
        strided("in+1", |id, column, [_, width]| id * (width + 1) + column),
        Form::one(&WEIGHT_TRANSPOSED, vec![("form", json!("reshape"))], op, by_columns),
    ];
    forms.extend(read_as(|params, bits| {
        Form::one(&STORAGE_TYPE, params, op, read(|id, column, [_, width]| id * width + column, bits))
    }));
    Some(forms)
}

/// A factor that the reference does not have.
fn of_size(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (out, table, ids) = (context.out(op)?, context.tensor(op, 0)?.clone(), context.tensor(op, 1)?.clone());
    // Where the reference has a factor it is another one of that operation.
    let is_scaled = context.is_read_by(op, |at| context.base(at) == "mul" && context.number(at).is_some());
    (!is_scaled).then_some(())?;
    let times = move |factor: f64| {
        computed(&[&table, &ids], move |x| {
            Some(picked(&x[0], &x[1], x[1].iter().map(|&id| id as i64))?.mapv(|x| factor * x))
        })
    };
    Some(of_factors(op, width(out), times).to_vec())
}

fn of_factor(context: &Context<'_>, op: usize) -> Option<Vec<Form>> {
    let (place, factor) = context.number(op).filter(|(_, factor)| *factor != 0.0)?;
    let is_looked_up = |x: &&View| context.origin(op, x).is_some_and(|at| context.base(at) == "embedding");
    let x = context.activation(op).filter(is_looked_up)?;
    let number = numbers(context.op(op), place);
    let removed = Form::one(&EMBED_MULTIPLIER, vec![("factor", json!(1.0 / factor))], op, number(1.0));
    let [up, down, any] = of_factors(op, width(x), move |times| number(times * factor));
    Some(vec![up, down, removed, any])
}

/// A factor on rows of so many elements: the root of that, one over it, or any.
fn of_factors(op: usize, width: f64, times: impl Fn(f64) -> Change + Send + Sync + 'static) -> [Form; 3] {
    let scaled = |said: &str, factor: f64| Form::one(&EMBED_SCALE, vec![("factor", json!(said))], op, times(factor));
    let root = width.sqrt();
    let [up, down] = [scaled("sqrt(D)", root), scaled("1/sqrt(D)", 1.0 / root)];
    [up, down, Form::any(&EMBED_MULTIPLIER, "factor", 1.0, At::Op(op), times)]
}

fn width(x: &View) -> f64 {
    x.shape.last().map_or(1.0, |&width| width as f64)
}
