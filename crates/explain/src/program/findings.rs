//! What is said of the wrong taps: each cause once, with all taps that it explains.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{Place, TapReport};
use firstdiff_evidence::{Account, Evidence};
use firstdiff_program::{At, Edit, Kind, Operand, Program};
use firstdiff_trace::Tap;
use serde_json::json;

use crate::explain::{Cause, Finding, Match, Remainder};
use crate::mistakes::attention::is_of_a_cache;
use crate::mistakes::norm::{NORM_OMITTED, QK_NORM_ORDER};
use crate::mistakes::recorded::{NUMBER_DIFFERS, OPERATION_INPUT, OPERATION_OMITTED, RESULT_SCALED, SIGN_FLIPPED};
use crate::mistakes::rope::ROPE_OMITTED;
use crate::mistakes::scores::{MASK_AFTER_SOFTMAX, MASK_OMITTED};
use crate::mistakes::{Mistake, StandsBehind};
use crate::paid::{self, price};
use crate::program::Recording;
use crate::program::change::computed;
use crate::program::context::number_of;
use crate::program::form::Form;
use crate::program::form::kin;
use crate::program::form::rounded_to;
use crate::program::held::Held;
use crate::program::search::{Explained, Reproduced, Search};
use crate::program::slices::{on_the_way, reached};
use crate::replay::{Replay, Replayed};
use crate::tolerance::search::{AS_NEAR, CAUSE_LEAVES, NO_RESIDUAL, PLAINLY_THE_SAME, SMALL};

