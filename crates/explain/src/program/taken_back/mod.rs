//! Finds taps that are off and not to be blamed: a later operation takes back what is off, or the tap was only recorded wrongly.
//!
//! Engines place a factor where it costs least: q times 1/sqrt(d) before the products, and none after them; or q and k times d^-1/4 each. Two taps are then not
//! the reference's, and two operations are not its operations; the scores are. What is right when it is computed from what stands before all of it was never wrong.

mod right_at_the_end;
mod trial;

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{Place, Status};
use firstdiff_program::Bench;
use firstdiff_trace::{Site, Tap};

use crate::program::held::Held;
use crate::program::replays::Replays;
use crate::program::taken_back::right_at_the_end::{Off, off_before_a_right_end};
use crate::program::taken_back::trial::{Benches, Trial, is_made_of};
use crate::program::{Candidate, Recording};
use crate::replay::reason::{Reason, UnfitInput};
use crate::replay::{Done, Replayed, UNMASKED};
use crate::tolerance::replay::TAKES_BACK;

/// Finds wrong taps whose error is taken back before it reaches anything else, or of which nothing was made, and has what comes behind them computed without
/// them.
pub(crate) fn leave_out(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    held: &mut Held,
    replays: &mut Replays,
) -> Done<()> {
    if replays.wrong().next().is_none() {
        return Ok(());
    }
    let bench = |arithmetic| Bench::new(recording.program, arithmetic, recording.weights);
    let mut benches = (bench(candidate.exact()), candidate.arithmetic().map(bench));
    let mut trial = Trial::new(recording, candidate, held, replays, &mut benches);
    let (shifted, unread) = (shifted(&mut trial)?, without_numbers(&trial));
    let (mut all, mut unmasked) = (Vec::new(), Vec::new());
    for found in taken_back(&mut trial)? {
        if let Some(judged) = right_without(&mut trial, found.reader, &(&found.wrong | &found.between))? {
            for &tap in found.wrong.iter().filter(|_| held.place(found.reader).tap.last_site() == Site::Probs) {
                unmasked.extend(trial.beside_the_mask(tap).map(|judged| (tap, judged)));
            }
            all.push((found, judged));
        }
    }
    let taken: BTreeSet<usize> = all.iter().map(|(found, _)| found.reader).collect();
    let otherwise = masked_otherwise(&mut trial, &taken)?;
    for (TakenBack { reader, wrong, between }, judged) in all {
        let place = held.place(reader);
        for &tap in wrong.iter().chain(&between) {
            let is_taken_back = !between.is_empty() && !is_one_number(held, tap);
            held.close(tap);
            replays.is_right_again_at(held.place(tap), place, is_taken_back);
        }
        replays.put(place, judged);
    }
    for [(scores, of_scores), of_probs] in otherwise {
        held.close(scores);
        unmasked.extend([(scores, of_scores), of_probs]);
    }
    let went_on = |all: Vec<(usize, usize)>, is_taken_back| all.into_iter().map(move |one| (one, is_taken_back));
    for ((tap, reader), is_taken_back) in went_on(shifted, true).chain(went_on(unread, false)) {
        let (reader, is_taken_back) = (held.place(reader), is_taken_back && !is_one_number(held, tap));
        held.close(tap);
        replays.is_right_again_at(held.place(tap), reader, is_taken_back);
    }
    replays.replay.warnings.extend((!unmasked.is_empty()).then(|| UNMASKED.to_owned()));
    unmasked.into_iter().for_each(|(tap, judged)| replays.put(held.place(tap), judged));
    while leave_out_before_a_right_end(recording, candidate, held, replays, &mut benches)? {}
    Ok(())
}

/// Wrong taps of which each row is off by one number, as no softmax shows: what reads them is right, made of them or of what is due. Each with what reads it.
fn shifted(trial: &mut Trial<'_, '_>) -> Done<Vec<(usize, usize)>> {
    let mut all = Vec::new();
    for at in trial.all() {
        if !trial.judged(at).is_some_and(Replayed::is_at_fault) || !trial.is_off_by_row(at) {
            continue;
        }
        let readers: Vec<usize> =
            trial.all().into_iter().filter(|&reader| trial.made_of(reader).contains(&at)).collect();
        let mut are_right = !readers.is_empty();
        for &reader in &readers {
            let agrees = |judged: &Replayed| judged.report.status.agrees();
            are_right &= trial.judged(reader).is_some_and(agrees)
                && trial.without(reader, &BTreeSet::from([at]))?.is_some_and(|judged| agrees(&judged));
        }
        all.extend(readers.first().filter(|_| are_right).map(|&reader| (at, reader)));
    }
    Ok(all)
}

