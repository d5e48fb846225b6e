//! What a slice gives with some operations carried out otherwise, and what that leaves of the candidate's values.

use std::collections::BTreeSet;

use firstdiff_model::Profile;
use firstdiff_program::{Baseline, Bench, Edit, Operand, Slice};
use ndarray::{ArrayD, ArrayView1};

use super::{Search, Target};
use crate::program::arrays::array;
use crate::program::form::{Form, rounded_to};
use crate::program::held::rounded_to_type;
use crate::program::routing::read_by;
use crate::replay::operation::is_coarse;
use crate::replay::right::{distance, hides_others};
use crate::tolerance::replay::OWN_ROUNDING;
use crate::tolerance::search::{
    CAUSE_LEAVES, CAUSE_LEAVES_ROUNDED, F32_LEAVES, FINEST, NEARER, NEARLY_LEAVES, ONE_DIRECTION, ROUNDING_ROOM,
    SAME_RESIDUAL, SPAN_ADDS_UP, TUNED_TO_ROUNDING,
};

/// A number that was fitted is said with so many digits at the most.
const MOST_DIGITS: i32 = 12;

impl<'a> Search<'a> {
    /// What the slice gives with some operations carried out otherwise.
    pub(crate) fn value(&self, slice: &Slice<'_>, edits: &[Edit]) -> Option<ArrayD<f64>> {
        self.value_on(&self.exact, slice, edits)
    }

    /// What the candidate holds of the tap that a slice makes; at positions that it does not hold, what is due.
    pub(crate) fn whole(&self, slice: &Slice<'_>) -> Option<ArrayD<f64>> {
        let program = self.recording.program;
        match self.held.positions(slice.target()) {
            Some(part) => Some(part.within(&self.held.made_with_cache((&self.exact, program), slice, &[])?)),
            None => self.held.recorded(slice.target()),
        }
    }

    /// The same, with what it gives in the candidate's arithmetic, where both have one shape.
    pub(super) fn exact_and_rounded(&self, slice: &Slice<'_>, edits: &[Edit]) -> Option<(ArrayD<f64>, ArrayD<f64>)> {
        let exact = self.value(slice, edits)?;
        let right = self.rounded.as_ref().map_or_else(|| Some(exact.clone()), |b| self.value_on(b, slice, edits))?;
        (right.shape() == exact.shape()).then_some((exact, right))
    }

    /// The same in another arithmetic, at the positions that the candidate holds.
    pub(crate) fn value_on(&self, bench: &Bench<'_>, slice: &Slice<'_>, edits: &[Edit]) -> Option<ArrayD<f64>> {
        let all = self.held.made_with_cache((bench, self.recording.program), slice, edits)?;
        Some(self.held.at_its_positions(slice.target(), all))
    }

    /// How many different ids a lookup reads otherwise, and of how many rows, where operations reach what a slice makes by such ids alone.
    pub(super) fn changed_ids(&self, slice: &Slice<'_>, edits: &[Edit]) -> Option<(usize, usize)> {
        let (program, ops) = (self.recording.program, slice.ops().collect::<BTreeSet<usize>>());
        let is_activation =
            |op: usize| program.ops()[op].outputs.iter().flatten().any(|v| program.is_activation(v.buffer));
        let mut open: Vec<usize> = edits.iter().map(|edit| edit.at.op()).collect::<Option<_>>()?;
        let (mut seen, mut lookups) = (BTreeSet::new(), BTreeSet::new());
        while let Some(at) = open.pop() {
            if is_activation(at) {
                return None;
            }
            for &reader in program.readers(at).iter().filter(|reader| ops.contains(reader)) {
                match program.ops()[reader].base() {
                    "embedding" => _ = lookups.insert(reader),
                    _ if seen.insert(reader) => open.push(reader),
                    _ => {}
                }
            }
        }
        let lookup = lookups.first().map(|&op| (op, &program.ops()[op].operands[..]));
        let Some((op, [Operand::View(table), Operand::View(ids), ..])) = lookup else { return None };
        let read =
            |edits: &[Edit]| read_by((slice, edits), &self.exact, op, &[ids], &|tap| self.held.value(tap))?.pop();
        let (due, own) = (read(&[])?, read(edits)?);
        let pairs: BTreeSet<[u64; 2]> = due
            .iter()
            .zip(&own)
            .filter(|(due, own)| due != own)
            .map(|(due, own)| [due.to_bits(), own.to_bits()])
            .collect();
        Some((pairs.len(), table.shape.first().copied()?))
    }

