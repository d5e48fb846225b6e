//! Which mistakes reproduce what the candidate recorded? Tried singly, then in pairs and more, grown by how much of the error they take away.

pub(crate) mod budget;
pub(crate) mod candidates;
pub(crate) mod onset;
pub(crate) mod proof;
pub(crate) mod rounding_spread;
pub(crate) mod simulate;
pub(crate) mod simulate_batch;
pub(crate) mod tune;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use firstdiff_compare::Place;
use firstdiff_evidence::Evidence;
use ndarray::Axis;
use rayon::prelude::*;

use crate::mistakes::{Edit, Mistake};
use crate::replay::Run;
use crate::replay::recorded::Recorded;
use crate::search::budget::{Budget, Clock};
use crate::search::candidates::{Candidate, edits_of, extended, order_of};
use crate::search::proof::{Residual, Target};
use crate::search::simulate::Shared;
use crate::search::tune::TUNED;
use crate::tolerance::search::{BEYOND_ROUNDING, FEW_TOKENS, MATTERS, NO_RESIDUAL, SAME_RESIDUAL};

/// How far to look.
#[derive(Clone, Debug)]
pub struct Effort {
    /// The ids to try; all of the catalogue where empty.
    pub only: Vec<String>,
    /// Mistakes at once between two recorded taps, at most.
    pub faults: usize,
    /// Seconds of processor time of each thread for each kind of search in each stretch, after which no further combination is begun; of a large model,
    /// whose single evaluation keeps all threads busy, seconds of the clock, and [`Effort::IN_ALL`] times as many for the whole stretch.
    pub seconds: f64,
    /// Only what takes a moment: operations that are wrong by themselves, and single mistakes; no stretch, no very large matrix.
    pub quick: bool,
    /// Whether a cause is stated only where nothing that was recorded speaks against it; what is skipped in a quick search included.
    pub weigh: bool,
    /// The width up to which a model is small: one evaluation of a wider one keeps all threads busy, so many mistakes are carried through its matrices
    /// at once, on its first tokens before all of them.
    pub small: usize,
}

impl Effort {
    /// How many times its seconds the search in one stretch of a large model takes at most.
    pub const IN_ALL: u32 = 5;

    /// What takes a moment.
    pub fn quick() -> Effort {
        Effort { faults: 1, seconds: 1.0, quick: true, ..Effort::default() }
    }

    /// Whether a mistake is one of those to try.
    pub(crate) fn tries(&self, mistake: &Mistake) -> bool {
        self.only.is_empty() || self.only.iter().any(|id| id == mistake.id)
    }
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { only: Vec::new(), faults: 4, seconds: 60.0, quick: false, weigh: false, small: 1024 }
    }
}

/// One way to reproduce a target.
#[derive(Clone)]
pub(crate) struct Reproduction {
    pub(crate) mistakes: Vec<Candidate>,
    /// NMSE that it leaves.
    pub(crate) residual: f64,
    /// NMSE that each of the mistakes leaves by itself.
    pub(crate) alone: Vec<f64>,
    /// What the numbers carry for it.
    pub(crate) evidence: Evidence,
    /// Whether it must be made in decoding alone, as the prefill, which is right, would show it: what need not is as good, and plainer.
    pub(crate) in_decoding_alone: bool,
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
    /// Sets whose turn did not come before time ran out.
    pub(crate) untried: usize,
    /// How many forms there were to try, each in each of its places.
    pub(crate) forms: usize,
    /// What is right, and speaks against something that gives these numbers.
    pub(crate) spoken_against: Option<Place>,
}

/// What is looked for, and in what.
pub(crate) struct Search<'r, 'a> {
    pub(crate) run: &'r Run<'a>,
    pub(crate) shared: &'r Shared,
    pub(crate) effort: &'r Effort,
    /// What was found before, in steps that are computed now.
    pub(crate) accepted: &'r [Edit],
}

