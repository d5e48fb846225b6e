//! Does a later operation take back what is off at a tap, or was the tap only recorded wrongly? Then no operation is to be blamed: see
//! [`explain::taken_back`](crate::explain::taken_back) and [`explain::right_at_the_end`](crate::explain::right_at_the_end), which ask the same of a Plan.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::Status;
use firstdiff_program::{Bench, Kind, Program, Slice};
use ndarray::ArrayD;

use crate::explain::right_at_the_end::MOST;
use crate::explain::taken_back::{FARTHEST, is_near};
use crate::program::explain::reads_large;
use crate::program::held::{Held, array};
use crate::program::replay::{Replays, between as made_between, taps_of};
use crate::program::{Candidate, Recording};
use crate::replay::Replayed;
use crate::replay::operation::Operation;
use crate::tolerance::replay::TAKES_BACK;

/// A tap that is wrong by what it reads, and right by what stands before: taps by their index in the program.
struct TakenBack {
    /// What takes back, as it is judged without the others.
    reader: (usize, Replayed),
    /// The wrong taps without which it would not come out.
    wrong: BTreeSet<usize>,
    /// The recorded taps between, which were made of wrong ones.
    between: BTreeSet<usize>,
}

/// Finds wrong taps whose error is taken back before it reaches anything else, or of which nothing was made, and has what comes behind them computed without
/// them.
pub(crate) fn leave_out(recording: &Recording<'_>, candidate: &Candidate<'_>, held: &mut Held, replays: &mut Replays) {
    if replays.wrong().next().is_none() {
        return;
    }
    let bench = |arithmetic| Bench::new(recording.program, arithmetic, recording.weights);
    let mut benches = (bench(candidate.exact()), candidate.arithmetic().map(bench));
    let all = Trial::new(recording, candidate, held, replays, &mut benches).found();
    for TakenBack { reader: (reader, judged), wrong, between } in all {
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
    let off = Trial::new(recording, candidate, held, replays, &mut benches).off_before_a_right_end();
    let Some(off) = off.filter(|off| !off.is_empty()) else { return };
    let is_right = |&&tap: &&usize| replays.of(held.place(tap)).is_some_and(|t| t.report.status.agrees());
    let between: Vec<usize> = off.keys().filter(is_right).copied().collect();
    // What is off came from a wrong tap, or the two judgements contradict each other.
    let comes_from =
        |tap: usize| off.keys().any(|&other| !between.contains(&other) && is_made_of(recording.program, tap, other));
    if !between.iter().all(|&tap| comes_from(tap)) {
        return;
    }
    // What is right as it was recorded, and made of the recorded value of one that is off: the engine went on with that.
    let went_on = |tap: usize| {
        let place = held.place(tap);
        let reads = |t: &Replayed| t.report.place.step == place.step && t.from.contains(&place.tap);
        replays.replay.taps.iter().any(|t| t.report.status.agrees() && reads(t))
    };
    let gone_on_with: BTreeSet<usize> = off.keys().copied().filter(|&tap| went_on(tap)).collect();
    for (&tap, &end) in &off {
        let is_taken_back = gone_on_with.contains(&tap)
            || between.iter().any(|&right| right == tap || is_made_of(recording.program, right, tap));
        held.close(tap);
        let end = held.place(end);
        if let Some(replayed) = replays.of_mut(held.place(tap)) {
            replayed.is_right_again_at(end, is_taken_back);
        }
    }
    let mut trial = Trial::new(recording, candidate, held, replays, &mut benches);
    let open: Vec<usize> = replays.wrong().filter(|tap| trial.replayed[tap].is_blamed()).collect();
    let again: Vec<(usize, Replayed)> =
        open.into_iter().filter_map(|tap| Some((tap, trial.without(tap, BTreeSet::new())?))).collect();
    for (tap, judged) in again {
        if let Some(replayed) = replays.of_mut(held.place(tap)) {
            *replayed = judged;
        }
    }
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

    fn found(mut self) -> Vec<TakenBack> {
        let is_number = |tap: &usize| self.recording.program.taps()[*tap].view.dtype.kind() == Kind::Float;
        let wrong: Vec<usize> = self.replays.wrong().filter(is_number).collect();
        let mut all: Vec<TakenBack> = wrong.into_iter().filter_map(|tap| self.at(tap)).collect();
        // What is not taken back on every way is not taken back.
        loop {
            let readers: BTreeSet<usize> = all.iter().map(|found| found.reader.0).collect();
            let before = all.len();
            all.retain(|found| !found.wrong.iter().any(|&tap| self.goes_on(tap, &readers)));
            if all.len() == before {
                return all;
            }
        }
    }

    /// What a wrong tap takes back, where that makes it right.
    fn at(&mut self, tap: usize) -> Option<TakenBack> {
        let (held, place) = (self.held, self.held.place(tap));
        let (mut wrong, mut between) = (BTreeSet::new(), BTreeSet::new());
        let mut front: BTreeSet<usize> = self.slice(tap, &BTreeSet::new()).known().collect();
        for _ in 0..FARTHEST {
            let here: Vec<(usize, Status)> = front
                .iter()
                .filter(|&&known| is_near(held.place(known).tap, place.tap))
                .filter_map(|known| Some((*known, self.replayed.get(known)?.report.status)))
                .collect();
            let of = |is: fn(Status) -> bool| here.iter().filter(move |(_, status)| is(*status)).map(|(tap, _)| *tap);
            let new: Vec<usize> = of(|status| status == Status::Diverged).collect();
            wrong.extend(&new);
            if !new.is_empty() && self.without(tap, &wrong | &between).is_some() {
                return self.needed(tap, &wrong, &between);
            }
            let right: BTreeSet<usize> = of(Status::agrees).collect();
            between.extend(&right);
            front =
                right.iter().flat_map(|&tap| self.slice(tap, &BTreeSet::new()).known().collect::<Vec<_>>()).collect();
            front = &front - &between;
        }
        None
    }

    /// Without those that it comes out with as they were recorded, and what was not made of the others.
    fn needed(&mut self, tap: usize, wrong: &BTreeSet<usize>, between: &BTreeSet<usize>) -> Option<TakenBack> {
        let mut needed = BTreeSet::new();
        for &one in wrong {
            let rest = &(wrong | between) - &BTreeSet::from([one]);
            if self.without(tap, rest).is_none() {
                needed.insert(one);
            }
        }
        // Those behind a wrong one, and behind nothing that would hide it.
        let is_made = |&right: &usize| {
            self.slice(right, &(between - &BTreeSet::from([right]))).known().any(|known| needed.contains(&known))
        };
        let between: BTreeSet<usize> = between.iter().copied().filter(is_made).collect();
        let judged = self.without(tap, &needed | &between).filter(|_| !needed.is_empty())?;
        Some(TakenBack { reader: (tap, judged), wrong: needed, between })
    }

    fn slice(&self, tap: usize, left_out: &BTreeSet<usize>) -> Slice<'b> {
        let held = self.held;
        Slice::of(self.recording.program, tap, |other| held.readable(other).is_some() && !left_out.contains(&other))
    }

    /// How a wrong tap is judged with some computed, where it is right then, and far nearer.
    fn without(&mut self, tap: usize, left_out: BTreeSet<usize>) -> Option<Replayed> {
        let (own, before) = (array(self.held.get(tap)?), *self.replayed.get(&tap)?);
        let slice = self.slice(tap, &left_out);
        let (exact, right) = self.values(&slice, own.shape())?;
        let operation = Operation { noise: None, ..self.replays.operation(before, self.candidate.profile) };
        let judged = operation.judged(&own, &right, &exact);
        let was = before.report.metrics.and_then(|m| m.nmse()).unwrap_or(f64::INFINITY);
        let is_right = judged.report.status.agrees() && was > TAKES_BACK * judged.report.allowed.unwrap_or(0.0);
        let from = taps_of(self.held, slice.known());
        let through = made_between(self.recording.program, self.held, &slice);
        is_right.then_some(Replayed { from, through, ..judged })
    }

    /// Where each step is right at its end by the tokens alone, the taps with which it would not be, each with that end; `None` where none is.
    fn off_before_a_right_end(mut self) -> Option<BTreeMap<usize, usize>> {
        let (held, program) = (self.held, self.recording.program);
        self.replayed.values().any(|t| t.is_at_fault()).then_some(())?;
        let is_number = |tap: usize| program.taps()[tap].view.dtype.kind() == Kind::Float;
        let recorded: Vec<usize> = (self.replayed.keys().copied())
            .filter(|&tap| held.get(tap).and(held.readable(tap)).is_some() && is_number(tap))
            .collect();
        let ends: BTreeMap<usize, usize> = recorded.iter().map(|&tap| (program.taps()[tap].step, tap)).collect();
        for &end in ends.values() {
            self.comes_out_from(end, None).filter(|is_right| *is_right)?;
        }
        let all: BTreeSet<usize> = ends.values().copied().collect();
        let is_seen = |tap: &usize| !all.contains(tap) && !self.goes_on(*tap, &all);
        let asked: Vec<usize> = recorded.iter().copied().filter(is_seen).collect();
        (asked.len() <= MOST).then_some(())?;
        let mut off = BTreeMap::new();
        for &tap in &asked {
            let mut behind = ends.range(program.taps()[tap].step..).map(|(_, end)| *end);
            off.extend(behind.find(|end| self.comes_out_from(*end, Some(tap)) == Some(false)).map(|end| (tap, end)));
        }
        // A single key shows nothing of a tap that another step shows to be off.
        let is_excused =
            |tap: usize| self.replayed.get(&tap).is_some_and(|t| t.report.status == Status::Diverged && !t.is_blamed());
        let excused: Vec<usize> = self.replayed.keys().copied().filter(|&tap| is_excused(tap)).collect();
        let in_other_steps: BTreeSet<&str> =
            off.keys().chain(&excused).map(|&tap| program.taps()[tap].tap.as_str()).collect();
        for &tap in asked.iter().filter(|tap| self.replayed.get(tap).is_some_and(|t| t.is_at_fault())) {
            if in_other_steps.contains(program.taps()[tap].tap.as_str()) {
                off.entry(tap).or_insert(ends[&program.taps()[tap].step]);
            }
        }
        Some(off)
    }

    /// Whether a tap comes out of the tokens, with one recorded tap on the way, or none; `None` where that cannot be told, or takes long.
    fn comes_out_from(&mut self, tap: usize, with: Option<usize>) -> Option<bool> {
        let program = self.recording.program;
        let slice = Slice::of(program, tap, |other| Some(other) == with);
        if reads_large(program, &slice) {
            return None;
        }
        let (own, before) = (array(self.held.get(tap)?), *self.replayed.get(&tap)?);
        let (exact, right) = self.values(&slice, own.shape())?;
        let operation =
            Operation { is_span: true, noise: None, ..self.replays.operation(before, self.candidate.profile) };
        match operation.judged(&own, &right, &exact).report.status {
            status if status.agrees() => Some(true),
            Status::Diverged => Some(false),
            _ => None,
        }
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

    /// Whether something is made of a tap, to the program's end, that passes none of these.
    fn goes_on(&self, tap: usize, readers: &BTreeSet<usize>) -> bool {
        let program = self.recording.program;
        let steps: BTreeMap<usize, usize> = program.taps().iter().enumerate().map(|(at, tap)| (tap.step, at)).collect();
        let is_known = |other: usize| other == tap || readers.contains(&other);
        steps.into_values().any(|last| {
            !readers.contains(&last) && Slice::of(program, last, is_known).known().any(|known| known == tap)
        })
    }
}
