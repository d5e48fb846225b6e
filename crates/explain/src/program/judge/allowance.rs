//! What right runs of an operation may be off by: rounding, chance, tables, terms that cancel.

use std::collections::HashMap;
use std::sync::Arc;

use firstdiff_compare::{Difference, Status, TapReport};
use firstdiff_model::Storage;
use firstdiff_program::{At, Bench, Change, Edit, Kind, Operand, Program, ProgramTap, Slice, Tensor, View};
use firstdiff_trace::{DType, to_bf16, to_f16};
use ndarray::{ArrayD, Axis};

use crate::program::arrays::{array, floats};
use crate::program::change::other_operand;
use crate::program::condition::{Condition, PRODUCTS};
use crate::program::held::{Held, rounded_to_type};
use crate::program::slices::reads_large;
use crate::program::{Candidate, Recording};
use crate::replay::Replayed;
use crate::replay::operation::{Operation, unit_of};
use crate::replay::reason::Reason;
use crate::replay::right::{distance, jittered, tolerance};
use crate::tolerance::replay::ORDER_OF_SUMS;

/// How far off, at the most, is a tap whose inputs were recorded in 16 bits, which an engine need not have gone on with? Of a sum over a matrix of weights
/// nothing is said: it is hit alike by all chances.
pub(super) fn of_chance(
    (program, slice): (&Program, &Slice<'_>),
    bench: &Bench<'_>,
    held: &Held,
    candidate: &Candidate<'_>,
    exact: &ArrayD<f64>,
) -> f64 {
    let read = || slice.ops().flat_map(|op| program.ops()[op].operands.iter().flat_map(Operand::views));
    if read().any(|view| view.shape.len() > 1 && program.weights().contains_key(&view.buffer)) {
        return 0.0;
    }
    let unit = |known: usize| {
        let dtype = candidate.dtype(held.place(known));
        matches!(dtype, DType::F16 | DType::BF16).then(|| unit_of(dtype))
    };
    let own = |known: usize| held.readable(known);
    let rounded: Vec<(usize, f64)> = slice.known().filter_map(|known| Some((known, unit(known)?))).collect();
    let keeping = held.keeping(program, slice, rounded_to_type);
    let off = |seed: u64| {
        let other = |&(known, unit): &(usize, f64)| Some((known, floats(jittered(&array(own(known)?), unit, seed))?));
        let others: HashMap<usize, Tensor<'static>> = rounded.iter().filter_map(other).collect();
        let value = |known: usize| others.get(&known).or_else(|| own(known)).map(Tensor::view);
        apart(held, slice, exact, array(&slice.evaluate(bench, &value, &keeping).ok()?))
    };
    match rounded.is_empty() {
        true => 0.0,
        false => (1..=CHANCES).filter_map(off).fold(0.0, f64::max),
    }
}

/// How far off, at the most, is a stretch in an arithmetic of steps if what its products read is moved as far as the order of sums may move it: a number near
/// the edge of a step falls to its other side.
pub(super) fn of_edges(
    (program, slice): (&Program, &Slice<'_>),
    bench: &Bench<'_>,
    held: &Held,
    right: &ArrayD<f64>,
) -> f64 {
    let off = |seed: u64| {
        let edit = |op: usize| {
            let operands = program.ops()[op].operands.iter().enumerate();
            let read = operands.filter_map(|(place, operand)| match operand {
                Operand::View(view) if program.is_activation(view.buffer) => {
                    let seed = (op as u64) << 8 | seed;
                    let moved = Arc::new(move |x: &ArrayD<f64>| Some(jittered(x, ORDER_OF_SUMS, seed)));
                    Some(other_operand((place, None), view, moved))
                }
                _ => None,
            });
            Edit { at: At::Op(op), change: Change::Operands(read.collect()) }
        };
        let products = slice.ops().filter(|&op| PRODUCTS.contains(&program.ops()[op].base()));
        let edits: Vec<Edit> = products.map(edit).collect();
        apart(held, slice, right, held.made_with_cache((bench, program), slice, &edits)?)
    };
    let chances = if reads_large(program, slice) { 1 } else { CHANCES };
    (1..=chances).filter_map(off).fold(0.0, f64::max)
}

/// How far what a slice made is off what is due, in the rows that the candidate holds of it.
fn apart(held: &Held, slice: &Slice<'_>, due: &ArrayD<f64>, made: ArrayD<f64>) -> Option<f64> {
    let made = match held.part(slice.target()) {
        Some(part) => part.rows_of(&made),
        None => made,
    };
    (made.shape() == due.shape()).then(|| distance(held.place(slice.target()).tap.last_site(), due, &made))
}

/// How often inputs are moved by chance.
pub(super) const CHANCES: u64 = 8;

/// Whether a slice multiplies activations by a table that depends on none, as a rotation does.
pub(super) fn multiplies_by_tables(program: &Program, slice: &Slice<'_>) -> bool {
    let is_table = |view: &View| program.is_table(view) && view.dtype.kind() == Kind::Float;
    slice.ops().map(|op| &program.ops()[op]).filter(|op| op.base() == "mul").any(|op| {
        let reads = || op.operands.iter().flat_map(Operand::views);
        reads().any(is_table) && reads().any(|view| program.is_activation(view.buffer))
    })
}

/// Rows of a table of 16 bits that the candidate holds with more digits: rounded, where they are the table's then.
pub(super) fn as_the_table(
    recording: &Recording<'_>,
    record: &ProgramTap,
    own: &ArrayD<f64>,
    due: &ArrayD<f64>,
) -> Option<ArrayD<f64>> {
    let op = &recording.program.ops()[record.op];
    let is_lookup = op.base() == "embedding";
    let mut views = op.operands.iter().filter(|_| is_lookup).flat_map(Operand::views);
    let table = views.find_map(|view| recording.program.weights().get(&view.buffer))?;
    let rounded = match recording.weights.view(table)?.storage() {
        Storage::F16 => own.mapv(|x| to_f16(x).to_f64()),
        Storage::BF16 => own.mapv(|x| to_bf16(x).to_f64()),
        _ => return None,
    };
    (rounded == *due).then_some(rounded)
}

/// Whether one row is off by more than its own size allows.
pub(super) fn is_of_a_row(reason: &Reason) -> bool {
    matches!(reason, Reason::Differs(Difference::Row { .. }))
}

/// A tap of which a row is off: right, where all rows are but for those that nearly cancel, and these are within what their terms leave.
pub(super) fn without_cancelling(
    condition: &Condition,
    operation: &Operation<'_>,
    [own, right, exact]: [&ArrayD<f64>; 3],
    judged: Replayed,
) -> Replayed {
    let rest = condition.rows_beyond(own, right, tolerance(operation.profile, 0.0));
    let of_rest = |all: &ArrayD<f64>| all.select(Axis(0), &rest);
    let is_right = rest.is_empty()
        || rest.len() < own.shape()[0]
            && operation.judged(&of_rest(own), &of_rest(right), &of_rest(exact)).report.status.agrees();
    rounded_if(is_right, judged)
}

/// A tap that is off by rounding, where that is so.
pub(super) fn rounded_if(is_rounding: bool, judged: Replayed) -> Replayed {
    match is_rounding {
        true => {
            let report = TapReport { status: Status::Rounding, ..judged.report };
            Replayed { reason: None, report, ..judged }
        }
        false => judged,
    }
}

/// Whether a slice is a norm that weights as well.
pub(super) fn is_norm_with_gain(program: &Program, slice: &Slice<'_>) -> bool {
    let [op] = slice.ops().collect::<Vec<_>>()[..] else { return false };
    let op = &program.ops()[op];
    matches!(op.base(), "rms_norm" | "layer_norm") && matches!(op.operands.get(2), Some(Operand::View(_)))
}
