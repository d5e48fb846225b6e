//! Which mistakes reproduce what the candidate recorded? Tried singly, then in pairs and more, grown by how much of the error they take away.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rayon::prelude::*;

use crate::candidates::{Candidate, edits_of, extended, order_of};
use crate::imitate::Shared;
use crate::mistakes::Edit;
use crate::proof::{Left, Target};
use crate::recorded::Recorded;
use crate::replay::Run;
use crate::tune::TUNED;

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

    /// The best residual of each id.
    fn remember(&self, candidates: &[Candidate], tried: &[(Vec<usize>, Left)], result: &mut Result) {
        for (set, left) in tried {
            let best = result.tried.entry(candidates[set[0]].id()).or_insert(f64::INFINITY);
            *best = best.min(left.nmse);
        }
    }

    /// Whether one evaluation keeps all threads busy.
    pub(crate) fn is_large(&self) -> bool {
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

/// By how much each of several mistakes must lower what the others leave.
const MATTERS: f64 = 100.0;
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
/// Sets that are grown by one more mistake.
const WIDE: usize = 24;
const NARROW: usize = 8;

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
