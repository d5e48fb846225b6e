//! Looks for what is done otherwise at one wrong tap: what was found before, what has a name, what nobody lists, several together.

mod measure;
mod several;
mod witnesses;

use measure::are_multiples;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use firstdiff_compare::Place;
use firstdiff_evidence::Evidence;
use firstdiff_model::Profile;
use firstdiff_program::{Baseline, Bench, Edit, Slice};
use firstdiff_trace::Tap;
use ndarray::ArrayD;

use crate::explain::finding::Counted;
use crate::explain::{A_MOMENT, Effort, moved_alike};
use crate::mistakes::StandsBehind;
use crate::mistakes::norm::NORM_OMITTED;
use crate::paid::evidence;
use crate::program::arrays::array;
use crate::program::budget::Budget;
use crate::program::context::Context;
use crate::program::edits::{Priced, edits};
use crate::program::form::Form;
use crate::program::form::kin;
use crate::program::forms::forms;
use crate::program::held::Held;
use crate::program::replays::Replays;
use crate::program::slices::reads_large;
use crate::program::{Candidate, Recording};
use crate::replay::operation::{Operation, recorded_unit};
use crate::replay::reason::Reason;
use crate::replay::right::{distance, hides_others};
use crate::tolerance::replay::OWN_ROUNDING;
use crate::tolerance::search::{
    BESIDE_FOUND, EQUAL_BITS, NEARER, ONE_LAYER_SHARE, ROUNDING_ROOM, SUMS_ADD_UP, UNLISTED_SHARE,
};

/// A wrong tap, and what was found.
#[derive(Default)]
pub(crate) struct Explained {
    pub(crate) tap: usize,
    pub(crate) base: f64,
    pub(crate) counted: Counted,
    pub(crate) through: Vec<Tap>,
    pub(crate) reproduced: Vec<Reproduced>,
    pub(crate) tried: BTreeMap<&'static str, f64>,
    /// Mistakes of which some form was not tried for want of time.
    pub(crate) untried: BTreeSet<&'static str>,
    /// Whether that was for want of time, and not since something was found before them.
    pub(crate) ran_out_of_time: bool,
    /// Ids that were not tried in each layer alone, for want of time.
    pub(crate) untried_alone: BTreeSet<&'static str>,
    /// How many forms there were to try.
    pub(crate) forms: usize,
    /// What came nearest, the nearest first.
    pub(crate) nearest: Vec<Reproduced>,
    /// Mistakes that leave no more than rounding, and are not proved: too little is off.
    pub(crate) within_rounding: BTreeSet<&'static str>,
    /// A choice that it reads, was not recorded, and was taken as right operations make it.
    pub(crate) supposed: Option<usize>,
}

impl Explained {
    /// What was found by this key.
    pub(crate) fn by_key(&self, key: &str) -> Option<&Reproduced> {
        self.reproduced.iter().find(|found| found.key() == key)
    }

    /// How many mistakes were not tried at all, or not in each layer alone, for want of time.
    pub(crate) fn untried_for_want_of_time(&self) -> usize {
        let at_all = self.untried.iter().filter(|_| self.ran_out_of_time);
        at_all.chain(&self.untried_alone).collect::<BTreeSet<_>>().len()
    }
}

/// A form that was tried, and what it leaves.
#[derive(Clone)]
pub(crate) struct Reproduced {
    pub(crate) form: Form,
    /// Others that are made with it, where one alone is not it.
    pub(crate) others: Vec<Form>,
    /// What each of two leaves by itself.
    pub(crate) alone: Vec<f64>,
    pub(crate) residual: f64,
    /// Whether that is no more than rounding, of an arithmetic of many bits.
    pub(crate) leaves_rounding: bool,
    /// What the numbers carry for it, where it gives them.
    pub(crate) evidence: Evidence,
}

