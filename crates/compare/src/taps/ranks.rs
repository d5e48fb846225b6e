//! Measures each rank's error, where a dump was joined from several ranks' dumps.

use firstdiff_trace::{Dump, DumpError, Entry, Joined, Ranks, Share, Site, Tensor};

use crate::graph::Place;
use crate::layout::elements::borrow;
use crate::layout::pair::Pair;
use crate::layout::types::Layout;
use crate::metrics::{Metrics, Squares};
use crate::report::anatomy::RankError;
use crate::report::reason::{RankShortfall, Reason};
use crate::taps::context::ComparisonContext;
use crate::taps::tap::TapJudge;
use crate::tolerance::context::SUMMAND_LEAVES;

pub(crate) fn not_joined(why: &str) -> Reason {
    Reason::NotJoined(why.to_owned())
}

/// The tensors of all ranks that hold a place.
pub(crate) fn tensors(ranks: &Ranks, place: Place) -> Result<Vec<(String, Tensor)>, DumpError> {
    let entries = ranks
        .names()
        .iter()
        .zip(ranks.dumps())
        .filter_map(|(name, dump)| Some((name, dump, dump.find(place.tap, place.step)?)));
    let read = entries.map(|(name, dump, entry)| Ok((name.clone(), dump.read(entry)?)));
    Ok(ranks.in_order(place.tap, place.step, read.collect::<Result<_, DumpError>>()?))
}

/// The replicas that differ bit for bit from the compared one, and their NMSE against it.
pub(crate) fn others(ranks: &Ranks, joined: &Dump, place: Place) -> Result<Vec<(String, Tensor, f64)>, DumpError> {
    let Some(entry) = joined.find(place.tap, place.step) else { return Ok(Vec::new()) };
    let chosen = joined.read(entry)?;
    let all = tensors(ranks, place)?;
    let differs = all.into_iter().filter(|(_, tensor)| tensor.bytes() != chosen.bytes());
    Ok(differs
        .map(|(name, tensor)| {
            let same = tensor.shape() == chosen.shape();
            let off = |tensor: &Tensor| Metrics::measure(borrow(&chosen.values()), borrow(&tensor.values())).nmse();
            let nmse = if same { off(&tensor).unwrap_or(f64::INFINITY) } else { f64::INFINITY };
            (name, tensor, nmse)
        })
        .collect())
}

/// The error of each rank's piece of a divided tap.
fn pieces(pair: &Pair<'_>, ranks: &Ranks, joined: &Joined, allowed: f64) -> Vec<RankError> {
    let shape = &joined.shape;
    let (inner, extent) = (shape[joined.axis + 1..].iter().product::<usize>(), shape[joined.axis]);
    let mut sums = vec![Squares::default(); ranks.names().len()];
    for i in 0..pair.len() {
        let along = pair.place(i) / inner % extent;
        let rank = joined.bounds.iter().rposition(|&from| from <= along).unwrap_or(0).min(sums.len() - 1);
        let (r, c) = (pair.reference(i), pair.candidate(i));
        // Equal infinities are masks.
        if r != c {
            sums[rank].error += (c - r) * (c - r);
        }
        sums[rank].energy += if r.is_finite() { r * r } else { 0.0 };
    }
    let named = shape.len() == pair.site().axes().len();
    let what = match pair.site().axes().get(joined.axis).filter(|_| named) {
        Some('H' | 'K') => "heads",
        Some('T') => "positions",
        Some('S') => "keys",
        Some('V') => "token ids",
        _ => "channels",
    };
    let error = |(rank, squares): (usize, Squares)| {
        let (from, to) = (joined.bounds[rank], joined.bounds[rank + 1]);
        let part = if to == from + 1 {
            format!("{} {from}", what.trim_end_matches('s'))
        } else {
            format!("{what} {from}-{}", to.saturating_sub(1))
        };
        let nmse = squares.relative();
        RankError { name: ranks.names()[rank].clone(), part, nmse, right: nmse <= allowed }
    };
    sums.into_iter().enumerate().map(error).collect()
}

