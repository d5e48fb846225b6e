//! What is said of what was found? Each cause once, with all its places; and what holds in one place only is taken back.

use std::collections::{BTreeSet, HashMap, HashSet};

use firstdiff_compare::Place;
use firstdiff_evidence::Evidence;
use firstdiff_model::{Model, Op};
use firstdiff_trace::{Site, Tap};

use crate::explain::{Cause, Explained, Finding, Match, Remainder};
use crate::mistakes::Edit;
use crate::mistakes::residual::RESIDUAL_SCALE;
use crate::mistakes::scores::SCORE_SCALE;
use crate::paid::{price, unpaid};
use crate::replay::{Replay, Run};
use crate::search::Reproduction;
use crate::search::candidates::Candidate;
use crate::tolerance::search::{FITTED_ALIKE, NO_RESIDUAL, SAME_NUMBER, WELL_BELOW};

/// The findings of all places, each cause once, and `others` among them.
pub(crate) fn of(run: &Run<'_>, places: Vec<Explained>, others: Vec<Finding>) -> Vec<Finding> {
    let model = run.recorded.model;
    let mut chosen = choose(run, &places);
    in_some_steps(&places, &mut chosen);
    let open: Vec<bool> = chosen.iter().map(Option::is_none).collect();
    let mut out: Vec<Finding> = Vec::new();
    let mut groups: HashMap<String, usize> = HashMap::new();
    let mut simulate_batch: Vec<BTreeSet<usize>> = Vec::new();
    let mut accounts: Vec<(Evidence, f64)> = Vec::new();
    // What a later decode step of the same tap speaks against is as good in one step only.
    let later = |here: Place, key: &str| {
        let behind = |e: &&Explained| e.place.tap == here.tap && here.step > 0 && e.place.step > here.step;
        let has = |e: &Explained| e.found.reproduced.iter().flat_map(|r| &r.mistakes).any(|m| m.key == key);
        places.iter().filter(behind).all(has)
    };
    for (explained, chosen) in places.iter().zip(chosen) {
        let Some(best) = chosen else {
            unexplained(model, explained, &mut out, &mut groups);
            continue;
        };
        let mut set = BTreeSet::new();
        for (mistake, alone) in best.mistakes.iter().zip(&best.alone) {
            let near = out
                .iter()
                .position(|f| f.cause.as_ref().is_some_and(|known| is_same(known, &cause(mistake), FITTED_ALIKE)));
            let at = *groups.entry(mistake.key.clone()).or_insert_with(|| {
                if let Some(near) = near {
                    return near;
                }
                out.push(Finding { cause: Some(cause(mistake)), ..Finding::without_cause(Match::Reproduced) });
                out.len() - 1
            });
            set.insert(at);
            let finding = &mut out[at];
            if let Some(known) = &mut finding.cause {
                // What follows from the shape of a matrix differs from place to place.
                let other = |name: &str, value: &serde_json::Value| {
                    let number = |v: &serde_json::Value| v.is_f64();
                    let differs = |e: &Edit| e.params.iter().any(|(n, v)| *n == name && v != value && !number(v));
                    mistake.edits.iter().any(differs)
                };
                known.params.retain(|(name, value)| !other(name, value));
            }
            let mut elsewhere = equal_elsewhere(explained, &best, mistake);
            mistake.edits.iter().for_each(|edit| same_factor(model, explained, edit, &mut elsewhere));
            let is_first = finding.shown_at.is_empty();
            finding.through.retain(|tap| elsewhere.iter().any(|other| other.site == tap.site));
            let has = |tap: &Tap| finding.through.iter().any(|other| other.site == tap.site);
            let elsewhere: Vec<Tap> = elsewhere.into_iter().filter(|tap| is_first || has(tap)).collect();
            finding.through.extend(elsewhere);
            finding.alone_nmse = finding.alone_nmse.max(*alone);
            let others = best.mistakes.iter().filter(|other| other.key != mistake.key).map(cause);
            let new: Vec<Cause> = others.filter(|other| !finding.together.contains(other)).collect();
            finding.together.extend(new);
            finding.taps.extend(mistake.edits.iter().map(|e| e.tap));
            finding.shown_at.push(explained.place);
            finding.remainders.push(remainder(explained, best.residual));
            for (id, left) in &explained.found.tried {
                let best = finding.tried.entry(id).or_insert(*left);
                *best = best.min(*left);
            }
            finding.residual_nmse = finding.residual_nmse.max(best.residual);
            finding.base_nmse = finding.base_nmse.max(explained.found.base);
            finding.counted = finding.counted.max(explained.counted);
            // What can stand in its place beside the same others.
            let rest = |r: &Reproduction, without: &str| -> BTreeSet<String> {
                r.mistakes.iter().map(|m| m.key.clone()).filter(|key| key != without).collect()
            };
            let beside = rest(&best, &mistake.key);
            for other in explained.found.reproduced.iter().filter(|r| r.mistakes.len() == best.mistakes.len()) {
                let stands_in = other.mistakes.iter().find(|m| rest(other, &m.key) == beside);
                let same = |m: &&Candidate| m.key.trim_end_matches('\'') == mistake.key.trim_end_matches('\'');
                if let Some(other) = stands_in.filter(|m| !same(m) && later(explained.place, &m.key)).map(cause)
                    && !finding.alternatives.iter().any(|known| is_same(known, &other, SAME_NUMBER))
                    && !is_same(&cause(mistake), &other, SAME_NUMBER)
                {
                    finding.alternatives.push(other);
                }
            }
        }
        // What numbers of several places carry for a mistake pays for it once, and for those that it is made with.
        let cost = |m: &Candidate| price(m.mistake(), &m.edits[0].params, explained.found.forms);
        let cost: f64 = best.mistakes.iter().map(cost).sum();
        accounts.resize(out.len(), (Evidence::default(), 0.0f64));
        for &at in &set {
            let (evidence, dearest) = &mut accounts[at];
            (*evidence, *dearest) = (evidence.and(best.evidence), dearest.max(cost));
        }
        simulate_batch.push(set);
    }
    // Another rounding that gives one of several places by chance is not as good.
    for finding in out.iter_mut().filter(|f| f.is_another_arithmetic() && f.shown_at.len() > 1) {
        let gives = |explained: &&Explained, other: &Cause| {
            let best = explained.found.reproduced.iter().map(|r| r.residual).fold(f64::INFINITY, f64::min);
            let is_it = |r: &Reproduction| r.residual <= 10.0 * best + NO_RESIDUAL && cause(&r.mistakes[0]) == *other;
            finding.shown_at.contains(&explained.place) && explained.found.reproduced.iter().any(is_it)
        };
        finding.alternatives.retain(|other| places.iter().filter(|explained| gives(explained, other)).count() > 1);
    }
    accounts.resize(out.len(), Default::default());
    for (finding, (evidence, cost)) in out.iter_mut().zip(accounts).filter(|(f, _)| f.cause.is_some()) {
        let account = evidence.against(cost);
        if !account.is_paid() {
            let others = finding.alternatives.len();
            of_the_stretch(finding, &places);
            take_back(finding, unpaid(account, others));
            finding.unpaid = Some(account);
        }
    }
    one_value(&mut out);
    if !run.is_coarse() {
        not_in_another_layer(&mut out, &places, &open);
    }
    if run.order_is_open {
        of_no_known_order(&mut out);
    }
    withdrawn(&mut out, &simulate_batch);
    let long: HashSet<Place> = places.iter().filter(|e| e.steps.len() > 1).map(|e| e.place).collect();
    beside_the_prefills(&mut out, &long);
    if !run.known {
        of_no_known_positions(&mut out);
    }
    show_nothing(&mut out);
    each_place_once(&mut out);
    out.extend(others);
    let order = order_in(model);
    for finding in &mut out {
        finding.taps.sort_by_key(|&tap| order(tap));
        finding.taps.dedup();
        let first = finding.taps.first().copied();
        let probe = finding.cause.as_ref().and_then(|cause| cause.mistake()?.note).map(str::to_owned);
        finding.note = finding.note.take().or(probe);
        finding.op = first.and_then(|tap| model.plan.step(tap)).map(|s| s.op.name().to_owned()).unwrap_or_default();
    }
    out.sort_by_key(|f| f.taps.first().map_or(usize::MAX, |&tap| order(tap)));
    out
}

