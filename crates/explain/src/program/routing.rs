//! Follows the candidate's choice of experts: the program as it is with its choices, and the tokens that go elsewhere than in the reference.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use firstdiff_compare::{Place, choice_margin};
use firstdiff_program::{Arithmetic, At, Bench, Change, Edit, Instead, Kind, Operand, Program, Slice, Tensor, View};
use ndarray::{ArrayD, Axis};

use crate::program::arrays::array;
use crate::program::held::Held;
use crate::program::stand::settle;
use crate::program::{Candidate, Recording};
use crate::replay::operation::{loses, own_unit, unit_of};
use crate::replay::{ReplayError, Rerouted, Routing};
use crate::tolerance::replay::{CHOICE_MOVES, CHOICE_ROOM};

/// The program with the candidate's choices, and what it holds of that program's taps.
pub(crate) struct Routed {
    /// `None` where the recorded one serves.
    pub(crate) program: Option<Program>,
    pub(crate) held: Held,
    /// The choices that it did not record, and that its own scores do not decide.
    pub(crate) undecided: HashSet<Place>,
    /// The choices of another number of experts than the reference's: how many, and how many are due.
    pub(crate) counts: HashMap<Place, [usize; 2]>,
    /// In which forms the rows of experts were read, and what was not.
    pub(crate) notes: Vec<String>,
}

impl Routed {
    /// Takes the candidate's choices where it recorded them, else what comes out of its own scores.
    ///
    /// # Errors
    /// When a file or a weight cannot be read.
    pub(crate) fn of(recording: &Recording<'_>, candidate: &Candidate<'_>) -> Result<Routed, ReplayError> {
        let held = Held::of(recording, candidate, None)?;
        // What the candidate holds of a norm's parts is what the rest is made of.
        let in_parts = recording.program.with_norms_in_parts(|tap| held.is_recorded(tap));
        let recording = &Recording { program: in_parts.as_ref().unwrap_or(recording.program), ..*recording };
        let mut chosen: HashMap<usize, Tensor<'static>> = HashMap::new();
        let mut computed: HashMap<Place, Tensor<'static>> = HashMap::new();
        let (mut undecided, mut counts) = (HashSet::new(), HashMap::new());
        for tap in recording.program.choices() {
            match held.get(tap) {
                Some(own) if own.dtype().kind() == Kind::Int => drop(chosen.insert(tap, own.clone())),
                // What are no whole numbers choose nothing.
                Some(_) => {}
                None if let Some(both) = other_count(recording, candidate, &held, tap) => {
                    counts.insert(held.place(tap), both);
                }
                None => match computed_choice(recording, candidate, &held, tap) {
                    Some(own) => {
                        computed.insert(held.place(tap), own.clone());
                        chosen.insert(tap, own);
                    }
                    // Numbers of tokens and positions are no choice.
                    None if recording.program.is_activation(recording.program.taps()[tap].view.buffer) => {
                        undecided.insert(held.place(tap));
                    }
                    None => {}
                },
            }
        }
        let Some(program) = recording.program.with_choices(&chosen) else {
            let mut held = held;
            let notes = settle(recording, candidate, &mut held)?;
            return Ok(Routed { program: in_parts, held, undecided, counts, notes });
        };
        let mut held = Held::of(&Recording { program: &program, ..*recording }, candidate, Some(recording.program))?;
        for tap in program.choices() {
            if let Some(own) = computed.remove(&held.place(tap)) {
                held.suppose(tap, own);
            }
        }
        let notes = settle(&Recording { program: &program, ..*recording }, candidate, &mut held)?;
        Ok(Routed { program: Some(program), held, undecided, counts, notes })
    }
}

/// How many experts the candidate recorded for each token, and how many are due, where those are others.
fn other_count(recording: &Recording<'_>, candidate: &Candidate<'_>, held: &Held, tap: usize) -> Option<[usize; 2]> {
    let (view, Place { tap: name, step }) = (&recording.program.taps()[tap].view, held.place(tap));
    let entry = candidate.dump.entry(name, step).filter(|entry| entry.rows.is_none())?;
    let (&due, &own) = (view.shape.last()?, entry.shape.last()?);
    let tokens = view.elements().checked_div(due)?;
    (entry.shape.len() > 1 && own != due && entry.shape.iter().product::<usize>() == own * tokens).then_some([own, due])
}

