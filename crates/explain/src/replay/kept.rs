//! In what type does the candidate keep keys and values? As it says, else as attention comes out right.

use std::collections::BTreeSet;

use firstdiff_compare::{Difference, Outcome, Place, Profile as Judged, Status, cache_nmse, move_towards};
use firstdiff_model::{Cache, Model, Op, keep};
use firstdiff_trace::{Dump, Site, Tap};
use ndarray::ArrayD;

use crate::replay::reason::Reason;
use crate::replay::replayed::{Options, Replay, Replayed};
use crate::replay::right::compared;
use crate::replay::tokens::{fed, tell};
use crate::replay::{Done, Due, Run};
use crate::tolerance::replay::CACHE_TELLS;

/// Replays on the tokens that the candidate was fed. More of them at its front than were told may be padding: they are, where less is wrong then.
pub(crate) fn replayed<'a>(
    model: &'a Model,
    dump: &'a Dump,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Done<(Run<'a>, Replay)> {
    let Some((as_fed, edits)) = fed(model, dump, options)? else {
        return with_cache(model, dump, options, progress);
    };
    let is_wrong = |t: &&Replayed| t.report.status == Status::Diverged || t.is_for(Reason::is_shape);
    let wrong = |replay: &Replay| replay.taps.iter().filter(is_wrong).count();
    let (mut run, mut replay) = with_cache(model, dump, &as_fed, progress)?;
    if edits.are_in_front() {
        let (as_told, mut padded) = with_cache(model, dump, options, progress)?;
        if wrong(&padded) <= wrong(&replay) {
            let or = format!("what stands in front is read as padding; or the candidate was fed {edits}");
            padded.warnings.extend((wrong(&padded) > 0).then_some(or));
            return Ok((as_told, padded));
        }
    }
    tell(edits, &options.tokens, &mut run, &mut replay)?;
    Ok((run, replay))
}

/// Replays, with the type of cache that `options` name; where they name none and attention is wrong, with the one type that makes most of it right.
fn with_cache<'a>(
    model: &'a Model,
    dump: &'a Dump,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Done<(Run<'a>, Replay)> {
    let mut carried_out = |options: &Options| -> Done<(Run<'a>, Replay)> {
        let mut run = Run::new(model, dump, options);
        let replay = run.all(progress)?;
        Ok((run, replay))
    };
    let (mut run, replay) = carried_out(options)?;
    let wrong = through_the_cache(model, &replay);
    if options.cache.is_some() || wrong.is_empty() {
        return Ok((run, replay));
    }
    let mut fitting = Vec::new();
    for cache in Cache::ALL.into_iter().filter(|cache| *cache != Cache::F32) {
        if 2 * run.cleared_by(cache, &wrong)? > wrong.len() {
            fitting.push(cache);
        }
    }
    run.keeps_in(Cache::F32);
    if let [cache] = fitting[..] {
        let (other, mut again) = carried_out(&Options { cache: Some(cache), ..options.clone() })?;
        if explains(&replay, &again) {
            again.cache_is_assumed = true;
            return Ok((other, again));
        }
    }
    Ok((run, replay))
}

/// The operations that are wrong, and how far, that read keys or values from the cache, make what is kept in it, or come after such on the way.
fn through_the_cache(model: &Model, replay: &Replay) -> Vec<(Place, f64)> {
    let kept = kept(model);
    let attends = |tap: &Tap| model.plan.step(*tap).is_some_and(|step| matches!(step.op, Op::Qk | Op::Context));
    let wrong = replay.taps.iter().filter(|t| t.report.status == Status::Diverged);
    let through = wrong.filter(|t| {
        let tap = t.report.place.tap;
        attends(&tap) || kept.contains(&tap) || t.through.iter().any(attends)
    });
    through.map(|t| (t.report.place, t.report.metrics.and_then(|m| m.nmse()).unwrap_or(f64::INFINITY))).collect()
}

/// The taps that are kept in the cache.
fn kept(model: &Model) -> BTreeSet<Tap> {
    model.plan.steps.iter().filter_map(|step| step.cached()).collect()
}