impl<'a> Search<'_, 'a> {
    pub(crate) fn recorded(&self) -> &Recorded<'a> {
        &self.run.recorded
    }

    /// Whether one evaluation keeps all threads busy (`Effort::small`).
    pub(crate) fn is_large(&self) -> bool {
        self.recorded().model.plan.dims.hidden > self.effort.small
    }

    /// What each set of mistakes leaves, many at once: a large model's steps keep all threads busy by themselves. Those whose turn did not come in
    /// these seconds are missing at the end. `tell` is told how many are done.
    fn side_by_side(
        &self,
        target: &Target<'_>,
        sets: &[Vec<&Edit>],
        seconds: f64,
        tell: &dyn Fn(usize),
    ) -> Vec<Residual> {
        let most = (TOGETHER / target.tokens(self.recorded()).max(1)).max(1);
        // What makes a matrix of its own takes a hundred times as long as what shares the model's.
        let shares = |set: &&Vec<&Edit>| !set.iter().any(|edit| edit.mistake.makes_a_matrix);
        let (begun, mut left, mut rest, mut size) = (Instant::now(), Vec::new(), sets, most.min(FIRST));
        while !rest.is_empty() && begun.elapsed().as_secs_f64() <= seconds {
            let next = match rest.iter().take(size).take_while(shares).count() {
                0 => size.min(LONG).min(rest.len()),
                sharing => sharing,
            };
            let (begin, (some, more)) = (Instant::now(), rest.split_at(next));
            left.extend(self.residuals(target, some));
            tell(left.len());
            let each = begin.elapsed().as_secs_f64() / some.len() as f64;
            size = ((UNHEARD.as_secs_f64() / each.max(f64::EPSILON)) as usize).clamp(1, most);
            rest = more;
        }
        left
    }

    /// Tries `candidates` one by one, and, if none is it, several at once. `progress` is told what is tried and how many of how many.
    pub(crate) fn run(&self, target: &Target<'a>, candidates: Vec<Candidate>, progress: Tell<'_>) -> Result {
        let right = self.value(target, &[], self.run.profile);
        let screen = right.as_ref().filter(|_| self.is_large()).and_then(|right| {
            let rows = SCREEN.max(target.first_wrong(right, BEYOND_ROUNDING)? + 1);
            let target = target.first_rows(rows)?;
            let right = right.slice_axis(Axis(0), (0..rows).into()).to_owned();
            let screen = Screen { base: Residual::of(&target, Some(right)).nmse, target, shared: Shared::default() };
            // What no mistake changes on the way is known beforehand.
            Search { accepted: &[], ..screen.search(self) }.value(&screen.target, &[], self.run.profile);
            Some(screen)
        });
        let base = Residual::of(target, right);
        let result = Result { base: base.nmse, forms: candidates.len(), ..Result::default() };
        let clock = Clock::of(self.is_large().then_some(f64::from(Effort::IN_ALL) * self.effort.seconds));
        let mut hunt = BeamSearch { search: self, target, screen, candidates, base, result, clock, progress };
        hunt.run();
        hunt.result
    }
}

/// Told what is tried, and how many of how many.
pub(crate) type Tell<'p> = &'p (dyn Fn(&str, usize, usize) + Sync);

/// Sets of candidates by their numbers, and what each leaves.
type Tried = Vec<(Vec<usize>, Residual)>;

/// The first tokens of a target, on which the mistakes of a large model are tried, and parameters fitted, before they are on all.
struct Screen<'a> {
    target: Target<'a>,
    shared: Shared,
    /// What is left of these tokens without any mistake.
    base: f64,
}

/// Sets of mistakes in the order in which they are tried on all tokens.
#[derive(Default)]
struct Sorted {
    /// What may give the first tokens' numbers; of a small model all of them.
    near: Vec<Vec<usize>>,
    /// What looks at all tokens, and was not tried on the first.
    whole: Vec<Vec<usize>>,
    /// The nearest of those that do not give the first tokens' numbers.
    far: Vec<Vec<usize>>,
    /// What each leaves on the first tokens.
    first: Tried,
}

impl<'a> Screen<'a> {
    /// The same search, in a run of these tokens.
    fn search<'s>(&'s self, of: &'s Search<'_, 'a>) -> Search<'s, 'a> {
        Search { shared: &self.shared, ..*of }
    }
}