/// What is chosen of the candidate's own scores; `None` where they do not decide it, or depend on another choice.
fn computed_choice(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    held: &Held,
    tap: usize,
) -> Option<Tensor<'static>> {
    let program = recording.program;
    let slice = held.slice(program, tap);
    let ops: BTreeSet<usize> = slice.ops().collect();
    let others: Vec<usize> = program.choices().filter(|&other| other != tap).collect();
    if others.iter().any(|&other| ops.contains(&program.taps()[other].op)) || slice.known().next().is_none() {
        return None;
    }
    let value = |tap: usize| held.value(tap);
    let of = |arithmetic: Arithmetic| {
        let bench = Bench::new(program, arithmetic, recording.weights);
        slice.evaluate(&bench, &value, &[]).ok()
    };
    let exact = of(Arithmetic::F64)?;
    let rounded = candidate.arithmetic().map_or_else(|| Some(exact.clone()), of)?;
    let scores = |arithmetic: Arithmetic| {
        let bench = Bench::new(program, arithmetic, recording.weights);
        first_operand(&slice, &bench, program, program.taps()[tap].op, &value)
    };
    let (among, own) = (scores(Arithmetic::F64), candidate.arithmetic().map_or(Some(None), |own| Some(scores(own)))?);
    // What was recorded of the scores' inputs may be rounded further than the run.
    let recorded = |known: usize| Some(candidate.dtype(held.place(known))).filter(|&it| loses(candidate.profile, it));
    let units = [own_unit(candidate.profile), slice.known().filter_map(recorded).map(unit_of).fold(0.0, f64::max)];
    let is_clear = among.is_none_or(|among| is_clear(&exact, &among, own.as_ref(), units));
    (is_clear && choices(&exact) == choices(&rounded)).then_some(exact)
}

/// What an operation of a slice reads first.
pub(crate) fn first_operand<'v>(
    slice: &Slice<'_>,
    bench: &Bench<'_>,
    program: &Program,
    op: usize,
    value: &dyn Fn(usize) -> Option<Tensor<'v>>,
) -> Option<ArrayD<f64>> {
    let Some(Operand::View(among)) = program.ops()[op].operands.first() else { return None };
    read_by((slice, &[]), bench, op, &[among], value)?.pop()
}

/// What views hold when an operation of a slice is carried out, with others carried out otherwise.
pub(crate) fn read_by<'v>(
    (slice, edits): (&Slice<'_>, &[Edit]),
    bench: &Bench<'_>,
    op: usize,
    views: &[&View],
    value: &dyn Fn(usize) -> Option<Tensor<'v>>,
) -> Option<Vec<ArrayD<f64>>> {
    let read: Arc<Mutex<Option<Vec<ArrayD<f64>>>>> = Arc::default();
    let seen = Arc::clone(&read);
    let look: Instead = Arc::new(move |tensors| {
        *seen.lock().ok()? = Some(tensors.iter().map(array).collect());
        None
    });
    // The operation itself is not carried out.
    let look = Edit { at: At::Op(op), change: Change::Values(views.iter().copied().cloned().collect(), look) };
    let _ = slice.evaluate(bench, value, &[edits, &[look]].concat());
    read.lock().ok()?.take()
}

