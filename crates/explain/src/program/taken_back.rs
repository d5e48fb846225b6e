//! Does a later operation take back what is off at a tap, or was the tap only recorded wrongly? Then no operation is to be blamed: see
//! [`explain::taken_back`](crate::explain::taken_back) and [`explain::right_at_the_end`](crate::explain::right_at_the_end), which ask the same of a Plan.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{Place, Status};
use firstdiff_program::{Bench, Kind, Program, Slice};
use firstdiff_trace::Site;
use ndarray::ArrayD;

use crate::explain::right_at_the_end::{MOST, Off, off_before_a_right_end};
use crate::explain::taken_back::{TakenBack, Trials, right_without, taken_back};
use crate::program::explain::reads_large;
use crate::program::held::{Held, array};
use crate::program::replay::{Replays, between as made_between, taps_of};
use crate::program::{Candidate, Recording};
use crate::replay::operation::Operation;
use crate::replay::right::both_count;
use crate::replay::{Done, Replayed, UNMASKED};

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
    let (mut all, mut unmasked) = (Vec::new(), Vec::new());
    for found in taken_back(&mut trial)? {
        if let Some(judged) = right_without(&mut trial, found.reader, &(&found.wrong | &found.between))? {
            for &tap in found.wrong.iter().filter(|_| held.place(found.reader).tap.last_site() == Site::Probs) {
                unmasked.extend(trial.beside_the_mask(tap).map(|judged| (tap, judged)));
            }
            all.push((found, judged));
        }
    }
    for (TakenBack { reader, wrong, between }, judged) in all {
        let place = held.place(reader);
        for &tap in wrong.iter().chain(&between) {
            held.close(tap);
            if let Some(replayed) = replays.of_mut(held.place(tap)) {
                replayed.is_right_again_at(place, !between.is_empty());
            }
        }
        if let Some(replayed) = replays.of_mut(place) {
            *replayed = judged;
        }
    }
    replays.replay.warnings.extend((!unmasked.is_empty()).then(|| UNMASKED.to_owned()));
    for (tap, judged) in unmasked {
        if let Some(replayed) = replays.of_mut(held.place(tap)) {
            *replayed = judged;
        }
    }
    let off = off_before_a_right_end(&mut Trial::new(recording, candidate, held, replays, &mut benches))?;
    let Some(Off { ends: off, between }) = off else { return Ok(()) };
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
        let is_taken_back = gone_on_with.contains_key(&tap)
            || between.iter().any(|&right| right == tap || is_made_of(recording.program, right, tap));
        held.close(tap);
        let end = gone_on_with.get(&tap).copied().flatten().unwrap_or(held.place(end));
        if let Some(replayed) = replays.of_mut(held.place(tap)) {
            replayed.is_right_again_at(end, is_taken_back);
        }
    }
    let mut trial = Trial::new(recording, candidate, held, replays, &mut benches);
    let mut again = Vec::new();
    for tap in trial.all().into_iter().filter(|&tap| trial.may_be_off(tap)).collect::<Vec<_>>() {
        again.extend(right_without(&mut trial, tap, &BTreeSet::new())?.map(|judged| (tap, judged)));
    }
    for (tap, judged) in again {
        if let Some(replayed) = replays.of_mut(held.place(tap)) {
            *replayed = judged;
        }
    }
    Ok(())
}

/// Whether one tap is made of another, by whatever lies between.
fn is_made_of(program: &Program, tap: usize, of: usize) -> bool {
    tap != of && Slice::of(program, tap, |other| other == of).known().any(|known| known == of)
}

type Benches<'b> = (Bench<'b>, Option<Bench<'b>>);

struct Trial<'t, 'b> {
    recording: Recording<'b>,
    candidate: &'t Candidate<'t>,
    held: &'t Held,
    replays: &'t Replays,
    /// In f64, and as the candidate rounds: with the weights that are loaded already.
    benches: &'t mut Benches<'b>,
    /// The replayed taps by their index in the program.
    replayed: BTreeMap<usize, &'t Replayed>,
}

impl<'t, 'b> Trial<'t, 'b> {
    fn new(
        recording: &Recording<'b>,
        candidate: &'t Candidate<'t>,
        held: &'t Held,
        replays: &'t Replays,
        benches: &'t mut Benches<'b>,
    ) -> Trial<'t, 'b> {
        Trial {
            recording: *recording,
            candidate,
            held,
            replays,
            benches,
            replayed: replays.taps.iter().copied().zip(&replays.replay.taps).collect(),
        }
    }