/// Wrong taps that hold NaN or infinities where all that is made on their way is right: the engine has not gone on with what was recorded. Each with one of those.
fn without_numbers(trial: &Trial<'_, '_>) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    for at in trial.all().into_iter().filter(|&at| trial.judged(at).is_some_and(Replayed::is_at_fault)) {
        let place = trial.place(at);
        let passes = |&reader: &usize| {
            let step = trial.place(reader).step;
            step == place.step && trial.judged(reader).is_some_and(|judged| judged.through.contains(&place.tap))
        };
        let mut behind = trial.all().into_iter().filter(passes).peekable();
        let first = behind.peek().copied();
        let are_right = behind.all(|reader| trial.judged(reader).is_some_and(|judged| judged.report.status.agrees()));
        all.extend(first.filter(|_| are_right && !trial.holds_numbers(at)).map(|reader| (at, reader)));
    }
    all
}

/// Scores that are right but for the mask, and probabilities that are not made of these, nor right: nearer to what is made of masked ones, and a softmax of
/// something. The scores were recorded before they were masked, and that is done otherwise.
fn masked_otherwise(trial: &mut Trial<'_, '_>, taken: &BTreeSet<usize>) -> Done<Vec<[(usize, Replayed); 2]>> {
    let nmse = |judged: &Replayed| judged.report.metrics.and_then(|metrics| metrics.nmse()).unwrap_or(f64::INFINITY);
    let mut all = Vec::new();
    for probs in trial.all().into_iter().filter(|at| !taken.contains(at)) {
        let is_wrong = trial.judged(probs).filter(|judged| judged.is_at_fault()).map(nmse);
        let is_softmax = trial.place(probs).tap.last_site() == Site::Probs && trial.adds_up_to_one(probs);
        let Some(was) = is_wrong.filter(|_| is_softmax) else { continue };
        for scores in trial.made_of(probs) {
            let is_wrong = trial.judged(scores).is_some_and(|judged| judged.report.status == Status::Diverged);
            if let Some(of_scores) = trial.beside_the_mask(scores).filter(|_| is_wrong)
                && let Some(of_probs) = trial.without(probs, &BTreeSet::from([scores]))?.filter(|now| nmse(now) < was)
            {
                all.push([(scores, of_scores), (probs, of_probs)]);
            }
        }
    }
    Ok(all)
}

/// Leaves out what is off before a right end, and has judged what could not be while that was wrong: whether there was any.
fn leave_out_before_a_right_end<'b>(
    recording: &Recording<'b>,
    candidate: &Candidate<'_>,
    held: &mut Held,
    replays: &mut Replays,
    benches: &mut Benches<'b>,
) -> Done<bool> {
    let off = off_before_a_right_end(&mut Trial::new(recording, candidate, held, replays, benches))?;
    let Some(Off { ends: off, between }) = off else { return Ok(false) };
    // What is right as it was recorded, and made of the recorded value of one that is off: the engine went on with that. The reference's own value there is
    // what takes it back.
    let went_on = |tap: usize| -> Option<Option<Place>> {
        let place = held.place(tap);
        let reads = |t: &&Replayed| t.report.place.step == place.step && t.from.contains(&place.tap);
        let right = replays.replay.taps.iter().filter(|t| t.report.status.agrees()).filter(reads);
        let mut readers = right.map(|t| t.report.place).peekable();
        readers.peek()?;
        let is_the_references = |at: &Place| candidate.taps.iter().any(|t| t.place == *at && t.status.agrees());
        Some(readers.find(is_the_references))
    };
    let gone_on_with: BTreeMap<usize, Option<Place>> =
        off.keys().filter_map(|&tap| Some((tap, went_on(tap)?))).collect();
    for (&tap, &end) in &off {
        let is_made_on = |&right: &usize| right == tap || is_made_of(recording.program, right, tap);
        let is_taken_back =
            !is_one_number(held, tap) && (gone_on_with.contains_key(&tap) || between.iter().any(is_made_on));
        held.close(tap);
        let end = gone_on_with.get(&tap).copied().flatten().unwrap_or(held.place(end));
        replays.is_right_again_at(held.place(tap), end, is_taken_back);
    }
    let mut trial = Trial::new(recording, candidate, held, replays, benches);
    let mut again = Vec::new();
    for tap in trial.all().into_iter().filter(|&tap| trial.may_be_off(tap)).collect::<Vec<_>>() {
        again.extend(right_without(&mut trial, tap, &BTreeSet::new())?.map(|judged| (tap, judged)));
    }
    // What reads a tap of which nobody knew the other positions while it was wrong.
    let is_excused = |read: Tap| off.keys().any(|&tap| held.place(tap).tap == read);
    let is_open = |why: &Reason| matches!(why, Reason::Input { tap, why: UnfitInput::Partial } if is_excused(*tap));
    let open: Vec<usize> =
        trial.replayed.iter().filter(|(_, replayed)| replayed.is_for(is_open)).map(|(&tap, _)| tap).collect();
    for &tap in &open {
        again.extend(trial.without(tap, &BTreeSet::new())?.map(|judged| (tap, judged)));
    }
    again.into_iter().for_each(|(tap, judged)| replays.put(held.place(tap), judged));
    Ok(!open.is_empty())
}