/// Whether in each row what is taken is further above what is left than another right run may move the two, by its own unit of rounding and that of what was
/// recorded.
fn is_clear(
    chosen: &Tensor<'_>,
    among: &ArrayD<f64>,
    rounded: Option<&ArrayD<f64>>,
    [unit, recorded]: [f64; 2],
) -> bool {
    let Some(&width) = among.shape().last().filter(|width| **width > 0) else { return false };
    let (chosen, Some(among)) = (choices(chosen), among.as_slice()) else { return false };
    let rounded =
        rounded.and_then(|rounded| rounded.as_slice()).filter(|rounded| rounded.len() == among.len()).unwrap_or(among);
    // As many rows, or it is no choice among them.
    chosen.len() * width != among.len()
        || chosen.iter().zip(among.chunks(width).zip(rounded.chunks(width))).all(|(taken, (row, rounded))| {
            let taken: Vec<usize> = taken.iter().copied().filter(|&at| at < width).collect();
            let left: Vec<usize> = (0..width).filter(|at| !taken.contains(at)).collect();
            let (mut off, mut largest) = (0f64, 0f64);
            for (x, y) in row.iter().zip(rounded).filter(|(x, y)| x.is_finite() && y.is_finite()) {
                (off, largest) = (off.max((x - y).abs()), largest.max(x.abs()));
            }
            let least = if off > 0.0 { CHOICE_MOVES * off / largest } else { CHOICE_ROOM * unit };
            let least = least.max(CHOICE_MOVES * recorded);
            let margin = choice_margin(row, taken, left.iter().copied());
            left.is_empty() || margin.is_none_or(|margin| margin > least)
        })
}

/// Which are chosen in each row, in whatever order.
fn choices(chosen: &Tensor<'_>) -> Vec<BTreeSet<usize>> {
    let chosen = array(chosen);
    let Some(last) = chosen.ndim().checked_sub(1) else { return Vec::new() };
    chosen.lanes(Axis(last)).into_iter().map(|row| row.iter().map(|&x| x as usize).collect()).collect()
}

/// The tokens that `own` sends elsewhere than `reference`; `among` is what is chosen from.
pub(crate) fn routing(
    place: Place,
    own: &Tensor<'_>,
    reference: &Tensor<'_>,
    among: Option<&ArrayD<f64>>,
    unit: f64,
) -> Option<Routing> {
    let (ours, theirs) = (choices(own), choices(reference));
    if own.dtype().kind() != Kind::Int || ours.len() != theirs.len() {
        return None;
    }
    let rows = among.and_then(|among| {
        let width = *among.shape().last().filter(|width| **width > 0)?;
        let rows: Vec<&[f64]> = among.as_slice()?.chunks(width).collect();
        (rows.len() == ours.len()).then_some(rows)
    });
    let token = |(row, (own, reference)): (usize, (&BTreeSet<usize>, &BTreeSet<usize>))| {
        let taken: Vec<usize> = own.difference(reference).copied().collect();
        let left: Vec<usize> = reference.difference(own).copied().collect();
        let margin =
            rows.as_ref().and_then(|rows| choice_margin(rows[row], taken.iter().copied(), left.iter().copied()));
        let margin = margin.filter(|margin| margin.is_finite());
        (!taken.is_empty() || !left.is_empty()).then_some(Rerouted { row, taken, left, margin })
    };
    let tokens: Vec<Rerouted> = ours.iter().zip(&theirs).enumerate().filter_map(token).collect();
    (!tokens.is_empty()).then_some(Routing { place, rows: ours.len(), tokens, rounding: CHOICE_ROOM * unit })
}

#[cfg(test)]
mod tests {
    use firstdiff_program::{DType, Values};
    use ndarray::array;

    use super::*;

    #[test]
    fn a_choice_is_clear_where_rounding_cannot_turn_it() {
        let chosen = Tensor::new(DType::I64, vec![1, 2], Values::from(vec![2i64, 0])).unwrap();
        let among = |last: f64| array![[0.5, 0.1, 0.8, last]].into_dyn();
        let unit = [2f64.powi(-24), 0.0];
        assert!(is_clear(&chosen, &among(0.4), None, unit));
        assert!(!is_clear(&chosen, &among(0.5), None, unit));
        assert!(!is_clear(&chosen, &among(0.5 - 1e-7), None, unit));
        // Rounding moves them by a hundredth.
        assert!(!is_clear(&chosen, &among(0.45), Some(&among(0.46)), unit));
        assert!(is_clear(&chosen, &among(0.3), Some(&among(0.31)), unit));
        // Its inputs were recorded in bf16.
        assert!(!is_clear(&chosen, &among(0.499), None, [unit[0], 2f64.powi(-9)]));
    }
}