    fn slice(&self, tap: usize, left_out: &BTreeSet<usize>) -> Slice<'b> {
        let held = self.held;
        Slice::of(self.recording.program, tap, |other| held.readable(other).is_some() && !left_out.contains(&other))
    }

    /// How scores are judged where the mask leaves keys, when they are right there.
    fn beside_the_mask(&mut self, tap: usize) -> Option<Replayed> {
        let (own, before) = self.held.get(tap).map(array).zip(self.replayed.get(&tap).copied())?;
        let site = self.held.place(tap).tap.last_site();
        if site != Site::Scores || own.iter().any(|x| x.is_nan()) {
            return None;
        }
        let (exact, right) = self.values(&self.slice(tap, &BTreeSet::new()), own.shape())?;
        let own = ndarray::Zip::from(&own).and(&right).map_collect(
            |&own, &due| {
                if both_count(site, due, due) { own } else { due }
            },
        );
        let operation = self.replays.operation(before, self.candidate.profile);
        let (from, through) = (before.from.clone(), before.through.clone());
        let judged = Replayed { from, through, ..operation.judged(&own, &right, &exact) };
        judged.report.status.agrees().then_some(judged)
    }

    /// What a slice gives, in f64 and as the candidate rounds.
    fn values(&mut self, slice: &Slice<'_>, shape: &[usize]) -> Option<(ArrayD<f64>, ArrayD<f64>)> {
        let held = self.held;
        let value = |bench: &mut Bench<'b>| {
            bench.load(slice).ok()?;
            let value = |known: usize| held.readable(known).map(|own| own.view());
            Some(array(&slice.evaluate(bench, &value, &[]).ok()?)).filter(|value| value.shape() == shape)
        };
        let (exact, rounded) = self.benches;
        let exact = value(exact)?;
        let right = match rounded {
            Some(bench) => value(bench)?,
            None => exact.clone(),
        };
        Some((exact, right))
    }
}

impl Trials for Trial<'_, '_> {
    type At = usize;

    fn place(&self, at: usize) -> Place {
        self.held.place(at)
    }

    fn all(&self) -> Vec<usize> {
        let is_number = |tap: &usize| self.recording.program.taps()[*tap].view.dtype.kind() == Kind::Float;
        self.replayed.keys().copied().filter(is_number).collect()
    }

    fn recorded(&self) -> Vec<usize> {
        self.all().into_iter().filter(|&tap| self.held.get(tap).and(self.held.readable(tap)).is_some()).collect()
    }

    fn judged(&self, at: usize) -> Option<&Replayed> {
        self.replayed.get(&at).copied()
    }

    fn made_of(&self, at: usize) -> BTreeSet<usize> {
        self.slice(at, &BTreeSet::new()).known().collect()
    }

    fn is_made_of(&self, at: usize, of: usize) -> bool {
        is_made_of(self.recording.program, at, of)
    }

    fn is_made_of_one(&self, at: usize, of: &BTreeSet<usize>, between: &BTreeSet<usize>) -> bool {
        self.slice(at, &(between - &BTreeSet::from([at]))).known().any(|known| of.contains(&known))
    }

    fn goes_on(&self, tap: usize, readers: &BTreeSet<usize>) -> bool {
        let program = self.recording.program;
        let steps: BTreeMap<usize, usize> = program.taps().iter().enumerate().map(|(at, tap)| (tap.step, at)).collect();
        let is_known = |other: usize| other == tap || readers.contains(&other);
        steps.into_values().any(|last| {
            !readers.contains(&last) && Slice::of(program, last, is_known).known().any(|known| known == tap)
        })
    }

    fn without(&mut self, at: usize, left_out: &BTreeSet<usize>) -> Done<Option<Replayed>> {
        let before = self.held.get(at).map(array).zip(self.replayed.get(&at).copied());
        let Some((own, before)) = before else { return Ok(None) };
        let slice = self.slice(at, left_out);
        let Some((exact, right)) = self.values(&slice, own.shape()) else { return Ok(None) };
        let operation = Operation { noise: None, ..self.replays.operation(before, self.candidate.profile) };
        let from = taps_of(self.held, slice.known());
        let through = made_between(self.recording.program, self.held, &slice);
        Ok(Some(Replayed { from, through, ..operation.judged(&own, &right, &exact) }))
    }

    fn comes_out_from(&mut self, tap: usize, with: Option<usize>) -> Done<Option<bool>> {
        let program = self.recording.program;
        let slice = Slice::of(program, tap, |other| Some(other) == with);
        if reads_large(program, &slice) {
            return Ok(None);
        }
        let before = self.held.get(tap).map(array).zip(self.replayed.get(&tap).copied());
        let Some((own, before)) = before else { return Ok(None) };
        let Some((exact, right)) = self.values(&slice, own.shape()) else { return Ok(None) };
        let operation =
            Operation { is_span: true, noise: None, ..self.replays.operation(before, self.candidate.profile) };
        Ok(match operation.judged(&own, &right, &exact).report.status {
            status if status.agrees() => Some(true),
            Status::Diverged => Some(false),
            _ => None,
        })
    }

    fn is_seen_at(&self, at: usize, ends: &BTreeMap<u32, usize>) -> bool {
        let all: BTreeSet<usize> = ends.values().copied().collect();
        !all.contains(&at) && !self.goes_on(at, &all)
    }

    fn may_be_off(&self, at: usize) -> bool {
        self.replayed.get(&at).is_some_and(|t| t.is_at_fault())
    }

    fn most(&self) -> usize {
        MOST
    }
}
