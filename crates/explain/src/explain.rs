//! Why is it wrong? For every operation that replay finds wrong, the mistakes that reproduce it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use firstdiff_compare::{Place, Status};
use firstdiff_model::{Model, Profile, Step};
use firstdiff_trace::{Dump, Tap};
use ndarray::ArrayD;

use crate::candidates::Candidate;
use crate::imitate::Shared;
use crate::mistakes::{Edit, Params};
use crate::proof::Target;
use crate::recorded::Unusable;
pub use crate::replay::Options;
use crate::replay::{Replay, ReplayError, Replayed, Run};
pub use crate::search::Effort;
use crate::search::{Reproduction, Result as Found, Search};

/// How sure a cause is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The imitated mistake leaves no more than rounding.
    Reproduced,
    /// Something takes part of the error away, but is not it.
    Closest,
    /// Nothing in the catalogue does.
    Unknown,
}

impl Match {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Match::Reproduced => "reproduced",
            Match::Closest => "closest",
            Match::Unknown => "unknown",
        }
    }
}

/// A mistake of the catalogue, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// The id.
    pub id: &'static str,
    /// The parameters.
    pub params: Params,
}

/// One mistake, in all places where it was found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The taps whose operation is wrong, in the order of the Plan.
    pub taps: Vec<Tap>,
    /// The recorded taps that show it: the same, where all was recorded.
    pub shown_at: Vec<Place>,
    /// The operation of the first tap.
    pub op: String,
    /// The cause; of `Closest`, what came nearest.
    pub cause: Option<Cause>,
    /// How sure it is.
    pub matched: Match,
    /// NMSE that the imitated mistake leaves, the worst of all places.
    pub residual_nmse: f64,
    /// NMSE without it, the worst of all places.
    pub base_nmse: f64,
    /// Other causes that reproduce it as well.
    pub alternatives: Vec<Cause>,
    /// Taps between the recorded ones: the fault may be in any of them. Only where there is no cause.
    pub through: Vec<Tap>,
    /// The best residual of every id that was tried.
    pub tried: BTreeMap<&'static str, f64>,
    /// Mistakes and sets of them whose turn did not come in the time given.
    pub untried: usize,
    /// What else is to be known.
    pub note: Option<String>,
}

/// An explained replay.
#[derive(Debug)]
pub struct Explanation {
    /// Where operations are wrong.
    pub replay: Replay,
    /// Why, in the order of the Plan.
    pub findings: Vec<Finding>,
    /// Ids of mistakes that what was recorded could not have shown, though their operation is in the model.
    pub invisible: Vec<String>,
}

/// Told what is looked at, what is tried there, and how many of how many.
pub type Progress<'p> = &'p (dyn Fn(&str, usize, usize) + Sync);

/// Replays `dump` on `model`, and tries the catalogue's mistakes where it goes wrong.
///
/// # Errors
/// As [`replay`](crate::replay::replay).
pub fn explain(
    model: &Model,
    dump: &Dump,
    options: &Options,
    effort: &Effort,
    progress: Progress<'_>,
) -> Result<Explanation, ReplayError> {
    let mut run = Run::new(model, dump, options);
    let warnings = run.settle_layout(dump.meta().qk_rows)?;
    let mut replay = run.all(warnings, &mut |done, total| progress("replay", done, total))?;
    let shared: Shared = Mutex::default();
    let begun = Instant::now();
    let mut walk = Walk { effort, accepted: Vec::new(), places: Vec::new(), dark: HashSet::new(), progress };
    for at in 0..replay.taps.len() {
        let place = replay.taps[at].report.place;
        if effort.quick && begun.elapsed() > A_MOMENT {
            break;
        }
        if let Some(step) = model.plan.step(place.tap) {
            walk.visit(&mut run, &shared, step, &mut replay.taps[at])?;
        }
    }
    let findings = findings(model, walk.places);
    let mut invisible = if effort.quick { Vec::new() } else { invisible(&run, &shared, &replay, effort)? };
    invisible.retain(|id| !findings.iter().any(|f| f.cause.as_ref().is_some_and(|c| c.id == id)));
    Ok(Explanation { replay, findings, invisible })
}

/// What a quick search may take in all, once replayed.
const A_MOMENT: Duration = Duration::from_secs(5);