impl Reproduced {
    /// Some forms together, and what they leave; what else they show is not known yet.
    fn of(form: &Form, others: &[&Form], residual: f64) -> Reproduced {
        let (form, others) = (form.clone(), others.iter().map(|other| (*other).clone()).collect());
        Reproduced { form, others, alone: Vec::new(), residual, leaves_rounding: false, evidence: Evidence::default() }
    }

    pub(crate) fn forms(&self) -> impl Iterator<Item = &Form> {
        std::iter::once(&self.form).chain(&self.others)
    }

    /// What one of two leaves by itself.
    pub(crate) fn leaves_alone(&self, form: &Form) -> Option<f64> {
        self.forms().zip(&self.alone).find(|(own, _)| own.key() == form.key()).map(|(_, alone)| *alone)
    }

    /// Whether a number of it was read off the candidate.
    pub(crate) fn is_fitted(&self) -> bool {
        self.forms().any(Form::is_fitted)
    }

    /// What tells it from others where the line of code is another.
    pub(crate) fn kin(&self) -> String {
        let keys: BTreeSet<String> = self.forms().map(kin).collect();
        keys.into_iter().collect::<Vec<_>>().join(" and ")
    }

    /// What tells it from others, and where it is made.
    pub(crate) fn key(&self) -> String {
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

/// So many forms a thread are tried before the first of them is looked at: what is found at the first is paid for by the others.
const SIDE_BY_SIDE: usize = 4;

/// So many that come near are kept: what comes nearest at one tap may be the second at another.
const KEPT_NEAREST: usize = 4;

/// Of what was found together so many ways are tried at another tap.
const MOST_WAYS: usize = 16;

/// Of so many forms that gave the numbers of taps before, each two are tried together.
const MOST_TOGETHER: usize = 6;

pub(crate) struct Search<'a> {
    pub(crate) recording: Recording<'a>,
    pub(crate) held: &'a Held,
    pub(crate) replays: &'a Replays,
    pub(crate) candidate: &'a Candidate<'a>,
    pub(crate) effort: &'a Effort,
    moment: Budget,
    pub(crate) exact: Bench<'a>,
    pub(crate) rounded: Option<Bench<'a>>,
    /// For each operation the taps that are right and made of it.
    readers: OnceLock<HashMap<usize, Vec<usize>>>,
    /// Forms of operations that gave a tap's numbers, and that another tap spoke against.
    contradicted: BTreeSet<(String, usize)>,
    /// Taps that are wrong for a reason not known.
    pub(crate) unexplained: BTreeSet<usize>,
    /// Whether only what gave the numbers of other taps is tried.
    pub(crate) is_second_look: bool,
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
    /// All that the slice computes as it is.
    baseline: Baseline<'t>,
    /// On how many threads evaluations are made, each by one.
    threads: usize,
    budget: Budget,
}

impl Target<'_> {
    /// How many forms are tried before the first of them is looked at.
    fn side_by_side(&self) -> usize {
        if self.threads > 1 { SIDE_BY_SIDE * self.threads } else { 1 }
    }