/// Each cause once, with all taps that it explains: first the one that explains most.
pub(super) fn findings(search: &Search<'_>, explained: &[Explained]) -> Vec<Finding> {
    let (recording, held) = (&search.recording, search.held);
    let mut open: Vec<&Explained> = explained.iter().filter(|e| !e.reproduced.is_empty()).collect();
    let (mut out, mut unknown): (Vec<(usize, Finding)>, Vec<&Explained>) = Default::default();
    // What gives the numbers of a tap, and is not what is done, as other taps show.
    let mut refuted: BTreeSet<String> = BTreeSet::new();
    let mut unpaid: Vec<(String, Account)> = Vec::new();
    while !open.is_empty() {
        let stands = |explained: &&Explained| explained.reproduced.iter().any(|r| !refuted.contains(&r.key()));
        let (standing, without): (Vec<&Explained>, Vec<&Explained>) = open.into_iter().partition(stands);
        open = standing;
        unknown.extend(without);
        let mut given = given(&open, &refuted);
        // What another line does in decoding is the same mistake.
        let gives = |kin: &str, e: &Explained| e.reproduced.iter().any(|r| r.kin() == kin);
        // So is what another layer does, which is explained already.
        let counts: Vec<usize> =
            given.iter().map(|(_, kin)| explained.iter().filter(|e| gives(kin, e)).count()).collect();
        let most = counts.iter().copied().max().unwrap_or(0);
        let Some(first) = counts.iter().position(|count| *count == most) else { break };
        let (key, _) = given.swap_remove(first);
        let key = said_before(&open, &key, &refuted).unwrap_or(key);
        let has = |explained: &&Explained| explained.by_key(&key).is_some();
        let (of_it, rest): (Vec<&Explained>, Vec<&Explained>) = open.iter().copied().partition(has);
        // A number is one number of an engine, or one of each layer: where another place of the same operation is wrong without one, it is not what is done.
        let alike = |a: &Explained, b: &Explained| held.are_of_one_operation(recording.program, a.tap, b.tap);
        // What was found by this key, in some of the places or in all.
        let found = |is: fn(&Reproduced) -> bool| of_it.iter().filter_map(|e| e.by_key(&key)).map(is);
        let is_free = found(Reproduced::is_fitted).any(|is| is);
        let has_its_own = |e: &Explained, other: &Explained| {
            held.place(e.tap).tap != held.place(other.tap).tap && has_another_number(e, &key, other)
        };
        let elsewhere = |e: &&Explained| {
            let open = explained.iter().filter(|other| !of_it.iter().any(|known| known.tap == other.tap));
            open.filter(|other| alike(e, other)).any(|other| !has_its_own(e, other) && !bears_out(other, e, &key))
        };
        // In each step of one layer another: then no number is what is done.
        let is_other_number = |e: &&Explained| {
            let steps = explained.iter().filter(|other| held.place(e.tap).tap == held.place(other.tap).tap);
            steps.filter(|other| other.by_key(&key).is_none()).any(|other| has_another_number(e, &key, other))
        };
        // A cache that is read or written otherwise is so in each step of which something is wrong.
        let is_of_the_cache = of_it.iter().all(|e| {
            let mut steps = explained.iter().filter(|other| held.place(e.tap).tap == held.place(other.tap).tap);
            !alone(e).any(|r| r.key() == key && is_of_a_cache(r.form.mistake.id))
                || steps.all(|other| alone(other).any(|r| is_of_a_cache(r.form.mistake.id)))
        });
        // Beside another mistake a number is fitted to anything, where no second place bears it out and more is left than rounding.
        let is_found_elsewhere = |e: &&Explained| explained.iter().any(|o| o.tap != e.tap && bears_out(o, e, &key));
        let is_borne_out = of_it.len() > 1
            || !is_free
            || !found(|r| !r.others.is_empty()).all(|is| is)
            || found(|r| r.leaves_rounding).all(|is| is)
            || of_it.iter().any(is_found_elsewhere);
        // Of two rows an exchange is any other order, and much gives that.
        let is_thin = of_it.iter().all(|e| e.by_key(&key).is_some_and(|r| is_thin(recording, &r.form)));
        // A token or two are given by much that all of the prompt refutes.
        let is_of_few = of_it.iter().all(|e| tokens(recording, e.tap) <= FEW_ROWS);
        let kin = of_it.iter().find_map(|e| e.by_key(&key)).map(Reproduced::kin).unwrap_or_default();
        let in_the_prompt = |e: &&Explained| {
            explained.iter().any(|o| alike(e, o) && tokens(recording, o.tap) > FEW_ROWS && !gives(&kin, o))
        };
        // What another line of code does alike bears it out.
        let account = account(explained, &key, &kin);
        if !account.is_paid() {
            unpaid.push((key.clone(), account));
        }
        if !is_borne_out
            || !is_of_the_cache
            || !account.is_paid()
            || (is_free || is_thin) && of_it.iter().any(elsewhere)
            || is_of_few && of_it.iter().any(in_the_prompt)
            || of_it.iter().any(is_other_number)
        {
            refuted.insert(key);
            continue;
        }
        open = rest;
        out.extend(proved(search, &of_it, &key, explained));
    }
    unknown.extend(explained.iter().filter(|e| e.reproduced.is_empty()));
    unknown.sort_by_key(|e| e.tap);
    while let Some(first) = unknown.first().copied() {
        let (same, rest): (Vec<_>, _) =
            unknown.iter().partition(|e| held.are_of_one_operation(recording.program, first.tap, e.tap));
        unknown = rest;
        out.push((first.tap, unexplained(recording, held, first, &same, &unpaid)));
    }
    out.sort_by_key(|(tap, _)| *tap);
    let mut findings = elsewhere(once(out.into_iter().map(|(_, finding)| finding).collect()));
    // As they stand in the program.
    let order: BTreeMap<Tap, usize> =
        (0..recording.program.taps().len()).rev().map(|at| (held.place(at).tap, at)).collect();
    findings.iter_mut().for_each(|finding| finding.taps.sort_by_key(|tap| order.get(tap).copied()));
    findings
}

/// What gives the numbers of some taps, by its key and its kin; the order in which forms are listed settles what gives the same.
fn given(open: &[&Explained], refuted: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut given: Vec<(String, String)> = Vec::new();
    for explained in open {
        let standing = explained.reproduced.iter().filter(|r| !refuted.contains(&r.key()));
        let least = standing.clone().map(|r| r.residual).fold(f64::INFINITY, f64::min);
        for found in standing.filter(|r| r.residual <= (AS_NEAR * least).max(NO_RESIDUAL)) {
            let key = found.key();
            if !given.iter().any(|(known, _)| *known == key) {
                given.push((key, found.kin()));
            }
        }
    }
    given
}

/// What gives the numbers of the same taps as one by this key, and is said before it.
fn said_before(open: &[&Explained], key: &str, refuted: &BTreeSet<String>) -> Option<String> {
    let of_it = || open.iter().filter_map(|e| Some((e, alone(e).find(|r| r.key() == key)?)));
    let (first, own) = of_it().next()?;
    let in_all = |other: &&Reproduced| of_it().all(|(e, _)| gives_as_well(e, key, other));
    let mut others =
        alone(first).filter(|other| !refuted.contains(&other.key()) && is_said_before(&other.form, &own.form));
    others.find(in_all).map(Reproduced::key)
}

