//! Which mistakes reproduce what the candidate recorded? Tried singly, then in pairs and more, grown by how much of the error they take away.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use firstdiff_compare::{Place, Status};
use firstdiff_model::{Chunk, Op, Profile, Step};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, Axis};
use rayon::prelude::*;

use crate::imitate::{Imitation, Shared, segment};
use crate::mistakes::{At, Edit, Seen, fitted, listed, snapped};
use crate::recorded::Recorded;
use crate::replay::{Run, joined};
use crate::right::distance;

/// How far to look.
#[derive(Clone, Debug)]
pub struct Effort {
    /// The ids to try; all of the catalogue where empty.
    pub only: Vec<String>,
    /// Mistakes at once between two recorded taps, at most.
    pub faults: usize,
    /// Seconds for each stretch after which no further combination is begun.
    pub seconds: f64,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { only: Vec::new(), faults: 4, seconds: 60.0 }
    }
}

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
}

impl<'a> Target<'a> {
    pub(crate) fn is_stretch(&self) -> bool {
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
        Target { step, place, own, positions, row_inputs, steps, cut: None }
    }

    /// The same with its first tokens alone, where it is computed from the tokens: what comes later cannot change them.
    fn first_rows(&self, rows: usize) -> Option<Target<'a>> {
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
            ..*self
        })
    }
}

/// A mistake, wherever it is made.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) key: String,
    pub(crate) edits: Vec<Edit>,
    /// Whether it is made in one layer, and a candidate of its own makes it in all.
    pub(crate) one_of_several: bool,
}

impl Candidate {
    /// The same mistake with another value of the parameter that may have any.
    fn tuned(&self, value: f64) -> Candidate {
        let edits: Vec<Edit> = self.edits.iter().map(|e| e.tuned(value)).collect();
        Candidate { key: edits[0].key(), edits, one_of_several: self.one_of_several }
    }

    pub(crate) fn id(&self) -> &'static str {
        self.edits[0].id
    }
}

/// One way to reproduce a target.
#[derive(Clone)]
pub(crate) struct Reproduction {
    pub(crate) mistakes: Vec<Candidate>,
    /// NMSE that it leaves.
    pub(crate) residual: f64,
}

/// What a search found.
#[derive(Default)]
pub(crate) struct Result {
    /// Error before any edit.
    pub(crate) base: f64,
    /// All that leave no more than rounding, none of more mistakes than another.
    pub(crate) reproduced: Vec<Reproduction>,
    /// What came nearest, if anything takes away a part of the error.
    pub(crate) closest: Option<Reproduction>,
    /// The best residual of every id that was tried.
    pub(crate) tried: BTreeMap<&'static str, f64>,
}

/// Sites that share one piece of an engine's code.
const SCOPES: &[&[Site]] = &[
    &[Site::QRope, Site::KRope],
    &[Site::AttnNorm, Site::FfnNorm, Site::FinalNorm],
    &[Site::AttnNorm, Site::FfnNorm, Site::FinalNorm, Site::QNorm, Site::KNorm],
    &[Site::AttnNorm, Site::FfnNorm],
    &[Site::QNorm, Site::KNorm],
    &[Site::Q, Site::K, Site::V],
    &[Site::Q, Site::K],
    &[Site::K, Site::V],
    &[Site::Q, Site::K, Site::V, Site::AttnOut],
    &[Site::FfnGate, Site::FfnUp],
    &[Site::FfnGate, Site::FfnUp, Site::FfnOut],
    &[Site::Q, Site::K, Site::V, Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut],
    &[Site::Q, Site::K, Site::V, Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut, Site::Logits],
    &[Site::H0, Site::Q, Site::K, Site::V, Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut],
    &[Site::H0, Site::Q, Site::K, Site::V, Site::AttnOut, Site::FfnGate, Site::FfnUp, Site::FfnOut, Site::Logits],
    &ALL,
    &IN_LAYERS,
    &[Site::Qk, Site::Context],
    &[Site::HAttn, Site::H],
    &[Site::Scores, Site::Probs],
    &[Site::QNorm, Site::KNorm, Site::QRope, Site::KRope, Site::Qk],
];

/// Every site with weights.
const ALL: [Site; 14] = [
    Site::H0,
    Site::AttnNorm,
    Site::Q,
    Site::K,
    Site::V,
    Site::QNorm,
    Site::KNorm,
    Site::AttnOut,
    Site::FfnNorm,
    Site::FfnGate,
    Site::FfnUp,
    Site::FfnOut,
    Site::FinalNorm,
    Site::Logits,
];