impl ComparisonContext<'_> {
    /// What both dumps hold at a place: recorded, or joined from ranks where the other side's shape allows only one way.
    pub(crate) fn both(&self, place: Place) -> (Option<Entry>, Option<Entry>) {
        let Place { step, tap } = place;
        if tap.is_open() {
            return self.both_open(place);
        }
        let held = |dump: &Dump, other: &Dump| {
            let joined = || dump.ranks()?.join_by_shape(tap, step, &other.find(tap, step)?.shape);
            dump.find(tap, step).cloned().or_else(|| joined().map(|(entry, _)| entry))
        };
        let (left, right) = self.with_axes(held(self.reference, self.candidate), held(self.candidate, self.reference));
        self.with_last_rows(left, right)
    }

    /// Why a place cannot be judged without a missing rank's dump: its pieces do not cover the reference's extent, or it is a sum and other pieces do not.
    pub(crate) fn lacks_a_rank(&self, place: Place) -> Option<Reason> {
        let ranks = self.candidate.ranks()?;
        let short = |place: Place| {
            let reference = self.reference.find(place.tap, place.step)?;
            let (axis, held) = ranks.missing_slice(place.tap, place.step, &reference.shape)?;
            Some((axis, held, reference.shape[axis]))
        };
        let missing = |by| Reason::RankMissing { ranks: ranks.names().to_vec(), by };
        if let Some((axis, held, due)) = short(place) {
            return Some(missing(RankShortfall::Extent { axis, held, due }));
        }
        let summed = ranks.joined(place.tap, place.step).is_some_and(|j| j.share == Share::Partial);
        let by = summed.then(|| self.graph.places().iter().copied().find(|&other| short(other).is_some())).flatten()?;
        Some(missing(RankShortfall::Summand(by)))
    }

    /// Why a difference in the dump of a single rank does not count: it may be that rank's summand.
    pub(crate) fn may_be_a_sum(&self, place: Place) -> Option<Reason> {
        let ranks = self.candidate.ranks()?;
        let [one] = ranks.names() else { return None };
        let is_declared = ranks.joined(place.tap, place.step).is_none_or(|joined| joined.is_declared);
        let summed = matches!(place.tap.site, Site::H0 | Site::AttnOut | Site::FfnOut);
        (summed && !is_declared).then(|| Reason::MayBeSummand { rank: one.clone() })
    }

    /// Why ranks' tensors of a place were not joined.
    pub(crate) fn not_joined_reason(&self, place: Place) -> Option<Reason> {
        let reason_in =
            |dump: &Dump| dump.ranks().and_then(|r| r.why_not_joined(place.tap, place.step)).map(not_joined);
        reason_in(self.candidate).or_else(|| reason_in(self.reference))
    }

    /// The error of a place by rank, where it was joined from ranks.
    pub(crate) fn by_rank(&self, place: Place, layout: &Layout) -> Result<Vec<RankError>, DumpError> {
        let Some(ranks) = self.candidate.ranks() else { return Ok(Vec::new()) };
        let shape = self.reference.find(place.tap, place.step).map(|e| e.shape.clone()).unwrap_or_default();
        let by_shape = || ranks.join_by_shape(place.tap, place.step, &shape).map(|(_, joined)| joined);
        let Some(joined) = ranks.joined(place.tap, place.step).cloned().or_else(by_shape) else {
            return Ok(Vec::new());
        };
        match joined.share {
            Share::Sliced(_) => {
                let cut = |pair: &Pair<'_>, own: f64| pieces(pair, ranks, &joined, 100.0 * own);
                Ok(self.with_pair(place, layout, cut)?.unwrap_or_default())
            }
            Share::Replicated => self.replicas(place, layout, ranks),
            Share::Partial => self.summands(place, layout, ranks),
        }
    }

    fn replicas(&self, place: Place, layout: &Layout, ranks: &Ranks) -> Result<Vec<RankError>, DumpError> {
        let mut errors = Vec::new();
        for (name, tensor) in tensors(ranks, place)? {
            let values = tensor.values();
            let off = |alignment: &TapJudge<'_>, own: f64| {
                let metrics = Metrics::merge_all(&alignment.with_candidate(&values).under(layout)?.row_metrics());
                let nmse = metrics.nmse().unwrap_or(f64::INFINITY);
                Some(RankError { name: name.clone(), part: "replica".into(), nmse, right: nmse <= own })
            };
            errors.extend(self.with_tap_judge(place, off)?.flatten());
        }
        Ok(errors)
    }

    /// The summand, if any, that equals the error except for a factor.
    fn summands(&self, place: Place, layout: &Layout, ranks: &Ranks) -> Result<Vec<RankError>, DumpError> {
        for (name, tensor) in tensors(ranks, place)? {
            let values = tensor.values();
            let fit = |alignment: &TapJudge<'_>, _| {
                let (pair, part) = (alignment.under(layout)?, alignment.with_candidate(&values).under(layout)?);
                let (mut pp, mut ep, mut ee) = (0.0, 0.0, 0.0);
                for i in 0..pair.len() {
                    let (error, part) = (pair.candidate(i) - pair.reference(i), part.candidate(i));
                    pp += part * part;
                    ep += error * part;
                    ee += error * error;
                }
                let (factor, left) = (ep / pp, 1.0 - ep * ep / (pp * ee));
                let part = format!("the error is its summand times {factor:.4}");
                (left < SUMMAND_LEAVES).then(|| RankError {
                    name: name.clone(),
                    part,
                    nmse: left.max(0.0),
                    right: false,
                })
            };
            if let Some(error) = self.with_tap_judge(place, fit)?.flatten() {
                return Ok(vec![error]);
            }
        }
        Ok(Vec::new())
    }
}