/// Whether another form leaves as little of a tap as one by this key.
fn gives_as_well(explained: &Explained, key: &str, other: &Reproduced) -> bool {
    let left = |key: &str| explained.by_key(key).map(|r| r.residual);
    let most = left(key).map_or(f64::INFINITY, |left| (AS_NEAR * left).max(NO_RESIDUAL));
    left(&other.key()).is_some_and(|left| left <= most)
}

/// Whether of two forms that give the same numbers one is said before the one that was listed first.
fn is_said_before(form: &Form, first: &Form) -> bool {
    let is_in_front = form.mistake.stands_behind == StandsBehind::None && form.mistake != &OPERATION_OMITTED;
    match first.mistake.stands_behind {
        StandsBehind::None => false,
        StandsBehind::Plain => is_in_front && digits(form) <= digits(first),
        StandsBehind::All => is_in_front,
    }
}

/// How many digits its number has, by itself or as a multiple of the one that is due where that is known.
fn digits(form: &Form) -> i32 {
    let of = |value: f64| {
        let is_it = |digits: &i32| (rounded_to(value, *digits) / value - 1.0).abs() < PLAINLY_THE_SAME;
        (1..PLAIN_DIGITS).find(is_it).unwrap_or(PLAIN_DIGITS)
    };
    let times = |value: f64| form.due.filter(|due| *due != 0.0).map_or(value, |due| value / due);
    let numbers = form.params.iter().filter_map(|(_, value)| value.as_f64());
    // A plain number by itself is less plain than a plain multiple.
    numbers.map(|value| (of(value) + 1).min(of(times(value)))).max().unwrap_or(0)
}

/// What is said of a cause that others stand before, and of one whose number was fitted.
const UNTRIED: &str = "others that may give the same were not all tried";

/// What is said of a cause where decode steps show that they do not make it.
const OF_THE_PREFILL: &str =
    "made in the prefill alone: decode steps are off by no more than the keys and values that it left";

/// A number with as many digits is none that anybody wrote.
const PLAIN_DIGITS: i32 = 6;

/// What the numbers of taps carry for what was found by this key, or by one that differs in the line of code alone, against what it costs.
fn account(explained: &[Explained], key: &str, kin: &str) -> Account {
    let of_it = |e: &'_ Explained| e.reproduced.iter().position(|r| r.key() == key || r.kin() == kin);
    let found = explained.iter().filter_map(|e| Some((e.forms, &e.reproduced[of_it(e)?])));
    let cost = |(forms, found): (usize, &Reproduced)| -> f64 {
        found.forms().map(|form| price(form.mistake, &form.params, forms)).sum()
    };
    // What nobody lists and is made once, for all layers, is shown once.
    let mut shown: Vec<(Vec<At>, Evidence)> = Vec::new();
    for (_, found) in found.clone() {
        let at: Vec<At> = found.forms().flat_map(|form| form.edits.iter().map(|edit| edit.at)).collect();
        let is_once = found.forms().any(|form| form.mistake.is_unlisted);
        match shown.iter_mut().find(|(known, _)| is_once && *known == at) {
            Some((_, known)) if known.bits >= found.evidence.bits => {}
            Some((_, known)) => *known = found.evidence,
            None => shown.push((at, found.evidence)),
        }
    }
    let evidence = shown.into_iter().fold(Evidence::default(), |all, (_, carried)| all.and(carried));
    evidence.against(found.map(cost).fold(0.0, f64::max))
}

/// What gives the numbers of a tap by itself.
fn alone(explained: &Explained) -> impl Iterator<Item = &Reproduced> {
    explained.reproduced.iter().filter(|r| r.others.is_empty())
}

/// Whether another place is given by the same mistake with other numbers.
fn has_another_number(one: &Explained, key: &str, other: &Explained) -> bool {
    let Some(found) = alone(one).find(|r| r.key() == key).map(|r| &r.form) else { return false };
    let words = |form: &Form| form.params.iter().filter(|(_, value)| !value.is_number()).cloned().collect::<Vec<_>>();
    let is_of_it = |form: &Form| form.mistake == found.mistake && words(form) == words(found);
    words(found).len() < found.params.len() && alone(other).any(|r| is_of_it(&r.form))
}

/// Whether what was fitted of one place is found at another as well, by itself or beside another mistake.
fn bears_out(other: &Explained, one: &Explained, key: &str) -> bool {
    let Some(found) = one.by_key(key) else { return false };
    let mut fitted = found.forms().filter(|form| form.is_fitted());
    fitted.all(|form| other.reproduced.iter().flat_map(Reproduced::forms).any(|known| kin(known) == kin(form)))
}

