//! Why is it wrong? Each wrong slice is carried out otherwise, until the candidate's own numbers come out.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use firstdiff_compare::{Place, SeenPadding, Status, TapReport, is_masked};
use firstdiff_evidence::Evidence;
use firstdiff_model::Profile;
use firstdiff_program::{At, Baseline, Bench, Edit, Operand, Program, Slice};
use firstdiff_trace::{Site, Tap};
use ndarray::ArrayD;

use crate::explain::finding::{Counted, other_counts, unmasked_padding};
use crate::explain::findings::{join_named, of_no_known_positions, show_nothing};
use crate::explain::not_testable::LARGE;
use crate::explain::{A_MOMENT, Effort, Explanation, Finding, Progress, misrecorded, moved_alike};
use crate::mistakes::norm::NORM_OMITTED;
use crate::mistakes::precision::PRECISION;
use crate::mistakes::{BeginsLater, StandsBehind, Values};
use crate::paid::evidence;
use crate::program::arithmetic::another;
use crate::program::context::Context;
use crate::program::edits::{Priced, edits, kin};
use crate::program::findings::{findings, same_operation, say_where};
use crate::program::forms::{Form, forms};
use crate::program::held::{Held, array};
use crate::program::not_testable::not_testable;
use crate::program::replay::{ProgramReplay, Replays};
use crate::program::{Candidate, Recording, partial};
use crate::replay::operation::{Operation, is_coarse, recorded_unit};
use crate::replay::reason::Reason;
use crate::replay::right::distance;
use crate::replay::{ReplayError, Replayed};
use crate::search::budget::Budget;
use crate::tolerance::replay::OWN_ROUNDING;
use crate::tolerance::search::{
    CAUSE_LEAVES, CAUSE_LEAVES_ROUNDED, EQUAL_BITS, F32_LEAVES, FINEST, MATTERS, NEARER, NEARLY_LEAVES, NO_RESIDUAL,
    ROUNDING_ROOM, SAME_RESIDUAL, SAME_SIZE, SPAN_ADDS_UP, TUNED_TO_ROUNDING, UNLISTED_SHARE,
};

/// Replays a candidate, and looks for what is done otherwise where it goes wrong.
///
/// # Errors
/// As [`replay`](crate::program::replay()).
pub fn explain(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    effort: &Effort,
    progress: Progress<'_>,
) -> Result<Explanation, ReplayError> {
    let begun = Instant::now();
    let mut judged = ProgramReplay::run(recording, candidate, &mut |done, total| progress("replay", done, total))?;
    let other = judged.other_arithmetic(recording, candidate, effort)?;
    let (recording, held, replays) = (&judged.recording(recording), &judged.held, &judged.replays);
    let candidate = &Candidate { cache: (judged.cache, candidate.cache.1), ..*candidate };
    let is_late = effort.quick && begun.elapsed() > A_MOMENT;
    if !is_late
        && effort.tries(&PRECISION)
        && let Some(finding) = another(recording, candidate, held, replays, progress)?
    {
        return Ok(Explanation { replay: judged.replays.replay, findings: vec![finding], not_testable: Vec::new() });
    }
    let moves = moved_alike::moves(effort);
    let mut search = Search {
        recording: *recording,
        held,
        replays,
        candidate,
        effort,
        moment: Budget::of_one_thread(A_MOMENT.as_secs_f64()),
        exact: Bench::new(recording.program, candidate.exact(), recording.weights),
        rounded: candidate.arithmetic().map(|own| Bench::new(recording.program, own, recording.weights)),
        readers: OnceCell::new(),
        contradicted: BTreeSet::new(),
        unexplained: BTreeSet::new(),
        is_second_look: false,
        baseline: RefCell::new(None),
    };
    let mut explained: Vec<Explained> = Vec::new();
    let sees_padding =
        |place: Place| candidate.padding.iter().flat_map(SeenPadding::places).any(|other| other == place);
    let is_blamed = |tap: &usize| {
        let place = held.place(*tap);
        let is_rounded =
            other.iter().filter(|other| other.nearest.is_some()).any(|other| other.places.contains(&place));
        !is_rounded && !sees_padding(place) && replays.of(place).is_some_and(Replayed::is_blamed)
    };
    let wrong: Vec<usize> = replays.wrong().filter(is_blamed).collect();
    for (done, &tap) in wrong.iter().enumerate() {
        progress(&held.place(tap).to_string(), done, wrong.len());
        explained.extend(search.explained(tap, &explained));
        search.unexplained.extend(explained.last().filter(|e| e.reproduced.is_empty()).map(|e| e.tap));
    }
    let judged_behind = if effort.quick { Vec::new() } else { partial::judge(&mut search, &mut explained, progress) };
    // What was found behind a tap may be what is wrong at it.
    search.is_second_look = true;
    for at in 0..explained.len() {
        if explained[at].reproduced.is_empty()
            && let Some(again) = search.explained(explained[at].tap, &explained)
            && !again.reproduced.is_empty()
        {
            explained[at] = again;
        }
    }
    let mut findings = findings(&search, &explained);
    show_nothing(&mut findings);
    let order = |tap: Tap| (0..recording.program.taps().len()).find(|&at| held.place(at).tap == tap);
    let order = |tap: Tap| order(tap).unwrap_or(usize::MAX);
    findings.extend(unmasked_padding(candidate.padding));
    findings.extend(other_counts(&replays.replay));
    let mut not_blamed = misrecorded::findings(&replays.replay);
    search.name_moved_alike(&moves, &mut not_blamed);
    if !not_blamed.is_empty() {
        findings.extend(not_blamed);
        findings.sort_by_key(|f| f.taps.first().map_or(usize::MAX, |&tap| order(tap)));
    }
    if let Some(other) = other {
        other.take_up(&mut findings, &replays.replay);
    }
    if !effort.quick {
        crate::program::laws::measure((recording, candidate, held), &replays.replay, effort, &mut findings, progress);
        join_named(&mut findings, order);
    }
    if !candidate.are_tokens_known {
        of_no_known_positions(&mut findings);
    }
    let not_testable = if effort.quick { Vec::new() } else { not_testable(&mut search, &findings) };
    partial::take_up(&mut judged.replays.replay, judged_behind);
    say_where(&judged.replays.replay, &mut findings);
    Ok(Explanation { replay: judged.replays.replay, findings, not_testable })
}

