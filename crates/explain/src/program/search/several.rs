//! Tries several forms together: pairs of what comes near, and sets that grow by one form at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use firstdiff_program::Edit;

use super::{Explained, Left, Reproduced, Search, Target};
use crate::program::form::Form;
use crate::tolerance::search::{ABOUT_AS_NEAR, GROWS, MATTERS, NEARER, NO_RESIDUAL, SAME_SIZE};

/// So many of the nearest are tried beside all others.
const WITH_ALL: usize = 4;
/// So many sets are grown by another form.
const KEPT_SETS: usize = 16;
/// So many larger sets are kept of each.
const OF_EACH: usize = 2;
/// Of one mistake in one operation so many forms are tried beside others.
const MOST_OF_ONE: usize = 2;
/// Pairs are made of so many forms that each take something of the error away.
const PAIRED: usize = 24;
/// A number is looked for beside so many of them.
const TUNED_WITH: usize = 8;

/// Until when sets are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Time has run out.
    Late,
    /// The same, or one gave the numbers.
    Found,
}

/// The edits of all of some forms, without one of them.
fn edits(forms: &[&Form], without: Option<usize>) -> Vec<Edit> {
    let kept = forms.iter().enumerate().filter(|(at, _)| Some(*at) != without);
    kept.flat_map(|(_, form)| form.edits.clone()).collect()
}

impl<'a> Search<'a> {
    /// Tries two forms together, of those that were tried alone, with what they left.
    pub(super) fn two_together(
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
            let others = all.iter().filter(|form| form.tune.is_none());
            self.sets(target, others.map(|second| vec![*first, second]).collect(), Until::Found, found);
        }
        let nearest_few = nearest;
        tuned.sort_by(|a, b| a.0.total_cmp(&b.0));
        let nearest: Vec<&Form> = tuned.into_iter().map(|(_, form)| form).collect();
        let is_far = |form: &&Form| !nearest.iter().any(|near| std::ptr::eq(*near, *form));
        let others = all.iter().filter(|form| form.tune.is_some()).filter(is_far);
        let tunable: Vec<&Form> = nearest.iter().copied().chain(others).collect();
        self.grown(target, (nearest_few, &widest(all), &tunable), sets, found);
        self.tuned_pairs(target, &measured, &tunable, found);
    }

    /// Tries each two of some forms together, and gives what they leave.
    pub(super) fn pairs<'f>(
        &mut self,
        target: &Target<'_>,
        measured: &[Left<'f>],
        found: &mut Explained,
    ) -> Vec<(f64, Vec<&'f Form>)> {
        let firsts = measured.iter().enumerate();
        let pairs = firsts.flat_map(|(at, first)| measured[at + 1..].iter().map(|second| vec![first.1, second.1]));
        self.sets(target, pairs.collect(), Until::Late, found)
    }

    /// Tries sets of forms, several at once; gives what they leave, whatever factor the result has.
    fn sets<'f>(
        &mut self,
        target: &Target<'_>,
        mut sets: Vec<Vec<&'f Form>>,
        until: Until,
        found: &mut Explained,
    ) -> Vec<(f64, Vec<&'f Form>)> {
        sets.retain(|set| self.are_apart(set));
        let mut all = Vec::new();
        for some in sets.chunks(target.side_by_side()) {
            let edits: Vec<Vec<Edit>> = some.iter().map(|set| edits(set, None)).collect();
            for (set, measured) in some.iter().zip(self.measured_each(target, &edits, 1.0)) {
                if until == Until::Found && !found.reproduced.is_empty() {
                    return all;
                }
                let left = measured.and_then(|measured| self.noted_together(target, set, measured, found));
                all.extend(left.map(|left| (left, set.clone())));
            }
            if self.is_late(target) {
                break;
            }
        }
        all
    }

    /// Whether forms can be made beside each other.
    fn are_apart(&self, forms: &[&Form]) -> bool {
        let program = self.recording.program;
        let apart = |a: &Form, b: &Form| a.edits.iter().all(|a| b.edits.iter().all(|b| a.is_beside(b, program)));
        forms.iter().enumerate().all(|(at, a)| forms[at + 1..].iter().all(|b| apart(a, b)))
    }

    /// Tries several forms together, where they can be made beside each other; gives what they leave, whatever factor the result has.
    pub(super) fn together(&mut self, target: &Target<'_>, forms: &[&Form], found: &mut Explained) -> Option<f64> {
        let measured = self.are_apart(forms).then(|| self.measured(target, &edits(forms, None)))??;
        self.noted_together(target, forms, measured, found)
    }

    /// Notes forms that were tried together, and what they leave: as it is, and whatever factor the result has, which it gives.
    fn noted_together(
        &mut self,
        target: &Target<'_>,
        forms: &[&Form],
        (residual, unlike): (f64, f64),
        found: &mut Explained,
    ) -> Option<f64> {
        let (form, others) = forms.split_first()?;
        let before = found.reproduced.len();
        self.weigh(target, Reproduced::of(form, others, residual), found);
        if found.reproduced.len() > before {
            // Each must take most of what the others leave.
            let matters = |at: usize| {
                self.residual(target, &edits(forms, Some(at)))
                    .is_none_or(|left| left > MATTERS * residual.max(NO_RESIDUAL))
            };
            if !(0..forms.len()).all(matters) {
                found.reproduced.truncate(before);
                return Some(unlike);
            }
            let alone = forms.iter().map(|form| self.residual(target, &form.edits).unwrap_or(f64::NAN)).collect();
            found.reproduced[before].alone = alone;
        }
        Some(unlike)
    }

    /// Sets that leave least are grown by one form at a time, up to as many mistakes as are looked for.
    pub(super) fn grown<'f>(
        &mut self,
        target: &Target<'_>,
        (nearest, plain, tunable): (&[Left<'f>], &[&'f Form], &[&Form]),
        mut sets: Vec<(f64, Vec<&'f Form>)>,
        found: &mut Explained,
    ) {
        // Beside what is most of the error, what takes nothing of it away by itself may.
        let is_near = |form: &&&Form| nearest.iter().any(|(_, near)| std::ptr::eq(*near, **form));
        let others = plain.iter().filter(|form| !is_near(form)).copied();
        let forms: Vec<&Form> = nearest.iter().map(|(_, form)| *form).chain(others).collect();
        sets = nearest_and_widest(sets);
        sets.truncate(KEPT_SETS);
        let mut all = Vec::new();
        for _ in 3..=self.effort.faults {
            let mut larger = Vec::new();
            for (before, set) in &sets {
                let others = forms.iter().filter(|form| !set.iter().any(|own| std::ptr::eq(*own, **form)));
                let larger_by_one = others.map(|form| [&set[..], &[*form]].concat()).collect();
                let mut of_it = self.sets(target, larger_by_one, Until::Found, found);
                if self.is_late(target) || !found.reproduced.is_empty() {
                    return;
                }
                of_it.retain(|(left, _)| *left < GROWS * before);
                larger.extend(nearest_and_widest(of_it).into_iter().take(OF_EACH));
            }
            all.extend(std::mem::replace(&mut sets, larger));
        }
        // A number takes a hundred times as long as a form.
        for (_, set) in &all {
            for some in tunable[..tunable.len().min(TUNED_WITH)].chunks(target.threads) {
                if self.is_late(target) || !found.reproduced.is_empty() {
                    return;
                }
                let beside = edits(set, None);
                for form in target.at_once(some, |form| self.tuned(target, form, &beside)).iter().flatten() {
                    self.together(target, &[&set[..], &[form]].concat(), found);
                }
            }
        }
    }

    /// The nearest, each with a number of another form.
    pub(super) fn tuned_pairs(
        &mut self,
        target: &Target<'_>,
        measured: &[Left<'_>],
        tunable: &[&Form],
        found: &mut Explained,
    ) {
        // Those that come nearest by themselves first, of both.
        for form in tunable {
            for some in measured[..measured.len().min(TUNED_WITH)].chunks(target.threads) {
                if self.is_late(target) || !found.reproduced.is_empty() {
                    return;
                }
                let best = target.at_once(some, |(_, first)| self.tuned(target, form, &first.edits));
                for ((_, first), second) in some.iter().zip(&best) {
                    second.iter().for_each(|second| _ = self.together(target, &[first, second], found));
                }
            }
        }
    }
}