/// Whether a form reads something else where there are a row or two.
fn is_thin(recording: &Recording<'_>, form: &Form) -> bool {
    let rows = |at: At| match at {
        At::Tap(tap) => recording.program.taps()[tap].view.shape.first().copied(),
        At::Op(_) => None,
    };
    let is_few = |rows: usize| rows <= FEW_ROWS;
    form.mistake == &OPERATION_INPUT && form.edits.iter().any(|edit| rows(edit.at).is_some_and(is_few))
}

/// How many tokens the step of a tap takes.
fn tokens(recording: &Recording<'_>, tap: usize) -> usize {
    let step = recording.program.taps()[tap].step;
    recording.program.steps().get(step).map_or(0, |step| step.tokens)
}

/// Of what nobody lists so many are said beside the cheapest.
const UNLISTED: usize = 2;

/// Rows of which another order shows little.
const FEW_ROWS: usize = 2;

/// What is made in several operations alike, of q and of k, is one mistake.
fn once(findings: Vec<Finding>) -> Vec<Finding> {
    let mut out: Vec<Finding> = Vec::new();
    let is_kin = |a: &Finding, b: &Finding| a.kin.is_some() && a.kin == b.kin;
    let is_same =
        |a: &Finding, b: &Finding| a.cause.is_some() && (a.cause == b.cause || is_kin(a, b)) && a.matched == b.matched;
    for finding in findings {
        match out.iter_mut().find(|known| is_same(known, &finding)) {
            Some(known) => join(known, finding),
            None => out.push(finding),
        }
    }
    out
}

/// Takes the places of another finding of the same cause; what else may be is what may be in both.
fn join(known: &mut Finding, mut other: Finding) {
    let alternatives = std::mem::take(&mut other.alternatives);
    known.alternatives.retain(|cause| alternatives.contains(cause));
    other.taps.retain(|tap| !known.taps.contains(tap));
    // A number that differs from place to place is not said of all; what is called otherwise there is said of each.
    let both = [&known.taps, &other.taps].map(|taps| taps.first().copied());
    let mistake = known.cause.as_ref().and_then(Cause::mistake);
    if let (Some(own), Some(theirs)) = (&mut known.cause, &other.cause) {
        own.params.retain_mut(|(name, value)| {
            let Some((_, their_value)) = theirs.params.iter().find(|(their_name, _)| their_name == name) else {
                return false;
            };
            let of_layer =
                of_its_layer(both[0], value).filter(|own| Some(own) == of_its_layer(both[1], their_value).as_ref());
            match of_layer {
                _ if value == their_value => true,
                Some(site) => {
                    *value = site.into();
                    true
                }
                None if mistake.is_some_and(|mistake| mistake.follows_from_shape(name)) => false,
                None => match (value.as_str(), their_value.as_str()) {
                    (Some(own), Some(theirs)) => {
                        *value = said_of_both(own, theirs).into();
                        true
                    }
                    _ => false,
                },
            }
        });
    }
    known.take_in(other);
}

/// What is said of some places, and what of others, each once.
fn said_of_both(own: &str, theirs: &str) -> String {
    if own.split(BETWEEN).any(|said| said == theirs) { own.to_owned() } else { format!("{own}{BETWEEN}{theirs}") }
}

/// Between what is said of one place and of another.
const BETWEEN: &str = "; elsewhere ";

/// A tap of a place's own layer, or one that is called so already, by its name without the layer.
fn of_its_layer(place: Option<Tap>, value: &serde_json::Value) -> Option<String> {
    let name = value.as_str()?;
    let tap = Tap::named(name);
    let is_own = tap.block().is_some() && tap.block() == place?.block();
    Some(if is_own { tap.last_site().name().to_owned() } else { name.to_owned() })
}

/// Whether a mistake can be made in whichever operation.
fn is_of_any_operation(mistake: &Mistake) -> bool {
    [&OPERATION_OMITTED, &SIGN_FLIPPED, &NUMBER_DIFFERS, &RESULT_SCALED].contains(&mistake)
}

/// What is left out in one place because it is done in another.
const MOVED: [(&Mistake, &Mistake); 3] =
    [(&MASK_OMITTED, &MASK_AFTER_SOFTMAX), (&ROPE_OMITTED, &QK_NORM_ORDER), (&NORM_OMITTED, &QK_NORM_ORDER)];