/// A wrong tap, and what was found.
pub(super) struct Explained {
    pub(super) tap: usize,
    pub(super) base: f64,
    pub(super) counted: Counted,
    pub(super) through: Vec<Tap>,
    pub(super) reproduced: Vec<Reproduced>,
    pub(super) tried: BTreeMap<&'static str, f64>,
    /// Mistakes of which some form was not tried for want of time.
    pub(super) untried: BTreeSet<&'static str>,
    /// How many forms there were to try.
    pub(super) forms: usize,
    /// What came nearest.
    pub(super) nearest: Option<Reproduced>,
    /// Mistakes that leave no more than rounding, and are not proved: too little is off.
    pub(super) within_rounding: BTreeSet<&'static str>,
    /// A choice that it reads, was not recorded, and was taken as right operations make it.
    pub(super) supposed: Option<usize>,
}

/// A form that was tried, and what it leaves.
#[derive(Clone)]
pub(super) struct Reproduced {
    pub(super) form: Form,
    /// Others that are made with it, where one alone is not it.
    pub(super) others: Vec<Form>,
    /// What each of two leaves by itself.
    pub(super) alone: Vec<f64>,
    pub(super) residual: f64,
    /// What the numbers carry for it, where it gives them.
    pub(super) evidence: Evidence,
}

impl Reproduced {
    pub(super) fn forms(&self) -> impl Iterator<Item = &Form> {
        std::iter::once(&self.form).chain(&self.others)
    }

    /// What one of two leaves by itself.
    pub(super) fn leaves_alone(&self, form: &Form) -> Option<f64> {
        self.forms().zip(&self.alone).find(|(own, _)| own.key() == form.key()).map(|(_, alone)| *alone)
    }

    /// Whether a number of it was read off the candidate.
    pub(super) fn is_fitted(&self) -> bool {
        let is_free = |form: &Form| {
            let free = |name: &str| form.mistake.param(name).is_some_and(|param| param.values == Values::Free);
            form.params.iter().any(|(name, value)| free(name) && value.is_number())
        };
        self.forms().any(is_free)
    }

    /// What tells it from others where the line of code is another.
    pub(super) fn kin(&self) -> String {
        let keys: BTreeSet<String> = self.forms().map(kin).collect();
        keys.into_iter().collect::<Vec<_>>().join(" and ")
    }

    pub(super) fn key(&self) -> String {
        let keys: BTreeSet<String> = self.forms().map(|form| format!("{} @{}", form.key(), form.class)).collect();
        keys.into_iter().collect::<Vec<_>>().join(" and ")
    }
}

/// What gave the numbers of taps before: each form once for each operation that it was made in, and which two did so together.
struct Known {
    forms: BTreeMap<(String, usize), Form>,
    /// What tells them apart wherever they are made.
    kin: BTreeSet<String>,
    sets: BTreeSet<Vec<String>>,
}

impl Known {
    fn of(explained: &[Explained]) -> Known {
        let reproduced = || explained.iter().flat_map(|e| &e.reproduced);
        let forms = reproduced().flat_map(Reproduced::forms).map(|form| ((form.key(), form.class), form.clone()));
        let set = |found: &Reproduced| found.forms().map(Form::key).collect::<Vec<String>>();
        let kin = reproduced().flat_map(Reproduced::forms).map(kin).collect();
        Known {
            forms: forms.collect(),
            kin,
            sets: reproduced().filter(|found| !found.others.is_empty()).map(set).collect(),
        }
    }

    /// Whether a form gave the numbers of a tap, in whichever operation: what is done to q is done to k as well.
    fn has(&self, key: &str) -> bool {
        self.forms.keys().any(|(known, _)| known == key)
    }

    /// A form of any number with each of those that it was found with.
    fn numbers(&self, form: &Form) -> Vec<Form> {
        // What q is turned by, k is as well.
        self.forms.values().filter_map(|known| form.with_number_of(known)).collect()
    }
}

/// So many of the nearest are tried beside all others.
const WITH_ALL: usize = 4;
/// So many sets are grown by another form.
const KEPT_SETS: usize = 8;
/// Of what was found together so many ways are tried at another tap.
const MOST_WAYS: usize = 16;
/// Of one mistake in one operation so many forms are tried beside others.
const MOST_OF_ONE: usize = 2;
/// Of so many forms that gave the numbers of taps before, each two are tried together.
const MOST_TOGETHER: usize = 6;
/// Pairs are made of so many forms that each take something of the error away.
const PAIRED: usize = 24;
/// A number is looked for beside so many of them.
const TUNED_WITH: usize = 8;

pub(super) struct Search<'a> {
    pub(super) recording: Recording<'a>,
    pub(super) held: &'a Held,
    pub(super) replays: &'a Replays,
    pub(super) candidate: &'a Candidate<'a>,
    pub(super) effort: &'a Effort,
    moment: Budget,
    pub(super) exact: Bench<'a>,
    pub(super) rounded: Option<Bench<'a>>,
    /// For each operation the taps that are right and made of it.
    readers: OnceCell<HashMap<usize, Vec<usize>>>,
    /// Forms of operations that gave a tap's numbers, and that another tap spoke against.
    contradicted: BTreeSet<(String, usize)>,
    /// Taps that are wrong for a reason not known.
    unexplained: BTreeSet<usize>,
    /// Whether only what gave the numbers of other taps is tried.
    is_second_look: bool,
    /// All that the slice of a tap computes as it is.
    baseline: RefCell<Option<(usize, Baseline<'a>)>>,
}