/// Where single mistakes are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Singles {
    /// In all layers of a stretch, as engines' layers share their code.
    Shared,
    /// In one layer of several.
    OneLayer,
}

impl Singles {
    fn what(self) -> &'static str {
        match self {
            Singles::Shared => "single mistakes",
            Singles::OneLayer => "mistakes in one layer",
        }
    }

    /// How many times the search's time they may take.
    fn share(self) -> f64 {
        match self {
            Singles::Shared => 4.0,
            Singles::OneLayer => 1.0,
        }
    }

    /// How many forms are fitted at most.
    fn fitted(self) -> usize {
        match self {
            Singles::Shared => 8 * TUNED,
            Singles::OneLayer => 4 * TUNED,
        }
    }
}

/// On which tokens of a large model parameters are fitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    /// The first, where they are run by themselves.
    First,
    /// All: what looks at later tokens is not among the first.
    All,
}

/// One search on its way.
struct BeamSearch<'h, 'r, 'a> {
    search: &'h Search<'r, 'a>,
    target: &'h Target<'a>,
    screen: Option<Screen<'a>>,
    candidates: Vec<Candidate>,
    /// What is left without any mistake.
    base: Residual,
    result: Result,
    clock: Clock,
    progress: Tell<'h>,
}

impl BeamSearch<'_, '_, '_> {
    /// Over several layers a mistake in all of them is what sets grow by first: an engine's layers share their code.
    fn run(&mut self) {
        let all: Vec<usize> = (0..self.candidates.len()).collect();
        let (alone, shared): (Vec<usize>, Vec<usize>) = all.iter().partition(|&&at| self.candidates[at].one_of_several);
        let one = |set: &[usize]| -> Vec<Vec<usize>> { set.iter().map(|&at| vec![at]).collect() };
        let (late, early): (Vec<usize>, Vec<usize>) = shared.iter().partition(|at| self.is_late(at));
        // What is made in a layer by its nature is tried with the rest: it is made in few ways.
        let of_a_layer = |at: &usize| self.search.is_large() && self.candidates[*at].mistake().of_a_layer;
        let (of_a_layer, alone): (Vec<usize>, Vec<usize>) = alone.into_iter().partition(of_a_layer);
        let early = [early, of_a_layer].concat();
        let alone = if self.search.is_large() { self.fewest_ways_first(alone) } else { alone };
        let mut tried = Tried::new();
        for (part, kind) in [(early, Singles::Shared), (alone, Singles::OneLayer), (late, Singles::Shared)] {
            if self.is_found() || part.is_empty() {
                continue;
            }
            let sets = self.sorted(one(&part), kind);
            let mut some = self.try_singly(sets.near, kind);
            let whole = if self.is_found() { Tried::new() } else { self.try_singly(sets.whole, kind) };
            some.extend(whole.iter().cloned());
            if self.target.is_one_factor() {
                return;
            }
            let all = kind.fitted();
            let mut fits = match (&self.screen, self.search.is_large()) {
                (Some(_), _) => {
                    let first = |seeds| (&sets.first, seeds, On::First);
                    vec![first(0..TUNED), (&whole, 0..TUNED, On::All), first(TUNED..all)]
                }
                (None, true) => vec![(&some, 0..TUNED, On::All), (&some, TUNED..all, On::All)],
                (None, false) => vec![(&some, 0..all, On::All)],
            };
            fits.sort_by_cached_key(|(tried, seeds, on)| self.tokens_of_fits(tried, seeds.clone(), *on));
            let mut fitted = Tried::new();
            for (tried, seeds, on) in fits {
                fitted.extend(self.fit(tried, seeds, on));
            }
            some.extend(fitted);
            if !self.is_found() {
                some.extend(self.try_singly(sets.far, kind));
            }
            tried.extend(some);
            if kind == Singles::Shared {
                self.factors(&tried);
            }
        }
        let singles = tried.clone();
        // Few tokens have too few numbers to tell several mistakes from others.
        let few = self.search.recorded().tokens.iter().map(Vec::len).sum::<usize>() < FEW_TOKENS;
        for faults in 2..=if few { 1 } else { self.search.effort.faults } {
            if self.is_found() {
                break;
            }
            let beam = grown(&tried, self.base, if faults == 2 { WIDE } else { NARROW });
            let by = if faults == 2 && all.len() < FEW { &all } else { &shared };
            let mut sets = extended(&beam, by, &self.candidates);
            sets.sort_by_key(|set| set.iter().any(|at| self.is_late(at)));
            let seconds = self.search.effort.seconds.min(self.clock.left());
            tried = self.measure(sets, seconds, &format!("{faults} mistakes at once"));
            self.settle(&mut tried);
            tried.extend(self.fit(&tried, 0..TUNED, On::First));
        }
        self.stand_ins(&singles);
    }

    fn is_found(&self) -> bool {
        !self.result.reproduced.is_empty()
    }

    /// Whether it is tried where nothing else is the cause: of a large model what makes matrices of its own takes longer than all the rest.
    fn is_late(&self, at: &usize) -> bool {
        self.search.is_large() && self.candidates[*at].mistake().makes_a_matrix
    }

    /// The best residual of each id.
    fn remember(&mut self, tried: &Tried) {
        for (set, left) in tried {
            let best = self.result.tried.entry(self.candidates[set[0]].id()).or_insert(f64::INFINITY);
            *best = best.min(left.nmse);
        }
    }

    /// The mistakes that can be made in the fewest ways first, so that as many as may be are tried before the time ends.
    fn fewest_ways_first(&self, mut candidates: Vec<usize>) -> Vec<usize> {
        let mut ways: BTreeMap<&str, usize> = BTreeMap::new();
        for &at in &candidates {
            *ways.entry(self.candidates[at].id()).or_default() += 1;
        }
        candidates.sort_by_key(|&at| ways[self.candidates[at].id()]);
        candidates
    }

    /// In which order single mistakes are tried: a large model's by what they leave on its first tokens.
    fn sorted(&mut self, sets: Vec<Vec<usize>>, kind: Singles) -> Sorted {
        let Some(screen) = &self.screen else { return Sorted { near: sets, ..Sorted::default() } };
        let mixes = |set: &Vec<usize>| self.candidates[set[0]].mistake().mixes_tokens;
        let (whole, cut): (Vec<_>, Vec<_>) = sets.into_iter().partition(mixes);
        let (total, search) = (cut.len(), screen.search(self.search));
        let what = format!("{}, on the first tokens", kind.what());
        let mut first = self.measured(&search, &screen.target, cut, self.seconds(kind), &what);
        first.sort_by(|a, b| a.1.nmse.total_cmp(&b.1.nmse));
        let base = screen.base;
        let may_leave = |set: &[usize]| self.search.may_leave(&edits_of(set, &self.candidates), base);
        let (near, far): (Tried, Tried) = first.iter().cloned().partition(|(set, left)| left.nmse <= may_leave(set));
        let near = near.into_iter().map(|(set, _)| set).collect();
        let far = far.into_iter().map(|(set, _)| set).take(KEPT).collect();
        self.result.untried += total - first.len();
        self.remember(&first);
        Sorted { near, whole, far, first }
    }

    /// What each set of one leaves on all tokens, and whether it is proved.
    fn try_singly(&mut self, sets: Vec<Vec<usize>>, kind: Singles) -> Tried {
        let mut tried = self.measure(sets, self.seconds(kind), kind.what());
        self.remember(&tried);
        self.settle(&mut tried);
        tried
    }

    /// How long single mistakes may take. What is left of the whole in the end is for several at once.
    fn seconds(&self, kind: Singles) -> f64 {
        let one = self.search.effort.seconds;
        (kind.share() * one).min(self.clock.left() - one)
    }

    /// What each set leaves; sets whose turn did not come within `seconds` are missing.
    fn measure(&mut self, sets: Vec<Vec<usize>>, seconds: f64, what: &str) -> Tried {
        let total = sets.len();
        let tried = self.measured(self.search, self.target, sets, seconds, what);
        self.result.untried += total - tried.len();
        tried
    }

    fn measured(
        &self,
        search: &Search<'_, '_>,
        target: &Target<'_>,
        sets: Vec<Vec<usize>>,
        seconds: f64,
        what: &str,
    ) -> Tried {
        let total = sets.len();
        let edits = |set: &Vec<usize>| edits_of(set, &self.candidates);
        if search.is_large() {
            let tell = |done| (self.progress)(what, done, total);
            let left = search.side_by_side(target, &sets.iter().map(edits).collect::<Vec<_>>(), seconds, &tell);
            return sets.into_iter().zip(left).collect();
        }
        let (budget, done) = (Budget::of_each_thread(seconds), AtomicUsize::new(0));
        let one = |set: Vec<usize>| {
            let left = budget.spend(|| search.residual(target, &edits(&set)));
            (self.progress)(what, done.fetch_add(1, Ordering::Relaxed) + 1, total);
            (set, left)
        };
        sets.into_par_iter().filter(|_| !budget.is_spent()).map(one).collect()
    }

    /// Takes over what is proved, or came nearest.
    fn settle(&mut self, tried: &mut Tried) {
        tried.sort_by(|a, b| a.1.nmse.total_cmp(&b.1.nmse));
        self.confirm(tried);
        let base = self.result.base;
        if let Some((set, left)) = tried.first().filter(|(set, left)| left.nmse < 0.2 * base && set.len() <= 2)
            && self.result.closest.as_ref().is_none_or(|closest| left.nmse < 0.1 * closest.residual)
        {
            let mistakes = self.mistakes(set);
            let evidence = Evidence::default();
            self.result.closest = Some(Reproduction {
                mistakes,
                residual: left.nmse,
                alone: Vec::new(),
                evidence,
                in_decoding_alone: false,
            });
        }
    }

    /// Fits the free parameters of some of the nearest sets, where none is proved yet.
    fn fit(&mut self, tried: &Tried, seeds: Range<usize>, on: On) -> Tried {
        if self.is_found() {
            return Tried::new();
        }
        let mut tuned = self.tuned(tried, seeds, on);
        self.remember(&tuned);
        self.settle(&mut tuned);
        tuned
    }

    /// Where a factor is the cause, other factors that may have any value give the same: they are to stand beside it.
    fn factors(&mut self, tried: &Tried) {
        let named = self.result.reproduced.first().map(|best| &best.mistakes[..]);
        let Some([named]) = named.filter(|_| self.target.is_span()) else { return };
        if !named.mistake().is_a_factor {
            return;
        }
        let factor = |(set, _): &&(Vec<usize>, Residual)| self.candidates[set[0]].mistake().is_a_factor;
        let free: Tried = tried.iter().filter(factor).cloned().collect();
        let mut tuned = self.tuned(&free, 0..TUNED, On::First);
        self.settle(&mut tuned);
    }

    fn mistakes(&self, set: &[usize]) -> Vec<Candidate> {
        set.iter().map(|&at| self.candidates[at].clone()).collect()
    }

    /// Whether none of several mistakes could be left out: a small one more can be fitted to rounding.
    fn all_matter(&self, set: &[usize], residual: f64) -> bool {
        let without = |out: usize| {
            let rest: Vec<usize> = set.iter().enumerate().filter(|(i, _)| *i != out).map(|(_, &at)| at).collect();
            self.search.residual(self.target, &edits_of(&rest, &self.candidates)).nmse
        };
        set.len() == 1 || (0..set.len()).all(|out| without(out) >= MATTERS * residual)
    }

    /// What can stand in for one of the mistakes of a proved set: what leaves the same by itself.
    fn stand_ins(&mut self, singles: &Tried) {
        let Some(best) = self.result.reproduced.first().filter(|best| best.mistakes.len() > 1).cloned() else { return };
        for at in 0..best.mistakes.len() {
            let edits: Vec<&Edit> = best.mistakes[at].edits.iter().collect();
            let own = self.search.residual(self.target, &edits).nmse;
            let same = |left: &Residual| (left.nmse - own).abs() <= SAME_RESIDUAL * own;
            for (set, _) in singles.iter().filter(|(_, left)| same(left)) {
                let other = &self.candidates[set[0]];
                if other.key == best.mistakes[at].key || self.result.reproduced.len() > MOST {
                    continue;
                }
                let mut mistakes = best.mistakes.clone();
                mistakes[at] = other.clone();
                let edits: Vec<&Edit> = mistakes.iter().flat_map(|m| &m.edits).collect();
                if let Some(residual) = self.search.proved(self.target, &edits, self.result.base) {
                    let found = self.search.reproduction(self.target, mistakes, residual);
                    self.result.reproduced.push(found);
                }
            }
        }
    }

    /// Which of the best are proved.
    fn confirm(&mut self, tried: &Tried) {
        let (mut missed, base) = (0, self.result.base);
        for (set, _) in tried.iter().take_while(|(_, left)| left.nmse <= 0.5 * base) {
            let residual = self.search.proved(self.target, &edits_of(set, &self.candidates), base);
            match residual.filter(|&r| self.all_matter(set, r)) {
                Some(residual) => {
                    let found = self.search.reproduction(self.target, self.mistakes(set), residual);
                    self.result.reproduced.push(found);
                }
                None => missed += 1,
            }
            if missed > MISSES || self.result.reproduced.len() > MOST {
                break;
            }
        }
        // One place before several, and then in the order of the catalogue: the most evidenced first.
        let least = self.result.reproduced.iter().map(|r| r.residual).fold(f64::INFINITY, f64::min);
        let candidates = &self.candidates;
        let place = |r: &Reproduction| {
            // What leaves ten times as much as another is not as good.
            let worse = r.residual > 10.0 * least + NO_RESIDUAL;
            let sites: usize = r.mistakes.iter().map(|m| order_of(&m.edits).len()).sum();
            let at = |m: &Candidate| candidates.iter().position(|c| c.key == m.key).unwrap_or(0);
            (worse, sites, r.mistakes.iter().map(at).sum::<usize>())
        };
        self.result.reproduced.sort_by_key(place);
    }
}