/// What is done elsewhere is one mistake, not two.
fn elsewhere(mut findings: Vec<Finding>) -> Vec<Finding> {
    let is = |finding: &Finding, mistake: &Mistake| finding.cause.as_ref().is_some_and(|cause| cause.id == mistake.id);
    let layers = |finding: &Finding| finding.shown_at.iter().map(|place| place.tap.block()).collect::<BTreeSet<_>>();
    for (left_out, done) in MOVED {
        let Some(at) = findings.iter().position(|finding| is(finding, done)) else { continue };
        let there = layers(&findings[at]);
        let (moved, mut kept): (Vec<Finding>, Vec<Finding>) =
            findings.into_iter().partition(|finding| is(finding, left_out) && layers(finding).is_subset(&there));
        if let Some(one) = kept.iter_mut().find(|finding| is(finding, done)) {
            for finding in moved {
                one.taps.extend(finding.taps);
                one.shown_at.extend(finding.shown_at);
                one.remainders.extend(finding.remainders);
            }
        }
        findings = kept;
    }
    findings
}

/// The findings of one cause, or of two together.
fn proved(search: &Search<'_>, of_it: &[&Explained], key: &str, explained: &[Explained]) -> Vec<(usize, Finding)> {
    let (recording, held) = (&search.recording, search.held);
    let found = |e: &&Explained| e.by_key(key).cloned().map(|r| (e.tap, e.base, r));
    let all: Vec<(usize, f64, Reproduced)> = of_it.iter().filter_map(found).collect();
    let Some((first, _, one)) = all.first() else { return Vec::new() };
    let in_all = |other: &Reproduced| of_it.iter().all(|e| gives_as_well(e, key, other));
    let mut alternatives: Vec<Cause> = Vec::new();
    let mut named = vec![format!("{} {:?}", one.form.key(), BTreeSet::<&str>::new())];
    // What can be said of any operation is not said where a cause that has a name is made there.
    let ops = |form: &Form| form.edits.iter().map(|edit| op_of(recording, edit.at)).collect::<BTreeSet<usize>>();
    let has_a_name =
        |r: &&Reproduced| !is_of_any_operation(r.form.mistake) && !r.form.mistake.is_unlisted && !r.is_fitted();
    let by_name: BTreeSet<usize> =
        alone(of_it[0]).filter(|r| in_all(r)).filter(has_a_name).flat_map(|r| ops(&r.form)).collect();
    for other in alone(of_it[0]).filter(|r| r.key() != key && in_all(r)) {
        let is_one_too_many = other.form.mistake.is_unlisted && alternatives.len() >= UNLISTED;
        // The same in another operation, as of k in place of q, has another place, which is said.
        let is_elsewhere = other.form.mistake == one.form.mistake && other.form.class != one.form.class;
        // A number that has a name of its own is told by that.
        let is_named = other.form.mistake == &NUMBER_DIFFERS && other.form.class == one.form.class
            || is_of_any_operation(other.form.mistake) && !by_name.is_disjoint(&ops(&other.form));
        // One operation alone has another number than two have together, which come first.
        let is_one_of_two = other.is_fitted() && alternatives.iter().any(|known| known.id == other.form.mistake.id);
        let shows = is_elsewhere && !other.is_fitted() && !other.form.mistake.is_unlisted;
        let places: BTreeSet<&str> = match shows {
            true => {
                let found = |e: &&Explained| Some((e.tap, e.base, alone(e).find(|r| r.key() == other.key())?.clone()));
                let all: Vec<(usize, f64, Reproduced)> = of_it.iter().filter_map(found).collect();
                taps_of(recording, held, &other.form, &all).iter().map(|tap| tap.last_site().name()).collect()
            }
            false => BTreeSet::new(),
        };
        if is_named || is_one_of_two || is_elsewhere && places.is_empty() {
            continue;
        }
        let name = format!("{} {places:?}", other.form.key());
        if !named.contains(&name) && !is_one_too_many {
            named.push(name);
            let at = places.into_iter().collect::<Vec<_>>().join(" and ");
            let Cause { id, mut params } = other.form.cause();
            params.extend(is_elsewhere.then(|| ("at", json!(at))));
            alternatives.push(Cause { id, params });
        }
    }
    let wrong: Vec<usize> = all.iter().map(|(tap, ..)| *tap).collect();
    let (decoded, left): (Vec<_>, Vec<_>) =
        all.iter().filter(|(tap, ..)| held.place(*tap).step > 0).partition(|(.., r)| r.form.steps.end > 1);
    let in_the_prefill_alone = (decoded.is_empty() && !left.is_empty()).then_some(OF_THE_PREFILL);
    let mut through: Vec<Tap> = Vec::new();
    for explained in of_it.iter().filter(|_| one.others.is_empty()) {
        let taps = same_factor_at(search, explained, one).into_iter();
        through.extend(taps.filter(|tap| !through.contains(tap)).collect::<Vec<_>>());
    }
    let finding = |form: &Form| Finding {
        taps: taps_of(recording, held, form, &all),
        through: through.clone(),
        untold: search.untold(form, &wrong, explained),
        op: form.edits.first().map_or_else(String::new, |edit| recording.program.said(op_of(recording, edit.at))),
        cause: Some(form.cause()),
        kin: Some(kin(form)).filter(|_| {
            form.kin.is_some() || form.params.iter().any(|(name, _)| form.mistake.follows_from_shape(name))
        }),
        due: form.edits.first().and_then(|edit| due(recording.program, form, edit.at)),
        alternatives: if !one.others.is_empty() { Vec::new() } else { alternatives.clone() },
        together: one.forms().filter(|other| other.key() != form.key()).map(Form::cause).collect(),
        alone_nmse: all.iter().filter_map(|(.., r)| r.leaves_alone(form)).fold(0.0, f64::max),
        tried: of_it[0].tried.clone(),
        counted: of_it.iter().map(|e| e.counted).max().unwrap_or_default(),
        note: in_the_prefill_alone.or(form.mistake.note).map(str::to_owned).or_else(|| {
            Some(UNTRIED.to_owned()).filter(|_| {
                let gives_way = form.mistake.stands_behind != StandsBehind::None || one.is_fitted();
                gives_way && of_it.iter().any(|e| !e.untried.is_empty())
            })
        }),
        ..shown(held, Match::Reproduced, all.iter().map(|(tap, base, r)| (*tap, *base, r.residual)))
    };
    one.forms().map(|form| (*first, finding(form))).collect()
}