/// Those in layers.
const IN_LAYERS: [Site; 11] = [
    Site::AttnNorm,
    Site::Q,
    Site::K,
    Site::V,
    Site::QNorm,
    Site::KNorm,
    Site::AttnOut,
    Site::FfnNorm,
    Site::FfnGate,
    Site::FfnUp,
    Site::FfnOut,
];

/// Projections that are taken for each other.
const EXCHANGED: &[(Site, Site)] =
    &[(Site::K, Site::V), (Site::FfnGate, Site::FfnUp), (Site::Q, Site::K), (Site::Q, Site::V)];

pub(crate) struct Search<'r, 'a> {
    pub(crate) run: &'r Run<'a>,
    pub(crate) shared: &'r Shared,
    pub(crate) effort: &'r Effort,
    /// What was found before, in steps that are computed now.
    pub(crate) accepted: &'r [Edit],
}

impl<'a> Search<'_, 'a> {
    fn recorded(&self) -> &Recorded<'a> {
        &self.run.recorded
    }

    /// The target's value with these mistakes made beside those accepted.
    pub(crate) fn value(&self, target: &Target<'_>, edits: &[&Edit], profile: Profile) -> Option<ArrayD<f64>> {
        if let Some(inputs) = &target.row_inputs {
            return self.by_position(target, inputs, edits, profile);
        }
        let before = self.accepted.iter().filter(|old| !edits.iter().any(|e| e.tap == old.tap && e.key() == old.key()));
        let all = edits.iter().copied().chain(before);
        let whole = Imitation::new(self.recorded(), profile, self.shared, all, target.place, target.cut).run()?;
        match &target.positions {
            None => Some(whole),
            Some(list) => Some(whole.select(Axis(0), list)),
        }
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
            let at = At {
                step: target.step,
                inputs: &inputs,
                chunk,
                prefill,
                model: self.recorded().model,
                profile,
                inner: &[],
                unread_from: None,
            };
            match edits.split_first() {
                None => at.right(),
                Some((first, inner)) => first.value(&At { inner, ..at }),
            }
        });
        joined(&rows.collect::<Option<Vec<_>>>()?).ok()
    }

    /// What is left of the candidate's numbers by these mistakes.
    fn residual(&self, target: &Target<'_>, edits: &[&Edit]) -> Left {
        let value = self.value(target, edits, self.run.profile);
        let value = value.filter(|x| x.shape() == target.own.shape());
        value.map_or(Left { nmse: f64::INFINITY, angle: 1.0 }, |value| Left {
            nmse: misfit(&target.own, &value),
            angle: angle(&target.own, &value),
        })
    }

    /// Whether no more than rounding is left, as replay judges it; and how much.
    pub(crate) fn proved(&self, target: &Target<'_>, edits: &[&Edit], base: f64) -> Option<f64> {
        // NaN agrees with any other NaN, and tells nothing.
        if 2 * target.own.iter().filter(|x| x.is_finite() || **x == f64::NEG_INFINITY).count() < target.own.len() {
            return None;
        }
        let narrow = self.value(target, edits, self.run.profile)?;
        let exact = self.value(target, edits, Profile::Exact)?;
        if narrow.shape() != target.own.shape() || exact.shape() != target.own.shape() {
            return None;
        }
        let residual = misfit(&target.own, &narrow).min(misfit(&target.own, &exact));
        let [own, narrow, exact] = without_shared_nan(&target.own, narrow, exact);
        if edits.iter().any(|e| e.id == "precision") {
            // Another rounding is proved by its own numbers, not by being as large.
            let noise = distance(&exact, &narrow);
            return (misfit(&own, &narrow) <= 0.1 * noise).then_some(residual);
        }
        let (stretch, fine) = (target.is_stretch(), matches!(self.run.profile, Profile::Exact | Profile::F32));
        let verdict = self.run.verdict(target.step, target.place, &own, &narrow.mapv(|x| x as f32), &exact, stretch);
        // Over several operations another engine's rounding adds up beyond what is allowed to one.
        let adds_up = stretch && fine && residual <= ADDS_UP * verdict.report.allowed.unwrap_or(0.0);
        let proved = matches!(verdict.report.status, Status::Exact | Status::Rounding) || adds_up;
        // Within what rounding may do is not enough: another mistake of the same size would be, too. A cause takes nearly all of the error away.
        let share = if fine { EXPLAINS } else { EXPLAINS_ROUNDED };
        let nothing = fine && residual <= LITTLE * distance(&exact, &narrow);
        (proved && (residual <= share * base || nothing)).then_some(residual)
    }

    /// Whether what was accepted before explains the target as well, and how.
    pub(crate) fn already(&self, target: &Target<'_>) -> Option<Reproduction> {
        let taps: HashSet<Tap> = target.steps.iter().map(|s| s.tap).collect();
        let mut mistakes: Vec<Candidate> = Vec::new();
        for edit in self.accepted.iter().filter(|e| taps.contains(&e.tap)) {
            let key = edit.key();
            match mistakes.iter_mut().find(|m| m.key == key) {
                Some(known) => known.edits.push(edit.clone()),
                None => mistakes.push(Candidate { key, edits: vec![edit.clone()], one_of_several: false }),
            }
        }
        if mistakes.is_empty() {
            return None;
        }
        let base = Search { accepted: &[], ..*self }.residual(target, &[]).nmse;
        let residual = self.proved(target, &[], base)?;
        Some(Reproduction { mistakes, residual })
    }

    /// Every mistake that can be made in the steps of the target.
    pub(crate) fn candidates(&self, target: &Target<'_>) -> Vec<Candidate> {
        let recorded = self.recorded();
        let mut all: Vec<Edit> = Vec::new();
        for step in &target.steps {
            if matches!(step.op, Op::Embedding { .. }) && !self.run.known {
                continue;
            }
            all.extend(listed(recorded.model, step, &recorded.tokens));
        }
        if !target.is_stretch() {
            all.extend(self.fitted(target));
        }
        let has = |edit: &Edit| self.accepted.iter().any(|old| old.tap == edit.tap && old.key() == edit.key());
        let only = &self.effort.only;
        all.retain(|edit| !has(edit) && (only.is_empty() || only.iter().any(|id| id == edit.id)));
        if target.is_stretch() { grouped(all, target) } else { all.into_iter().map(single).collect() }
    }

    fn fitted(&self, target: &Target<'_>) -> Vec<Edit> {
        let recorded = self.recorded();
        let number = target.place.step;
        let inputs = match &target.row_inputs {
            Some(inputs) => Some(inputs.clone()),
            None => Imitation::new(recorded, Profile::Exact, self.shared, [], target.place, None)
                .inputs(target.step, number),
        };
        let (Some(inputs), Some(right)) = (inputs, self.value(target, &[], Profile::Exact)) else { return Vec::new() };
        let Some(tokens) = recorded.tokens.get(number as usize) else { return Vec::new() };
        let mut start = recorded.start(number);
        let mut tokens = tokens.as_slice();
        if let (Some(_), Some(list)) = (&target.row_inputs, &target.positions) {
            // One run of positions, or none.
            let [first, ..] = list[..] else { return Vec::new() };
            if list.windows(2).any(|pair| pair[1] != pair[0] + 1) {
                return Vec::new();
            }
            start += first;
            tokens = &tokens[first..first + list.len()];
        } else if target.positions.is_some() {
            return Vec::new();
        }
        let seen = Seen { inputs: &inputs, own: &target.own, right: &right, chunk: Chunk { tokens, start } };
        fitted(recorded.model, target.step, &seen)
    }

    /// Tries `candidates` one by one, and, if none is it, several at once. `progress` is told what is tried and how many of how many.
    ///
    /// Over several layers a mistake in all of them is what sets grow by first: an engine's layers share their code.
    pub(crate) fn run(
        &self,
        target: &Target<'_>,
        mut candidates: Vec<Candidate>,
        progress: &(dyn Fn(&str, usize, usize) + Sync),
    ) -> Result {
        let base = self.residual(target, &[]);
        let mut result = Result { base: base.nmse, ..Result::default() };
        let all: Vec<usize> = (0..candidates.len()).collect();
        let shared: Vec<usize> = all.iter().copied().filter(|&at| !candidates[at].one_of_several).collect();
        let one = |set: &[usize]| -> Vec<Vec<usize>> { set.iter().map(|&at| vec![at]).collect() };
        let mut tried = match target.first_rows(SCREEN).filter(|_| self.is_large()) {
            Some(screen) => self.screened(target, &screen, &candidates, one(&shared), &mut result, progress),
            None => self.measure(target, &candidates, one(&shared), 4.0, "single mistakes", progress),
        };
        self.remember(&candidates, &tried, &mut result);
        self.settle(target, &candidates, &mut tried, &mut result);
        if result.reproduced.is_empty() {
            let alone: Vec<usize> = all.iter().copied().filter(|&at| candidates[at].one_of_several).collect();
            let mut alone = self.measure(target, &candidates, one(&alone), 1.0, "mistakes in one layer", progress);
            self.settle(target, &candidates, &mut alone, &mut result);
            tried.extend(alone);
        }
        let singles = tried.clone();
        for faults in 2..=self.effort.faults + 1 {
            if !result.reproduced.is_empty() {
                break;
            }
            let mut tuned =
                self.tuned(target, &mut candidates, &tried, base, if faults == 2 { 8 * TUNED } else { TUNED });
            self.settle(target, &candidates, &mut tuned, &mut result);
            if !result.reproduced.is_empty() || faults > self.effort.faults {
                break;
            }
            tried.extend(tuned);
            let beam = grown(&tried, base, if faults == 2 { WIDE } else { NARROW });
            let by = if faults == 2 && all.len() < FEW { &all } else { &shared };
            let sets = extended(&beam, by, &candidates);
            tried = self.measure(target, &candidates, sets, 1.0, &format!("{faults} mistakes at once"), progress);
            self.settle(target, &candidates, &mut tried, &mut result);
        }
        self.stand_ins(target, &candidates, &singles, &mut result);
        result
    }

    /// The nearest sets that hold a parameter that may have any value, that value fitted. New candidates go to the end of `candidates`.
    fn tuned(
        &self,
        target: &Target<'_>,
        candidates: &mut Vec<Candidate>,
        tried: &[(Vec<usize>, Left)],
        base: Left,
        most: usize,
    ) -> Vec<(Vec<usize>, Left)> {
        let tunable = |at: usize| candidates[at].edits[0].tunable().is_some();
        let mut order: Vec<&(Vec<usize>, Left)> =
            tried.iter().filter(|(set, _)| set.iter().any(|&at| tunable(at))).collect();
        // The nearest in direction and the nearest in all, in turn.
        let mut by_angle = order.clone();
        order.sort_by(|a, b| a.1.nmse.total_cmp(&b.1.nmse));
        by_angle.sort_by(|a, b| a.1.angle.total_cmp(&b.1.angle));
        let order: Vec<_> = by_angle.into_iter().zip(order).flat_map(|(a, b)| [a, b]).collect();
        // One beginning for each set of ids and sites.
        let kind = |set: &[usize]| -> Vec<(&'static str, Vec<Tap>)> {
            let of = |&at: &usize| (candidates[at].id(), candidates[at].edits.iter().map(|e| e.tap).collect());
            set.iter().map(of).collect()
        };
        let mut kinds = HashSet::new();
        let seeds: Vec<Vec<usize>> = order
            .into_iter()
            .filter(|(set, left)| left.nmse.is_finite() && kinds.insert(kind(set)))
            .map(|(set, _)| set.clone())
            .take(most)
            .collect();
        let seeds = if self.is_large() { seeds.into_iter().take(2).collect() } else { seeds };
        let fitted: Vec<(Vec<Candidate>, Left)> = seeds
            .into_par_iter()
            .filter_map(|set| {
                let mut mistakes: Vec<Candidate> = set.iter().map(|&at| candidates[at].clone()).collect();
                let left = self.tune(target, &mut mistakes)?;
                (left.nmse < base.nmse).then_some((mistakes, left))
            })
            .collect();
        let mut out = Vec::new();
        for (mistakes, left) in fitted {
            let first = candidates.len();
            let count = mistakes.len();
            candidates.extend(mistakes);
            out.push(((first..first + count).collect(), left));
        }
        out
    }

    /// Fits each free parameter of a set in turn: a scan over a factor of 8 either way, then golden sections.
    fn tune(&self, target: &Target<'_>, mistakes: &mut [Candidate]) -> Option<Left> {
        for at in 0..mistakes.len() {
            let Some((begin, whole)) =
                mistakes[at].edits[0].tunable().filter(|(x, whole)| *x > 0.0 && !(*whole && self.is_coarse()))
            else {
                continue;
            };
            let with = |x: f64, mistakes: &[Candidate]| -> Left {
                let tuned = mistakes[at].tuned(x);
                let others = mistakes.iter().enumerate();
                let edits: Vec<&Edit> =
                    others.flat_map(|(i, m)| if i == at { &tuned.edits } else { &m.edits }).collect();
                self.residual(target, &edits)
            };
            let f = |log: f64| with(log.exp(), mistakes).nmse;
            let step = 8f64.ln() / 6.0;
            let scan = (-6..=6).map(|i| begin.ln() + f64::from(i) * step);
            let (rough, _) = scan.map(|log| (log, f(log))).min_by(|a, b| a.1.total_cmp(&b.1))?;
            let near = golden(f, rough - step, rough + step, 1e-2);
            // What a percent more or less does not nearly settle, no digit will.
            if f(near) > 0.5 * f(begin.ln()) {
                continue;
            }
            let fine = golden(f, near - 2e-2, near + 2e-2, 1e-8).exp();
            let near = if whole {
                vec![fine.round()]
            } else {
                vec![snapped(fine, 1e-3), format!("{fine:.5e}").parse().unwrap_or(fine), fine]
            };
            // The plainest number that leaves as little as the best, to rounding.
            let left: Vec<f64> = near.iter().map(|&x| with(x, mistakes).nmse).collect();
            let least = left.iter().copied().fold(f64::INFINITY, f64::min);
            let best = left.iter().position(|&l| l <= 4.0 * least + 1e-13)?;
            mistakes[at] = mistakes[at].tuned(near[best]);
        }
        let edits: Vec<&Edit> = mistakes.iter().flat_map(|m| &m.edits).collect();
        Some(self.residual(target, &edits))
    }

    /// The best residual of each id.
    fn remember(&self, candidates: &[Candidate], tried: &[(Vec<usize>, Left)], result: &mut Result) {
        for (set, left) in tried {
            let best = result.tried.entry(candidates[set[0]].id()).or_insert(f64::INFINITY);
            *best = best.min(left.nmse);
        }
    }

    /// Whether a whole number cannot be told from its neighbours.
    fn is_coarse(&self) -> bool {
        !matches!(self.run.profile, Profile::Exact | Profile::F32)
    }

    fn is_large(&self) -> bool {
        self.recorded().model.plan.dims.hidden > 1024
    }

    /// What each mistake leaves, of those that are not far off on the first rows already.
    fn screened(
        &self,
        target: &Target<'_>,
        screen: &Target<'_>,
        candidates: &[Candidate],
        sets: Vec<Vec<usize>>,
        result: &mut Result,
        progress: &(dyn Fn(&str, usize, usize) + Sync),
    ) -> Vec<(Vec<usize>, Left)> {
        // What looks at all tokens cannot be cut.
        let whole = |set: &[usize]| {
            let id = candidates[set[0]].id();
            const WHOLE: [&str; 9] = [
                "mask-",
                "softmax-axis",
                "norm-axis",
                "head-layout",
                "context-layout",
                "logit-row",
                "window-",
                "kv-cache",
                "tokens-",
            ];
            WHOLE.iter().any(|start| id.starts_with(start))
        };
        let (all, cut): (Vec<_>, Vec<_>) = sets.into_iter().partition(|set| whole(set));
        let shared = Shared::default();
        let search = Search { shared: &shared, ..*self };
        let mut first = search.measure(screen, candidates, cut, 4.0, "single mistakes, on the first tokens", progress);
        self.remember(candidates, &first, result);
        first.sort_by(|a, b| a.1.nmse.total_cmp(&b.1.nmse));
        let best = first.iter().take(KEPT).map(|(set, _)| set.clone()).chain(all).collect();
        self.measure(target, candidates, best, 4.0, "single mistakes", progress)
    }

    /// What each set leaves; sets whose turn did not come before `share` of the time ran out are missing.
    fn measure(
        &self,
        target: &Target<'_>,
        candidates: &[Candidate],
        sets: Vec<Vec<usize>>,
        share: f64,
        what: &str,
        progress: &(dyn Fn(&str, usize, usize) + Sync),
    ) -> Vec<(Vec<usize>, Left)> {
        let (begun, done, total) = (Instant::now(), AtomicUsize::new(0), sets.len());
        let measure = |set: Vec<usize>| {
            if begun.elapsed().as_secs_f64() > self.effort.seconds * share {
                return None;
            }
            let left = self.residual(target, &edits_of(&set, candidates));
            progress(what, done.fetch_add(1, Ordering::Relaxed) + 1, total);
            Some((set, left))
        };
        // A large model's steps keep all threads busy by themselves, and two at once would need twice the memory.
        if !self.is_large() {
            sets.into_par_iter().filter_map(measure).collect()
        } else {
            sets.into_iter().filter_map(measure).collect()
        }
    }

    /// Takes over what is proved, or came nearest.
    fn settle(
        &self,
        target: &Target<'_>,
        candidates: &[Candidate],
        tried: &mut [(Vec<usize>, Left)],
        result: &mut Result,
    ) {
        tried.sort_by(|a, b| a.1.nmse.total_cmp(&b.1.nmse));
        self.confirm(target, candidates, tried, result);
        if let Some((set, left)) = tried.first().filter(|(set, left)| left.nmse < 0.2 * result.base && set.len() <= 2)
            && result.closest.as_ref().is_none_or(|closest| left.nmse < 0.1 * closest.residual)
        {
            let mistakes = set.iter().map(|&at| candidates[at].clone()).collect();
            result.closest = Some(Reproduction { mistakes, residual: left.nmse });
        }
    }

    /// Whether none of several mistakes could be left out: a small one more can be fitted to rounding.
    fn all_matter(&self, target: &Target<'_>, candidates: &[Candidate], set: &[usize], residual: f64) -> bool {
        set.len() == 1
            || (0..set.len()).all(|out| {
                let rest: Vec<usize> = set.iter().enumerate().filter(|(i, _)| *i != out).map(|(_, &at)| at).collect();
                self.residual(target, &edits_of(&rest, candidates)).nmse >= MATTERS * residual
            })
    }

    /// What can stand in for one of the mistakes of a proved set: what leaves the same by itself.
    fn stand_ins(
        &self,
        target: &Target<'_>,
        candidates: &[Candidate],
        singles: &[(Vec<usize>, Left)],
        result: &mut Result,
    ) {
        let Some(best) = result.reproduced.first().filter(|best| best.mistakes.len() > 1).cloned() else { return };
        for at in 0..best.mistakes.len() {
            let own = self.residual(target, &best.mistakes[at].edits.iter().collect::<Vec<_>>()).nmse;
            let same = |left: &Left| (left.nmse - own).abs() <= 1e-6 * own;
            for (set, _) in singles.iter().filter(|(_, left)| same(left)) {
                let other = &candidates[set[0]];
                if other.key == best.mistakes[at].key || result.reproduced.len() > MOST {
                    continue;
                }
                let mut mistakes = best.mistakes.clone();
                mistakes[at] = other.clone();
                let edits: Vec<&Edit> = mistakes.iter().flat_map(|m| &m.edits).collect();
                if let Some(residual) = self.proved(target, &edits, result.base) {
                    result.reproduced.push(Reproduction { mistakes, residual });
                }
            }
        }
    }

    /// Which of the best are proved.
    fn confirm(
        &self,
        target: &Target<'_>,
        candidates: &[Candidate],
        tried: &[(Vec<usize>, Left)],
        result: &mut Result,
    ) {
        let mut missed = 0;
        for (set, _) in tried.iter().take_while(|(_, left)| left.nmse <= 0.5 * result.base) {
            let edits = edits_of(set, candidates);
            match self.proved(target, &edits, result.base).filter(|&r| self.all_matter(target, candidates, set, r)) {
                Some(residual) => {
                    let mistakes = set.iter().map(|&at| candidates[at].clone()).collect();
                    result.reproduced.push(Reproduction { mistakes, residual });
                }
                None => missed += 1,
            }
            if missed > MISSES || result.reproduced.len() > MOST {
                break;
            }
        }
        // One place before several, and then in the order of the catalogue: the most evidenced first.
        let least = result.reproduced.iter().map(|r| r.residual).fold(f64::INFINITY, f64::min);
        let place = |r: &Reproduction| {
            // What leaves ten times as much as another is not as good.
            let worse = r.residual > 10.0 * least + 1e-15;
            let sites: usize = r.mistakes.iter().map(|m| order_of(&m.edits).len()).sum();
            let at = |m: &Candidate| candidates.iter().position(|c| c.key == m.key).unwrap_or(0);
            (worse, sites, r.mistakes.iter().map(at).sum::<usize>())
        };
        result.reproduced.sort_by_key(place);
    }
}