/// A mistake that laws name at several taps is one, and so is a law of one operation that was measured twice: each is added to the first; `order` is
/// that of the operations.
pub(crate) fn join_named(findings: &mut Vec<Finding>, order: impl Fn(Tap) -> usize) {
    let is_one = |known: &Finding, other: &Finding| {
        let law = known.measured.is_some() || other.measured.is_some();
        let stated = [known, other].iter().all(|f| f.matched == Match::Reproduced && f.is_blamed());
        let same = known.cause.as_ref().zip(other.cause.as_ref()).is_some_and(|(a, b)| is_same(a, b, FITTED_ALIKE));
        let laws = known.measured.as_ref().zip(other.measured.as_ref());
        let site = |f: &Finding| f.taps.first().map(|tap| tap.last_site());
        let unnamed = [known, other].iter().all(|f| f.matched == Match::Measured) && site(known) == site(other);
        law && stated && same || unnamed && laws.is_some_and(|(a, b)| a.law.words == b.law.words)
    };
    folded(findings, is_one, |known| {
        known.taps.sort_by_key(|&tap| order(tap));
        known.taps.dedup();
    });
}

/// Adds each finding to the first one that it is one with, and looks again: what was added may make it one with others.
fn folded(findings: &mut Vec<Finding>, is_one: impl Fn(&Finding, &Finding) -> bool, settle: impl Fn(&mut Finding)) {
    let mut at = 0;
    while at < findings.len() {
        let other = &findings[at];
        match findings[..at].iter().position(|known| is_one(known, other)) {
            Some(known) => {
                let other = findings.remove(at);
                findings[known].take_in(other);
                settle(&mut findings[known]);
                at = 0;
            }
            None => at += 1,
        }
    }
}