/// The taps on the way to one at which the factor of a form is the same.
fn same_factor_at(search: &Search<'_>, explained: &Explained, found: &Reproduced) -> Vec<Tap> {
    let (program, held) = (search.recording.program, search.held);
    let factor = found.form.params.iter().find(|(name, _)| *name == "factor").and_then(|(_, value)| value.as_f64());
    let (Some(factor), false) = (factor, explained.through.is_empty()) else { return Vec::new() };
    let slice = held.slice(program, explained.tap);
    let is_same = |&tap: &usize| {
        let view = &program.taps()[tap].view;
        let edit = Edit { at: At::Tap(tap), change: computed(&[view], move |x| Some(factor * &x[0])) };
        // As little as there, and not just no more than is allowed.
        let leaves = |report: &TapReport| report.metrics.and_then(|metrics| metrics.nmse()).unwrap_or(f64::INFINITY);
        let most = found.residual.max(CAUSE_LEAVES * explained.base);
        view.dtype.kind() == Kind::Float
            && search.report_with(&slice, &[edit]).is_some_and(|it| it.status.agrees() && leaves(&it) <= most)
    };
    let between = on_the_way(program, &slice).into_iter().filter(|&tap| held.readable(tap).is_none());
    between.filter(is_same).map(|tap| held.place(tap).tap).collect()
}

/// What the reference does where a form is made: its number, and its line.
fn due(program: &Program, form: &Form, at: At) -> Option<String> {
    let op = at.op().filter(|&op| program.is_placed(op));
    let holds = |number: f64| {
        let is_it = |operand: &Operand| number_of(operand) == Some(number);
        let op = op.map(|op| &program.ops()[op]);
        op.is_some_and(|op| op.operands.iter().chain(op.keywords.iter().map(|(_, x)| x)).any(is_it))
    };
    if let Some(words) = form.what_is_due() {
        return Some(words);
    }
    let said = |number: f64| if number.abs() < SMALL { format!("{number:e}") } else { number.to_string() };
    match (form.due, op.map(|op| program.said(op))) {
        (Some(number), Some(line)) if holds(number) => Some(format!("{} in {line}", said(number))),
        (Some(number), Some(line)) => Some(format!("{}, used at {line}", said(number))),
        (number, line) => number.map(said).or(line),
    }
}

/// The operation that is carried out otherwise, or that reads what is.
fn op_of(recording: &Recording<'_>, at: At) -> usize {
    match at {
        At::Op(op) => op,
        At::Tap(tap) => recording.program.taps()[tap].op,
    }
}

