//! A replay of which any recorded tap can be computed as if it had not been recorded.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{Place, Status, TapReport};
use firstdiff_program::{Bench, Kind, Program, Slice};
use firstdiff_trace::Site;
use ndarray::{ArrayD, ArrayView1};

use crate::program::held::Held;
use crate::program::replays::Replays;
use crate::program::slices::on_the_way;
use crate::program::slices::reads_large;
use crate::program::{Candidate, Recording};
use crate::replay::operation::Operation;
use crate::replay::right::both_count;
use crate::replay::{Done, Replayed, can_be_read};
use crate::tolerance::replay::{ADDS_UP, SHIFT_LEAVES};

/// Whether one tap is made of another, by whatever lies between.
pub(super) fn is_made_of(program: &Program, tap: usize, of: usize) -> bool {
    tap != of && Slice::of(program, tap, |other| other == of).known().any(|known| known == of)
}

pub(super) type Benches<'b> = (Bench<'b>, Option<Bench<'b>>);

pub(super) struct Trial<'t, 'b> {
    recording: Recording<'b>,
    candidate: &'t Candidate<'t>,
    held: &'t Held,
    replays: &'t Replays,
    /// In f64, and as the candidate rounds: with the weights that are loaded already.
    benches: &'t mut Benches<'b>,
    /// The replayed taps by their index in the program.
    pub(super) replayed: BTreeMap<usize, &'t Replayed>,
}

impl<'t, 'b> Trial<'t, 'b> {
    pub(super) fn new(
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
        held.slice_without(self.recording.program, tap, left_out)
    }

    /// Whether each row of what was recorded adds up to 1.
    pub(super) fn adds_up_to_one(&self, tap: usize) -> bool {
        let is_one = |row: ArrayView1<'_, f64>| (row.sum() - 1.0).abs() <= ADDS_UP;
        self.held.recorded(tap).is_some_and(|own| own.ndim() > 0 && own.rows().into_iter().all(is_one))
    }

