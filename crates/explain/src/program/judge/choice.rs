//! Whether a choice of the largest is right.

use std::collections::BTreeSet;

use firstdiff_compare::metrics::Metrics;
use firstdiff_compare::{Status, TapReport, margin_of_best};
use ndarray::ArrayD;

use crate::program::judge::lockstep::Due;
use crate::replay::Replayed;
use crate::replay::reason::Reason;
use crate::tolerance::replay::CHOICE_ROOM;

/// Whether a choice of the largest is right. Two that are as large but for rounding may be taken for each other, and in any order.
pub(super) fn chosen(blank: Replayed, own: &ArrayD<f64>, due: &Due, unit: f64, is_moved: bool) -> Replayed {
    let with = |status: Status, reason: Option<Reason>| {
        let metrics =
            Metrics::measure_f64(due.exact.as_slice().unwrap_or_default(), own.as_slice().unwrap_or_default());
        let report = TapReport { status, metrics: Some(metrics), shape: own.shape().to_vec(), ..blank.report.clone() };
        Replayed { reason, ..Replayed::of(report) }
    };
    if *own == due.exact {
        return with(if is_moved { Status::Rounding } else { Status::Exact }, None);
    }
    let width = own.shape().last().copied().filter(|width| *width > 0).unwrap_or(1);
    if let Some(at) = own.iter().position(|x| x.fract() != 0.0) {
        return with(Status::Diverged, Some(Reason::NoChoice { row: at / width }));
    }
    let Some((row, margin)) = due.choices.as_ref().and_then(|choices| worst_choice(own, choices)) else {
        return with(Status::Unchecked, Some(Reason::OtherNumbers));
    };
    match margin <= CHOICE_ROOM * unit {
        true => with(Status::Rounding, None),
        false if margin.is_infinite() => with(Status::Diverged, Some(Reason::NoChoice { row })),
        false => with(Status::Diverged, Some(Reason::OtherChoice { row, margin })),
    }
}

/// The row whose choice is furthest below what it leaves, and by how much, as a share of the row's largest value.
pub(super) fn worst_choice(own: &ArrayD<f64>, choices: &ArrayD<f64>) -> Option<(usize, f64)> {
    let (&width, &count) = (choices.shape().last()?, own.shape().last()?);
    if width == 0 || count == 0 || choices.len() / width != own.len() / count {
        return None;
    }
    let below = |(choices, own): (&[f64], &[f64])| {
        let is_one = |x: f64| x >= 0.0 && x < width as f64;
        let taken: BTreeSet<usize> = own.iter().copied().filter(|&x| is_one(x)).map(|x| x as usize).collect();
        if taken.len() < count {
            return Some(f64::INFINITY);
        }
        margin_of_best(choices, &taken).map(|margin| (-margin).max(0.0))
    };
    let rows = choices.as_slice()?.chunks(width).zip(own.as_slice()?.chunks(count));
    let all: Vec<f64> = rows.map(below).collect::<Option<_>>()?;
    all.into_iter().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))
}
