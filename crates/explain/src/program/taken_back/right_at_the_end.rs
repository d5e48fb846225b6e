//! Judges whether a run is right at its end, computed from the tokens alone: what is off on the way there is taken back then, wherever that is.
//!
//! The tap that takes an error back within a layer may not have been recorded, or hold the last position alone, or there may be none: a residual stream of half
//! the size goes through all layers. The end of a run tells as well. A tap is off on the way to a right end if the end would not be right with it.

use std::collections::{BTreeMap, HashSet};

use firstdiff_compare::Status;
use firstdiff_trace::Tap;

use crate::program::taken_back::trial::Trial;
use crate::replay::{Done, Replayed};

/// Taps above this are too many to run the model for each: of a small model, and of a large one.
const MOST: usize = 1024;

/// What is off before a right end.
pub(super) struct Off {
    /// The taps with which an end would not be right, each with that end.
    pub(super) ends: BTreeMap<usize, usize>,
    /// Those of them that are right by what they read: made of a wrong one, whose recording is not what is wrong then.
    pub(super) between: Vec<usize>,
}

/// Where each step is right at its end by the tokens alone, the taps with which it would not be; `None` where none is.
pub(super) fn off_before_a_right_end(trials: &mut Trial<'_, '_>) -> Done<Option<Off>> {
    let step = |trials: &Trial<'_, '_>, at: usize| trials.place(at).step;
    let (all, recorded) = (trials.all(), trials.recorded());
    // In the order of the operations the last of each step stays.
    let ends: BTreeMap<u32, usize> = recorded.iter().map(|&at| (step(trials, at), at)).collect();
    let is = |what: fn(&Replayed) -> bool| move |trials: &Trial<'_, '_>, at: usize| trials.judged(at).is_some_and(what);
    // What is wrong by the tokens alone was found so.
    let is_known_wrong = is(|t| t.from.is_empty() && t.report.status == Status::Diverged);
    let is_fault = is(Replayed::is_at_fault);
    if !all.iter().any(|&at| is_fault(trials, at)) || ends.values().any(|&end| is_known_wrong(trials, end)) {
        return Ok(None);
    }
    for &end in ends.values() {
        if trials.comes_out_from(end, None)? != Some(true) {
            return Ok(None);
        }
    }
    let asked: Vec<usize> = recorded.into_iter().filter(|&at| trials.is_seen_at(at, &ends)).collect();
    if asked.len() > MOST {
        return Ok(None);
    }
    let mut off: BTreeMap<usize, usize> = BTreeMap::new();
    for &at in &asked {
        for (_, &end) in ends.range(step(trials, at)..) {
            if trials.comes_out_from(end, Some(at))? == Some(false) {
                off.insert(at, end);
                break;
            }
        }
    }
    // A single key, or the last position alone, shows nothing of a tap that another step shows to be off.
    let is_excused = is(|t| !t.is_blamed());
    let excused = all.iter().copied().filter(|&at| is_excused(trials, at));
    let in_other_steps: HashSet<Tap> = off.keys().copied().chain(excused).map(|at| trials.place(at).tap).collect();
    for at in asked.into_iter().filter(|&at| trials.may_be_off(at)) {
        if in_other_steps.contains(&trials.place(at).tap) {
            off.entry(at).or_insert(ends[&step(trials, at)]);
        }
    }
    let is_right = is(|t| t.report.status.agrees());
    let between: Vec<usize> = off.keys().copied().filter(|&at| is_right(trials, at)).collect();
    // What is off came from a wrong tap, or the two judgements contradict each other.
    let comes_from = |&at: &usize| off.keys().any(|&other| !between.contains(&other) && trials.is_made_of(at, other));
    let is_one = between.iter().all(comes_from) && !off.is_empty();
    Ok(is_one.then_some(Off { ends: off, between }))
}
