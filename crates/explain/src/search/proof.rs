//! How much of the candidate's numbers is left when some mistakes are imitated, and is that no more than rounding?

use std::collections::HashSet;

use firstdiff_compare::metrics::Squares;
use firstdiff_compare::{Place, Status, TapReport, is_masked};
use firstdiff_model::{Chunk, Op, Profile, Step};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, Axis};

use crate::mistakes::{Edit, StepContext, hidden_cells};
use crate::paid::evidence;
use crate::replay::operation::recorded_unit;
use crate::replay::outliers::LEAK;
use crate::replay::recorded::{Recorded, own, row_inputs};
use crate::replay::right::{both_count, distance};
use crate::replay::{ReplayError, Run, joined};
use crate::search::candidates::Candidate;
use crate::search::simulate::{Simulation, segment};
use crate::search::{Reproduction, Search};
use crate::tolerance::replay::OPERATION_ROOM;
use crate::tolerance::search::{
    AS_NOTHING, BEYOND_ROUNDING, CAUSE_LEAVES, CAUSE_LEAVES_ROUNDED, LEAK_LEAVES, LEAST_ANGLE, ROUNDED_VALUE,
    SPAN_ADDS_UP,
};

/// A recorded tap that is not what it should be, and what the search knows of it.
pub(crate) struct Target<'a> {
    pub(crate) step: &'a Step,
    pub(crate) place: Place,
    /// What the candidate recorded.
    pub(crate) own: ArrayD<f64>,
    /// The positions it holds, where not all.
    pub(crate) positions: Option<Vec<usize>>,
    /// What the step reads at those positions, where that was recorded.
    pub(crate) row_inputs: Option<Vec<ArrayD<f64>>>,
    /// The steps from the nearest recorded taps to it.
    pub(crate) steps: Vec<&'a Step>,
    /// How many of the first tokens are run, where not all.
    cut: Option<usize>,
    /// The first step in which mistakes are made: what comes before was found right.
    pub(crate) from_step: u32,
    /// The last step in which mistakes are made.
    pub(crate) until: u32,
    /// Where a masked key takes part, and that is all that is wrong: the cells that the error is measured in.
    leak: Option<Vec<[usize; 3]>>,
}

impl<'a> Target<'a> {
    /// Whether it is one row of a norm, so that any factor on it can be had by many mistakes.
    pub(crate) fn is_one_factor(&self) -> bool {
        let rows = self.own.len() / self.own.shape().last().copied().unwrap_or(1).max(1);
        !self.is_span() && rows == 1 && matches!(self.step.op, Op::RmsNorm { .. })
    }

    /// Whether its error is measured in the share of masked keys alone.
    pub(crate) fn is_of_a_leak(&self) -> bool {
        self.leak.is_some()
    }

    pub(crate) fn is_span(&self) -> bool {
        self.steps.len() > 1
    }