/// Whether every tap that is wrong no more is nearer by far, and none is wrong that was not.
fn explains(before: &Replay, after: &Replay) -> bool {
    let wrong = |replay: &Replay| -> BTreeSet<Place> {
        let wrong = replay.taps.iter().filter(|t| t.report.status == Status::Diverged);
        wrong.map(|t| t.report.place).collect()
    };
    let (was, is) = (wrong(before), wrong(after));
    let nmse = |replay: &Replay, place: &Place| {
        let tap = replay.taps.iter().find(|t| t.report.place == *place)?;
        tap.report.metrics?.nmse().filter(|_| tap.report.status.agrees() || tap.report.status == Status::Diverged)
    };
    let cleared = |place: &Place| match (nmse(before, place), nmse(after, place)) {
        (Some(was), Some(is)) => CACHE_TELLS * is <= was,
        _ => false,
    };
    is.is_subset(&was) && is.len() < was.len() && was.difference(&is).all(cleared)
}

impl Run<'_> {
    /// Goes on with another type of cache, and lets go of what was computed with the last.
    fn keeps_in(&mut self, cache: Cache) {
        self.recorded.cache = cache;
        self.profile = self.profile.with_cache(cache);
        self.rounding_spread.clear();
        self.forget();
    }

    /// How many of these places come out right with this type of cache, and nearer by far.
    fn cleared_by(&mut self, cache: Cache, wrong: &[(Place, f64)]) -> Done<usize> {
        self.keeps_in(cache);
        let mut cleared = 0;
        for &(place, was) in wrong {
            let Some(step) = self.recorded.model.plan.step(place.tap) else { continue };
            let due = self.due(step, place.step)?;
            if !due.as_ref().is_ok_and(|due| self.comes_nearer(place, due, was / CACHE_TELLS)) {
                continue;
            }
            let again = self.judged(step, place, due.as_ref())?.report;
            let is = again.metrics.and_then(|m| m.nmse()).unwrap_or(f64::INFINITY);
            cleared += usize::from(again.status.agrees() && CACHE_TELLS * is <= was);
        }
        Ok(cleared)
    }

    /// Whether what is due here is no further from the candidate's than `bar`, whatever is allowed: seen before anything is measured for a tolerance.
    fn comes_nearer(&self, place: Place, due: &Due, bar: f64) -> bool {
        let own = match &due.positions {
            Some(list) => self.recorded.read_rows(place, list),
            None => self.recorded.read(place),
        };
        let Ok(own) = own else { return false };
        let off = |right: &ArrayD<f64>| {
            let kept = self.as_kept(place, &own, right);
            compared(place.tap.site, right, kept.as_ref().unwrap_or(&own), Judged::F32, 0.0).0.metrics.nmse()
        };
        [&due.right.mapv(f64::from), &due.exact].into_iter().any(|right| off(right).is_some_and(|nmse| nmse <= bar))
    }

    /// Keys or values that were recorded as the cache holds them, each moved by half a step of its type towards the right value; `None` where
    /// the tap is no such, or was recorded before. One factor on all of them is moved by nothing.
    pub(crate) fn as_kept(&self, place: Place, own: &ArrayD<f64>, right: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        let is_kept = kept(self.recorded.model).contains(&place.tap);
        is_kept.then(|| as_kept(self.recorded.cache, place.tap.site, own, right)).flatten()
    }
}

/// The same of what is known to be kept.
pub(crate) fn as_kept(cache: Cache, site: Site, own: &ArrayD<f64>, right: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    if cache == Cache::F32 || own.shape() != right.shape() {
        return None;
    }
    let mut rounded = own.clone();
    keep(cache, &mut rounded);
    if rounded != *own {
        return None;
    }
    let (structure, ..) = compared(site, right, own, Judged::F32, 2.0 * cache_nmse(cache));
    if matches!(structure.outcome, Outcome::Differs(Difference::Factor { .. })) {
        return None;
    }
    let width = own.shape().last().copied().unwrap_or(1);
    let values: Vec<f64> = right.iter().copied().collect();
    let mut steps = cache.half_steps(&values, width).into_iter();
    let mut moved = own.clone();
    ndarray::Zip::from(&mut moved)
        .and(right)
        .for_each(|own, &right| *own = move_towards(*own, right, steps.next().unwrap_or(0.0)));
    Some(moved)
}