/// Ids that would have changed nothing, or no more than rounding, wherever they could have been made in what was judged right: looked for in the
/// first layer, in the prefill and in the last step.
fn invisible(run: &Run<'_>, shared: &Shared, replay: &Replay, effort: &Effort) -> Result<Vec<String>, ReplayError> {
    let steps = replay.taps.iter().filter(|t| t.report.status != Status::Unchecked).map(|t| t.report.place.step);
    let last = steps.max().unwrap_or(0);
    let mut seen: BTreeMap<&'static str, bool> = BTreeMap::new();
    let search = Search { run, shared, effort, accepted: &[] };
    for tap in &replay.taps {
        let place = tap.report.place;
        let probed = place.tap.layer.unwrap_or(0) == 0 && (place.step == 0 || place.step == last);
        let Some(step) = run.recorded.model.plan.step(place.tap).filter(|_| probed && tap.report.status.agrees())
        else {
            continue;
        };
        if elements(run.recorded.model, step) > LARGE || !tap.through.is_empty() || !run.recorded.is_whole(place) {
            continue;
        }
        let Some((own, _)) = own(run, place)? else { continue };
        let target = Target::new(run, step, place, own, None, None);
        for candidate in search.candidates(&target).iter().filter(|c| c.id() != "precision") {
            let edits: Vec<&Edit> = candidate.edits.iter().collect();
            let known = seen.entry(candidate.id()).or_insert(false);
            *known = *known
                || search.value(&target, &edits, run.profile).is_some()
                    && search.proved(&target, &edits, f64::INFINITY).is_none();
        }
    }
    Ok(seen.into_iter().filter(|(_, shows)| !shows).map(|(id, _)| id.to_owned()).collect())
}

/// Elements of a step's matrix.
fn elements(model: &Model, step: &Step) -> usize {
    step.weights.first().and_then(|&w| model.weights.shape(w)).map_or(0, |shape| shape.iter().product())
}

/// Matrices above this are not multiplied once more only to say what would not have shown.
const LARGE: usize = 1 << 22;

/// Nor above this in a quick search.
const HUGE: usize = 1 << 24;

/// One recorded tap that is wrong, and what was found.
struct Explained {
    place: Place,
    steps: Vec<Tap>,
    found: Found,
}

struct Walk<'p> {
    effort: &'p Effort,
    accepted: Vec<Edit>,
    places: Vec<Explained>,
    /// Steps in which a fault was seen that nothing explains.
    dark: HashSet<Tap>,
    progress: Progress<'p>,
}