    pub(crate) fn new(
        run: &Run<'a>,
        step: &'a Step,
        place: Place,
        own: ArrayD<f64>,
        positions: Option<Vec<usize>>,
        row_inputs: Option<Vec<ArrayD<f64>>>,
    ) -> Target<'a> {
        let steps = if row_inputs.is_some() { vec![step] } else { segment(&run.recorded, place) };
        Target { step, place, own, positions, row_inputs, steps, cut: None, from_step: 0, until: u32::MAX, leak: None }
    }

    /// What was recorded of a place; `None` where nothing of it can be used.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn recorded(run: &Run<'a>, step: &'a Step, place: Place) -> Result<Option<Target<'a>>, ReplayError> {
        let Some((values, positions)) = own(run, place)? else { return Ok(None) };
        let rows = match &positions {
            Some(list) => row_inputs(run, step, place.step, list)?,
            None => None,
        };
        Ok(Some(Target::new(run, step, place, values, positions, rows)))
    }

    /// Measured by the share of masked keys alone, where probabilities are right (an NMSE of no more than `allowed`) but for that.
    pub(crate) fn measured_by_leak(mut self, run: &Run<'_>, report: &TapReport) -> Target<'a> {
        let small =
            report.metrics.and_then(|m| m.nmse()).zip(report.allowed).is_some_and(|(nmse, allowed)| nmse <= allowed);
        let layer = self.place.tap.layer.filter(|_| small && self.step.op == Op::Softmax && self.positions.is_none());
        let scores = layer.and_then(|layer| run.recorded.model.plan.step(Tap::layer(layer, Site::Scores)));
        if let Some(Op::Scores(right)) = scores.map(|step| &step.op) {
            let cells = hidden_cells(&self.own, right).into_iter().filter(|(_, p)| *p > LEAK).map(|(at, _)| at);
            self.leak = Some(cells.collect()).filter(|cells: &Vec<_>| !cells.is_empty());
        }
        self
    }

    /// How far an imitation is from the candidate's numbers.
    fn misfit(&self, imitated: &ArrayD<f64>) -> f64 {
        let site = self.place.tap.site;
        let Some(cells) = &self.leak else { return misfit(site, &self.own, imitated) };
        let pick = |from: &ArrayD<f64>| cells.iter().map(|&at| from[at.as_slice()]).collect::<Vec<f64>>();
        misfit(
            site,
            &ArrayD::from_shape_vec(vec![cells.len()], pick(&self.own)).unwrap_or_default(),
            &ArrayD::from_shape_vec(vec![cells.len()], pick(imitated)).unwrap_or_default(),
        )
    }

    /// Of the tap's whole value what the candidate recorded.
    pub(crate) fn listed(&self, whole: ArrayD<f64>) -> ArrayD<f64> {
        match &self.positions {
            None => whole,
            Some(list) => whole.select(Axis(self.place.tap.site.position_axis()), list),
        }
    }

    /// How many tokens are run for it.
    pub(crate) fn tokens(&self, recorded: &Recorded<'_>) -> usize {
        let all = recorded.tokens.get(self.place.step as usize).map_or(0, Vec::len);
        self.cut.map_or(all, |cut| cut.min(all))
    }

    /// The first row of the first axis that is farther off than `allowed` (an NMSE).
    pub(crate) fn first_wrong(&self, right: &ArrayD<f64>, allowed: f64) -> Option<usize> {
        let mut rows = self.own.outer_iter().zip(right.outer_iter());
        rows.position(|(own, right)| misfit(self.place.tap.site, &own.to_owned(), &right.to_owned()) > allowed)
    }

    /// The same with its first tokens alone, where it is computed from the tokens: what comes later cannot change them.
    pub(crate) fn first_rows(&self, rows: usize) -> Option<Target<'a>> {
        let from_tokens = self.steps.first().is_some_and(|s| matches!(s.op, Op::Embedding { .. }));
        let by_token =
            self.place.tap.site.axes().first() == Some(&'T') && self.positions.is_none() && self.place.step == 0;
        let cut = from_tokens && by_token && self.own.shape()[0] >= 2 * rows;
        cut.then(|| Target {
            own: self.own.slice_axis(Axis(0), (0..rows).into()).to_owned(),
            positions: None,
            row_inputs: None,
            steps: self.steps.clone(),
            cut: Some(rows),
            leak: None,
            ..*self
        })
    }
}

impl Search<'_, '_> {
    /// The target's value with these mistakes made beside those accepted.
    pub(crate) fn value(&self, target: &Target<'_>, edits: &[&Edit], profile: Profile) -> Option<ArrayD<f64>> {
        if let Some(inputs) = &target.row_inputs {
            return self.by_position(target, inputs, edits, profile);
        }
        Some(target.listed(self.imitation(target, edits, profile).run()?))
    }

    /// The run with these mistakes made beside those accepted.
    pub(crate) fn imitation<'s>(
        &'s self,
        target: &Target<'_>,
        edits: &[&'s Edit],
        profile: Profile,
    ) -> Simulation<'s, 's> {
        let before = self.accepted.iter().filter(|old| !edits.iter().any(|e| e.is_made_as(old)));
        let all = edits.iter().copied().chain(before);
        Simulation::new(self.recorded(), profile, self.shared, all, target.place, target.cut)
            .beginning(target.from_step)
            .ending(target.until)
    }