/// By how much the rounding of a stretch may exceed what one operation is allowed, where a cause takes all else away.
const ADDS_UP: f64 = 3.0;
/// By how much each of several mistakes must lower what the others leave.
const MATTERS: f64 = 100.0;
/// What a cause leaves of the error at most.
const EXPLAINS: f64 = 1e-3;
/// As much as this many times our own rounding is as good as nothing.
const LITTLE: f64 = 8.0;
/// The same where values are rounded to 16 or 8 bits.
const EXPLAINS_ROUNDED: f64 = 1e-2;
/// Unproved ones in the order of their residuals, after which no more are looked at.
const MISSES: usize = 12;
/// Ways to reproduce a target that are kept.
const MOST: usize = 24;
/// Tokens that a large model is run on at first.
const SCREEN: usize = 4;
/// Mistakes that are tried on all tokens then.
const KEPT: usize = 40;
/// Candidates below which every layer by itself is tried in combinations too.
const FEW: usize = 400;
/// Sets whose free parameters are fitted.
const TUNED: usize = 16;
/// Sets that are grown by one more mistake.
const WIDE: usize = 24;
const NARROW: usize = 8;

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

/// How far an imitation is from the candidate's numbers.
#[derive(Clone, Copy)]
struct Left {
    /// Σ(imitated - own)² / Σ own².
    nmse: f64,
    /// What grows a set of mistakes: how near in direction, row by row.
    angle: f64,
}