impl Walk<'_> {
    fn visit<'a>(
        &mut self,
        run: &mut Run<'a>,
        shared: &Shared,
        step: &'a Step,
        replayed: &mut Replayed,
    ) -> Result<(), ReplayError> {
        let place = replayed.report.place;
        let partial = run.recorded.holds(place) && replayed.report.status == Status::Unchecked;
        let long = partial || !replayed.through.is_empty() || elements(run.recorded.model, step) > HUGE;
        if self.effort.quick && long {
            return Ok(());
        }
        if replayed.report.status != Status::Diverged && !partial {
            return Ok(());
        }
        let Some((own, positions)) = own(run, place)? else { return Ok(()) };
        let rows = match &positions {
            Some(list) => row_inputs(run, step, place.step, list)?,
            None => None,
        };
        if partial && (positions.is_none() || rows.is_some()) {
            return Ok(());
        }
        let target = Target::new(run, step, place, own, positions, rows);
        let steps: Vec<Tap> = target.steps.iter().map(|s| s.tap).collect();
        if target.is_stretch() && steps.iter().any(|tap| self.dark.contains(tap)) {
            if partial {
                replayed.report.reason = Some("lies behind a stretch whose fault has no known cause".into());
            }
            return Ok(());
        }
        if partial && !self.is_wrong(run, shared, &target, replayed) {
            return Ok(());
        }
        if target.is_stretch() && run.is_coarse() {
            let search = Search { run, shared, effort: self.effort, accepted: &self.accepted };
            if let Some(right) = search.value(&target, &[], run.profile) {
                run.know_edges(place, &right, target.positions.as_deref());
            }
        }
        let search = Search { run, shared, effort: self.effort, accepted: &self.accepted };
        let mut found = self.search(&search, &target);
        if let Some(earlier) = self.right_before(run, step, place)? {
            // What would have shown in the prefill, where all is right, is no cause of what shows behind it.
            let stands = |r: &Reproduction| {
                let edits: Vec<&Edit> = r.mistakes.iter().flat_map(|m| &m.edits).collect();
                search.proved(&earlier, &edits, f64::INFINITY).is_some()
            };
            let (stand, fall): (Vec<_>, Vec<_>) = found.reproduced.into_iter().partition(stands);
            found.reproduced = if stand.is_empty() { fall } else { stand };
        }
        match found.reproduced.first() {
            Some(best) => {
                for edit in best.mistakes.iter().flat_map(|m| &m.edits) {
                    if !self.accepted.iter().any(|old| old.tap == edit.tap && old.key() == edit.key()) {
                        self.accepted.push(edit.clone());
                    }
                }
            }
            None if target.is_stretch() => self.dark.extend(steps.iter().copied()),
            None => {}
        }
        self.places.push(Explained { place, steps, found });
        Ok(())
    }

    /// Judges what replay cannot: some positions of a tap, where attention needs all. From the nearest whole taps it can be.
    fn is_wrong(&self, run: &mut Run<'_>, shared: &Shared, target: &Target<'_>, replayed: &mut Replayed) -> bool {
        let search = Search { run, shared, effort: self.effort, accepted: &self.accepted };
        let values = [search.run.profile, Profile::Exact].map(|p| search.value(target, &[], p));
        let [Some(right), Some(exact)] = values else { return false };
        if right.shape() != target.own.shape() {
            return false;
        }
        let (place, positions) = (target.place, target.positions.as_deref());
        replayed.report = run.judge_stretch(target.step, place, &target.own, &right, &exact, positions).report;
        replayed.report.positions = target.positions.clone();
        replayed.through = target.steps.iter().map(|s| s.tap).filter(|&tap| tap != place.tap).collect();
        replayed.report.status == Status::Diverged
    }

    /// The same tap of the prefill, if this one is of a later step and that one was found right.
    fn right_before<'a>(&self, run: &Run<'a>, step: &'a Step, place: Place) -> Result<Option<Target<'a>>, ReplayError> {
        let prefill = Place { step: 0, ..place };
        let wrong = self.places.iter().any(|p| p.place == prefill);
        if place.step == 0 || wrong || !run.recorded.is_whole(prefill) {
            return Ok(None);
        }
        Ok(own(run, prefill)?.map(|(own, _)| Target::new(run, step, prefill, own, None, None)))
    }

    /// What was found elsewhere first, then all.
    fn search(&self, search: &Search<'_, '_>, target: &Target<'_>) -> Found {
        if let Some(again) = search.already(target) {
            return Found { base: f64::NAN, reproduced: vec![again], ..Found::default() };
        }
        let all = search.candidates(target);
        let name = target.place.to_string();
        let tell = |what: &str, done: usize, total: usize| (self.progress)(&format!("{name}: {what}"), done, total);
        let known: HashSet<&str> = self
            .places
            .iter()
            .flat_map(|p| &p.found.reproduced)
            .flat_map(|r| &r.mistakes)
            .map(|m| m.key.as_str())
            .collect();
        let again: Vec<Candidate> = all.iter().filter(|c| known.contains(c.key.as_str())).cloned().collect();
        if !again.is_empty() {
            let effort = Effort { faults: 2.min(search.effort.faults), ..search.effort.clone() };
            let quick = Search { effort: &effort, ..*search }.run(target, again, &tell);
            if !quick.reproduced.is_empty() {
                return quick;
            }
        }
        search.run(target, all, &tell)
    }
}

/// What the candidate recorded, and at which positions where not at all.
#[allow(clippy::type_complexity)]
fn own(run: &Run<'_>, place: Place) -> Result<Option<(ArrayD<f64>, Option<Vec<usize>>)>, ReplayError> {
    let positions = match run.recorded.positions(place) {
        None => None,
        Some(rows) => match run.listed(&rows, place) {
            Some(list) => Some(list),
            None => return Ok(None),
        },
    };
    let own = match &positions {
        None => run.recorded.read(place),
        Some(list) => run.recorded.read_rows(place, list),
    };
    match own {
        Ok(own) => Ok(Some((own, positions))),
        Err(Unusable::Dump(e)) => Err(e.into()),
        Err(_) => Ok(None),
    }
}