    /// A step that looks at each position by itself, at those recorded.
    fn by_position(
        &self,
        target: &Target<'_>,
        inputs: &[ArrayD<f64>],
        edits: &[&Edit],
        profile: Profile,
    ) -> Option<ArrayD<f64>> {
        if edits.iter().any(|e| e.reads != target.step.reads) {
            return None;
        }
        let tokens = self.recorded().tokens.get(target.place.step as usize)?;
        let start = self.recorded().start(target.place.step);
        let rows = target.positions.as_ref()?.iter().enumerate().map(|(row, &position)| {
            let inputs: Vec<ArrayD<f64>> = inputs.iter().map(|x| x.select(Axis(0), &[row])).collect();
            let chunk = Chunk { tokens: tokens.get(position..=position)?, start: start + position };
            let prefill = self.recorded().tokens.first().map_or(0, Vec::len);
            let at = StepContext {
                step: target.step,
                inputs: &inputs,
                chunk,
                prefill,
                model: self.recorded().model,
                profile,
                inner: &[],
                unread_from: None,
            };
            at.with(edits)
        });
        joined(&rows.collect::<Option<Vec<_>>>()?).ok()
    }

    /// What is left of the candidate's numbers by these mistakes.
    pub(crate) fn residual(&self, target: &Target<'_>, edits: &[&Edit]) -> Residual {
        Residual::of(target, self.value(target, edits, self.run.profile))
    }

    /// The same of many sets of mistakes.
    pub(crate) fn residuals(&self, target: &Target<'_>, sets: &[Vec<&Edit>]) -> Vec<Residual> {
        self.values(target, sets, self.run.profile).into_iter().map(|value| Residual::of(target, value)).collect()
    }

    /// What mistakes that give the candidate's numbers leave at the most, in our arithmetic, of an error of `base`.
    pub(crate) fn may_leave(&self, edits: &[&Edit], base: f64) -> f64 {
        let fine = base > BEYOND_ROUNDING && !self.run.is_coarse() && !is_rounding(edits);
        base * if fine { 10.0 * CAUSE_LEAVES } else { 0.3 }
    }

    /// Whether no more than rounding is left, as replay judges it; and how much.
    pub(crate) fn proved(&self, target: &Target<'_>, edits: &[&Edit], base: f64) -> Option<f64> {
        // NaN agrees with any other NaN, and tells nothing.
        if 2 * target.own.iter().filter(|x| x.is_finite() || **x == f64::NEG_INFINITY).count() < target.own.len() {
            return None;
        }
        let narrow = self.value(target, edits, self.run.profile)?;
        // Where the error is far above rounding, what is no cause is seen before anything is computed once more, in f64.
        if narrow.shape() != target.own.shape() || target.misfit(&narrow) > self.may_leave(edits, base) {
            return None;
        }
        let exact = self.value(target, edits, Profile::Exact)?;
        if narrow.shape() != target.own.shape() || exact.shape() != target.own.shape() {
            return None;
        }
        let residual = target.misfit(&narrow).min(target.misfit(&exact));
        let [own, narrow, exact] = without_shared_nan(&target.own, narrow, exact);
        if self.run.is_coarse()
            && !target.is_span()
            && matches!(target.step.op, Op::Gated { .. })
            && !is_near(&own, &narrow)
        {
            return None;
        }
        if is_rounding(edits) {
            // Another rounding is proved by its own numbers, not by being as large.
            let noise = distance(target.step.tap.site, &exact, &narrow);
            let left = misfit(target.place.tap.site, &own, &narrow);
            return (left <= 0.1 * noise.min(base)).then_some(left);
        }
        let (span, fine) = (target.is_span(), !self.run.is_coarse());
        let verdict = self.run.verdict(target.step, target.place, &own, &narrow.mapv(|x| x as f32), &exact, span);
        // Over several operations another engine's rounding adds up beyond what is allowed to one.
        let adds_up = span && fine && residual <= SPAN_ADDS_UP * verdict.report.allowed.unwrap_or(0.0);
        let proved = matches!(verdict.report.status, Status::Exact | Status::Rounding) || adds_up;
        // Within what rounding may do is not enough: another mistake of the same size would be, too. A cause takes nearly all of the error away.
        let share = if fine { CAUSE_LEAVES } else { CAUSE_LEAVES_ROUNDED };
        let noise = distance(target.step.tap.site, &exact, &narrow);
        if target.leak.is_some() {
            // What a masked key takes is as exact as e^x of a rounded score.
            return (proved && residual <= if fine { CAUSE_LEAVES } else { LEAK_LEAVES } * base).then_some(residual);
        }
        let nothing = fine
            && (residual <= AS_NOTHING * noise
                || residual <= OPERATION_ROOM * noise && residual <= CAUSE_LEAVES_ROUNDED * base);
        (proved && (residual <= share * base || nothing)).then_some(residual)
    }

