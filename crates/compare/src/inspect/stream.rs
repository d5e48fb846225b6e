//! Checks the residual stream: branches that add nothing, sums of other tensors, growth over layers.

use firstdiff_trace::{DumpError, Entry, Site, Tap};

use super::finding::{Certainty, InspectFinding};
use super::seen::{InspectedDump, TensorRows};
use super::tally::Summary;
use crate::graph::Place;
use crate::tolerance::inspect::{
    FIRST_LAYER_GROWTH, LAYER_GROWTH, STREAM_ABSENT, SUM_LEAVES, SUM_LEAVES_COARSE, TINY_SIGNAL,
};
use crate::words::number;

/// The name of the finding that a stream is not its input plus its branch.
pub(super) const SUM: &str = "residual-sum";

/// The stream that a layer reads.
pub(super) fn input<'a>(run: &InspectedDump<'a>, place: Place) -> Option<(Tap, &'a Entry)> {
    let tap = match place.tap.layer?.checked_sub(1) {
        Some(before) => Tap::layer(before, Site::H),
        None => Tap { layer: None, site: Site::H0 },
    };
    Some((tap, run.dump.find(tap, place.step)?))
}

/// The branch that ends in a residual add: its last recorded tap.
pub(super) fn branch<'a>(run: &InspectedDump<'a>, place: Place) -> Option<(Tap, &'a Entry)> {
    let sites = match place.tap.site {
        Site::HAttn => [Site::AttnPostNorm, Site::AttnOut],
        _ => [Site::FfnPostNorm, Site::FfnOut],
    };
    sites.into_iter().find_map(|site| parallel_tap(run, place, site))
}

type Signal = (Tap, Vec<f64>);

fn read(run: &InspectedDump<'_>, of: Option<(Tap, &Entry)>, len: usize) -> Result<Option<Signal>, DumpError> {
    let Some((tap, entry)) = of else { return Ok(None) };
    let values = run.dump.read(entry)?.values().to_f64();
    Ok((values.len() == len && values.iter().all(|x| x.is_finite())).then_some((tap, values)))
}

/// The terms of a stream: the stream before it and the branch, where both were recorded.
fn parts(run: &InspectedDump<'_>, place: Place, len: usize) -> Result<Option<[Signal; 2]>, DumpError> {
    let stream = match place.tap.site {
        Site::HAttn => input(run, place),
        _ => parallel_tap(run, place, Site::HAttn),
    };
    Ok(read(run, stream, len)?.zip(read(run, branch(run, place), len)?).map(|(stream, added)| [stream, added]))
}

fn parallel_tap<'a>(run: &InspectedDump<'a>, place: Place, site: Site) -> Option<(Tap, &'a Entry)> {
    Some((Tap { site, ..place.tap }, run.find(site, place)?))
}

/// Where the stream is not its input plus its branch: which known sum it is instead.
pub(super) fn sum(run: &InspectedDump<'_>, tensor: &TensorRows<'_>) -> Result<Option<InspectFinding>, DumpError> {
    let (place, len) = (tensor.place, tensor.values.len());
    let attention = place.tap.site == Site::HAttn;
    let Some([(stream, x), (added, b)]) = parts(run, place, len)? else { return Ok(None) };
    let y = tensor.values.to_f64();
    if y.iter().any(|y| !y.is_finite()) {
        return Ok(None);
    }
    let tolerance = if run.coarse { SUM_LEAVES_COARSE } else { SUM_LEAVES };
    let whole = residual_share(&y, &x, &b);
    let fits = |left: f64| left <= tolerance && left * 100.0 < whole;
    if whole <= tolerance {
        return Ok(None);
    }
    let broken = |text: String, points| {
        Some(InspectFinding::new(run.law(), SUM, place, text).to(points).with_others([stream, added]))
    };
    // One buffer under two names: the engine may have computed the sum right, and recorded one of the two too late.
    let either = |text: String, points| {
        let finding = InspectFinding::new(run.law().max(Certainty::Likely), SUM, place, text).to(points);
        Some(finding.with_others([stream, added]))
    };
    let (factor, rest) = best_multiple(&y, &x);
    if fits(rest) {
        let before = Place { tap: stream, ..place };
        let sum = if x == y { parts(run, before, len)? } else { None };
        let is_late = sum.as_ref().is_some_and(|[(_, s), (_, a)]| {
            let all: Vec<f64> = s.iter().zip(a).map(|(s, a)| s + a).collect();
            residual_share(&x, s, a) > tolerance && residual_share(&y, &all, &b) <= tolerance
        });
        if let Some([(first, _), (second, _)]) = sum.as_ref().filter(|_| is_late) {
            let text = format!("is {}, which is {first} + {second} + {added}: {second} alone is due here", place.tap);
            let finding =
                InspectFinding::new(run.law(), SUM, before, text).with_others([place.tap, *first, *second, added]);
            return Ok(Some(finding.to("a buffer recorded after the next sum was written into it")));
        }
        if x == y && sum.is_none_or(|[(_, s), (_, a)]| residual_share(&x, &s, &a) > tolerance) {
            let text = format!("is {stream}: {added} is not in it, or is in both, as one buffer");
            return Ok(either(
                text,
                "a branch that is not added, or a buffer recorded after it was overwritten (aliasing)",
            ));
        }
        let text = format!("is {} times {stream}: {added} is not in it", number(factor));
        return Ok(broken(text, "a buffer overwritten before it was added, or a branch that is not added (aliasing)"));
    }
    let (factor, rest) = best_multiple(&y, &b);
    if fits(rest) {
        if b == y && best_multiple(&y, &x).0.abs() > STREAM_ABSENT {
            let text = format!("is {added}: the stream {stream} is not in it, or is in both, as one buffer");
            return Ok(either(
                text,
                "the residual left out (residual-omitted), or a buffer recorded after it was overwritten",
            ));
        }
        let text = format!("is {} times {added}: the stream {stream} is not in it", number(factor));
        return Ok(broken(text, "the residual left out (residual-omitted)"));
    }
    if !attention
        && let Some((first, s)) = read(run, input(run, place), len)?
        && fits(residual_share(&y, &s, &b))
    {
        return Ok(broken(format!("is {first} + {added}: {stream} is not in it"), "residual-source"));
    }
    let norm = parallel_tap(run, place, if attention { Site::AttnNorm } else { Site::FfnNorm });
    if let Some((normed, n)) = read(run, norm, len)?
        && fits(residual_share(&y, &n, &b))
    {
        let finding = broken(format!("is {normed} + {added}: {stream} is not in it"), "residual-source or aliasing");
        // BLOOM and ChatGLM can be configured this way.
        return Ok(finding.map(|f| InspectFinding { sure: Certainty::Likely, ..f }));
    }
    Ok(None)
}