/// A form, and what it leaves.
type Left<'f> = (f64, &'f Form);

/// A wrong tap in the search.
struct Target<'t> {
    slice: &'t Slice<'t>,
    own: ArrayD<f64>,
    place: Place,
    /// By which a share of the candidate's energy is one of the reference's: what is held against it all has then one measure.
    scale: f64,
    /// How far off it is, and the same where that is too much for rounding.
    off: f64,
    base: f64,
    /// What rounding costs it; 0 where that is no more than the order of sums.
    rounding: f64,
    operation: Operation<'t>,
    budget: Budget,
}

impl<'a> Search<'a> {
    /// Says of q and k that are turned by positions off alike which, where what comes of both is right.
    fn name_moved_alike(&mut self, moves: &'a Effort, not_blamed: &mut Vec<Finding>) {
        let (held, places) = (self.held, moved_alike::places(&self.replays.replay));
        let before = std::mem::replace(&mut self.effort, moves);
        // Each alone is spoken against by what reads both.
        let readers = std::mem::replace(&mut self.readers, OnceCell::from(HashMap::new()));
        let mut explained: Vec<Explained> = Vec::new();
        for tap in self.replays.wrong().filter(|tap| places.contains(&held.place(*tap))) {
            explained.extend(self.explained(tap, &explained));
        }
        (self.effort, self.readers) = (before, readers);
        moved_alike::take_up(findings(self, &explained), not_blamed);
    }

    pub(super) fn explained(&mut self, tap: usize, before: &[Explained]) -> Option<Explained> {
        let (program, held) = (self.recording.program, self.held);
        let own = held.recorded(tap)?;
        let known = Known::of(before);
        // What was searched in vain once is not searched again as far.
        let vainly = |e: &Explained| e.reproduced.is_empty() && same_operation(&self.recording, held, e.tap, tap);
        let is_new = !before.iter().any(vainly);
        let replayed = self.replays.of(held.place(tap))?;
        if self.effort.quick && (self.moment.is_spent() || !replayed.through.is_empty()) {
            return None;
        }
        let size = replayed.report.metrics.and_then(|metrics| metrics.nmse()).filter(|nmse| nmse.is_finite());
        let mut found = Explained {
            tap,
            base: size.unwrap_or(f64::INFINITY),
            counted: Counted::All,
            through: replayed.through.clone(),
            reproduced: Vec::new(),
            tried: BTreeMap::new(),
            untried: BTreeSet::new(),
            forms: 0,
            nearest: None,
            within_rounding: BTreeSet::new(),
            supposed: None,
        };
        // Nothing can be done otherwise that cannot be done.
        if replayed.is_for(Reason::is_of_the_reference) {
            return Some(found);
        }
        let slice = Slice::of(program, tap, |other| held.readable(other).is_some());
        // A weight that cannot be read was told of by the replay.
        self.exact.load(&slice).ok()?;
        let place = held.place(tap);
        found.supposed = slice.known().find(|&known| held.get(known).is_none() && held.part(known).is_none());
        let Some((right, rounded)) = self.exact_and_rounded(&slice, &[]) else { return Some(found) };
        let (all, rounding) = match self.coarse() {
            Some(_) => {
                let [exact_off, off] = [&right, &rounded].map(|due| distance(place.tap.last_site(), due, &own));
                let unit = recorded_unit(self.candidate.profile, false);
                (exact_off.min(off), distance(place.tap.last_site(), &right, &rounded).max(unit.powi(2)))
            }
            None => (distance(place.tap.last_site(), &right, &own), 0.0),
        };
        let scale = Some(all / distance(place.tap.last_site(), &own, &right)).filter(|scale| scale.is_normal());
        let off = all.max(size.unwrap_or(0.0));
        // Where the size alone is none, what is wrong may be which values there are at all: all of these are wrong.
        let hidden = hides_others(place.tap.last_site(), &right, &own);
        let by_size = off > replayed.report.allowed.unwrap_or(0.0) || hidden == 0.0;
        let target = Target {
            slice: &slice,
            scale: scale.unwrap_or(1.0),
            off: off.max(replayed.report.allowed.unwrap_or(0.0)),
            base: if by_size { off } else { f64::INFINITY },
            rounding,
            own,
            place,
            operation: self.replays.operation(replayed, self.candidate.profile),
            budget: Budget::of_one_thread(self.effort.seconds),
        };
        let context = Context::new(program, held, &slice, &self.exact, Arc::new(self.whole(&slice)?));
        let all: Vec<Form> = forms(&context).into_iter().filter(|form| self.effort.tries(form.mistake)).collect();
        (found.base, found.forms) = (off + hidden, all.len());
        found.counted = if hidden > 0.0 { Counted::OneSided } else { Counted::All };
        // Which keys there are to be seen is no matter of numbers.
        if replayed.is_for(|reason| matches!(reason, Reason::Padding(_))) {
            return Some(found);
        }
        // Values of a tap that is wrong for a reason not known, under another name: which of the two is wrong is not known either.
        let is_copy = |known: usize| {
            let copied = held.get(known).filter(|_| self.unexplained.contains(&known)).map(array);
            copied.is_some_and(|copied| copied.iter().eq(target.own.iter()))
        };
        if slice.known().any(is_copy) {
            return Some(found);
        }
        let unlisted = self.found_before(&target, &known, &all, !replayed.through.is_empty(), &mut found);
        if !found.reproduced.is_empty() || self.is_second_look {
            return Some(found);
        }
        let mut measured: Vec<Left<'_>> = Vec::new();
        for form in all.iter().filter(|form| form.tune.is_none()) {
            if self.is_late(&target) {
                found.untried.insert(form.mistake.id);
                continue;
            }
            let residual = self.attempt(&target, form, &mut found);
            measured.extend(residual.map(|residual| (residual, form)));
        }
        let mut tuned: Vec<Left<'_>> = Vec::new();
        // What another number gives as well stands before some causes.
        let gives_way = |found: &Reproduced| found.form.mistake.stands_behind != StandsBehind::None;
        if found.reproduced.iter().all(gives_way) && is_new && !self.effort.quick {
            let is_open = found.reproduced.is_empty();
            let may_be = |form: &&Form| is_open || form.mistake.stands_behind == StandsBehind::None;
            for form in all.iter().filter(|form| form.tune.is_some()).filter(may_be) {
                if self.is_late(&target) {
                    found.untried.insert(form.mistake.id);
                } else if let Some(best) = self.tuned(&target, form, &[]) {
                    tuned.extend(self.attempt(&target, &best, &mut found).map(|residual| (residual, form)));
                } else if target.base <= OWN_ROUNDING * target.rounding {
                    // Beside rounding no number shows that it is near.
                    found.tried.remove(form.mistake.id);
                }
            }
        }
        // Which cells are hidden a law says in better words.
        if found.reproduced.is_empty() && is_new && !self.effort.quick && hidden == 0.0 {
            let all = unlisted.unwrap_or_else(|| self.not_listed(&target));
            self.unlisted(&target, &all, &mut found);
        }
        // What would have shown in the prompt, which is right, comes last.
        if place.step > 0 {
            found.reproduced.sort_by_cached_key(|r| r.others.is_empty() && self.shows_in_the_prompt(&target, &r.form));
        }
        // Another form of it, or another number, may be the mistake.
        found.tried.retain(|id, _| !found.untried.contains(id) && !found.within_rounding.contains(id));
        if found.reproduced.is_empty() && is_new && self.effort.faults > 1 {
            self.two_together(&target, &all, (measured, tuned), &mut found);
        }
        Some(found)
    }

