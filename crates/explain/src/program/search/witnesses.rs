//! What other taps say of a form: those that read or are made by the same operations, other steps, the prompt.

use std::collections::BTreeSet;
use std::ops::Range;

use firstdiff_compare::{Place, TapReport};
use firstdiff_program::{At, Edit, Slice};

use super::{Explained, Reproduced, Search, Target};
use crate::mistakes::BeginsLater;
use crate::program::arrays::array;
use crate::program::form::Form;
use crate::program::forms::forms;
use crate::program::slices::reads_large;

impl<'a> Search<'a> {
    /// The taps at which a form may be made as well that is found at others: what was recorded of them comes out with it as it does without, beside what was
    /// found there.
    pub(crate) fn untold(&self, form: &Form, wrong: &[usize], explained: &[Explained]) -> Vec<Place> {
        let (program, held) = (self.recording.program, self.held);
        let ops: Option<Vec<usize>> = form.edits.iter().map(|edit| edit.at.op()).collect();
        let Some(ops) = ops.filter(|_| !self.effort.quick) else { return Vec::new() };
        let is_of_it = |op: usize| ops.iter().any(|&of| program.is_one_line(of, op));
        let found = |tap: usize| explained.iter().find(|e| e.tap == tap).and_then(|e| e.reproduced.first());
        let others = self.replays.replay.taps.iter().zip(&self.replays.taps).filter(|(t, tap)| {
            let comes_out = t.report.status.agrees() || found(**tap).is_some();
            comes_out && t.is_blamed() && !wrong.contains(tap)
        });
        let does_not_tell = |tap: usize| {
            let slice = held.slice(program, tap);
            if !slice.ops().any(is_of_it) || reads_large(program, &slice) {
                return false;
            }
            let Some(own) = self.whole(&slice) else { return false };
            let context = self.context(&slice, own).beginning_at(form.steps.start);
            let Some(same) = form.among(&forms(&context)) else { return false };
            let beside = found(tap).into_iter().flat_map(Reproduced::forms).flat_map(|form| form.edits.clone());
            let edits = beside.chain(same.edits).collect::<Vec<_>>();
            let is_beside = |at: usize| edits[..at].iter().all(|before| before.is_beside(&edits[at], program));
            let is_apart = (1..edits.len()).all(is_beside);
            is_apart && self.agrees_with(&slice, &edits) == Some(true)
        };
        others.filter(|(_, tap)| does_not_tell(**tap)).map(|(t, _)| t.report.place).collect()
    }

    /// Whether what else was recorded of the step agrees with operations that are done otherwise: where one is right as it is, only what reads it for the
    /// target is wrong. Taps are as many as read an operation that was not recorded, or are made by it.
    pub(super) fn holds_elsewhere(&self, target: &Target<'_>, edits: &[Edit]) -> bool {
        let program = self.recording.program;
        let number = target.slice.target();
        let readers = self.readers.get_or_init(|| self.replays.readers(program, self.held));
        let ops: BTreeSet<usize> = edits.iter().filter_map(|edit| edit.at.op()).collect();
        // What one operation makes, queries, keys and values of one matrix, it makes in one way: wrong ones count as well.
        let is_made = |&other: &usize| ops.contains(&program.taps()[other].op) && self.held.goes_on_with(other);
        let mut others: BTreeSet<usize> = (0..program.taps().len()).filter(is_made).collect();
        others.extend(ops.iter().filter_map(|op| readers.get(op)).flatten());
        let of_the_step = |&other: &usize| other != number && program.taps()[other].step == program.taps()[number].step;
        others.into_iter().filter(of_the_step).all(|other| {
            let slice = self.held.slice(program, other);
            self.agrees_with(&slice, edits).unwrap_or(true)
        })
    }

    /// The decode step behind the last one before a place of which the same tap is right.
    pub(super) fn onset(&self, own: Place) -> Option<u32> {
        let is_right = |step: u32| {
            let place = Place { step, ..own };
            self.replays.of(place).is_some_and(|t| t.report.status.agrees() && t.is_blamed())
        };
        (1..own.step).rev().find(|&step| is_right(step)).map(|last| last + 1)
    }

    /// A form of which earlier decode steps of the same tap, which are right, show nothing: it begins with this step, where it may.
    pub(super) fn begun_later(&self, target: &Target<'_>, tried: Reproduced) -> Reproduced {
        let own = target.place;
        let may_begin = self.may_begin_later(&tried.form, own);
        let onset = self.onset(own).filter(|_| may_begin && !self.holds_in_decode(target, &tried.form));
        let Some(first) = onset else {
            return tried;
        };
        let form = self.made_in(&tried.form, first..u32::MAX);
        match self.residual(target, &form.edits) {
            Some(residual) if self.proves(target, &form.edits, residual) => Reproduced { form, residual, ..tried },
            _ => tried,
        }
    }