    /// All that a slice computes as it is.
    pub(super) fn baseline(&self, slice: &Slice<'_>) -> Option<Baseline<'a>> {
        slice.baseline(&self.exact, &|tap| self.held.value(tap)).ok()
    }

    /// The value of a target with some operations carried out otherwise; what they do not touch is computed once.
    pub(super) fn beside_the_baseline(&self, target: &Target<'_>, edits: &[Edit]) -> Option<ArrayD<f64>> {
        let value = |tap: usize| self.held.value(tap);
        let keeping = self.held.keeping(self.recording.program, target.slice, rounded_to_type);
        let edits = [&keeping[..], edits].concat();
        let all = array(&target.slice.evaluate_beside(&target.baseline, &value, &edits).ok()?);
        Some(self.held.at_its_positions(target.slice.target(), all))
    }

    /// The arithmetic of a candidate that rounds to few bits.
    pub(super) fn coarse(&self) -> Option<&Bench<'a>> {
        self.rounded.as_ref().filter(|_| is_coarse(self.candidate.profile))
    }

    /// What operations that are done otherwise leave: of the exact value, or of the candidate's own arithmetic, which may leave nothing where that leaves
    /// rounding.
    pub(super) fn residual(&self, target: &Target<'_>, edits: &[Edit]) -> Option<f64> {
        self.measured(target, edits).map(|(residual, _)| residual)
    }

    /// The same, and what is left whatever factor the result has: of several mistakes some alone may give the right shape in another size.
    pub(super) fn measured(&self, target: &Target<'_>, edits: &[Edit]) -> Option<(f64, f64)> {
        let (left, unlike) = self.left(target, || self.beside_the_baseline(target, edits))?;
        let is_near = left < NEARER * target.base || left <= OWN_ROUNDING * target.rounding;
        let rounded = self
            .coarse()
            .filter(|_| is_near)
            .and_then(|bench| self.left(target, || self.value_on(bench, target.slice, edits)));
        Some((rounded.map_or(left, |(rounded, _)| rounded.min(left)), unlike))
    }

    /// What each of some sets of edits leaves, as by [`Search::measured`], several measured at once; fewer where time, or this share of it, runs out.
    pub(super) fn measured_each(&self, target: &Target<'_>, sets: &[Vec<Edit>], share: f64) -> Vec<Option<(f64, f64)>> {
        let is_late = || self.is_late(target) || target.budget.is_spent_by(share);
        let measured = target.at_once(sets, |edits| (!is_late()).then(|| self.measured(target, edits)));
        measured.into_iter().map_while(|measured| measured).collect()
    }

    pub(super) fn left(&self, target: &Target<'_>, value: impl FnOnce() -> Option<ArrayD<f64>>) -> Option<(f64, f64)> {
        let value = self.moment.spend(|| target.budget.spend(value));
        let value = value.filter(|value| value.shape() == target.own.shape())?;
        // The same values must be hidden: what is hidden counts for nothing.
        if value.iter().any(|x| x.is_nan()) || hides_others(target.place.tap.last_site(), &value, &target.own) > 0.0 {
            return None;
        }
        let left = target.scale * distance(target.place.tap.last_site(), &target.own, &value);
        left.is_finite().then(|| (left, unlike(&target.own, &value)))
    }

    /// Whether a form leaves no more than rounding, by the judge that found the tap wrong.
    pub(super) fn proves(&self, target: &Target<'_>, edits: &[Edit], residual: f64) -> bool {
        let (leaves, most) = match is_coarse(self.candidate.profile) {
            true => (CAUSE_LEAVES_ROUNDED, NEARLY_LEAVES),
            false => (CAUSE_LEAVES, CAUSE_LEAVES),
        };
        let adds_up = if target.operation.is_span { SPAN_ADDS_UP } else { 1.0 };
        let floor = if self.candidate.profile == Profile::F32 { adds_up * F32_LEAVES } else { 0.0 };
        if residual > (most * target.base).max(floor) {
            return false;
        }
        let Some((exact, right)) = self.exact_and_rounded(target.slice, edits) else { return false };
        // What is left may be the rounding that a right run has, where all of the error is not much more than that.
        let rounding = (ROUNDING_ROOM * distance(target.place.tap.last_site(), &right, &exact)).max(floor);
        // Where the size alone is none, it must not become one.
        let is_left = residual <= (leaves * target.base).max(rounding).min(ROUNDING_ROOM * target.off);
        is_left && target.operation.judged(&target.own, &right, &exact).report.status.agrees()
    }

