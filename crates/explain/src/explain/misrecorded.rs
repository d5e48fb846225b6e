//! Is a tap only recorded wrongly? Then what reads it was made of the right value, and no operation is to be blamed.
//!
//! A buffer that is written down too early or too late, or under another's name, is not what the engine went on with. What reads the tap tells: on
//! the value that the tap should have the candidate's own numbers come out, on the recorded one they do not.

use std::collections::BTreeSet;

use firstdiff_compare::{Place, Status};
use firstdiff_model::Model;
use firstdiff_trace::Tap;

use crate::explain::{Finding, Match, taken_back};
use crate::replay::{Done, Replay, Replayed, Run};
use crate::tolerance::replay::OTHER_BUFFER;

/// Rounds in which wrong taps further up are left out as well.
const ROUNDS: usize = 4;

impl Run<'_> {
    /// Finds wrong taps that nothing was made of, leaves their recordings out from here on, and judges again what reads them.
    pub(crate) fn leave_out_misrecorded(&mut self, taps: &mut [Replayed]) -> Done<()> {
        for at in 0..taps.len() {
            if taps[at].report.status != Status::Diverged {
                continue;
            }
            let place = taps[at].report.place;
            // What was left out before may be all that was wrong here.
            let again = self.judged_again(place)?;
            if again.report.status.agrees() {
                let left_out = self.left_out(&again, place);
                note(taps, &left_out, place);
                taps[at] = again;
                continue;
            }
            let left_out = self.misrecorded_before(&taps[at], taps)?;
            if left_out.is_empty() || self.is_spoken_against(&left_out, taps)? {
                continue;
            }
            self.recorded.left_out.extend(left_out.iter().copied());
            taps[at] = self.judged_again(place)?;
            note(taps, &left_out, place);
        }
        Ok(())
    }

    /// The wrong taps that a wrong one was made of, where it comes out once they are computed, and with each of them as recorded it does not.
    fn misrecorded_before(&mut self, reader: &Replayed, taps: &[Replayed]) -> Done<Vec<Place>> {
        let place = reader.report.place;
        let mut out: BTreeSet<Place> = BTreeSet::new();
        let mut seen = reader.clone();
        for _ in 0..ROUNDS {
            let far = |t: &Replayed| t.report.metrics.is_none_or(|m| m.nmse().is_none_or(|nmse| nmse > OTHER_BUFFER));
            let is_wrong = |t: &Replayed| t.report.status == Status::Diverged && far(t);
            let wrong = |p: &Place| taps.iter().any(|t| t.report.place == *p && is_wrong(t));
            let more: Vec<Place> = self.made_of(&seen).into_iter().filter(wrong).filter(|p| !out.contains(p)).collect();
            if more.is_empty() {
                return Ok(Vec::new());
            }
            out.extend(more);
            seen = self.judged_without(place, &out)?;
            if seen.report.status.agrees() {
                break;
            }
        }
        if !seen.report.status.agrees() {
            return Ok(Vec::new());
        }
        let mut needed = Vec::new();
        for &one in &out {
            let rest: BTreeSet<Place> = out.iter().copied().filter(|p| *p != one).collect();
            if out.len() == 1 || self.judged_without(place, &rest)?.report.status == Status::Diverged {
                needed.push(one);
            }
        }
        Ok(needed)
    }

    /// Whether something comes out on what was recorded of these, and on what they should be does not.
    fn is_spoken_against(&mut self, left_out: &[Place], taps: &[Replayed]) -> Done<bool> {
        let without: BTreeSet<Place> = left_out.iter().copied().collect();
        for tap in taps.iter().filter(|t| t.report.status.agrees() && !without.contains(&t.report.place)) {
            let reads = self.made_of(tap).iter().any(|p| without.contains(p));
            if reads && self.judged_without(tap.report.place, &without)?.report.status == Status::Diverged {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The places a tap was computed from: of keys and values those of earlier steps as well.
    pub(crate) fn made_of(&self, tap: &Replayed) -> BTreeSet<Place> {
        let (step, plan) = (tap.report.place.step, &self.recorded.model.plan);
        let carried_out = tap.through.iter().chain([&tap.report.place.tap]).filter_map(|&tap| plan.step(tap));
        let cached: BTreeSet<Tap> = carried_out.filter_map(|s| s.cached()).collect();
        let mut places: BTreeSet<Place> = tap.from.iter().map(|&tap| Place { step, tap }).collect();
        let mut open: Vec<Place> =
            (0..step).flat_map(|step| cached.iter().map(move |&tap| Place { step, tap })).collect();
        let mut seen = BTreeSet::new();
        while let Some(place) = open.pop() {
            if self.recorded.is_readable(place) {
                places.insert(place);
            } else if let Some(step) = plan.step(place.tap).filter(|_| seen.insert(place)) {
                open.extend(step.reads.iter().map(|&tap| Place { tap, ..place }));
            }
        }
        places
    }

    /// Of what is left out, what a tap would have been computed from.
    fn left_out(&self, tap: &Replayed, place: Place) -> Vec<Place> {
        let plan = &self.recorded.model.plan;
        let own = plan.step(place.tap).and_then(|s| s.cached());
        let reads = |p: &&Place| {
            tap.through.contains(&p.tap) && p.step == place.step || own == Some(p.tap) && p.step <= place.step
        };
        self.recorded.left_out.iter().filter(reads).copied().collect()
    }

    pub(crate) fn judged_without(&mut self, place: Place, left_out: &BTreeSet<Place>) -> Done<Replayed> {
        self.with_left_out(left_out.iter().copied(), |run| run.judged_again(place))
    }

    /// What `then` gives where these are left out as well.
    pub(crate) fn with_left_out<X>(
        &mut self,
        left_out: impl Iterator<Item = Place>,
        then: impl FnOnce(&mut Self) -> X,
    ) -> X {
        let before = self.recorded.left_out.clone();
        self.recorded.left_out.extend(left_out);
        self.forget();
        let made = then(self);
        self.recorded.left_out = before;
        self.forget();
        made
    }

    pub(crate) fn judged_again(&mut self, place: Place) -> Done<Replayed> {
        self.forget();
        let model: &Model = self.recorded.model;
        match model.plan.step(place.tap) {
            Some(step) => self.judge(step, place.step),
            None => unreachable!("only taps of the plan are judged"),
        }
    }

    /// What was computed with other taps left out is another value.
    pub(crate) fn forget(&mut self) {
        self.memo.clear();
        self.wide.clear();
    }
}

/// Notes at each tap that was left out what came out right without it.
fn note(taps: &mut [Replayed], left_out: &[Place], reader: Place) {
    for tap in taps.iter_mut().filter(|t| left_out.contains(&t.report.place)) {
        tap.misrecorded.push(reader);
    }
}

/// What is said of wrong taps whose operations are not to be blamed: those of one site together.
pub(crate) fn findings(replay: &Replay) -> Vec<Finding> {
    let mut out: Vec<Finding> = Vec::new();
    for tap in replay.taps.iter().filter(|t| t.report.status == Status::Diverged && !t.is_blamed()) {
        let place = tap.report.place;
        let nmse = tap.report.metrics.and_then(|m| m.nmse()).unwrap_or(f64::INFINITY);
        let taken_back = !tap.taken_back.is_empty();
        let alike = |f: &Finding| f.taken_back.is_empty() != taken_back && f.taps[0].site == place.tap.site;
        let known = out.iter().position(alike);
        let at = known.unwrap_or_else(|| {
            let op = tap.report.op.clone();
            out.push(Finding { op, ..Finding::without_cause(Match::Unknown) });
            out.len() - 1
        });
        let finding = &mut out[at];
        if !finding.taps.contains(&place.tap) {
            finding.taps.push(place.tap);
        }
        finding.shown_at.push(place);
        finding.misrecorded.extend(&tap.misrecorded);
        let readers: Vec<Place> =
            tap.taken_back.iter().copied().filter(|reader| !finding.taken_back.contains(reader)).collect();
        finding.taken_back.extend(readers);
        finding.base_nmse = finding.base_nmse.max(nmse);
        finding.residual_nmse = finding.base_nmse;
        finding.note = Some(match taken_back {
            true => taken_back::words(&finding.taken_back),
            false => words(&finding.misrecorded),
        });
    }
    out
}

/// Why no operation is blamed, in words.
pub fn words(readers: &[Place]) -> String {
    let (who, many) = listed(readers);
    format!(
        "{who} come{} out right of the value that is due here, and not of the recorded one: the operation is not to be blamed yet; look at what \
         is recorded under this name, and when (another buffer, too early, too late, or a factor that what reads it takes back)",
        if many { "" } else { "s" }
    )
}

/// The first of them and how many more, and whether there are several.
pub(crate) fn listed(readers: &[Place]) -> (String, bool) {
    let first = readers.first().map_or_else(String::new, ToString::to_string);
    match readers.len() {
        0 | 1 => (first, false),
        n => (format!("{first} and {} more", n - 1), true),
    }
}
