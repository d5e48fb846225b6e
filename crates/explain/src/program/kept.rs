//! Finds the type in which a candidate keeps keys and values: as it says, else the one with which attention comes out right.

use std::collections::BTreeSet;

use firstdiff_compare::{Difference, Outcome, Place, Profile as Judged, Status, cache_nmse, move_towards};
use firstdiff_model::{Cache, keep};
use firstdiff_program::{Bench, Slice};
use firstdiff_trace::Site;
use ndarray::ArrayD;

use crate::program::held::{Held, keys_and_values};
use crate::program::replays::ProgramReplay;
use crate::program::slices::on_the_way;
use crate::program::{Candidate, Recording};
use crate::replay::Replay;
use crate::replay::right::{compared, distance};
use crate::tolerance::replay::{CACHE_NEARER, CACHE_TELLS};

impl ProgramReplay {
    /// The one type of cache with which most of what is wrong and reads keys and values, or makes them, comes nearer by far.
    pub(super) fn fitting_cache(&mut self, recording: &Recording<'_>, candidate: &Candidate<'_>) -> Option<Cache> {
        let program = self.program.as_ref().unwrap_or(recording.program);
        let kept = keys_and_values(program.taps());
        let reads_kept = |slice: &Slice<'_>| {
            let made = on_the_way(program, slice).into_iter().chain([slice.target()]);
            slice.known().chain(made).any(|tap| kept.contains(&tap))
        };
        let wrong = self.replays.wrong().map(|tap| self.held.slice(program, tap));
        let wrong: Vec<Slice<'_>> = wrong.filter(reads_kept).collect();
        if wrong.is_empty() {
            return None;
        }
        let mut bench = Bench::new(program, candidate.exact(), recording.weights);
        let off = |slice: &Slice<'_>, bench: &mut Bench<'_>, held: &Held| -> Option<f64> {
            bench.load(slice).ok()?;
            let tap = slice.target();
            let due = held.made_with_cache((bench, program), slice, &[])?;
            let due = held.part(tap).map(|part| part.rows_of(&due)).unwrap_or(due);
            let (site, mut own) = (held.place(tap).tap.last_site(), held.recorded(tap)?);
            if held.is_kept(tap) {
                own = as_kept(held.cache(), site, &own, &due).unwrap_or(own);
            }
            (due.shape() == own.shape()).then(|| distance(site, &due, &own))
        };
        let before: Vec<Option<f64>> = wrong.iter().map(|slice| off(slice, &mut bench, &self.held)).collect();
        let mut fitting = Vec::new();
        for cache in Cache::ALL.into_iter().filter(|cache| *cache != Cache::F32) {
            self.held.keeps_in(program, cache);
            let mut left = wrong.len().div_ceil(2);
            for (slice, was) in wrong.iter().zip(&before) {
                let is_nearer = off(slice, &mut bench, &self.held).zip(*was);
                left -= usize::from(is_nearer.is_none_or(|(is, was)| is.is_nan() || CACHE_TELLS * is > was));
                if left == 0 {
                    break;
                }
            }
            fitting.extend((left > 0).then_some(cache));
        }
        self.held.keeps_in(program, Cache::F32);
        if let [cache] = fitting[..] { Some(cache) } else { None }
    }
}

/// Whether every tap that is wrong no more is nearer, most by far, and none is wrong that was not.
pub(super) fn explains(before: &Replay, after: &Replay) -> bool {
    let wrong = |replay: &Replay| -> BTreeSet<Place> {
        let wrong = replay.taps.iter().filter(|t| t.report.status == Status::Diverged);
        wrong.map(|t| t.report.place).collect()
    };
    let (was, is) = (wrong(before), wrong(after));
    let nmse = |replay: &Replay, place: &Place| {
        let tap = replay.taps.iter().find(|t| t.report.place == *place)?;
        tap.report.metrics?.nmse().filter(|_| tap.report.status.agrees() || tap.report.status == Status::Diverged)
    };
    let nearer = |place: &Place, times: f64| {
        nmse(before, place).zip(nmse(after, place)).is_some_and(|(was, is)| times * is <= was)
    };
    // What rounds the same numbers a little otherwise leaves a part of them.
    let cleared: Vec<&Place> = was.difference(&is).collect();
    let by_far = cleared.iter().filter(|place| nearer(place, CACHE_TELLS)).count();
    let is_each_nearer = cleared.iter().all(|place| nearer(place, CACHE_NEARER));
    is.is_subset(&was) && is.len() < was.len() && is_each_nearer && 2 * by_far >= cleared.len()
}

/// Keys or values that were recorded as the cache holds them, each moved by half a step of its type towards the right value; `None` where they are no
/// such. One factor on all of them is moved by nothing.
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