/// What a step reads at some positions, if the candidate recorded it there.
fn row_inputs(
    run: &Run<'_>,
    step: &Step,
    number: u32,
    list: &[usize],
) -> Result<Option<Vec<ArrayD<f64>>>, ReplayError> {
    use firstdiff_model::Op;
    if matches!(step.op, Op::Qk | Op::Scores(_) | Op::Softmax | Op::Context) {
        return Ok(None);
    }
    let mut inputs = Vec::new();
    for &tap in &step.reads {
        match run.recorded.read_rows(Place { step: number, tap }, list) {
            Ok(rows) => inputs.push(rows),
            Err(Unusable::Dump(e)) => return Err(e.into()),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(inputs))
}

/// The findings of all places: each cause once.
fn findings(model: &Model, places: Vec<Explained>) -> Vec<Finding> {
    let chosen = choose(&places);
    let mut out: Vec<Finding> = Vec::new();
    let mut groups: HashMap<String, usize> = HashMap::new();
    for (explained, chosen) in places.iter().zip(chosen) {
        let Some(best) = chosen else {
            unexplained(model, explained, &mut out, &mut groups);
            continue;
        };
        for mistake in &best.mistakes {
            let at = *groups.entry(mistake.key.clone()).or_insert_with(|| {
                out.push(Finding {
                    taps: Vec::new(),
                    shown_at: Vec::new(),
                    op: String::new(),
                    cause: Some(cause(mistake)),
                    matched: Match::Reproduced,
                    residual_nmse: 0.0,
                    base_nmse: 0.0,
                    alternatives: Vec::new(),
                    through: Vec::new(),
                    tried: BTreeMap::new(),
                    untried: 0,
                    note: None,
                });
                out.len() - 1
            });
            let finding = &mut out[at];
            if let Some(known) = &mut finding.cause {
                // What follows from the shape of a matrix differs from place to place.
                let other = |name: &str, value: &serde_json::Value| {
                    let differs = |e: &Edit| e.params.iter().any(|(n, v)| *n == name && v != value);
                    mistake.edits.iter().any(differs)
                };
                known.params.retain(|(name, value)| !other(name, value));
            }
            finding.taps.extend(mistake.edits.iter().map(|e| e.tap));
            finding.shown_at.push(explained.place);
            for (id, left) in &explained.found.tried {
                let best = finding.tried.entry(id).or_insert(*left);
                *best = best.min(*left);
            }
            finding.residual_nmse = finding.residual_nmse.max(best.residual);
            finding.base_nmse = finding.base_nmse.max(explained.found.base);
            // What can stand in its place beside the same others.
            let rest = |r: &Reproduction, without: &str| -> BTreeSet<String> {
                r.mistakes.iter().map(|m| m.key.clone()).filter(|key| key != without).collect()
            };
            let beside = rest(&best, &mistake.key);
            for other in explained.found.reproduced.iter().filter(|r| r.mistakes.len() == best.mistakes.len()) {
                let stands_in = other.mistakes.iter().find(|m| rest(other, &m.key) == beside);
                let same = |m: &&Candidate| m.key.trim_end_matches('\'') == mistake.key.trim_end_matches('\'');
                if let Some(other) = stands_in.filter(|m| !same(m)).map(cause)
                    && !finding.alternatives.contains(&other)
                {
                    finding.alternatives.push(other);
                }
            }
        }
    }
    one_value(&mut out);
    let order = |tap: Tap| model.plan.steps.iter().position(|s| s.tap == tap).unwrap_or(usize::MAX);
    for finding in &mut out {
        finding.taps.sort_by_key(|&tap| order(tap));
        finding.taps.dedup();
        let first = finding.taps.first().copied();
        let probe = finding.cause.as_ref().and_then(|cause| note(cause.id)).map(str::to_owned);
        finding.note = finding.note.take().or(probe);
        finding.op = first.and_then(|tap| model.plan.step(tap)).map(|s| s.op.name().to_owned()).unwrap_or_default();
    }
    out.sort_by_key(|f| f.taps.first().map_or(usize::MAX, |&tap| order(tap)));
    out
}

/// A parameter is one number of an engine. Where each place would need another, the mistake is not the one it looks like.
fn one_value(findings: &mut [Finding]) {
    let number = |f: &Finding| -> Option<(&'static str, &'static str, f64)> {
        let cause = f.cause.as_ref()?;
        const FREE: [&str; 7] = ["eps", "theta", "factor", "scale", "cap", "width", "stream_factor"];
        let (name, value) = cause.params.iter().find(|(name, v)| FREE.contains(name) && v.is_number())?;
        Some((cause.id, name, value.as_f64()?))
    };
    let all: Vec<_> = findings.iter().map(number).collect();
    for (finding, own) in findings.iter_mut().zip(&all) {
        let Some((id, name, value)) = own else { continue };
        let others = all.iter().flatten().filter(|(i, n, v)| i == id && n == name && v != value);
        if others.count() > 0 {
            finding.matched = Match::Closest;
            finding.alternatives = finding.cause.take().into_iter().collect();
            finding.note = Some(format!("each place would need another {name}: it is something like {id}, but not it"));
        }
    }
}

/// What a probe of this mistake must hold, to show it.
fn note(id: &str) -> Option<&'static str> {
    match id {
        "rope-position" => Some(
            "only differences of positions reach the scores: a shift of all of them does no harm behind q_rope and k_rope",
        ),
        _ if id.starts_with("rope-") && id != "rope-attention-factor" => {
            Some("at position 0 every rotation is right: a probe of the first token alone cannot show this")
        }
        _ => None,
    }
}