    /// Tries what gave the numbers of taps before: alone, two together, and what nobody lists where it is as what was found; that list, where it was made.
    fn found_before(
        &mut self,
        target: &Target<'_>,
        known: &Known,
        all: &[Form],
        is_stretch: bool,
        found: &mut Explained,
    ) -> Option<Vec<Priced>> {
        // What gave another tap's numbers is tried first: one mistake is made in many layers.
        let again = |form: &&Form| known.has(&form.key());
        let tuned: Vec<Form> = all.iter().flat_map(|form| known.numbers(form)).collect();
        let known_forms: Vec<&Form> =
            all.iter().filter(|form| form.tune.is_none()).filter(again).chain(&tuned).collect();
        for form in &known_forms {
            self.attempt(target, form, found);
        }
        let is_open = found.reproduced.is_empty();
        // What only several together give in one step, they give in another.
        for set in known.sets.iter().filter(|_| is_open) {
            let mut ways: Vec<Vec<&Form>> = vec![Vec::new()];
            for key in set {
                let same = || known_forms.iter().copied().filter(|form| form.key() == *key);
                ways = ways
                    .iter()
                    .flat_map(|way| same().map(|form| [&way[..], &[form]].concat()))
                    .take(MOST_WAYS)
                    .collect();
            }
            for way in ways {
                self.together(target, &way, found);
            }
        }
        // What was found at two taps may be made on the way to one behind.
        if is_open && found.reproduced.is_empty() && is_stretch && known_forms.len() <= MOST_TOGETHER {
            for (at, first) in known_forms.iter().enumerate() {
                for second in &known_forms[at + 1..] {
                    self.together(target, &[first, second], found);
                }
            }
        }
        let mut unlisted: Option<Vec<Priced>> = None;
        if found.reproduced.is_empty() && !known.kin.is_empty() && !self.effort.quick {
            let all = unlisted.insert(self.not_listed(target));
            for Priced { form, .. } in all.iter().filter(|edit| known.kin.contains(&kin(&edit.form))) {
                self.attempt(target, form, found);
            }
        }
        unlisted
    }

    /// What may be done otherwise and nobody lists.
    fn not_listed(&self, target: &Target<'_>) -> Vec<Priced> {
        let own = Arc::new(target.own.clone());
        let context = Context::new(self.recording.program, self.held, target.slice, &self.exact, own);
        edits(&context).into_iter().filter(|edit| self.effort.tries(edit.form.mistake)).collect()
    }

    /// Tries two forms together, of those that were tried alone, with what they left.
    fn two_together(
        &mut self,
        target: &Target<'_>,
        all: &[Form],
        (measured, mut tuned): (Vec<Left<'_>>, Vec<Left<'_>>),
        found: &mut Explained,
    ) {
        let measured = nearest_of_each(measured, NEARER * target.base);
        let nearest = &measured[..measured.len().min(PAIRED)];
        let sets = self.pairs(target, nearest, found);
        // Beside what is most of the error another mistake takes nothing of it away.
        for (_, first) in nearest.iter().take(WITH_ALL) {
            for second in all.iter().filter(|form| form.tune.is_none()) {
                if !self.is_late(target) && found.reproduced.is_empty() {
                    self.together(target, &[first, second], found);
                }
            }
        }
        let nearest_few = nearest;
        tuned.sort_by(|a, b| a.0.total_cmp(&b.0));
        let nearest: Vec<&Form> = tuned.into_iter().map(|(_, form)| form).collect();
        let is_far = |form: &&Form| !nearest.iter().any(|near| std::ptr::eq(*near, *form));
        let others = all.iter().filter(|form| form.tune.is_some()).filter(is_far);
        let tunable: Vec<&Form> = nearest.iter().copied().chain(others).collect();
        self.tuned_pairs(target, &measured, &tunable, found);
        self.grown(target, (nearest_few, &tunable), sets, found);
    }