    /// Whether a form may be made at a place though it is not in the steps before.
    pub(super) fn may_begin_later(&self, form: &Form, own: Place) -> bool {
        match form.mistake.begins_later {
            BeginsLater::Never => false,
            BeginsLater::InOneOperation => self.replays.of(own).is_some_and(|t| t.through.is_empty()),
            BeginsLater::WithTokens => true,
        }
    }

    /// A form that is made from the first step on that is wrong, where what a tap reads of those before would be made so as well.
    pub(super) fn in_later_steps(&self, form: &Form, own: Place) -> Option<Form> {
        let may_begin = own.step > 0 && self.may_begin_later(form, own);
        let later = may_begin.then(|| self.made_in(form, self.onset(own).unwrap_or(1)..u32::MAX))?;
        (!later.edits.is_empty() && later.edits.len() < form.edits.len()).then_some(later)
    }

    /// A form that is made in these steps alone.
    pub(super) fn made_in(&self, form: &Form, steps: Range<u32>) -> Form {
        let program = self.recording.program;
        let step_of = |at: At| match at {
            At::Op(op) => program.steps().iter().position(|step| op < step.ops.end).and_then(|at| at.try_into().ok()),
            At::Tap(tap) => Some(self.held.place(tap).step),
        };
        let is_made = |edit: &&Edit| step_of(edit.at).is_some_and(|step| steps.contains(&step));
        Form { edits: form.edits.iter().filter(is_made).cloned().collect(), steps, ..form.clone() }
    }

    /// Whether the same is right in the other decode steps: one line of code does the same in all of them, so that it speaks against a form where the same
    /// tap is right in another step and would not be with it.
    pub(super) fn holds_in_decode(&self, target: &Target<'_>, form: &Form) -> bool {
        let (program, held, own) = (self.recording.program, self.held, target.place);
        let is_right = |tap: usize| {
            let place = held.place(tap);
            let is_other = place.tap == own.tap && place.step > 0 && place.step != own.step;
            is_other && self.replays.of(place).is_some_and(|t| t.report.status.agrees() && t.is_blamed())
        };
        let others = if own.step > 0 { 0..program.taps().len() } else { 0..0 };
        let is_before = |tap: usize| held.place(tap).step < form.steps.start;
        others.filter(|&tap| is_right(tap) && !is_before(tap)).all(|tap| {
            let Some(value) = held.get(tap).map(array) else { return true };
            let slice = held.slice(program, tap);
            let context = self.context(&slice, value).beginning_at(form.steps.start);
            let same = form.among(&forms(&context));
            let same = same.map(|same| self.made_in(&same, form.steps.clone()));
            same.is_none_or(|same| self.agrees_with(&slice, &same.edits).unwrap_or(true))
        })
    }

    /// What would have shown in the prompt, which is right, comes last.
    pub(super) fn put_last_what_shows_in_the_prompt(&self, target: &Target<'_>, found: &mut Explained) {
        if target.place.step > 0 {
            found.reproduced.sort_by_cached_key(|r| r.others.is_empty() && self.shows_in_the_prompt(target, &r.form));
        }
    }

    /// Whether a form would make another value of the same tap of the prompt, which is right.
    pub(super) fn shows_in_the_prompt(&self, target: &Target<'_>, form: &Form) -> bool {
        let (program, held) = (self.recording.program, self.held);
        let prompt = Place { step: 0, ..target.place };
        let is_right = self.replays.of(prompt).is_some_and(|t| t.report.status.agrees());
        let tap = (0..program.taps().len()).find(|&tap| is_right && held.place(tap) == prompt);
        tap.and_then(|tap| Some((tap, held.get(tap).map(array)?))).is_some_and(|(tap, value)| {
            let slice = held.slice(program, tap);
            let context = self.context(&slice, value);
            let same = forms(&context).into_iter().find(|other| other.key() == form.key());
            same.is_some_and(|same| self.agrees_with(&slice, &same.edits) == Some(false))
        })
    }

    /// Whether a tap that is right agrees with some operations that are done otherwise; `None` where that is not known.
    pub(crate) fn agrees_with(&self, slice: &Slice<'_>, edits: &[Edit]) -> Option<bool> {
        Some(self.report_with(slice, edits)?.status.agrees())
    }

    /// How a tap is judged with some operations that are done otherwise; `None` where that is not known.
    pub(crate) fn report_with(&self, slice: &Slice<'_>, edits: &[Edit]) -> Option<TapReport> {
        let own = self.held.recorded(slice.target())?;
        let replayed = self.replays.of(self.held.place(slice.target()))?;
        let ops: BTreeSet<usize> = slice.ops().collect();
        let here = |edit: &&Edit| edit.at.op().is_none_or(|op| ops.contains(&op));
        let edits: Vec<Edit> = edits.iter().filter(here).cloned().collect();
        let (exact, right) = self.exact_and_rounded(slice, &edits)?;
        let operation = self.replays.operation(replayed, self.candidate.profile);
        (exact.shape() == own.shape()).then(|| operation.judged(&own, &right, &exact).report)
    }
}
