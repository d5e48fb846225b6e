//! Splits long sequences into chunks, and merges the metrics of the chunks in a fixed order.
//!
//! A chunk fits the second-level cache; a span is a fixed number of chunks and the unit of parallel work. Chunks are merged in order within their span, and
//! spans in order: the tree of additions depends only on the length, whichever thread did which span.

use super::kernel::{self, Float};
use super::{Metrics, NonFinite, Peak, Values};
use crate::threads;

const CHUNK: usize = 16 * 1024;
const SPAN: usize = 64 * CHUNK;

pub(super) fn metrics(reference: Values<'_>, candidate: Values<'_>) -> Metrics {
    let len = reference.len();
    let span = |start: usize| {
        let range = start..len.min(start + SPAN);
        span_metrics(reference.slice(range.clone()), candidate.slice(range))
    };
    if len <= SPAN {
        return span(0);
    }
    let spans = threads::map(len.div_ceil(SPAN), |i| span(i * SPAN));
    spans.into_iter().fold(Metrics::default(), Metrics::merge)
}

/// Metrics of each run of `row` values. The place of a maximum is searched only in a row that exceeds the rows before it (in its group).
pub(super) fn rows(reference: Values<'_>, candidate: Values<'_>, row: usize) -> Vec<Metrics> {
    let len = reference.len();
    // Groups have a fixed size, so that which maxima are searched does not depend on the number of threads.
    let group = (SPAN / 16).div_ceil(row);
    let count = len.div_ceil(row);
    let of_group = |number: usize| {
        let mut best = None;
        let measured = |at: usize| {
            let range = at * row..len.min((at + 1) * row);
            let seed = Metrics { peak: best, ..Metrics::default() };
            let mut metrics = continued(seed, reference.slice(range.clone()), candidate.slice(range));
            if metrics.peak == best {
                metrics.peak = None
            } else {
                best = metrics.peak
            }
            metrics
        };
        (number * group..count.min((number + 1) * group)).map(measured).collect::<Vec<_>>()
    };
    threads::map(count.div_ceil(group), of_group).concat()
}

fn span_metrics(reference: Values<'_>, candidate: Values<'_>) -> Metrics {
    continued(Metrics::default(), reference, candidate)
}

/// `total` continued with these values.
fn continued(mut total: Metrics, reference: Values<'_>, candidate: Values<'_>) -> Metrics {
    let len = reference.len();
    let wide = reference.needs_f64() || candidate.needs_f64();
    let (mut f32_buffers, mut f64_buffers) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for start in (0..len).step_by(CHUNK) {
        let range = start..len.min(start + CHUNK);
        let (reference, candidate) = (reference.slice(range.clone()), candidate.slice(range));
        total = if wide {
            append(total, reference.as_f64(&mut f64_buffers.0), candidate.as_f64(&mut f64_buffers.1))
        } else {
            append(total, reference.as_f32(&mut f32_buffers.0), candidate.as_f32(&mut f32_buffers.1))
        };
    }
    total
}

/// `total` continued with one chunk.
fn append<T: Float>(total: Metrics, reference: &[T], candidate: &[T]) -> Metrics {
    let chunk = kernel::chunk(reference, candidate);
    if !chunk.is_finite() {
        return total.merge(careful(reference, candidate));
    }
    let unequal = chunk.max > 0.0;
    // The place of a maximum is searched only where it is the largest so far.
    let beats = total.peak.is_none_or(|peak| chunk.max > peak.abs_diff);
    total.merge(Metrics {
        len: reference.len(),
        moments: chunk.moments,
        peak: if beats { find_peak(reference, candidate, chunk.max) } else { None },
        non_finite: NonFinite::default(),
        unequal,
        not_identical: unequal || !same_bits(reference, candidate),
    })
}

/// A chunk with values that are not finite, or whose squares overflow: these are counted one by one, and the rest is measured.
fn careful<T: Float>(reference: &[T], candidate: &[T]) -> Metrics {
    let mut non_finite = NonFinite::default();
    let (mut finite_reference, mut finite_candidate) = (reference.to_vec(), candidate.to_vec());
    let mut kept = 0;
    for (index, (&r, &c)) in reference.iter().zip(candidate).enumerate() {
        if r.into().is_finite() && c.into().is_finite() {
            finite_reference[kept] = r;
            finite_candidate[kept] = c;
            kept += 1;
        } else {
            non_finite.count(index, r.into(), c.into());
        }
    }
    finite_reference.truncate(kept);
    finite_candidate.truncate(kept);
    let chunk = kernel::chunk(&finite_reference, &finite_candidate);
    let unequal = chunk.max > 0.0;
    Metrics {
        len: reference.len(),
        moments: chunk.moments,
        peak: find_peak(reference, candidate, chunk.max),
        non_finite,
        unequal,
        not_identical: unequal || !same_bits(&finite_reference, &finite_candidate),
    }
}

/// The first pair of finite values that is `max` apart.
fn find_peak<T: Float>(reference: &[T], candidate: &[T], max: f64) -> Option<Peak> {
    let pairs = reference.iter().zip(candidate).map(|(&r, &c)| (r.into(), c.into()));
    pairs
        .enumerate()
        .find(|&(_, (r, c)): &(usize, (f64, f64))| (c - r).abs() == max && r.is_finite() && c.is_finite())
        .map(|(index, (reference, candidate))| Peak { index, reference, candidate, abs_diff: max })
}

/// Whether the zeros of equal values have the same sign too. An early exit would cost more than it saves.
fn same_bits<T: Float>(reference: &[T], candidate: &[T]) -> bool {
    reference.iter().zip(candidate).fold(true, |same, (&r, &c)| same & r.is_same(c))
}