/// Where a tap stands among the steps of a Plan.
pub(crate) fn order_in(model: &Model) -> impl Fn(Tap) -> usize {
    move |tap| model.plan.steps.iter().position(|step| step.tap == tap).unwrap_or(usize::MAX)
}

/// A parameter is one number of an engine. Where each place would need another, the mistake is not the one it looks like.
fn one_value(findings: &mut [Finding]) {
    let number = |f: &Finding| -> Option<(&'static str, &'static str, f64)> {
        let cause = f.cause.as_ref()?;
        let (name, value) = cause.params.iter().find(|(name, v)| cause.is_free(name) && v.is_number())?;
        Some((cause.id, name, value.as_f64()?))
    };
    let all: Vec<_> = findings.iter().map(number).collect();
    for (finding, own) in findings.iter_mut().zip(&all) {
        let Some((id, name, value)) = own else { continue };
        let others = all.iter().flatten().filter(|(i, n, v)| i == id && n == name && v != value);
        if others.count() > 0 {
            take_back(finding, format!("each place would need another {name}: it is not {id} with one {name} for all"));
        }
    }
}

/// Nothing is looked for in the later steps of a stretch that nothing explains: where they are wrong, they are places of the same fault.
pub(crate) fn in_all_steps(findings: &mut [Finding], replay: &Replay) {
    let known: HashSet<Place> = findings.iter().flat_map(|f| f.shown_at.iter().copied()).collect();
    let wrong = replay.taps.iter().filter(|t| t.is_at_fault());
    for place in wrong.map(|t| t.report.place).filter(|place| place.step > 0 && !known.contains(place)) {
        let begun =
            |f: &&mut Finding| f.is_open() && f.shown_at.iter().any(|p| p.tap == place.tap && p.step < place.step);
        if let Some(finding) = findings.iter_mut().find(begun) {
            finding.shown_at.push(place);
        }
    }
}

