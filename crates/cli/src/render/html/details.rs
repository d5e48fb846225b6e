//! Collects the details of the taps that a page shows, as JSON within the page: their measures and, where both sides were read, where the error is.

use std::collections::HashMap;

use anyhow::Result;
use firstdiff_compare::{
    DifferenceHistogram, GroupErrors, InReferenceOrder, ProbabilityMaps, Report, TapDetail, TapReport, ValuePair,
    number,
};
use serde::Serialize;

use crate::render::html::grid::{MapEntry, PageTaps};
use crate::report::TapEntry;

/// The most taps with details about where the error is: that keeps a page small.
const MOST: usize = 2000;

/// The details of a page's taps.
pub(crate) struct Details {
    taps: Vec<TapDetails>,
    /// How many compared taps have no details about where the error is.
    pub(crate) left_out: usize,
}

/// One tap.
#[derive(Serialize)]
struct TapDetails {
    tap: String,
    when: String,
    status: &'static str,
    /// The facts beside the picture: a name, and the words or the number that every screen shows.
    facts: Vec<(&'static str, String)>,
    is_measured: bool,
    /// For the line of the tolerance in the picture.
    allowed: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<TapPicture>,
}

/// The picture of one tap.
#[derive(Serialize)]
struct TapPicture {
    positions: Levels,
    tokens: Vec<[usize; 2]>,
    /// The meaning of the last axis.
    last: &'static str,
    heads: Levels,
    channels: Levels,
    worst: Vec<(String, String, String)>,
    equal: usize,
    not_finite: usize,
    from: i32,
    counts: Vec<usize>,
    maps: Option<MapPicture>,
}

/// NMSE in tenths of decades: null for 0, 9999 for values that are not finite.
#[derive(Serialize)]
struct Levels {
    each: usize,
    /// How many are in all groups together.
    count: usize,
    tenths: Vec<Option<i32>>,
    /// The group that is furthest off, and its NMSE; null where that is not finite.
    worst: usize,
    nmse: Option<String>,
}

/// Probabilities of both sides, in percent.
#[derive(Serialize)]
struct MapPicture {
    head: usize,
    size: [usize; 2],
    each: [usize; 2],
    tokens: Vec<usize>,
    /// Null where not finite.
    reference: Vec<Option<i32>>,
    candidate: Vec<Option<i32>>,
}

impl Details {
    /// The details of taps of which only the measures are known.
    pub(crate) fn without_tensors(listed: &[MapEntry<'_>], shown: &PageTaps) -> Details {
        let details = shown.0.iter().map(|&at| TapDetails::new(&listed[at], None));
        Details { taps: details.collect(), left_out: 0 }
    }

    /// The details of taps that are read again: those that differ before those that agree.
    pub(crate) fn read(
        order: &InReferenceOrder<'_>,
        report: &Report,
        listed: &[MapEntry<'_>],
        shown: &PageTaps,
    ) -> Result<Details> {
        let compared = |at: &&usize| report.taps[**at].metrics.is_some();
        let mut wanted: Vec<usize> = shown.0.iter().filter(compared).copied().collect();
        wanted.sort_by_key(|&at| (!report.taps[at].status.differs(), at));
        let left_out = wanted.len().saturating_sub(MOST);
        wanted.truncate(MOST);
        let taps: Vec<&TapReport> = wanted.iter().map(|&at| &report.taps[at]).collect();
        let read = order.details(&taps)?;
        let drawn = taps.iter().zip(read).map(|(tap, detail)| detail.map(|detail| TapPicture::new(tap, detail)));
        let mut details: HashMap<usize, TapPicture> =
            wanted.iter().zip(drawn).filter_map(|(at, drawn)| Some((*at, drawn?))).collect();
        let entries = shown.0.iter().map(|&at| TapDetails::new(&listed[at], details.remove(&at)));
        Ok(Details { taps: entries.collect(), left_out })
    }

    /// All details as JSON that can be embedded in a page.
    pub(crate) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string(&self.taps)?.replace('<', "\\u003c"))
    }
}

impl TapDetails {
    fn new(place: &MapEntry<'_>, detail: Option<TapPicture>) -> TapDetails {
        let TapEntry { tap, op, status, reason, measures, .. } = place.entry;
        let finite = |value: Option<f64>| value.filter(|v| v.is_finite());
        let measured = [
            ("NMSE", measures.nmse),
            ("allowed", measures.allowed_nmse),
            ("noise (NMSE)", measures.noise_nmse),
            ("RMSE", measures.rmse),
            ("correlation", measures.correlation),
            ("largest difference", measures.max_abs_diff),
        ];
        let words =
            [("operation", Some(op.clone())), ("status", Some(status.name().into())), ("reason", reason.clone())];
        let words = words.into_iter().filter_map(|(name, text)| Some((name, text?)));
        let numbers = measured.into_iter().filter_map(|(name, value)| Some((name, number(finite(value)?))));
        TapDetails {
            tap: tap.clone(),
            when: place.when.clone(),
            status: status.name(),
            facts: words.chain(numbers).collect(),
            is_measured: finite(measures.nmse).is_some(),
            allowed: finite(measures.allowed_nmse),
            detail,
        }
    }
}

impl TapPicture {
    fn new(tap: &TapReport, detail: TapDetail) -> TapPicture {
        let TapDetail { positions, tokens, heads, channels, worst, spread, maps } = detail;
        let DifferenceHistogram { equal, not_finite, from, counts } = spread;
        let last = if tap.place.tap.site.axes().last() == Some(&'S') { "key" } else { "channel" };
        let side_by_side = |ValuePair { index, reference, candidate }: ValuePair| {
            (tap.index_in_words(&index), digits(reference), digits(candidate))
        };
        TapPicture {
            positions: Levels::new(positions),
            tokens,
            last,
            heads: Levels::new(heads),
            channels: Levels::new(channels),
            worst: worst.into_iter().map(side_by_side).collect(),
            equal,
            not_finite,
            from,
            counts,
            maps: maps.map(MapPicture::new),
        }
    }
}

/// The number for an error that is not finite.
const NOT_FINITE: i32 = 9999;

impl Levels {
    fn new(bars: GroupErrors) -> Levels {
        let tenths = |nmse: f64| match nmse {
            0.0 => None,
            _ if nmse.is_finite() => Some((10.0 * nmse.log10()).round() as i32),
            _ => Some(NOT_FINITE),
        };
        let worst = (0..bars.nmse.len()).rev().max_by(|&a, &b| bars.nmse[a].total_cmp(&bars.nmse[b])).unwrap_or(0);
        let nmse = bars.nmse.get(worst).copied().filter(|nmse| nmse.is_finite()).map(number);
        Levels { each: bars.each, count: bars.count, tenths: bars.nmse.into_iter().map(tenths).collect(), worst, nmse }
    }
}

impl MapPicture {
    fn new(maps: ProbabilityMaps) -> MapPicture {
        let percent = |p: f64| p.is_finite().then(|| (100.0 * p).round() as i32);
        let percents = |values: Vec<f64>| values.into_iter().map(percent).collect();
        let ProbabilityMaps { head, size, each, tokens, reference, candidate } = maps;
        MapPicture { head, size, each, tokens, reference: percents(reference), candidate: percents(candidate) }
    }
}

/// A value to be shown beside another, with enough digits to distinguish them.
fn digits(value: f64) -> String {
    match value.abs() {
        a if a == 0.0 || (1e-3..1e5).contains(&a) => format!("{value:.6}"),
        _ => format!("{value:.5e}"),
    }
}
