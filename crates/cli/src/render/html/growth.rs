//! Draws how the error grows along the residual stream: for every stack a chart over its layers, with the errors of prefill and decode, the tolerance, and
//! the noise.

use firstdiff_compare::number;
use firstdiff_trace::{Site, Tap};

use crate::render::html::grid::{MapEntry, Phase};
use crate::render::html::plot::{Plot, Series};

/// An NMSE below this, or 0, is drawn at the lower edge.
const LEAST: f64 = 1e-18;

/// The charts.
pub(crate) fn plots(listed: &[MapEntry<'_>]) -> Vec<Plot> {
    let of_stream = |place: &MapEntry<'_>| position_in_stream(&place.tap).map(|x| (place.tap.stack(), x));
    let mut stacks: Vec<&'static str> = Vec::new();
    for (stack, _) in listed.iter().filter_map(of_stream) {
        if !stacks.contains(&stack) {
            stacks.push(stack);
        }
    }
    stacks.into_iter().filter_map(|stack| plot(listed, stack)).collect()
}

/// The place of a tap along the stream: layer n ends at n + 1.
fn position_in_stream(tap: &Tap) -> Option<f64> {
    match (tap.role(), tap.layer) {
        (Site::H0, _) => Some(0.0),
        (Site::HAttn, Some(layer)) => Some(f64::from(layer) + 0.5),
        (Site::H, Some(layer)) => Some(f64::from(layer) + 1.0),
        _ => None,
    }
}

fn plot(listed: &[MapEntry<'_>], stack: &str) -> Option<Plot> {
    let points = |phase: Phase, value: &dyn Fn(&MapEntry<'_>) -> Option<f64>| {
        let mut points: Vec<(f64, f64, String)> = Vec::new();
        for place in listed.iter().filter(|place| place.phase == phase) {
            let tap = &place.tap;
            let (Some(x), Some(y)) = (position_in_stream(tap).filter(|_| tap.stack() == stack), value(place)) else {
                continue;
            };
            let point = |y: f64| (x, y.max(LEAST).log10(), format!("{}: {}", place.entry.tap, number(y)));
            let y = if y.is_nan() { f64::INFINITY } else { y };
            // The worst of several steps.
            match points.iter_mut().find(|(known, ..)| *known == x) {
                Some(known) if known.1 < y.max(LEAST).log10() => *known = point(y),
                Some(_) => {}
                None => points.push(point(y)),
            }
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    // A tap that differs without such a number is not finite.
    let error = |place: &MapEntry<'_>| {
        let differs = place.entry.status.differs();
        place.entry.measures.nmse.or(differs.then_some(f64::INFINITY))
    };
    let series = [
        Series {
            name: "allowed",
            class: "allowed",
            points: points(Phase::Prefill, &|place| place.entry.measures.allowed_nmse),
        },
        Series {
            name: "noise",
            class: "noise",
            points: points(Phase::Prefill, &|place| place.entry.measures.noise_nmse),
        },
        Series { name: "error", class: "error", points: points(Phase::Prefill, &error) },
        Series { name: "error in decode, worst step", class: "decode", points: points(Phase::Decode, &error) },
    ];
    let error = &series[2].points;
    let (first, last) = (error.first()?, error.last()?);
    let summary = format!("NMSE of the residual stream, from {} to {}", first.2, last.2);
    let title = match stack {
        "" => "Error along the residual stream".to_owned(),
        stack => format!("Error along the residual stream of {stack}"),
    };
    let series = series.into_iter().filter(|s| !s.points.is_empty()).collect();
    let layer = |x: f64| if x.fract() == 0.0 { format!("{x:.0}") } else { String::new() };
    Plot::new(title, summary, "layer", series, [&layer, &|y| format!("1e{y:.0}")])
}