/// The geometric mean, over the rows of the first axis, of 1 - correlation². One row that comes out exactly (position 0, which no rotation and no
/// mask can harm) tells more than all others a little nearer.
fn angle(own: &ArrayD<f64>, imitated: &ArrayD<f64>) -> f64 {
    const LEAST: f64 = 1e-12;
    let logs = own.outer_iter().zip(imitated.outer_iter()).map(|(own, imitated)| {
        let finite = own.iter().zip(&imitated).filter(|(o, i)| o.is_finite() && i.is_finite());
        let (dot, own, other) = finite.fold((0.0, 0.0, 0.0), |(d, o, e), (x, y)| (d + x * y, o + x * x, e + y * y));
        let share = if own > 0.0 && other > 0.0 && dot > 0.0 { 1.0 - dot * dot / (own * other) } else { 1.0 };
        share.max(LEAST).ln()
    });
    let logs: Vec<f64> = logs.collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}

/// Σ(imitated - own)² / Σ own²; what is finite on one side alone counts as all wrong.
pub(crate) fn misfit(own: &ArrayD<f64>, imitated: &ArrayD<f64>) -> f64 {
    const MASKED: f64 = -9000.0;
    let (mut error, mut energy, mut foreign, mut count) = (0.0, 0.0, 0usize, 0usize);
    for (o, i) in own.iter().zip(imitated) {
        count += 1;
        let hidden = |x: &f64| !x.is_finite() || *x < MASKED;
        match (hidden(o), hidden(i)) {
            (false, false) => {
                error += (i - o) * (i - o);
                energy += o * o;
            }
            (true, true) if o.is_nan() == i.is_nan() => {}
            _ => foreign += 1,
        }
    }
    let share = foreign as f64 / count.max(1) as f64;
    (if energy > 0.0 { error / energy } else { error }) + share
}