    /// What nobody lists, the cheapest first, up to a few bits behind the first that gives the numbers.
    fn unlisted(&mut self, target: &Target<'_>, all: &[Priced], found: &mut Explained) {
        found.forms += all.len();
        let mut most = f64::INFINITY;
        for Priced { bits, form } in all {
            // Two mistakes that have names are looked for as well.
            if *bits > most || self.is_late(target) || target.budget.is_spent_by(UNLISTED_SHARE) {
                break;
            }
            self.attempt(target, form, found);
            if !found.reproduced.is_empty() && most.is_infinite() {
                most = bits + EQUAL_BITS;
            }
        }
    }

    fn is_late(&self, target: &Target<'_>) -> bool {
        target.budget.is_spent() || self.effort.quick && self.moment.is_spent()
    }

    /// Tries a form, and notes what it leaves.
    fn attempt(&mut self, target: &Target<'_>, form: &Form, found: &mut Explained) -> Option<f64> {
        let residual = self.residual(target, &form.edits)?;
        let best = found.tried.entry(form.mistake.id).or_insert(residual);
        *best = best.min(residual);
        let (form, evidence) = (form.clone(), Evidence::default());
        let reproduced = Reproduced { form, others: Vec::new(), alone: Vec::new(), residual, evidence };
        self.weigh(target, reproduced, found);
        Some(residual)
    }

    /// Notes a form that gives the candidate's numbers, or that came nearest.
    fn weigh(&mut self, target: &Target<'_>, tried: Reproduced, found: &mut Explained) {
        let edits: Vec<Edit> = tried.forms().flat_map(|form| form.edits.clone()).collect();
        if self.proves(target, &edits, tried.residual) {
            // One line of code does the same in all layers.
            let name = (tried.form.key(), tried.form.class);
            let is_alone = tried.others.is_empty();
            let is_spoken_against = is_alone && self.contradicted.contains(&name);
            // What is read may have been normed before, where it is wrong for a reason not known.
            let is_omitted = tried.forms().any(|form| form.mistake == &NORM_OMITTED);
            if is_omitted && target.slice.known().any(|known| self.unexplained.contains(&known)) {
                return;
            }
            let tried = match is_alone {
                true => self.begun_later(target, tried),
                false => tried,
            };
            let edits: Vec<Edit> = tried.forms().flat_map(|form| form.edits.clone()).collect();
            if !is_spoken_against
                && self.holds_elsewhere(target, &edits)
                && (!is_alone || self.holds_in_decode(target, &tried.form))
            {
                let both = self.value(target.slice, &[]).zip(self.value(target.slice, &edits));
                let is_rounding = tried.forms().any(|form| form.mistake.is_another_arithmetic);
                let unit = recorded_unit(self.candidate.profile, is_rounding);
                let (site, shows_one) = (target.place.tap.last_site(), self.shows_one_number_a_row(target, &tried));
                let evidence =
                    both.map(|(right, claimed)| evidence(site, [&target.own, &right, &claimed], unit, shows_one));
                found.reproduced.push(Reproduced { evidence: evidence.unwrap_or_default(), ..tried });
            } else if is_alone {
                self.contradicted.insert(name);
            }
            return;
        }
        // Too little is off to prove what leaves no more than rounding; it is not ruled out either.
        if tried.others.is_empty()
            && tried.residual <= ROUNDING_ROOM * target.rounding
            && self.agrees_with(target.slice, &edits) == Some(true)
            && self.holds_elsewhere(target, &edits)
        {
            found.within_rounding.insert(tried.form.mistake.id);
        }
        if tried.residual < NEARER * target.base
            && found.nearest.as_ref().is_none_or(|nearest| tried.residual < nearest.residual)
        {
            found.nearest = Some(tried);
        }
    }

    /// Whether a number of it was fitted that is a factor of whole rows: much else is one number a row as well.
    fn shows_one_number_a_row(&self, target: &Target<'_>, tried: &Reproduced) -> bool {
        let ops = self.recording.program.ops();
        let only_products_behind = |form: &Form| {
            let last = form.edits.iter().filter_map(|edit| edit.at.op()).max();
            let mut behind = target.slice.ops().filter(|&op| last.is_some_and(|last| op > last));
            behind.all(|op| {
                ["linear", "addmm", "mm", "matmul", "view", "reshape", "contiguous"].contains(&ops[op].base())
            })
        };
        let is_one = |form: &Form| form.mistake.shows_one_number_a_row && only_products_behind(form);
        tried.is_fitted() && tried.forms().any(is_one)
    }