fn cause(mistake: &Candidate) -> Cause {
    let edit = &mistake.edits[0];
    let params = if mistake.key == "weight-swapped exchanged" {
        vec![("kind", "exchanged".into())]
    } else {
        edit.params.clone()
    };
    Cause { id: edit.id, params }
}

/// Of each place the way that explains most other places too; a mistake that must show elsewhere, and does not, comes last.
fn choose(places: &[Explained]) -> Vec<Option<Reproduction>> {
    let mut shown: HashMap<&str, BTreeSet<Place>> = HashMap::new();
    for explained in places {
        for mistake in explained.found.reproduced.iter().flat_map(|r| &r.mistakes) {
            shown.entry(&mistake.key).or_default().insert(explained.place);
        }
    }
    let lacking = |mistake: &Candidate, place: Place| {
        let edit = &mistake.edits[0];
        let needed = edit.with.iter().filter(|site| !mistake.edits.iter().any(|e| e.tap.site == **site));
        needed
            .filter(|&&site| {
                !shown[mistake.key.as_str()]
                    .iter()
                    .any(|p| p.step == place.step && p.tap.layer == edit.tap.layer && p.tap.site == site)
            })
            .count()
    };
    let rank = |r: &Reproduction, place: Place| {
        let lacking: usize = r.mistakes.iter().map(|m| lacking(m, place)).sum();
        let places: usize = r.mistakes.iter().map(|m| shown[m.key.as_str()].len()).min().unwrap_or(0);
        (lacking, std::cmp::Reverse(places))
    };
    places.iter().map(|e| e.found.reproduced.iter().min_by_key(|r| rank(r, e.place)).cloned()).collect()
}

fn unexplained(model: &Model, explained: &Explained, out: &mut Vec<Finding>, groups: &mut HashMap<String, usize>) {
    let place = explained.place;
    let matched = if explained.found.closest.is_some() { Match::Closest } else { Match::Unknown };
    let key = format!("{matched:?} {} {}", place.tap.site.name(), explained.steps.len());
    let at = *groups.entry(key).or_insert_with(|| {
        let nearest = explained.found.closest.as_ref();
        out.push(Finding {
            taps: Vec::new(),
            shown_at: Vec::new(),
            op: model.plan.step(place.tap).map(|s| s.op.name().to_owned()).unwrap_or_default(),
            cause: None,
            matched,
            residual_nmse: nearest.map_or(explained.found.base, |n| n.residual),
            base_nmse: explained.found.base,
            alternatives: nearest.map(|n| n.mistakes.iter().map(cause).collect()).unwrap_or_default(),
            through: explained.steps.iter().copied().filter(|&tap| tap != place.tap).collect(),
            tried: explained.found.tried.clone(),
            untried: explained.found.untried,
            note: None,
        });
        out.len() - 1
    });
    out[at].taps.push(place.tap);
    out[at].shown_at.push(place);
    out[at].base_nmse = out[at].base_nmse.max(explained.found.base);
}