/// The taps that operations which are carried out otherwise make, or the nearest behind them.
fn taps_of(recording: &Recording<'_>, held: &Held, form: &Form, all: &[(usize, f64, Reproduced)]) -> Vec<Tap> {
    let program = recording.program;
    let mut out: BTreeSet<(usize, Tap)> = BTreeSet::new();
    for (tap, _, found) in all {
        // The same mistake in two operations stands at the taps of both.
        let same = found.forms().find(|other| other.key() == form.key() && other.class == form.class);
        for edit in same.into_iter().flat_map(|form| &form.edits) {
            // What was recorded is as it is: wrong is what reads it.
            let nearest = match edit.at {
                At::Tap(read) if held.readable(read).is_some() => Some(*tap),
                // Of one operation that gives several, each is its own.
                At::Tap(read) if !all.iter().any(|(other, ..)| *other == read) => Some(read),
                // One table of positions or one mask serves many taps: each that is wrong by it is named.
                at => made_of(program, op_of(recording, at), *tap)
                    .map(|near| if all.iter().any(|(other, ..)| *other == near) { *tap } else { near }),
            };
            let of_table = edit.at.op().filter(|&op| !is_of_activations(program, op));
            let all = of_table.map(|op| nearest_behind(program, op)).filter(|all| !all.is_empty());
            let all = all.unwrap_or_else(|| nearest.into_iter().collect());
            out.extend(all.into_iter().map(|number| (number, held.place(number).tap)));
        }
    }
    let mut taps: Vec<Tap> = Vec::new();
    for (_, tap) in out {
        if !taps.contains(&tap) {
            taps.push(tap);
        }
    }
    taps
}

/// Whether what an operation gives depends on weights and the model's input.
fn is_of_activations(program: &Program, op: usize) -> bool {
    program.ops()[op].outputs.iter().flatten().any(|view| program.is_activation(view.buffer))
}

/// The taps of a step that read what an operation gives, with no other tap between.
fn nearest_behind(program: &Program, op: usize) -> Vec<usize> {
    let taps = program.taps();
    let ends = |at: usize| taps.iter().any(|tap| tap.op == at);
    let all = reached([op], |at| if ends(at) { Vec::new() } else { program.readers(at).to_vec() });
    let behind = || (0..taps.len()).filter(|&tap| all.contains(&taps[tap].op));
    let first = behind().map(|tap| taps[tap].step).min();
    behind().filter(|&tap| Some(taps[tap].step) == first).collect()
}

/// The nearest tap behind an operation that is made of what it gives, up to the tap `last`; the nearest in order where none is.
fn made_of(program: &Program, op: usize, last: usize) -> Option<usize> {
    let end = program.taps()[last].op;
    let behind = reached([op], |at| program.readers(at).iter().copied().filter(|&reader| reader <= end));
    let taps = || program.taps().iter().enumerate().filter(|(_, t)| (op..=end).contains(&t.op));
    let nearest = taps().filter(|(_, t)| behind.contains(&t.op)).min_by_key(|(_, t)| t.op);
    nearest.or_else(|| taps().min_by_key(|(_, t)| t.op)).map(|(number, _)| number)
}