/// Mistakes in the cache that begin with a later decode step and were seen in one alone: a newest token that is not there when it is read, and one that was
/// written into another slot, are the same then.
pub(crate) fn once_alone(findings: &mut [Finding], was_recorded: impl Fn(Place) -> bool) {
    let of_cache = |f: &Finding| f.has_cause(|mistake| mistake.in_the_cache);
    for finding in findings.iter_mut().filter(|f| f.matched == Match::Reproduced && of_cache(f)) {
        let steps: BTreeSet<u32> = finding.shown_at.iter().map(|place| place.step).collect();
        let before = |place: &Place| was_recorded(Place { step: place.step - 1, ..*place });
        if steps.len() == 1 && steps.iter().all(|&step| step > 1) && !finding.shown_at.iter().any(before) {
            let why = "it was seen in one decode step alone, where every mistake that leaves the newest token out looks the same; record the steps beside it";
            take_back(finding, why.to_owned());
        }
    }
}

/// One engine makes one mistake: what gives a tap in decode steps alone, over a stretch (`long`), where another cause gives it in the prefill, is chance.
fn beside_the_prefills(findings: &mut [Finding], long: &HashSet<Place>) {
    let stated = |f: &Finding| f.matched == Match::Reproduced;
    let prefill: Vec<(usize, Tap)> = findings
        .iter()
        .enumerate()
        .filter(|(_, f)| stated(f))
        .flat_map(|(at, f)| f.shown_at.iter().filter(|place| place.step == 0).map(move |place| (at, place.tap)))
        .collect();
    for (at, finding) in findings.iter_mut().enumerate().filter(|(_, f)| stated(f)) {
        let later = finding.shown_at.iter().all(|place| place.step > 0 && long.contains(place));
        let other = |place: &Place| prefill.iter().any(|(of, tap)| *of != at && *tap == place.tap);
        if later && finding.shown_at.iter().any(other) {
            let why = "of the prefill another cause gives the same tap: it gives these numbers by chance";
            take_back(finding, why.to_owned());
        }
    }
}

/// What the prefill shows, where the same taps of decode steps are right, or come out as its keys and values leave them (`left`).
pub(crate) fn in_the_prefill_alone(findings: &mut [Finding], replay: &Replay, left: &HashSet<Place>) {
    let first = |f: &&mut Finding| f.matched == Match::Reproduced && f.shown_at.iter().all(|place| place.step == 0);
    let comes_out = |f: &&mut Finding| {
        let of_it = |place: Place| place.step > 0 && f.shown_at.iter().any(|shown| shown.tap == place.tap);
        let mut later = replay.taps.iter().map(|t| &t.report).filter(|report| of_it(report.place)).peekable();
        later.peek().is_some() && later.all(|report| report.status.agrees() || left.contains(&report.place))
    };
    for finding in findings.iter_mut().filter(|_| !left.is_empty()).filter(first).filter(comes_out) {
        let why = "made in the prefill alone: decode steps are off by no more than the keys and values that it left";
        finding.note.get_or_insert_with(|| why.to_owned());
    }
}

/// A law that was measured in the prefill says which positions and tokens it holds for: where the same taps of decode steps are right, that is said.
pub(crate) fn measured_in_the_prefill_alone(findings: &mut [Finding], replay: &Replay) {
    for finding in findings.iter_mut().filter(|f| f.matched == Match::Measured && f.note.is_none()) {
        let shown: BTreeSet<Tap> = finding.shown_at.iter().map(|place| place.tap).collect();
        let later = replay
            .taps
            .iter()
            .map(|tap| &tap.report)
            .filter(|tap| tap.place.step > 0 && shown.contains(&tap.place.tap));
        let is_of_the_prefill = finding.shown_at.iter().all(|place| place.step == 0);
        if is_of_the_prefill && later.clone().next().is_some() && later.clone().all(|tap| tap.status.agrees()) {
            finding.note =
                Some("it shows in the prefill alone: the same taps of the decode steps are right".to_owned());
        }
    }
}

/// Where tokens stand is not to be told where nobody says which they are, and of how many.
pub(crate) fn of_no_known_positions(findings: &mut [Finding]) {
    let shift = |cause: &Cause| {
        cause.params.iter().any(|(name, _)| cause.param(name).is_some_and(|param| param.needs_positions))
    };
    for finding in findings.iter_mut().filter(|f| f.cause.as_ref().is_some_and(shift)) {
        let why = "token ids unknown; pass --tokens: these may be others of a longer run, at their own positions (and --rows where these are the last)";
        take_back(finding, why.to_owned());
    }
}