/// Where a function of one valley is least.
fn golden(f: impl Fn(f64) -> f64, mut low: f64, mut high: f64, width: f64) -> f64 {
    const RATIO: f64 = 0.618_033_988_749_894_9;
    let (mut a, mut b) = (high - RATIO * (high - low), low + RATIO * (high - low));
    let (mut fa, mut fb) = (f(a), f(b));
    while high - low > width {
        if fa < fb {
            (high, b, fb) = (b, a, fa);
            a = high - RATIO * (high - low);
            fa = f(a);
        } else {
            (low, a, fa) = (a, b, fb);
            b = low + RATIO * (high - low);
            fb = f(b);
        }
    }
    0.5 * (low + high)
}

/// The sets of a beam, each with one more candidate.
fn extended(beam: &[Vec<usize>], by: &[usize], candidates: &[Candidate]) -> Vec<Vec<usize>> {
    let mut known = HashSet::new();
    let mut sets = Vec::new();
    for set in beam {
        for &at in by {
            let rounding = |at: usize| candidates[at].id() == "precision";
            if !set.is_empty() && (rounding(at) || set.iter().any(|&other| rounding(other))) {
                continue;
            }
            if set.contains(&at)
                || set.iter().any(|&other| {
                    candidates[other].id() == candidates[at].id() && overlap(&candidates[other], &candidates[at])
                })
            {
                continue;
            }
            let shares = set.iter().any(|&other| overlap(&candidates[other], &candidates[at]));
            let mut unordered: Vec<usize> = set.iter().copied().chain([at]).collect();
            let grown = unordered.clone();
            unordered.sort_unstable();
            if known.insert(unordered) {
                if shares {
                    let mut turned = grown.clone();
                    turned.reverse();
                    sets.push(turned);
                }
                sets.push(grown);
            }
        }
    }
    sets
}