    /// The number that leaves least, a plain one where that leaves as little.
    pub(super) fn tuned(&self, target: &Target<'_>, form: &Form, beside: &[Edit]) -> Option<Form> {
        let tune = form.tune.as_ref()?;
        let edits = |value: f64| [beside, &(tune.with)(value)].concat();
        let at = |value: f64| self.residual(target, &edits(value)).unwrap_or(f64::INFINITY);
        // One operation is done in one way.
        let program = self.recording.program;
        if (tune.with)(tune.right).iter().any(|own| beside.iter().any(|other| !other.is_beside(own, program))) {
            return None;
        }
        let unit = tune.first;
        let begin = at(unit);
        // Whether it matters at all.
        if (at(1.01 * unit) - begin).abs() <= SAME_RESIDUAL * target.base.min(begin) {
            return None;
        }
        let mut least = (begin, unit);
        let mut search = |values: &mut dyn Iterator<Item = f64>| {
            values.map(|value| (at(value), value)).for_each(|found| {
                if found.0 < least.0 {
                    least = found
                }
            });
            least
        };
        let powers = |range: std::ops::RangeInclusive<i32>, decades: f64| {
            range.map(move |power| 10f64.powf(f64::from(power) * decades))
        };
        let (_, near) = search(&mut powers(-6..=6, 1.0).map(|times| unit * times));
        search(&mut powers(-3..=3, 0.25).map(|times| near * times));
        // A number may be nearly right.
        search(&mut powers(-6..=-1, 0.5).flat_map(|by| [unit * (1.0 - by), unit * (1.0 + by)]));
        let (residual, near) = search(&mut powers(-4..=4, 0.25).map(|times| -unit * times));
        if residual >= NEARER * target.base {
            return None;
        }
        let (_, near) = search(&mut powers(-10..=10, 0.025).map(|times| near * times));
        let span = 10f64.powf(0.025);
        let (low, high) = if near < 0.0 { (near * span, near / span) } else { (near / span, near * span) };
        let nearest = crate::minimum::least(at, low, high, FINEST * near.abs());
        let (least, best) = search(&mut std::iter::once(nearest));
        // What is as well without the number is not another number: something is left out.
        let enough = (4.0 * least).max(TUNED_TO_ROUNDING);
        if tune.right != 0.0 && at(0.0) <= enough {
            return None;
        }
        let best = if best < 0.0 && at(-best) <= enough { -best } else { best };
        if tune.is_whole {
            // Another number may make up for what rounding, or an epsilon, leaves beside a whole one.
            let enough = enough.max(CAUSE_LEAVES * target.base);
            return Some(best.round()).filter(|&whole| at(whole) <= enough).map(|whole| form.tuned(whole));
        }
        let plain = (1..=6).map(|digits| rounded_to(best, digits)).find(|&value| at(value) <= enough);
        Some(form.tuned(plain.unwrap_or_else(|| rounded_to(best, MOST_DIGITS))))
    }
}

/// Whether each row is a multiple of the other's.
pub(super) fn are_multiples(a: &ArrayD<f64>, b: &ArrayD<f64>) -> bool {
    let row = |row: ArrayView1<'_, f64>| row.to_owned().into_dyn();
    let is_one = |(a, b): (ArrayView1<'_, f64>, ArrayView1<'_, f64>)| unlike(&row(a), &row(b)) <= ONE_DIRECTION;
    let are_shown_alike = || a.iter().zip(b).all(|(a, b)| a.is_finite() == b.is_finite());
    a.shape() == b.shape() && a.ndim() > 0 && are_shown_alike() && a.rows().into_iter().zip(b.rows()).all(is_one)
}

/// What the best multiple of one leaves of the other, as a share of that.
pub(super) fn unlike(own: &ArrayD<f64>, value: &ArrayD<f64>) -> f64 {
    let both = || own.iter().zip(value).filter(|(own, value)| own.is_finite() && value.is_finite());
    let sum = |of: fn(f64, f64) -> f64| both().map(|(own, value)| of(*own, *value)).sum::<f64>();
    let (cross, size) = (sum(|a, b| a * b), sum(|a, _| a * a) * sum(|_, b| b * b));
    if cross > 0.0 && size > 0.0 { 1.0 - cross * cross / size } else { 1.0 }
}