/// Unproved ones in the order of their residuals, after which no more are looked at.
const MISSES: usize = 12;
/// Ways to reproduce a target that are kept.
const MOST: usize = 24;
/// Rows that go through a large model's matrices at once.
const TOGETHER: usize = 256;
/// How many sets go first, which tell how long one takes; how many that take long go at once; and for how long at most nothing is heard of the others.
const FIRST: usize = 16;
const LONG: usize = 4;
const UNHEARD: Duration = Duration::from_secs(5);
/// Tokens that a large model is run on at first, at least: as many as it takes for one to be wrong.
const SCREEN: usize = 1;
/// Of those that do not give the numbers of the first tokens, how many are tried on all.
const KEPT: usize = 40;
/// Candidates below which every layer by itself is tried in combinations too.
const FEW: usize = 400;
/// Sets that are grown by one more mistake.
const WIDE: usize = 24;
const NARROW: usize = 8;

/// The sets to grow: those nearest in kind, no two of them alike.
fn grown(tried: &[(Vec<usize>, Residual)], base: Residual, most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<&(Vec<usize>, Residual)> = tried.iter().filter(|(_, left)| left.nmse.is_finite()).collect();
    order.sort_by(|a, b| a.1.angle.total_cmp(&b.1.angle));
    let mut beam: Vec<(&Vec<usize>, f64)> = Vec::new();
    for (set, left) in order {
        if beam.len() >= most {
            break;
        }
        // Numbers that are the same to six digits are the same value by other words; one that changes nothing leads nowhere.
        let same = |other: f64| (left.nmse - other).abs() <= SAME_RESIDUAL * other;
        if !same(base.nmse) && !beam.iter().any(|(_, other)| same(*other)) {
            beam.push((set, left.nmse));
        }
    }
    beam.into_iter().map(|(set, _)| set.clone()).collect()
}