    /// What is made of each of some items, on all threads.
    fn at_once<T: Sync, R: Send>(&self, items: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
        let make_some = |some: &[T]| some.iter().map(&make).collect::<Vec<R>>();
        if self.threads == 1 || items.len() < 2 {
            return make_some(items);
        }
        let size = items.len().div_ceil(self.threads);
        // No threads of rayon's: one that waits for a large product would take up another evaluation, whose time would count twice.
        std::thread::scope(|scope| {
            let begun: Vec<_> = items.chunks(size).map(|some| scope.spawn(|| make_some(some))).collect();
            let joined = |thread: std::thread::ScopedJoinHandle<'_, Vec<R>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            begun.into_iter().flat_map(joined).collect()
        })
    }
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        (recording, candidate): (&Recording<'a>, &'a Candidate<'a>),
        held: &'a Held,
        replays: &'a Replays,
        effort: &'a Effort,
    ) -> Search<'a> {
        Search {
            recording: *recording,
            held,
            replays,
            candidate,
            effort,
            moment: Budget::of_threads(1, A_MOMENT.as_secs_f64()),
            exact: Bench::new(recording.program, candidate.exact(), recording.weights),
            rounded: candidate.arithmetic().map(|own| Bench::new(recording.program, own, recording.weights)),
            readers: OnceLock::new(),
            contradicted: BTreeSet::new(),
            unexplained: BTreeSet::new(),
            is_second_look: false,
        }
    }

    /// What stands around the operations of a slice that makes what the candidate has there.
    pub(crate) fn context<'s>(&'s self, slice: &'s Slice<'s>, own: ArrayD<f64>) -> Context<'s> {
        Context::new(self.recording.program, self.held, slice, &self.exact, Arc::new(own))
    }

    /// By which positions q and k are turned off alike, where what comes of both is right.
    pub(crate) fn moved_alike(&mut self, moves: &'a Effort) -> Vec<Explained> {
        let (held, places) = (self.held, moved_alike::places(&self.replays.replay));
        let before = std::mem::replace(&mut self.effort, moves);
        self.is_second_look = false;
        let explained = self.without_readers(|search| {
            let mut explained: Vec<Explained> = Vec::new();
            for tap in search.replays.wrong().filter(|tap| places.contains(&held.place(*tap))) {
                explained.extend(search.explained(tap, &explained));
            }
            explained
        });
        self.effort = before;
        explained
    }

    /// Those of some taps whose numbers come out of what was found at others.
    pub(crate) fn found_at(&mut self, taps: impl Iterator<Item = usize>, before: &[Explained]) -> Vec<Explained> {
        let is_found = |found: &Explained| !found.reproduced.is_empty();
        self.without_readers(|search| taps.filter_map(|tap| search.explained(tap, before)).filter(is_found).collect())
    }

    /// Looks at taps of which each alone is spoken against by what reads several.
    fn without_readers<T>(&mut self, look: impl FnOnce(&mut Self) -> T) -> T {
        let readers = std::mem::replace(&mut self.readers, OnceLock::from(HashMap::new()));
        let seen = look(self);
        self.readers = readers;
        seen
    }

    pub(crate) fn explained(&mut self, tap: usize, before: &[Explained]) -> Option<Explained> {
        let (program, held) = (self.recording.program, self.held);
        let own = held.recorded(tap)?;
        let known = Known::of(before);
        // What was searched in vain once is not searched again as far.
        let vainly =
            |e: &Explained| e.reproduced.is_empty() && held.are_of_one_operation(self.recording.program, e.tap, tap);
        let is_new = !before.iter().any(vainly);
        let replayed = self.replays.of(held.place(tap))?;
        if self.effort.quick && (self.moment.is_spent() || !replayed.through.is_empty()) {
            return None;
        }
        let size = replayed.report.metrics.and_then(|metrics| metrics.nmse()).filter(|nmse| nmse.is_finite());
        let (base, through) = (size.unwrap_or(f64::INFINITY), replayed.through.clone());
        let mut found = Explained { tap, base, through, ..Explained::default() };
        // Nothing can be done otherwise that cannot be done.
        if replayed.is_for(Reason::is_of_the_reference) {
            return Some(found);
        }
        let slice = held.slice(program, tap);
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
        let Some(baseline) = self.baseline(&slice) else { return Some(found) };
        // Beside each other where each is small; a large one takes all threads for itself. A thread of rayon's has others beside it, and must not wait for
        // threads that wait for it.
        let is_alone = rayon::current_thread_index().is_none() && !reads_large(program, &slice);
        let threads = if is_alone { rayon::current_num_threads() } else { 1 };
        let target = Target {
            slice: &slice,
            scale: scale.unwrap_or(1.0),
            off: off.max(replayed.report.allowed.unwrap_or(0.0)),
            base: if by_size { off } else { f64::INFINITY },
            rounding,
            own,
            place,
            operation: self.replays.operation(replayed, self.candidate.profile),
            baseline,
            threads,
            budget: Budget::of_threads(threads, self.effort.seconds),
        };
        let context = self.context(&slice, self.whole(&slice)?).beginning_at(self.onset(place).unwrap_or(1));
        let all = forms(&context).into_iter().filter(|form| self.effort.tries(form.mistake));
        let all: Vec<Form> = all.flat_map(|form| [self.in_later_steps(&form, place), Some(form)]).flatten().collect();
        // As the replay says it, where it says a size.
        (found.base, found.forms) = (size.filter(|_| hidden == 0.0).unwrap_or(off + hidden), all.len());
        found.counted = if hidden > 0.0 { Counted::OneSided } else { Counted::All };
        // Which keys there are to be seen is no matter of numbers.
        if replayed.is_for(|reason| matches!(reason, Reason::Padding(_))) {
            return Some(found);
        }
        // Values of a tap that is wrong for a reason not known, under another name: which of the two is wrong is not known either.
        let is_held_by = |other: usize| {
            let same_size = held.get(other).filter(|x| x.shape().iter().product::<usize>() == target.own.len());
            same_size.is_some_and(|x| array(x).iter().eq(target.own.iter()))
        };
        if slice.known().any(|known| self.unexplained.contains(&known) && is_held_by(known)) {
            return Some(found);
        }
        let unlisted = self.found_before(&target, &known, &all, !replayed.through.is_empty(), &mut found);
        if !found.reproduced.is_empty() || self.is_second_look {
            self.put_last_what_shows_in_the_prompt(&target, &mut found);
            return Some(found);
        }
        let tried = self.one_by_one(&target, &all, is_new, &mut found);
        if found.reproduced.is_empty() && is_new && !self.effort.quick {
            self.of_one_layer(&target, &all, &mut found);
        }
        // Which cells are hidden a law says in better words.
        if found.reproduced.is_empty() && is_new && !self.effort.quick && hidden == 0.0 {
            let all = unlisted.unwrap_or_else(|| self.not_listed(&target));
            self.unlisted(&target, &all, &mut found);
        }
        self.put_last_what_shows_in_the_prompt(&target, &mut found);
        // Another form of it, or another number, may be the mistake.
        found.tried.retain(|id, _| !found.untried.contains(id) && !found.within_rounding.contains(id));
        let asks_for_several = self.effort.faults > 1 && !self.effort.quick;
        // What another tap holds is read from there, whatever else gives it.
        if found.reproduced.is_empty() && is_new && asks_for_several && !(0..tap).any(is_held_by) {
            self.two_together(&target, &all, tried, &mut found);
        }
        Some(found)
    }

    /// Tries each form by itself, then each with the number that fits best; what each leaves, of both.
    fn one_by_one<'f>(
        &mut self,
        target: &Target<'_>,
        all: &'f [Form],
        is_new: bool,
        found: &mut Explained,
    ) -> (Vec<Left<'f>>, Vec<Left<'f>>) {
        let (mut measured, mut tuned): (Vec<Left<'_>>, Vec<Left<'_>>) = Default::default();
        let plain: Vec<&Form> = all.iter().filter(|form| form.tune.is_none()).collect();
        for some in plain.chunks(target.side_by_side()) {
            let left = self.left_by_each(target, some, 1.0);
            found.ran_out_of_time |= left.len() < some.len();
            found.untried.extend(some[left.len()..].iter().map(|form| form.mistake.id));
            for (form, residual) in some.iter().zip(left).filter_map(|(form, left)| Some((*form, left?))) {
                self.noted(target, form, residual, found);
                measured.push((residual, form));
            }
        }
        // What another number gives as well stands before some causes.
        let gives_way = |found: &Reproduced| found.form.mistake.stands_behind != StandsBehind::None;
        if !found.reproduced.iter().all(gives_way) || !is_new || self.effort.quick {
            return (measured, tuned);
        }
        let is_open = found.reproduced.is_empty();
        let may_be = |form: &&Form| is_open || form.mistake.stands_behind == StandsBehind::None;
        let with_number: Vec<&Form> = all.iter().filter(|form| form.tune.is_some()).filter(may_be).collect();
        for some in with_number.chunks(target.threads) {
            // What else may give the same is looked for as long as nobody waits for it.
            let is_found = || !found.reproduced.iter().all(gives_way);
            let is_late = self.is_late(target);
            if is_late || target.budget.has_taken(BESIDE_FOUND) && is_found() {
                found.untried.extend(some.iter().map(|form| form.mistake.id));
                found.ran_out_of_time |= is_late;
                continue;
            }
            let best = target.at_once(some, |form| self.tuned(target, form, &[]));
            for (form, best) in some.iter().zip(best) {
                if let Some(best) = best {
                    tuned.extend(self.attempt(target, &best, found).map(|residual| (residual, *form)));
                } else if target.base <= OWN_ROUNDING * target.rounding {
                    // Beside rounding no number shows that it is near.
                    found.tried.remove(form.mistake.id);
                }
            }
        }
        (measured, tuned)
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
        // A decode step reads the keys and values that the prefill left, and may make no mistake of its own.
        if found.reproduced.is_empty() && target.place.step > 0 {
            for form in &known_forms {
                let left = self.made_in(form, 0..1);
                if !left.edits.is_empty() {
                    self.attempt(target, &left, found);
                }
            }
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
        if is_open && is_stretch {
            self.each_two(target, &known_forms, found);
        }
        let mut unlisted: Option<Vec<Priced>> = None;
        if found.reproduced.is_empty() && !known.kin.is_empty() && !self.effort.quick {
            let all = unlisted.insert(self.not_listed(target));
            let again: Vec<&Form> =
                all.iter().map(|edit| &edit.form).filter(|form| known.kin.contains(&kin(form))).collect();
            for form in &again {
                self.attempt(target, form, found);
            }
            if is_stretch {
                self.each_two(target, &again, found);
            }
        }
        unlisted
    }

    /// Tries each two of a few forms together, where none alone gave the numbers.
    fn each_two(&mut self, target: &Target<'_>, forms: &[&Form], found: &mut Explained) {
        if !found.reproduced.is_empty() || forms.len() > MOST_TOGETHER {
            return;
        }
        for (at, first) in forms.iter().enumerate() {
            for second in &forms[at + 1..] {
                self.together(target, &[first, second], found);
            }
        }
    }

    /// Tries what is made in several layers in each of them alone: one layer of a file may be another.
    fn of_one_layer(&mut self, target: &Target<'_>, all: &[Form], found: &mut Explained) {
        let each: Vec<Form> =
            all.iter().filter(|form| form.tune.is_none()).flat_map(|form| self.layers(form)).collect();
        found.forms += each.len();
        for some in each.iter().collect::<Vec<_>>().chunks(target.side_by_side()) {
            let left = self.left_by_each(target, some, ONE_LAYER_SHARE);
            found.untried_alone.extend(some[left.len()..].iter().map(|form| form.mistake.id));
            for (form, residual) in some.iter().zip(left).filter_map(|(form, left)| Some((form, left?))) {
                self.noted(target, form, residual, found);
            }
        }
    }

    /// A form in each layer in which it is made, where these are several.
    fn layers(&self, form: &Form) -> Vec<Form> {
        let taps = self.recording.program.taps();
        let behind = |op: usize| taps.iter().position(|tap| tap.op >= op);
        let layer = |edit: &Edit| {
            let tap = edit.at.tap().or_else(|| edit.at.op().and_then(behind));
            tap.map(|tap| self.held.place(tap).tap.block())
        };
        let mut layers: BTreeMap<_, Vec<Edit>> = BTreeMap::new();
        for edit in &form.edits {
            layers.entry(layer(edit)).or_default().push(edit.clone());
        }
        let one = |edits: Vec<Edit>| Form { edits, ..form.clone() };
        if layers.len() > 1 { layers.into_values().map(one).collect() } else { Vec::new() }
    }

    /// What may be done otherwise and nobody lists.
    fn not_listed(&self, target: &Target<'_>) -> Vec<Priced> {
        let context = self.context(target.slice, target.own.clone());
        edits(&context).into_iter().filter(|edit| self.effort.tries(edit.form.mistake)).collect()
    }

    /// What nobody lists, the cheapest first, up to a few bits behind the first that gives the numbers.
    fn unlisted(&mut self, target: &Target<'_>, all: &[Priced], found: &mut Explained) {
        found.forms += all.len();
        let mut most = f64::INFINITY;
        for some in all.chunks(target.side_by_side()) {
            // Two mistakes that have names are looked for as well.
            let forms: Vec<&Form> = some.iter().map(|edit| &edit.form).collect();
            let left = self.left_by_each(target, &forms, UNLISTED_SHARE);
            let is_late = left.len() < some.len();
            for (Priced { bits, form }, left) in some.iter().zip(left) {
                if *bits > most {
                    return;
                }
                if let Some(residual) = left {
                    self.noted(target, form, residual, found);
                }
                if !found.reproduced.is_empty() && most.is_infinite() {
                    most = bits + EQUAL_BITS;
                }
            }
            if is_late {
                return;
            }
        }
    }

    /// What each of some forms leaves by itself; fewer where time, or this share of it, runs out.
    fn left_by_each(&self, target: &Target<'_>, forms: &[&Form], share: f64) -> Vec<Option<f64>> {
        let sets: Vec<Vec<Edit>> = forms.iter().map(|form| form.edits.clone()).collect();
        let residual = |left: Option<(f64, f64)>| left.map(|(residual, _)| residual);
        self.measured_each(target, &sets, share).into_iter().map(residual).collect()
    }

    fn is_late(&self, target: &Target<'_>) -> bool {
        target.budget.is_spent() || self.effort.quick && self.moment.is_spent()
    }

    /// Tries a form, and notes what it leaves.
    fn attempt(&mut self, target: &Target<'_>, form: &Form, found: &mut Explained) -> Option<f64> {
        let residual = self.residual(target, &form.edits)?;
        self.noted(target, form, residual, found);
        Some(residual)
    }

    /// Notes a form that was tried by itself, and what it leaves.
    fn noted(&mut self, target: &Target<'_>, form: &Form, residual: f64, found: &mut Explained) {
        let best = found.tried.entry(form.mistake.id).or_insert(residual);
        *best = best.min(residual);
        self.weigh(target, Reproduced::of(form, &[], residual), found);
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
                let site = target.place.tap.last_site();
                let evidence = both.map(|(right, claimed)| {
                    // A number that was fitted, and is a factor of whole rows: much else is one number a row as well.
                    let shows_one = tried.is_fitted() && are_multiples(&right, &claimed);
                    evidence(site, [&target.own, &right, &claimed], unit, shows_one)
                });
                // What nobody lists is shown by the ids that it changes, however many numbers are looked up by each.
                let is_unlisted = tried.forms().any(|form| form.mistake.is_unlisted);
                let evidence = match is_unlisted.then(|| self.changed_ids(target.slice, &edits)).flatten() {
                    Some((ids, rows)) => evidence.map(|evidence| evidence.at_most(ids, 1.0 / rows as f64)),
                    None => evidence,
                };
                let costs = |(exact, right)| SUMS_ADD_UP * distance(site, &right, &exact);
                let leaves_rounding = self.candidate.profile == Profile::F32
                    && self
                        .exact_and_rounded(target.slice, &edits)
                        .map(costs)
                        .is_some_and(|most| tried.residual <= most);
                let evidence = evidence.unwrap_or_default();
                found.reproduced.push(Reproduced { evidence, leaves_rounding, ..tried });
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
        if tried.residual < NEARER * target.base {
            let at = found.nearest.partition_point(|nearer| nearer.residual <= tried.residual);
            found.nearest.insert(at, tried);
            found.nearest.truncate(KEPT_NEAREST);
        }
    }
}