    /// How far the target is off with no mistake imitated.
    pub(crate) fn bare(&self, target: &Target<'_>) -> f64 {
        Search { accepted: &[], ..*self }.residual(target, &[]).nmse
    }

    /// Whether what was accepted before explains the target as well, and how.
    pub(crate) fn already(&self, target: &Target<'_>) -> Option<Reproduction> {
        let taps: HashSet<Tap> = target.steps.iter().map(|s| s.tap).collect();
        let mut mistakes: Vec<Candidate> = Vec::new();
        for edit in self.accepted.iter().filter(|e| taps.contains(&e.tap)) {
            let key = edit.key();
            match mistakes.iter_mut().find(|m| m.key == key) {
                Some(known) => known.edits.push(edit.clone()),
                None => {
                    mistakes.push(Candidate { key, edits: vec![edit.clone()], one_of_several: false, exchanged: false })
                }
            }
        }
        if mistakes.is_empty() {
            return None;
        }
        let base = self.bare(target);
        let residual = {
            let edits: Vec<&Edit> = mistakes.iter().flat_map(|m| &m.edits).collect();
            match is_rounding(&edits) {
                true => self.proved(target, &edits, base)?,
                false => self.proved(target, &[], base).or_else(|| self.comes_out_right(target, base))?,
            }
        };
        Some(self.reproduction(target, mistakes, residual))
    }

    /// Mistakes that leave so much, with what the target's numbers carry for them.
    pub(crate) fn reproduction(&self, target: &Target<'_>, mistakes: Vec<Candidate>, residual: f64) -> Reproduction {
        let edits: Vec<&Edit> = mistakes.iter().flat_map(|m| &m.edits).collect();
        let is_other = |old: &&Edit| !edits.iter().any(|edit| edit.is_made_as(old));
        let others: Vec<Edit> = self.accepted.iter().filter(is_other).cloned().collect();
        let without = Search { accepted: &others, ..*self };
        let right = without.value(target, &[], self.run.profile);
        let each = |mistake: &Candidate| without.residual(target, &mistake.edits.iter().collect::<Vec<_>>()).nmse;
        let alone = if mistakes.len() > 1 { mistakes.iter().map(each).collect() } else { vec![residual] };
        let both = right.zip(self.value(target, &edits, self.run.profile));
        let unit = recorded_unit(self.run.profile, is_rounding(&edits));
        let site = target.place.tap.site;
        // What is made of a row by products alone is its number times the right one.
        let is_product = |step: &&Step| matches!(step.op, Op::Linear { .. } | Op::Head);
        let is_one = |e: &Edit| {
            let mut behind = target.steps.iter().rev().copied().take_while(|step| step.tap != e.tap);
            e.mistake.shows_one_number_a_row && e.tunable().is_some() && behind.all(|step| is_product(&step))
        };
        let shows_one = mistakes.iter().any(|mistake| mistake.edits.iter().all(is_one));
        let evidence = both.map(|(right, claimed)| evidence(site, [&target.own, &right, &claimed], unit, shows_one));
        let evidence = evidence.unwrap_or_default();
        Reproduction { residual, alone, evidence, mistakes, in_decoding_alone: false }
    }

    /// Whether replay would find nothing wrong, what was accepted being made: it was proved elsewhere, and need not be large here.
    fn comes_out_right(&self, target: &Target<'_>, base: f64) -> Option<f64> {
        if self.run.is_coarse() {
            return None;
        }
        let narrow = self.value(target, &[], self.run.profile)?;
        let exact = self.value(target, &[], Profile::Exact)?;
        if narrow.shape() != target.own.shape() || exact.shape() != target.own.shape() {
            return None;
        }
        let residual = [&narrow, &exact].map(|value| misfit(target.place.tap.site, &target.own, value));
        let residual = residual[0].min(residual[1]);
        let narrow = narrow.mapv(|x| x as f32);
        let verdict = self.run.verdict(target.step, target.place, &target.own, &narrow, &exact, target.is_span());
        (verdict.report.status.agrees() && residual < base).then_some(residual)
    }
}

