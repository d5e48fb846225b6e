//! Which experts does the candidate choose? The program as it is with its choices, and the tokens that go elsewhere than in the reference.

use std::collections::{BTreeSet, HashMap};

use firstdiff_compare::{Place, choice_margin};
use firstdiff_program::{Arithmetic, Bench, Kind, Program, Slice, Tensor};
use ndarray::{ArrayD, ArrayView1, Axis};

use crate::program::held::{Held, array};
use crate::program::{Candidate, Recording};
use crate::replay::{ReplayError, Rerouted, Routing};
use crate::tolerance::replay::CHOICE_ROOM;

/// The program with the candidate's choices, and what it holds of that program's taps.
pub(crate) struct Routed {
    /// `None` where the recorded one serves.
    pub(crate) program: Option<Program>,
    pub(crate) held: Held,
}

impl Routed {
    /// Takes the candidate's choices where it recorded them, else what comes out of its own scores.
    ///
    /// # Errors
    /// When a file or a weight cannot be read.
    pub(crate) fn of(recording: &Recording<'_>, candidate: &Candidate<'_>) -> Result<Routed, ReplayError> {
        let held = Held::of(recording, candidate, None)?;
        let mut chosen: HashMap<usize, Tensor<'static>> = HashMap::new();
        let mut computed: HashMap<Place, Tensor<'static>> = HashMap::new();
        for tap in recording.program.choices() {
            match held.get(tap) {
                Some(own) => drop(chosen.insert(tap, own.clone())),
                None => {
                    if let Some(own) = computed_choice(recording, candidate, &held, tap) {
                        computed.insert(held.place(tap), own.clone());
                        chosen.insert(tap, own);
                    }
                }
            }
        }
        let Some(program) = recording.program.with_choices(&chosen) else { return Ok(Routed { program: None, held }) };
        let mut held = Held::of(&Recording { program: &program, ..*recording }, candidate, Some(recording.program))?;
        for tap in program.choices() {
            if let Some(own) = computed.remove(&held.place(tap)) {
                held.suppose(tap, own);
            }
        }
        Ok(Routed { program: Some(program), held })
    }
}

/// What is chosen of the candidate's own scores; `None` where they do not decide it, or depend on another choice.
fn computed_choice(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    held: &Held,
    tap: usize,
) -> Option<Tensor<'static>> {
    let program = recording.program;
    let slice = Slice::of(program, tap, |other| held.readable(other).is_some());
    let ops: BTreeSet<usize> = slice.ops().collect();
    let others: Vec<usize> = program.choices().filter(|&other| other != tap).collect();
    if others.iter().any(|&other| ops.contains(&program.taps()[other].op)) || slice.known().next().is_none() {
        return None;
    }
    let value = |tap: usize| held.readable(tap).map(Tensor::view);
    let of = |arithmetic: Arithmetic| {
        let bench = Bench::new(program, arithmetic, recording.weights);
        slice.evaluate(&bench, &value, &[]).ok()
    };
    let exact = of(Arithmetic::F64)?;
    let rounded = candidate.arithmetic().map_or_else(|| Some(exact.clone()), of)?;
    (choices(&exact) == choices(&rounded)).then_some(exact)
}

/// Which are chosen in each row, in whatever order.
fn choices(chosen: &Tensor<'_>) -> Vec<BTreeSet<usize>> {
    let chosen = array(chosen);
    let Some(last) = chosen.ndim().checked_sub(1) else { return Vec::new() };
    chosen.lanes(Axis(last)).into_iter().map(of_row).collect()
}

fn of_row(row: ArrayView1<'_, f64>) -> BTreeSet<usize> {
    row.iter().map(|&x| x as usize).collect()
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