/// One operation that is wrong in some places, for a reason that is not known; and what comes nearest, where the same does in all.
fn unexplained(
    recording: &Recording<'_>,
    held: &Held,
    first: &Explained,
    all: &[&Explained],
    unpaid: &[(String, Account)],
) -> Finding {
    let program = recording.program;
    // What gives the numbers, and is not proved by them, comes nearest.
    let given = |e: &Explained| -> Vec<Reproduced> {
        let found = e.reproduced.iter().find(|r| unpaid.iter().any(|(key, _)| *key == r.key()));
        found.map_or_else(|| e.nearest.clone(), |found| vec![found.clone()])
    };
    let by_key = |e: &Explained, key: &str| given(e).into_iter().find(|nearest| nearest.key() == key);
    let near = given(first).into_iter().find(|near| all.iter().all(|e| by_key(e, &near.key()).is_some()));
    let account = near.as_ref().and_then(|near| unpaid.iter().find(|(key, _)| *key == near.key()));
    let others = first.reproduced.iter().map(|r| r.form.mistake.id).collect::<BTreeSet<_>>().len();
    let supposed = first.supposed.map(|choice| {
        let place = held.place(choice);
        format!("{place} was not recorded, and was taken as right operations choose: a mistake before it may choose otherwise, and is not ruled out")
    });
    let of_all = |id: &&&'static str| all.iter().all(|e| e.within_rounding.contains(**id));
    let within: Vec<&str> = first.within_rounding.iter().filter(of_all).copied().collect();
    let beside_rounding = (!within.is_empty()).then(|| {
        let ids = within.join(", ");
        format!("{ids}: leaves no more than rounding does, and is not ruled out: too little is off to prove it")
    });
    let left = |e: &Explained| {
        near.as_ref().and_then(|near| by_key(e, &near.key())).map_or(e.base, |nearest| nearest.residual)
    };
    let matched = if near.is_some() { Match::Closest } else { Match::Unknown };
    let shown = shown(held, matched, all.iter().map(|e| (e.tap, e.base, left(e))));
    let mut taps: Vec<Tap> = shown.shown_at.iter().map(|place| place.tap).collect();
    taps.dedup();
    Finding {
        taps,
        op: program.said(program.taps()[first.tap].op),
        remainders: if near.is_some() { shown.remainders.clone() } else { Vec::new() },
        alternatives: near.as_ref().map_or_else(Vec::new, |nearest| nearest.forms().map(Form::cause).collect()),
        note: account
            .map(|(_, account)| paid::unpaid(*account, others.saturating_sub(1)))
            .or(beside_rounding)
            .or(supposed),
        unpaid: account.map(|(_, account)| *account),
        through: first.through.clone(),
        counted: all.iter().map(|e| e.counted).max().unwrap_or_default(),
        untried: first.untried_for_want_of_time(),
        // What moves a choice was tried without that.
        tried: if first.supposed.is_none() { first.tried.clone() } else { BTreeMap::new() },
        ..shown
    }
}

/// A finding at these taps, each with how far it is off and what is left of that.
fn shown(held: &Held, matched: Match, taps: impl Iterator<Item = (usize, f64, f64)>) -> Finding {
    let left = |(tap, base_nmse, residual_nmse)| Remainder { place: held.place(tap), base_nmse, residual_nmse };
    let remainders: Vec<Remainder> = taps.map(left).collect();
    Finding {
        shown_at: remainders.iter().map(|left| left.place).collect(),
        residual_nmse: remainders.iter().map(|left| left.residual_nmse).fold(0.0, f64::max),
        base_nmse: remainders.iter().map(|left| left.base_nmse).fold(0.0, f64::max),
        remainders,
        ..Finding::without_cause(matched)
    }
}

/// Says of faults without a cause which operations lie between what was recorded and the tap: any of them may be it. Of an operation that is left out up to a
/// tap, where nothing that reads the tap shows that it is not done behind.
pub(super) fn say_where(replay: &Replay, findings: &mut [Finding]) {
    let end = replay.taps.last().map(|t| t.report.place.tap);
    for finding in findings.iter_mut().filter(|finding| finding.note.is_none()) {
        let is_omitted = finding.cause.as_ref().is_some_and(|cause| cause.id == OPERATION_OMITTED.id);
        let reads = |t: &Replayed, at: &Place| t.report.place.step == at.step && t.from.contains(&at.tap);
        let shows = |t: &Replayed| t.report.status.agrees() && finding.shown_at.iter().any(|at| reads(t, at));
        let Some(first) = finding.shown_at.first() else { continue };
        if finding.is_open() {
            finding.note = replay.taps.iter().find(|t| t.report.place == *first).and_then(|t| t.stretch.clone());
        } else if is_omitted && Some(first.tap) != end && !replay.taps.iter().any(shows) {
            let seen = format!("seen at {} alone: nothing that was recorded and reads it is right", first.tap);
            finding.note = Some(format!("{seen}, so that it may be done behind"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::norm::NORM_WIDTH;
    use crate::mistakes::rope::ROPE_ATTENTION_FACTOR;
    use crate::mistakes::scores::SCORE_SCALE;

    #[test]
    fn of_equal_explanations_the_plain_one_is_said_first() {
        let form = |mistake, name, value: f64| Form::new(mistake, vec![(name, json!(value))], Vec::new());
        let scale = |value: f64| form(&SCORE_SCALE, "scale", value).due(0.25);
        let (width, factor) = (form(&NORM_WIDTH, "width", 36.0), |x| form(&ROPE_ATTENTION_FACTOR, "factor", x));
        assert!(is_said_before(&scale(0.353553), &width) && !is_said_before(&width, &scale(0.353553)));
        assert!(is_said_before(&scale(0.5), &factor(2.0)) && !is_said_before(&factor(2.0), &width));
        // A number with fewer digits is the plainer one.
        assert!(!is_said_before(&scale(0.36), &factor(1.2)));
    }
}