/// What another order of rows looks like is no cause where nobody knows the order.
fn of_no_known_order(findings: &mut [Finding]) {
    for finding in findings.iter_mut().filter(|f| f.has_cause(|mistake| mistake.is_a_row_order)) {
        let why = "the order of the rows of Q and K is not declared: recorded in the other one, nothing is wrong with it; say 'qk_rows' in dump.json";
        take_back(finding, why.to_owned());
    }
}

/// What leaves about as much as there was is shown by nothing, wherever the judge takes both for rounding.
pub(crate) fn show_nothing(findings: &mut [Finding]) {
    let is_shown = |rest: &Remainder| rest.residual_nmse <= WELL_BELOW * rest.base_nmse || rest.base_nmse.is_infinite();
    let stated = |f: &&mut Finding| f.matched == Match::Reproduced && !f.remainders.is_empty();
    for finding in findings.iter_mut().filter(stated).filter(|f| !f.remainders.iter().any(is_shown)) {
        let why = "it leaves about as much as there was: these numbers, as small as rounding, do not show it";
        take_back(finding, why.to_owned());
    }
}

/// What looked like a cause is none, for this reason.
fn take_back(finding: &mut Finding, why: String) {
    finding.matched = Match::Closest;
    finding.alternatives = finding.cause.take().into_iter().collect();
    finding.note = Some(why);
}

/// What shows it, and all that lies before: without a cause nothing is told of where it is made.
fn of_the_stretch(finding: &mut Finding, places: &[Explained]) {
    finding.taps = finding.shown_at.iter().map(|place| place.tap).collect();
    let of_it = places.iter().filter(|e| finding.shown_at.contains(&e.place));
    let between = of_it.flat_map(|e| e.steps.iter().copied().filter(|&tap| tap != e.place.tap));
    finding.through = between.collect::<BTreeSet<Tap>>().into_iter().collect();
}

/// A cause of one decode step that leaves another step of the same tap unexplained is none.
fn in_some_steps(places: &[Explained], chosen: &mut [Option<Reproduction>]) {
    let open: BTreeSet<Tap> = places
        .iter()
        .zip(&*chosen)
        .filter(|(e, c)| e.place.step > 0 && c.is_none())
        .map(|(e, _)| e.place.tap)
        .collect();
    for (explained, chosen) in places.iter().zip(chosen) {
        if explained.place.step > 0 && open.contains(&explained.place.tap) {
            *chosen = None;
        }
    }
}

/// What held only together with a mistake that is none is none either.
fn withdrawn(findings: &mut [Finding], simulate_batch: &[BTreeSet<usize>]) {
    let gone: Vec<bool> = findings.iter().map(|f| f.matched == Match::Closest && f.cause.is_none()).collect();
    for at in (0..findings.len()).filter(|&at| !gone[at]) {
        let mut sets = simulate_batch.iter().filter(|set| set.contains(&at)).peekable();
        if sets.peek().is_some() && sets.all(|set| set.iter().any(|&other| gone[other])) {
            take_back(
                &mut findings[at],
                "it gives these numbers only together with one that does not hold everywhere".into(),
            );
        }
    }
}

/// Mistakes that gave a place together, and were taken back, are one thing that nothing explains there.
fn each_place_once(findings: &mut Vec<Finding>) {
    let is_open = |f: &Finding| f.matched == Match::Closest && f.cause.is_none();
    let shares = |a: &Finding, b: &Finding| a.shown_at.iter().any(|place| b.shown_at.contains(place));
    folded(findings, |known, other| is_open(known) && is_open(other) && shares(known, other), |_| ());
}

/// The taps of a stretch at which the same mistake gives the same numbers.
fn equal_elsewhere(explained: &Explained, best: &Reproduction, mistake: &Candidate) -> BTreeSet<Tap> {
    let own: HashSet<Tap> = mistake.edits.iter().map(|edit| edit.tap).collect();
    let is_alone = |r: &&Reproduction| best.mistakes.len() == 1 && r.mistakes.len() == 1;
    let others = explained.found.reproduced.iter().filter(is_alone).map(|r| &r.mistakes[0]);
    let same = others.filter(|m| m.id() == mistake.id() && m.edits.iter().all(|edit| !own.contains(&edit.tap)));
    same.flat_map(|m| m.edits.iter().map(|edit| edit.tap)).filter(|tap| explained.steps.contains(tap)).collect()
}