/// Of each form the one that is made in most places.
pub(super) fn widest(all: &[Form]) -> Vec<&Form> {
    let mut known: BTreeMap<String, &Form> = BTreeMap::new();
    for form in all.iter().filter(|form| form.tune.is_none()) {
        let widest = known.entry(form.key()).or_insert(form);
        if form.edits.len() > widest.edits.len() {
            *widest = form;
        }
    }
    known.into_values().collect()
}

/// Of sets of the same mistakes the nearest, and of those that leave about as much the one that is made in most places: the nearest first.
pub(super) fn nearest_and_widest<'f>(mut sets: Vec<(f64, Vec<&'f Form>)>) -> Vec<(f64, Vec<&'f Form>)> {
    let places = |set: &[&Form]| set.iter().map(|form| form.edits.len()).sum::<usize>();
    sets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut known: BTreeMap<BTreeSet<String>, Vec<(f64, Vec<&'f Form>)>> = BTreeMap::new();
    for (residual, set) in sets {
        let of_them = known.entry(set.iter().map(|form| form.key()).collect()).or_default();
        let is_wider = |(_, known): &(f64, Vec<&Form>)| places(&set) > places(known);
        let is_as_near = of_them.first().is_none_or(|(least, _)| residual <= ABOUT_AS_NEAR * least);
        if is_as_near && of_them.iter().all(is_wider) {
            of_them.truncate(1);
            of_them.push((residual, set));
        }
    }
    let mut all: Vec<_> = known.into_values().flatten().collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// Of forms with what they leave those that leave less than `most`, the nearest first, and so many of one mistake in the same operations. What leaves exactly as
/// much comes to the same: the one that is listed first stands for all.
pub(super) fn nearest_of_each(mut measured: Vec<(f64, &Form)>, most: f64) -> Vec<(f64, &Form)> {
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