    /// How scores are judged where the mask leaves keys, when they are right there.
    pub(super) fn beside_the_mask(&mut self, tap: usize) -> Option<Replayed> {
        let (own, before) = self.held.recorded(tap).zip(self.replayed.get(&tap).copied())?;
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

    /// Whether what was recorded can be computed with.
    pub(super) fn holds_numbers(&self, tap: usize) -> bool {
        self.held.recorded(tap).is_some_and(|own| can_be_read(self.held.place(tap).tap.last_site(), &own))
    }

    /// Whether each row is off by one number, up to rounding, where it counts.
    pub(super) fn is_off_by_row(&mut self, tap: usize) -> bool {
        let Some((own, before)) = self.held.recorded(tap).zip(self.replayed.get(&tap).copied()) else { return false };
        let site = self.held.place(tap).tap.last_site();
        let Some((_, right)) = self.values(&self.slice(tap, &BTreeSet::new()), own.shape()) else { return false };
        let (mut left, mut all, mut energy) = (0.0, 0.0, 0.0);
        for (own, right) in own.rows().into_iter().zip(right.rows()) {
            let counts = own.iter().zip(right).filter(|(own, right)| both_count(site, **own, **right));
            let off: Vec<f64> = counts.clone().map(|(own, right)| own - right).collect();
            let mean = off.iter().sum::<f64>() / off.len().max(1) as f64;
            left += off.iter().map(|off| (off - mean).powi(2)).sum::<f64>();
            all += off.iter().map(|off| off.powi(2)).sum::<f64>();
            energy += counts.map(|(own, right)| own * own + right * right).sum::<f64>();
        }
        // What is left may be no more than rounding, and must not be most of the error: a factor beside coarse rounding leaves as much as there is.
        let is_explained = left <= before.report.allowed.unwrap_or(0.0) * energy && left <= SHIFT_LEAVES * all;
        own.shape().last().is_some_and(|&width| width > 1) && is_explained
    }

    /// What a slice gives, in f64 and as the candidate rounds.
    fn values(&mut self, slice: &Slice<'_>, shape: &[usize]) -> Option<(ArrayD<f64>, ArrayD<f64>)> {
        let (held, program) = (self.held, self.recording.program);
        let value = |bench: &mut Bench<'b>| {
            bench.load(slice).ok()?;
            let all = held.made_with_cache((bench, program), slice, &[])?;
            let value = held.at_its_positions(slice.target(), all);
            Some(value).filter(|value| value.shape() == shape)
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

/// Any recorded tap can be computed as if it had not been recorded.
impl Trial<'_, '_> {
    pub(super) fn place(&self, at: usize) -> Place {
        self.held.place(at)
    }

    /// All that were judged, in the order in which they are made.
    pub(super) fn all(&self) -> Vec<usize> {
        let is_number = |tap: &usize| self.recording.program.taps()[*tap].view.dtype.kind() == Kind::Float;
        self.replayed.keys().copied().filter(is_number).collect()
    }

    /// Those of them that can be computed with.
    pub(super) fn recorded(&self) -> Vec<usize> {
        self.all()
            .into_iter()
            .filter(|&tap| self.held.goes_on_with(tap) || self.held.positions(tap).is_some())
            .collect()
    }

    pub(super) fn judged(&self, at: usize) -> Option<&Replayed> {
        self.replayed.get(&at).copied()
    }

    /// What it was computed from.
    pub(super) fn made_of(&self, at: usize) -> BTreeSet<usize> {
        self.slice(at, &BTreeSet::new()).known().collect()
    }

    /// Whether it is made of another, by whatever lies between.
    pub(super) fn is_made_of(&self, at: usize, of: usize) -> bool {
        is_made_of(self.recording.program, at, of)
    }

    /// Whether it is made of one of these, and what would hide that is among `between`.
    pub(super) fn is_made_of_one(&self, at: usize, of: &BTreeSet<usize>, between: &BTreeSet<usize>) -> bool {
        self.slice(at, &(between - &BTreeSet::from([at]))).known().any(|known| of.contains(&known))
    }

    /// Whether something is made of it, to the end, that passes none of these.
    pub(super) fn goes_on(&self, tap: usize, readers: &BTreeSet<usize>) -> bool {
        let program = self.recording.program;
        let steps: BTreeMap<usize, usize> = program.taps().iter().enumerate().map(|(at, tap)| (tap.step, at)).collect();
        let is_known = |other: usize| other == tap || readers.contains(&other);
        steps.into_values().any(|last| {
            !readers.contains(&last) && Slice::of(program, last, is_known).known().any(|known| known == tap)
        })
    }

    /// How it is judged with these computed.
    pub(super) fn without(&mut self, at: usize, left_out: &BTreeSet<usize>) -> Done<Option<Replayed>> {
        let before = self.held.recorded(at).zip(self.replayed.get(&at).copied());
        let Some((own, before)) = before else { return Ok(None) };
        let slice = self.slice(at, left_out);
        let Some((exact, right)) = self.values(&slice, own.shape()) else { return Ok(None) };
        let operation = Operation { noise: None, ..self.replays.operation(before, self.candidate.profile) };
        let from = self.held.taps_of(slice.known());
        let is_made = |tap: &usize| self.held.readable(*tap).is_none() || left_out.contains(tap);
        let made = on_the_way(self.recording.program, &slice).into_iter().filter(is_made);
        let through = self.held.taps_of(made);
        let judged = operation.judged(&own, &right, &exact);
        let report = TapReport { positions: before.report.positions.clone(), ..judged.report };
        Ok(Some(Replayed { from, through, report, ..judged }))
    }

    /// Whether it comes out of the tokens, with one recorded tap on the way, or none; `None` where that cannot be told, or takes long.
    pub(super) fn comes_out_from(&mut self, tap: usize, with: Option<usize>) -> Done<Option<bool>> {
        let program = self.recording.program;
        let slice = Slice::of(program, tap, |other| Some(other) == with);
        if reads_large(program, &slice) {
            return Ok(None);
        }
        let before = self.held.recorded(tap).zip(self.replayed.get(&tap).copied());
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

    /// Whether all that is made of it passes the ends of its step and of those behind it, which hold its positions.
    pub(super) fn is_seen_at(&self, at: usize, ends: &BTreeMap<u32, usize>) -> bool {
        let all: BTreeSet<usize> = ends.values().copied().collect();
        !all.contains(&at) && !self.goes_on(at, &all)
    }

    /// Whether it is off where the same tap of another step is.
    pub(super) fn may_be_off(&self, at: usize) -> bool {
        self.replayed.get(&at).is_some_and(|t| t.is_at_fault())
    }
}