fn overlap(a: &Candidate, b: &Candidate) -> bool {
    a.edits.iter().any(|x| b.edits.iter().any(|y| x.tap == y.tap))
}

fn edits_of<'c>(set: &[usize], candidates: &'c [Candidate]) -> Vec<&'c Edit> {
    set.iter().flat_map(|&at| &candidates[at].edits).collect()
}

/// The sets to grow: those nearest in kind, no two of them alike.
fn grown(tried: &[(Vec<usize>, Left)], base: Left, most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<&(Vec<usize>, Left)> = tried.iter().filter(|(_, left)| left.nmse.is_finite()).collect();
    order.sort_by(|a, b| a.1.angle.total_cmp(&b.1.angle));
    let mut beam: Vec<(&Vec<usize>, f64)> = Vec::new();
    for (set, left) in order {
        if beam.len() >= most {
            break;
        }
        // Numbers that are the same to six digits are the same value by other words; one that changes nothing leads nowhere.
        let same = |other: f64| (left.nmse - other).abs() <= 1e-6 * other;
        if !same(base.nmse) && !beam.iter().any(|(_, other)| same(*other)) {
            beam.push((set, left.nmse));
        }
    }
    beam.into_iter().map(|(set, _)| set.clone()).collect()
}

fn single(edit: Edit) -> Candidate {
    Candidate { key: edit.key(), edits: vec![edit], one_of_several: false }
}