/// The unrecorded taps before a factor of which the same factor gives the same numbers: what is made of them is made of nothing else, and grows as they do.
fn same_factor(model: &Model, explained: &Explained, edit: &Edit, out: &mut BTreeSet<Tap>) {
    let is = |name: &str| edit.params.iter().any(|(param, value)| *param == name && value.is_number());
    let Some(step) = model.plan.step(edit.tap) else { return };
    let mut next: Vec<Tap> = match () {
        () if edit.mistake == &RESIDUAL_SCALE && is("factor") => step.reads.get(1).copied().into_iter().collect(),
        () if edit.mistake == &SCORE_SCALE && is("scale") => step.reads.clone(),
        () => return,
    };
    while let Some(tap) = next.pop() {
        let readers = model.plan.steps.iter().filter(|step| step.reads.contains(&tap)).count();
        let Some(step) = model.plan.step(tap).filter(|_| readers == 1 && explained.steps.contains(&tap)) else {
            continue;
        };
        out.insert(tap);
        next.extend(match step.op {
            Op::Linear { .. } if step.weights.len() > 1 => &[],
            Op::Linear { .. } | Op::Rope(_) | Op::Qk | Op::Context => &step.reads[..],
            Op::Gated { .. } => &step.reads[1..],
            _ => &[],
        });
    }
}

/// Layers share their code: what gives a stretch of one, and does not give the same stretch of another, which nothing explains, is not what is made in them.
fn not_in_another_layer(findings: &mut [Finding], places: &[Explained], open: &[bool]) {
    for finding in findings.iter_mut().filter(|f| f.matched == Match::Reproduced && f.together.is_empty()) {
        let Some(mistake) = finding.cause.as_ref().and_then(Cause::mistake).filter(|m| !m.of_a_layer) else { continue };
        let own: Vec<&Explained> = places.iter().filter(|e| finding.shown_at.contains(&e.place)).collect();
        let is_like = |e: &Explained, own: &Explained| {
            let (here, there) = (own.place, e.place);
            here.tap.site == there.tap.site && here.tap.layer != there.tap.layer && here.step == there.step
        };
        let fails = |e: &Explained| {
            e.steps.len() > 1 && e.found.tried.contains_key(mistake.id) && own.iter().any(|own| is_like(e, own))
        };
        if let Some((against, _)) = places.iter().zip(open).find(|(e, open)| **open && fails(e)) {
            let layer = against.place.tap.layer.map_or_else(String::new, |layer| format!(" of layer {layer}"));
            of_the_stretch(finding, places);
            take_back(finding, format!("the same operations{layer} are wrong too, and it does not give their numbers"));
        }
    }
}

/// Whether two causes are one, their numbers differing by no more than a share.
fn is_same(a: &Cause, b: &Cause, share: f64) -> bool {
    let equal = |x: &serde_json::Value, y: &serde_json::Value| {
        x == y || x.as_f64().zip(y.as_f64()).is_some_and(|(x, y)| (x - y).abs() <= share * x.abs())
    };
    a.id == b.id
        && a.params.len() == b.params.len()
        && a.params.iter().zip(&b.params).all(|(x, y)| x.0 == y.0 && equal(&x.1, &y.1))
}

fn cause(mistake: &Candidate) -> Cause {
    let edit = &mistake.edits[0];
    let params = if mistake.exchanged { vec![("kind", "exchanged".into())] } else { edit.params.clone() };
    Cause { id: edit.mistake.id, params }
}