/// Whether a tap holds one number alone, as memory does that was not written: nothing makes the right values of it.
fn is_one_number(held: &Held, tap: usize) -> bool {
    let own = held.recorded(tap);
    own.is_some_and(|own| own.len() > 1 && own.iter().all(|x| own.first() == Some(x)))
}

/// How many operations back, at most, what is taken back may have been made.
const FARTHEST: usize = 6;

/// A tap that is wrong by what it reads, and right by what stands before.
struct TakenBack {
    /// What takes back.
    reader: usize,
    /// The wrong taps without which it would not come out.
    wrong: BTreeSet<usize>,
    /// The recorded taps between, which were made of wrong ones.
    between: BTreeSet<usize>,
}

/// All wrong taps that take back what is off before them.
fn taken_back(trials: &mut Trial<'_, '_>) -> Done<Vec<TakenBack>> {
    let mut all = Vec::new();
    for at in trials.all() {
        if trials.judged(at).is_some_and(Replayed::is_at_fault) {
            all.extend(taken_back_at(trials, at)?);
        }
    }
    // What is not taken back on every way is not taken back.
    loop {
        let readers: BTreeSet<usize> = all.iter().map(|found| found.reader).collect();
        let before = all.len();
        all.retain(|found: &TakenBack| !found.wrong.iter().any(|&at| trials.goes_on(at, &readers)));
        if all.len() == before {
            return Ok(all);
        }
    }
}

/// What a wrong tap takes back, where that makes it right.
fn taken_back_at(trials: &mut Trial<'_, '_>, reader: usize) -> Done<Option<TakenBack>> {
    let tap = trials.place(reader).tap;
    let (mut wrong, mut between) = (BTreeSet::new(), BTreeSet::new());
    let mut front = trials.made_of(reader);
    for _ in 0..FARTHEST {
        let near = front.iter().copied().filter(|&at| is_near(trials.place(at).tap, tap));
        let judged = near.filter_map(|at| Some((at, trials.judged(at).filter(|t| t.is_blamed())?.report.status)));
        let here: Vec<(usize, Status)> = judged.collect();
        let of = |is: fn(Status) -> bool| here.iter().filter(move |(_, status)| is(*status)).map(|(at, _)| *at);
        let new: Vec<usize> = of(|status| status == Status::Diverged).collect();
        wrong.extend(&new);
        if !new.is_empty() && right_without(trials, reader, &(&wrong | &between))?.is_some() {
            return needed(trials, reader, &wrong, &between);
        }
        let right: BTreeSet<usize> = of(Status::agrees).collect();
        between.extend(&right);
        front = right.iter().flat_map(|&at| trials.made_of(at)).collect();
        front = &front - &between;
    }
    Ok(None)
}

/// Without those that it comes out with as they were recorded, and what was not made of the others.
fn needed(
    trials: &mut Trial<'_, '_>,
    reader: usize,
    wrong: &BTreeSet<usize>,
    between: &BTreeSet<usize>,
) -> Done<Option<TakenBack>> {
    let mut needed = BTreeSet::new();
    for &one in wrong {
        let rest = &(wrong | between) - &BTreeSet::from([one]);
        if right_without(trials, reader, &rest)?.is_none() {
            needed.insert(one);
        }
    }
    let of_them = |&at: &usize| trials.is_made_of_one(at, &needed, between);
    let between: BTreeSet<usize> = between.iter().copied().filter(of_them).collect();
    Ok((!needed.is_empty()).then_some(TakenBack { reader, wrong: needed, between }))
}

/// How a wrong tap is judged with these computed, where it is right then, and far nearer.
fn right_without(trials: &mut Trial<'_, '_>, at: usize, left_out: &BTreeSet<usize>) -> Done<Option<Replayed>> {
    let was = trials.judged(at).and_then(|t| t.report.metrics?.nmse()).unwrap_or(f64::INFINITY);
    let is_right =
        |again: &Replayed| again.report.status.agrees() && was > TAKES_BACK * again.report.allowed.unwrap_or(0.0);
    Ok(trials.without(at, left_out)?.filter(is_right))
}

/// Whether two taps are of one layer, or both of none: further apart nothing is looked for.
fn is_near(a: Tap, b: Tap) -> bool {
    (a.stack(), a.layer) == (b.stack(), b.layer)
}