/// The same mistake at one site in all layers of a stretch, at the sites of a scope, and, over several layers, in each alone.
fn grouped(all: Vec<Edit>, target: &Target<'_>) -> Vec<Candidate> {
    let mut order: Vec<String> = Vec::new();
    let mut by_key: BTreeMap<String, Vec<Edit>> = BTreeMap::new();
    let mut taken: HashSet<(String, Tap)> = HashSet::new();
    for edit in all {
        let mut key = edit.key();
        // A second way of the same name in the same place.
        while !taken.insert((key.clone(), edit.tap)) {
            key.push('\'');
        }
        if !by_key.contains_key(&key) {
            order.push(key.clone());
        }
        by_key.entry(key).or_default().push(edit);
    }
    let sites: HashSet<Site> = target.steps.iter().map(|s| s.tap.site).collect();
    let mut out = Vec::new();
    let layered = target.steps.iter().filter_map(|s| s.tap.layer).collect::<HashSet<_>>().len() > 1;
    for key in &order {
        let edits = &by_key[key];
        let of =
            |wanted: &[Site]| -> Vec<Edit> { edits.iter().filter(|e| wanted.contains(&e.tap.site)).cloned().collect() };
        let mut seen: HashSet<Vec<Site>> = HashSet::new();
        let own: HashSet<Site> = edits.iter().map(|e| e.tap.site).collect();
        let singles: Vec<[Site; 1]> = order_of(edits).into_iter().map(|site| [site]).collect();
        let scopes = SCOPES.iter().copied().chain(singles.iter().map(|s| s.as_slice()));
        for scope in scopes {
            let mut there: Vec<Site> = scope.iter().copied().filter(|site| own.contains(site)).collect();
            there.sort_unstable();
            let complete = edits.iter().find(|e| there.contains(&e.tap.site)).is_none_or(|e| {
                e.with.is_empty() || e.with.iter().all(|site| !sites.contains(site) || there.contains(site))
            });
            // What is one piece of code, or one reader of files, for all matrices.
            let everywhere = ["precision", "weight-stride", "storage-type", "dequant-truncated"]
                .iter()
                .any(|id| key.starts_with(id));
            if there.is_empty() || everywhere && layered && scope.len() < 7 || !complete || !seen.insert(there.clone())
            {
                continue;
            }
            out.push(Candidate { key: key.clone(), edits: of(&there), one_of_several: false });
        }
    }
    for &(a, b) in EXCHANGED {
        let one = |site: Site, with: Site| {
            let with = serde_json::json!(with.name());
            let is = move |e: &&Edit| {
                e.id == "weight-swapped" && e.tap.site == site && e.params.iter().any(|(_, v)| *v == with)
            };
            // Where there are biases, both ways are listed: the first of each tap.
            let mut taps = HashSet::new();
            by_key.values().flatten().filter(is).filter(|e| taps.insert(e.tap)).cloned().collect::<Vec<Edit>>()
        };
        let (left, right) = (one(a, b), one(b, a));
        if !left.is_empty() && !right.is_empty() {
            out.push(Candidate {
                key: "weight-swapped exchanged".into(),
                edits: [left, right].concat(),
                one_of_several: false,
            });
        }
    }
    let layers: HashSet<u32> = target.steps.iter().filter_map(|s| s.tap.layer).collect();
    if layers.len() > 1 {
        let mut layers: Vec<u32> = layers.into_iter().collect();
        layers.sort_unstable();
        let whole = out.clone();
        for layer in layers {
            for candidate in &whole {
                let edits: Vec<Edit> = candidate.edits.iter().filter(|e| e.tap.layer == Some(layer)).cloned().collect();
                if !edits.is_empty() && edits.len() < candidate.edits.len() {
                    out.push(Candidate { key: candidate.key.clone(), edits, one_of_several: true });
                }
            }
        }
    }
    out
}

/// The sites of edits, each once, in their order.
fn order_of(edits: &[Edit]) -> Vec<Site> {
    let mut sites = Vec::new();
    for edit in edits {
        if !sites.contains(&edit.tap.site) {
            sites.push(edit.tap.site);
        }
    }
    sites
}