/// Whether one of them is another rounding of the same numbers.
fn is_rounding(edits: &[&Edit]) -> bool {
    edits.iter().any(|e| e.mistake.is_another_arithmetic)
}

/// What is NaN in all three is reproduced as well as it can be: 0 in all.
fn without_shared_nan(own: &ArrayD<f64>, mut narrow: ArrayD<f64>, mut exact: ArrayD<f64>) -> [ArrayD<f64>; 3] {
    let mut own = own.clone();
    ndarray::Zip::from(&mut own).and(&mut narrow).and(&mut exact).for_each(|o, n, e| {
        if o.is_nan() && n.is_nan() && e.is_nan() {
            (*o, *n, *e) = (0.0, 0.0, 0.0);
        }
    });
    [own, narrow, exact]
}

/// Whether each value is its counterpart, rounded: of an operation that adds nothing up. 0 is never rounded to anything else.
fn is_near(own: &ArrayD<f64>, imitated: &ArrayD<f64>) -> bool {
    let (energy, count) = imitated.iter().filter(|x| x.is_finite()).fold((0.0, 1.0), |(e, n), x| (e + x * x, n + 1.0));
    let least = 1e-6 * (energy / count).sqrt();
    own.iter()
        .zip(imitated)
        .all(|(o, i)| !o.is_finite() || !i.is_finite() || (o - i).abs() <= ROUNDED_VALUE * i.abs() + least)
}

/// How far an imitation is from the candidate's numbers.
#[derive(Clone, Copy)]
pub(crate) struct Residual {
    /// Σ(imitated - own)² / Σ own².
    pub(crate) nmse: f64,
    /// What grows a set of mistakes: how near in direction, row by row.
    pub(crate) angle: f64,
}

impl Residual {
    pub(crate) fn of(target: &Target<'_>, value: Option<ArrayD<f64>>) -> Residual {
        let value = value.filter(|x| x.shape() == target.own.shape());
        value.map_or(Residual { nmse: f64::INFINITY, angle: 1.0 }, |value| Residual {
            nmse: target.misfit(&value),
            angle: angle(target.place.tap.site, &target.own, &value),
        })
    }
}

/// The geometric mean, over the rows of the first axis, of 1 - correlation². One row that comes out exactly (position 0, which no rotation and no
/// mask can harm) tells more than all others a little nearer.
fn angle(site: Site, own: &ArrayD<f64>, imitated: &ArrayD<f64>) -> f64 {
    let logs = own.outer_iter().zip(imitated.outer_iter()).map(|(own, imitated)| {
        let seen = own.iter().zip(&imitated).filter(|(o, i)| both_count(site, **o, **i));
        let (dot, own, other) = seen.fold((0.0, 0.0, 0.0), |(d, o, e), (x, y)| (d + x * y, o + x * x, e + y * y));
        let share = if own > 0.0 && other > 0.0 && dot > 0.0 { 1.0 - dot * dot / (own * other) } else { 1.0 };
        share.max(LEAST_ANGLE).ln()
    });
    let logs: Vec<f64> = logs.collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}

/// Σ(imitated - own)² / Σ own²; what is finite on one side alone counts as all wrong.
pub(crate) fn misfit(site: Site, own: &ArrayD<f64>, imitated: &ArrayD<f64>) -> f64 {
    let (mut squares, mut foreign, mut count) = (Squares::default(), 0usize, 0usize);
    for (o, i) in own.iter().zip(imitated) {
        count += 1;
        let hidden = |x: &f64| !x.is_finite() || is_masked(site, *x);
        match (hidden(o), hidden(i)) {
            (false, false) => {
                squares.add(*o, *i);
            }
            (true, true) if o.is_nan() == i.is_nan() => {}
            _ => foreign += 1,
        }
    }
    let share = foreign as f64 / count.max(1) as f64;
    squares.nmse() + share
}