    /// The taps at which a form may be made as well that is found at others: what was recorded of them comes out with it as it does without, beside what was
    /// found there.
    pub(super) fn untold(&self, form: &Form, wrong: &[usize], explained: &[Explained]) -> Vec<Place> {
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
            let slice = Slice::of(program, tap, |other| held.readable(other).is_some());
            if !slice.ops().any(is_of_it) || reads_large(program, &slice) {
                return false;
            }
            let Some(own) = self.whole(&slice) else { return false };
            let context = Context::new(program, held, &slice, &self.exact, Arc::new(own));
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
    fn holds_elsewhere(&self, target: &Target<'_>, edits: &[Edit]) -> bool {
        let program = self.recording.program;
        let number = target.slice.target();
        let readers = self.readers.get_or_init(|| self.replays.readers(program, self.held));
        let ops: BTreeSet<usize> = edits.iter().filter_map(|edit| edit.at.op()).collect();
        // What one operation makes, queries, keys and values of one matrix, it makes in one way: wrong ones count as well.
        let is_made = |&other: &usize| ops.contains(&program.taps()[other].op) && self.held.get(other).is_some();
        let mut others: BTreeSet<usize> = (0..program.taps().len()).filter(is_made).collect();
        others.extend(ops.iter().filter_map(|op| readers.get(op)).flatten());
        let of_the_step = |&other: &usize| other != number && program.taps()[other].step == program.taps()[number].step;
        others.into_iter().filter(of_the_step).all(|other| {
            let slice = Slice::of(program, other, |tap| self.held.readable(tap).is_some());
            self.agrees_with(&slice, edits).unwrap_or(true)
        })
    }

    /// A form of which earlier decode steps of the same tap, which are right, show nothing: it begins with this step, where it may.
    fn begun_later(&self, target: &Target<'_>, tried: Reproduced) -> Reproduced {
        let (program, held, own) = (self.recording.program, self.held, target.place);
        let is_right = |step: u32| {
            let place = Place { step, ..own };
            self.replays.of(place).is_some_and(|t| t.report.status.agrees() && t.is_blamed())
        };
        let may_begin = match tried.form.mistake.begins_later {
            BeginsLater::Never => false,
            BeginsLater::InOneOperation => self.replays.of(own).is_some_and(|t| t.through.is_empty()),
            BeginsLater::WithTokens => true,
        };
        let last = (1..own.step).rev().find(|&step| is_right(step)).filter(|_| may_begin);
        let Some(first) = last.map(|last| last + 1).filter(|_| !self.holds_in_decode(target, &tried.form)) else {
            return tried;
        };
        let step_of = |at: At| match at {
            At::Op(op) => program.steps().iter().position(|step| op < step.ops.end),
            At::Tap(tap) => Some(held.place(tap).step as usize),
        };
        let mut form = tried.form.clone();
        form.edits.retain(|edit| step_of(edit.at).is_some_and(|step| step >= first as usize));
        match self.residual(target, &form.edits) {
            Some(residual) if self.proves(target, &form.edits, residual) => {
                Reproduced { form: Form { begins_at: Some(first), ..form }, residual, ..tried }
            }
            _ => tried,
        }
    }

    /// Whether the same is right in the other decode steps: one line of code does the same in all of them, so that it speaks against a form where the same
    /// tap is right in another step and would not be with it.
    fn holds_in_decode(&self, target: &Target<'_>, form: &Form) -> bool {
        let (program, held, own) = (self.recording.program, self.held, target.place);
        let is_right = |tap: usize| {
            let place = held.place(tap);
            let is_other = place.tap == own.tap && place.step > 0 && place.step != own.step;
            is_other && self.replays.of(place).is_some_and(|t| t.report.status.agrees() && t.is_blamed())
        };
        let others = if own.step > 0 { 0..program.taps().len() } else { 0..0 };
        let is_before = |tap: usize| form.begins_at.is_some_and(|first| held.place(tap).step < first);
        others.filter(|&tap| is_right(tap) && !is_before(tap)).all(|tap| {
            let Some(value) = held.get(tap).map(array) else { return true };
            let slice = Slice::of(program, tap, |other| held.readable(other).is_some());
            let context = Context::new(program, held, &slice, &self.exact, Arc::new(value));
            let same = form.among(&forms(&context));
            same.is_none_or(|same| self.agrees_with(&slice, &same.edits).unwrap_or(true))
        })
    }

    /// Whether a form would make another value of the same tap of the prompt, which is right.
    fn shows_in_the_prompt(&self, target: &Target<'_>, form: &Form) -> bool {
        let (program, held) = (self.recording.program, self.held);
        let prompt = Place { step: 0, ..target.place };
        let is_right = self.replays.of(prompt).is_some_and(|t| t.report.status.agrees());
        let tap = (0..program.taps().len()).find(|&tap| is_right && held.place(tap) == prompt);
        tap.and_then(|tap| Some((tap, held.get(tap).map(array)?))).is_some_and(|(tap, value)| {
            let slice = Slice::of(program, tap, |other| held.readable(other).is_some());
            let context = Context::new(program, held, &slice, &self.exact, Arc::new(value));
            let same = forms(&context).into_iter().find(|other| other.key() == form.key());
            same.is_some_and(|same| self.agrees_with(&slice, &same.edits) == Some(false))
        })
    }

    /// Whether a tap that is right agrees with some operations that are done otherwise; `None` where that is not known.
    pub(super) fn agrees_with(&self, slice: &Slice<'_>, edits: &[Edit]) -> Option<bool> {
        Some(self.report_with(slice, edits)?.status.agrees())
    }

    /// How a tap is judged with some operations that are done otherwise; `None` where that is not known.
    pub(super) fn report_with(&self, slice: &Slice<'_>, edits: &[Edit]) -> Option<TapReport> {
        let own = self.held.recorded(slice.target())?;
        let replayed = self.replays.of(self.held.place(slice.target()))?;
        let ops: BTreeSet<usize> = slice.ops().collect();
        let here = |edit: &&Edit| edit.at.op().is_none_or(|op| ops.contains(&op));
        let edits: Vec<Edit> = edits.iter().filter(here).cloned().collect();
        let (exact, right) = self.exact_and_rounded(slice, &edits)?;
        let operation = self.replays.operation(replayed, self.candidate.profile);
        (exact.shape() == own.shape()).then(|| operation.judged(&own, &right, &exact).report)
    }

    /// Tries each two of some forms together, and gives what they leave.
    fn pairs<'f>(
        &mut self,
        target: &Target<'_>,
        measured: &[Left<'f>],
        found: &mut Explained,
    ) -> Vec<(f64, Vec<&'f Form>)> {
        let mut sets = Vec::new();
        for (at, (_, first)) in measured.iter().enumerate() {
            for (_, second) in &measured[at + 1..] {
                if self.is_late(target) {
                    return sets;
                }
                let set = vec![*first, *second];
                sets.extend(self.together(target, &set, found).map(|residual| (residual, set)));
            }
        }
        sets
    }

    /// Tries several forms together, where they can be made beside each other; gives what they leave.
    fn together(&mut self, target: &Target<'_>, forms: &[&Form], found: &mut Explained) -> Option<f64> {
        let program = self.recording.program;
        let apart = |a: &Form, b: &Form| a.edits.iter().all(|a| b.edits.iter().all(|b| a.is_beside(b, program)));
        if forms.iter().enumerate().any(|(at, a)| forms[at + 1..].iter().any(|b| !apart(a, b))) {
            return None;
        }
        let edits = |without: Option<usize>| -> Vec<Edit> {
            let kept = forms.iter().enumerate().filter(|(at, _)| Some(*at) != without);
            kept.flat_map(|(_, form)| form.edits.clone()).collect()
        };
        let residual = self.residual(target, &edits(None))?;
        let (form, others) = forms.split_first()?;
        let before = found.reproduced.len();
        let (form, others) = ((*form).clone(), others.iter().map(|form| (*form).clone()).collect());
        self.weigh(
            target,
            Reproduced { form, others, alone: Vec::new(), residual, evidence: Evidence::default() },
            found,
        );
        if found.reproduced.len() > before {
            // Of more than two each must take most of what the others leave.
            let matters = |at: usize| {
                self.residual(target, &edits(Some(at))).is_none_or(|left| left > MATTERS * residual.max(NO_RESIDUAL))
            };
            if forms.len() > 2 && !(0..forms.len()).all(matters) {
                found.reproduced.truncate(before);
                return Some(residual);
            }
            let alone = forms.iter().map(|form| self.residual(target, &form.edits).unwrap_or(f64::NAN)).collect();
            found.reproduced[before].alone = alone;
        }
        Some(residual)
    }

    /// Sets that leave least are grown by one form at a time, up to as many mistakes as are looked for.
    fn grown<'f>(
        &mut self,
        target: &Target<'_>,
        (nearest, tunable): (&[Left<'f>], &[&Form]),
        mut sets: Vec<(f64, Vec<&'f Form>)>,
        found: &mut Explained,
    ) {
        for _ in 3..=self.effort.faults {
            sets.retain(|(residual, _)| *residual < NEARER * target.base);
            sets.sort_by(|a, b| a.0.total_cmp(&b.0));
            sets.truncate(KEPT_SETS);
            let mut larger = Vec::new();
            for (_, set) in &sets {
                for (_, form) in nearest.iter().filter(|(_, form)| !set.iter().any(|own| std::ptr::eq(*own, *form))) {
                    if self.is_late(target) || !found.reproduced.is_empty() {
                        return;
                    }
                    let set = [&set[..], &[*form]].concat();
                    larger.extend(self.together(target, &set, found).map(|residual| (residual, set)));
                }
                let beside: Vec<Edit> = set.iter().flat_map(|form| form.edits.clone()).collect();
                for form in tunable.iter().take(TUNED_WITH) {
                    if self.is_late(target) || !found.reproduced.is_empty() {
                        return;
                    }
                    let Some(form) = self.tuned(target, form, &beside) else { continue };
                    self.together(target, &[&set[..], &[&form]].concat(), found);
                }
            }
            sets = larger;
        }
    }

    /// The nearest, each with a number of another form.
    fn tuned_pairs(
        &mut self,
        target: &Target<'_>,
        measured: &[(f64, &Form)],
        tunable: &[&Form],
        found: &mut Explained,
    ) {
        // Those that come nearest by themselves first, of both.
        for form in tunable {
            for (_, first) in measured.iter().take(TUNED_WITH) {
                if self.is_late(target) || !found.reproduced.is_empty() {
                    return;
                }
                let Some(second) = self.tuned(target, form, &first.edits) else { continue };
                self.together(target, &[first, &second], found);
            }
        }
    }

    /// What the slice gives with some operations carried out otherwise.
    pub(super) fn value(&self, slice: &Slice<'_>, edits: &[Edit]) -> Option<ArrayD<f64>> {
        self.value_on(&self.exact, slice, edits)
    }

    /// What the candidate holds of the tap that a slice makes; at positions that it does not hold, what is due.
    pub(super) fn whole(&self, slice: &Slice<'_>) -> Option<ArrayD<f64>> {
        match self.held.positions(slice.target()) {
            Some(part) => Some(part.within(&self.evaluated(&self.exact, slice, &[])?)),
            None => self.held.recorded(slice.target()),
        }
    }

    /// The same, with what it gives in the candidate's arithmetic, where both have one shape.
    fn exact_and_rounded(&self, slice: &Slice<'_>, edits: &[Edit]) -> Option<(ArrayD<f64>, ArrayD<f64>)> {
        let exact = self.value(slice, edits)?;
        let right = self.rounded.as_ref().map_or_else(|| Some(exact.clone()), |b| self.value_on(b, slice, edits))?;
        (right.shape() == exact.shape()).then_some((exact, right))
    }

    /// The same in another arithmetic, at the positions that the candidate holds.
    pub(super) fn value_on(&self, bench: &Bench<'_>, slice: &Slice<'_>, edits: &[Edit]) -> Option<ArrayD<f64>> {
        let all = self.evaluated(bench, slice, edits)?;
        Some(self.held.positions(slice.target()).map(|part| part.rows_of(&all)).unwrap_or(all))
    }

    fn evaluated(&self, bench: &Bench<'_>, slice: &Slice<'_>, edits: &[Edit]) -> Option<ArrayD<f64>> {
        let value = |tap: usize| self.held.readable(tap).map(|own| own.view());
        Some(array(&slice.evaluate(bench, &value, edits).ok()?))
    }

    /// The value of a target with some operations carried out otherwise; what they do not touch is computed once.
    fn beside_the_baseline(&self, target: &Target<'_>, edits: &[Edit]) -> Option<ArrayD<f64>> {
        let value = |tap: usize| self.held.readable(tap).map(|own| own.view());
        let mut kept = self.baseline.borrow_mut();
        if kept.as_ref().is_none_or(|(tap, _)| *tap != target.slice.target()) {
            *kept = Some((target.slice.target(), target.slice.baseline(&self.exact, &value).ok()?));
        }
        let (_, baseline) = kept.as_ref()?;
        let all = array(&target.slice.evaluate_beside(baseline, &value, edits).ok()?);
        Some(self.held.positions(target.slice.target()).map(|part| part.rows_of(&all)).unwrap_or(all))
    }

    /// The arithmetic of a candidate that rounds to few bits.
    fn coarse(&self) -> Option<&Bench<'a>> {
        self.rounded.as_ref().filter(|_| is_coarse(self.candidate.profile))
    }

    /// What operations that are done otherwise leave: of the exact value, or of the candidate's own arithmetic, which may leave nothing where that leaves
    /// rounding.
    fn residual(&self, target: &Target<'_>, edits: &[Edit]) -> Option<f64> {
        let left = self.left(target, || self.beside_the_baseline(target, edits))?;
        let is_near = left < NEARER * target.base || left <= OWN_ROUNDING * target.rounding;
        let rounded = self
            .coarse()
            .filter(|_| is_near)
            .and_then(|bench| self.left(target, || self.value_on(bench, target.slice, edits)));
        Some(rounded.map_or(left, |rounded| rounded.min(left)))
    }

    fn left(&self, target: &Target<'_>, value: impl FnOnce() -> Option<ArrayD<f64>>) -> Option<f64> {
        let value = self.moment.spend(|| target.budget.spend(value));
        let value = value.filter(|value| value.shape() == target.own.shape())?;
        // The same values must be hidden: what is hidden counts for nothing.
        if value.iter().any(|x| x.is_nan()) || hides_others(target.place.tap.last_site(), &value, &target.own) > 0.0 {
            return None;
        }
        let left = target.scale * distance(target.place.tap.last_site(), &target.own, &value);
        Some(left).filter(|left| left.is_finite())
    }

    /// Whether a form leaves no more than rounding, by the judge that found the tap wrong.
    fn proves(&self, target: &Target<'_>, edits: &[Edit], residual: f64) -> bool {
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
    fn tuned(&self, target: &Target<'_>, form: &Form, beside: &[Edit]) -> Option<Form> {
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
        search(&mut powers(-24..=24, 0.25).map(|times| unit * times));
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
        if tune.is_whole {
            return Some(best.round()).filter(|&whole| at(whole) <= enough).map(|whole| form.tuned(whole));
        }
        let plain = (1..=6).map(|digits| rounded_to(best, digits)).find(|&value| at(value) <= enough);
        Some(form.tuned(plain.unwrap_or_else(|| rounded_to(best, MOST_DIGITS))))
    }
}

/// Of forms with what they leave those that leave less than `most`, the nearest first, and so many of one mistake in the same operations. What leaves exactly as
/// much comes to the same: the one that is listed first stands for all.
fn nearest_of_each(mut measured: Vec<(f64, &Form)>, most: f64) -> Vec<(f64, &Form)> {
    measured.retain(|(residual, _)| *residual < most);
    // Of those that leave the same the one that is listed first.
    let size = |residual: f64| (residual / most).ln() / SAME_SIZE;
    measured.sort_by(|a, b| size(a.0).round().total_cmp(&size(b.0).round()));
    let places = |form: &Form| form.edits.iter().filter_map(|edit| edit.at.op()).collect::<BTreeSet<usize>>();
    let mut counts: HashMap<(&str, BTreeSet<usize>), usize> = HashMap::new();
    let mut left: HashSet<String> = HashSet::new();
    measured.retain(|(residual, form)| {
        let count = counts.entry((form.mistake.id, places(form))).or_default();
        *count += 1;
        *count <= MOST_OF_ONE && left.insert(format!("{residual:.9e}"))
    });
    measured
}

/// The share of values that are hidden, or infinite, in one and not in the other.
fn hides_others(site: Site, a: &ArrayD<f64>, b: &ArrayD<f64>) -> f64 {
    let shown = |x: f64| x.is_finite() && !is_masked(site, x);
    a.iter().zip(b).filter(|(a, b)| shown(**a) != shown(**b)).count() as f64 / a.len().max(1) as f64
}

/// A number that was fitted is said with so many digits at the most.
const MOST_DIGITS: i32 = 12;

/// A number with so many digits.
pub(super) fn rounded_to(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi((digits - 1).saturating_sub(value.abs().log10().floor() as i32));
    if scale.is_finite() && scale > 0.0 { (value * scale).round() / scale } else { value }
}

/// Whether a slice multiplies by a matrix that large.
pub(super) fn reads_large(program: &Program, slice: &Slice<'_>) -> bool {
    let views = slice.ops().flat_map(|op| program.ops()[op].operands.iter().flat_map(Operand::views));
    let mut weights = views.map(|view| view.buffer).filter(|buffer| program.weights().contains_key(buffer));
    weights.any(|buffer| program.buffers()[buffer].elements() > LARGE)
}

impl Replays {
    /// The program's taps that are wrong by themselves, in their order.
    pub(super) fn wrong(&self) -> impl Iterator<Item = usize> {
        let wrong = self.replay.taps.iter().zip(&self.taps).filter(|(t, _)| t.report.status == Status::Diverged);
        wrong.map(|(_, tap)| *tap)
    }

    /// For each operation the taps that are right, and made of it by what was recorded.
    fn readers(&self, program: &Program, held: &Held) -> HashMap<usize, Vec<usize>> {
        let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
        let right = self.replay.taps.iter().zip(&self.taps).filter(|(t, _)| t.report.status.agrees() && t.is_blamed());
        for &tap in right.map(|(_, tap)| tap).filter(|&&tap| held.get(tap).is_some()) {
            let slice = Slice::of(program, tap, |other| held.readable(other).is_some());
            if !reads_large(program, &slice) {
                slice.ops().for_each(|op| readers.entry(op).or_default().push(tap));
            }
        }
        readers
    }

    pub(super) fn of(&self, place: Place) -> Option<&Replayed> {
        self.replay.taps.iter().find(|t| t.report.place == place)
    }

    pub(super) fn of_mut(&mut self, place: Place) -> Option<&mut Replayed> {
        self.replay.taps.iter_mut().find(|t| t.report.place == place)
    }
}