/// Of each place the way that explains most other places too; a mistake that must show elsewhere, and does not, comes last.
fn choose(run: &Run<'_>, places: &[Explained]) -> Vec<Option<Reproduction>> {
    let mut shown: HashMap<&str, BTreeSet<Place>> = HashMap::new();
    for explained in places {
        for mistake in explained.found.reproduced.iter().flat_map(|r| &r.mistakes) {
            shown.entry(&mistake.key).or_default().insert(explained.place);
        }
    }
    let lacking = |mistake: &Candidate, place: Place| {
        let edit = &mistake.edits[0];
        let made = |site: Site| mistake.edits.iter().any(|e| e.tap.site == site);
        let is_shown = |own: Place| shown[mistake.key.as_str()].contains(&own);
        let lacks = |&site: &Site| {
            let own = Place { tap: Tap { site, ..edit.tap }, ..place };
            !made(site) && run.recorded.holds(own) && !is_shown(own)
        };
        edit.mistake.made_together.iter().copied().filter(lacks).count()
    };
    let rank = |r: &Reproduction, place: Place| {
        let lacking: usize = r.mistakes.iter().map(|m| lacking(m, place)).sum();
        let places: usize = r.mistakes.iter().map(|m| shown[m.key.as_str()].len()).min().unwrap_or(0);
        (r.in_decoding_alone, lacking, std::cmp::Reverse(places))
    };
    places.iter().map(|e| e.found.reproduced.iter().min_by_key(|r| rank(r, e.place)).cloned()).collect()
}

/// What is left at a place.
fn remainder(explained: &Explained, residual_nmse: f64) -> Remainder {
    Remainder { place: explained.place, base_nmse: explained.found.base, residual_nmse }
}

/// What these mistakes leave at a place, as far as they were tried there.
fn left_by(mistakes: &[Cause], explained: &Explained) -> f64 {
    let nearest = explained.found.closest.as_ref();
    let same = |n: &&Reproduction| n.mistakes.iter().map(cause).collect::<Vec<_>>() == mistakes;
    match (nearest.filter(same), mistakes) {
        (Some(nearest), _) => nearest.residual,
        (None, [one]) => explained.found.tried.get(one.id).copied().unwrap_or(explained.found.base),
        _ => explained.found.base,
    }
}

fn unexplained(model: &Model, explained: &Explained, out: &mut Vec<Finding>, groups: &mut HashMap<String, usize>) {
    let place = explained.place;
    let matched = if explained.found.closest.is_some() { Match::Closest } else { Match::Unknown };
    let key = format!("{} {}", place.tap.site.name(), explained.steps.len());
    let at = *groups.entry(key).or_insert_with(|| {
        let nearest = explained.found.closest.as_ref();
        out.push(Finding {
            op: model.plan.step(place.tap).map(|s| s.op.name().to_owned()).unwrap_or_default(),
            residual_nmse: nearest.map_or(explained.found.base, |n| n.residual),
            base_nmse: explained.found.base,
            counted: explained.counted,
            alternatives: nearest.map(|n| n.mistakes.iter().map(cause).collect()).unwrap_or_default(),
            through: explained.steps.iter().copied().filter(|&tap| tap != place.tap).collect(),
            tried: explained.found.tried.clone(),
            untried: explained.found.untried,
            ..Finding::without_cause(matched)
        });
        out.len() - 1
    });
    let finding = &mut out[at];
    if matched == Match::Unknown && finding.matched == Match::Closest {
        // What comes near in some places only is not near.
        (finding.matched, finding.residual_nmse) = (Match::Unknown, explained.found.base);
        finding.alternatives.clear();
        finding.remainders.clear();
    }
    if finding.matched == Match::Closest {
        let left = left_by(&finding.alternatives, explained);
        finding.remainders.push(remainder(explained, left));
        finding.residual_nmse = finding.residual_nmse.max(left);
    }
    if let Some(against) = explained.found.spoken_against {
        let why = format!(
            "what comes nearest gives these numbers, but would have shown at {against}, which is right: it is no cause unless it begins here"
        );
        finding.note = Some(why);
    }
    finding.taps.push(place.tap);
    finding.shown_at.push(place);
    finding.base_nmse = finding.base_nmse.max(explained.found.base);
    for (id, left) in &explained.found.tried {
        // Ruled out by one place is ruled out.
        let worst = finding.tried.entry(id).or_insert(*left);
        *worst = worst.max(*left);
    }
}