/// What remains of y after a + b is subtracted, as a share of its energy.
fn residual_share(y: &[f64], a: &[f64], b: &[f64]) -> f64 {
    let (mut rest, mut all) = (0.0, 0.0);
    for ((y, a), b) in y.iter().zip(a).zip(b) {
        rest += (y - a - b) * (y - a - b);
        all += y * y;
    }
    if rest == 0.0 { 0.0 } else { rest / all }
}

/// The factor that brings x nearest to y, and what remains.
fn best_multiple(y: &[f64], x: &[f64]) -> (f64, f64) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let factor = dot(x, y) / dot(x, x);
    let rest: f64 = y.iter().zip(x).map(|(y, x)| (y - factor * x) * (y - factor * x)).sum();
    let share = rest / dot(y, y);
    (factor, if share.is_finite() { share } else { f64::INFINITY })
}

/// Checks how the size of signals changes from tap to tap.
pub(super) fn check_levels(known: &[Summary]) -> Vec<InspectFinding> {
    let mut found = Vec::new();
    for step in known.chunk_by(|one, other| one.place.step == other.place.step) {
        let here = || step.iter().filter(|s| s.finite);
        let stream: Vec<&Summary> = here().filter(|s| matches!(s.place.tap.site, Site::H0 | Site::H)).collect();
        found.extend(stream.windows(2).filter_map(|pair| growth(pair[0], pair[1])));
        let comparable = |s: &&Summary| {
            let site = s.place.tap.site;
            s.level > 0.0 && !site.axes().contains(&'S') && !matches!(site, Site::RouterLogits | Site::RouterProbs)
        };
        let signals: Vec<&Summary> = here().filter(comparable).collect();
        found.extend(signals.windows(3).filter_map(|beside| tiny(beside[0], beside[1], beside[2])));
    }
    found
}

fn growth(before: &Summary, after: &Summary) -> Option<InspectFinding> {
    let ratio = after.typical / before.typical;
    let bound = if before.place.tap.site == Site::H0 { FIRST_LAYER_GROWTH } else { LAYER_GROWTH };
    let what = if ratio > bound { "explodes" } else { "vanishes" };
    (before.typical > 0.0 && after.typical > 0.0 && !(1.0 / bound..=bound).contains(&ratio)).then(|| {
        // The first positions of trained models have massive activations.
        let sure = if after.rows >= 4 { Certainty::Likely } else { Certainty::Note };
        let text = format!(
            "the stream {what}: RMS {} after {} in {}",
            number(after.typical),
            number(before.typical),
            before.place.tap
        );
        let finding = InspectFinding::new(sure, "stream-level", after.place, text).number("ratio", ratio);
        finding
            .to("a norm left out, a scale, or weights read in the wrong type (norm-omitted, dequant-scale)")
            .with_others([before.place.tap])
    })
}

fn tiny(before: &Summary, signal: &Summary, after: &Summary) -> Option<InspectFinding> {
    let neighbour_level = before.level.min(after.level);
    (signal.level < TINY_SIGNAL * neighbour_level).then(|| {
        let text = format!("RMS {} between {} and {}", number(signal.level), number(before.level), number(after.level));
        let finding =
            InspectFinding::new(Certainty::Note, "tiny-signal", signal.place, text).number("rms", signal.level);
        finding.to("too small for a tolerance: agreement after it says little of this tap")
    })
}
