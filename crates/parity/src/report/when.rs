//! Describes from which step or token position on a candidate differs.

use firstdiff_compare::{ChunkAlignment, Chunks, Place, Report, TapReport};
use firstdiff_trace::Site;

use crate::words::taps_in_words;

/// Which steps or positions are right, and which is the first wrong one; `None` where that is the prefill.
pub(crate) fn when(report: &Report, place: Place, chosen: bool) -> Option<String> {
    let step = place.step;
    match &report.alignment {
        Some(alignment) => Some(by_position(alignment, report, place, chosen)),
        None if step > 0 && report.taps.iter().any(|t| t.place.step == 0 && t.status.agrees()) => {
            Some(format!("what was checked of the prefill agrees; decode step {step} is the first wrong one"))
        }
        None => None,
    }
}

/// Which positions are right, and which is the first wrong one, in terms of prefill and decode where there are both. `chosen`: only some taps were requested,
/// which show nothing about others.
fn by_position(alignment: &ChunkAlignment, report: &Report, place: Place, chosen: bool) -> String {
    let cell = place.step;
    let here = alignment.label(cell..cell + 1);
    let start = alignment.cells.get(cell as usize).map_or(0, |cell| cell.start);
    if start == 0 {
        return format!("from the first position on: {here}");
    }
    let before: Vec<&TapReport> = report.taps.iter().filter(|t| t.place.step < cell).collect();
    let agree = before.iter().filter(|t| t.status.agrees()).count();
    let unchecked = match before.len() - agree {
        0 => String::new(),
        n => format!(", {n} unchecked"),
    };
    let agreeing = format!("{}{unchecked}", taps_in_words(agree));
    if chosen {
        let before = alignment.label(0..cell);
        return format!("what was checked of {before} agrees ({agreeing}); {here} is the first wrong one");
    }
    let right = format!("({start} position{}, {agreeing})", if start == 1 { "" } else { "s" });
    let is_end = |run: &Chunks| run.ranges().iter().position(|step| step.end == start);
    let first_step = [&alignment.candidate, &alignment.reference].into_iter().find(|run| run.lengths.len() > 1);
    let cached = first_step.is_some_and(|run| run.lengths[0] == start);
    let cached =
        if cached { format!(", the first that {},", state_continued_from(report, place)) } else { String::new() };
    let what = match alignment.phased().and_then(is_end) {
        // A tap that was not checked does not count as right.
        _ if agree < before.len() => format!("what was checked of {} agrees", alignment.label(0..cell)),
        // A decode step of several tokens is one step; where it is cut, only a part of it is right.
        Some(0) => {
            let phase = alignment.phase(0..cell).unwrap_or_default();
            format!("the {} is right", phase.trim_start_matches("the "))
        }
        Some(1) => "prefill and the first decode step are right".into(),
        Some(n) => format!("prefill and the first {n} decode steps are right"),
        None => format!("{} {} right", alignment.positions(0..cell), if start == 1 { "is" } else { "are" }),
    };
    format!("{what} {right}; {here}{cached} is the first wrong one")
}

/// What a later step continues from, by the recorded taps of the layer; by those of all layers for a tap without one.
fn state_continued_from(report: &Report, place: Place) -> &'static str {
    use Site::{Context, Probs, QNorm, QRope, Qk, Scores};
    let near =
        || report.taps.iter().map(|t| t.place.tap).filter(|tap| place.tap.layer.is_none_or(|l| tap.layer == Some(l)));
    let attends =
        |site: Site| site.is_attended() || matches!(site, Site::Q | QNorm | QRope | Qk | Scores | Probs | Context);
    let mixes = near().any(|tap| tap.last_name().starts_with("mixer"));
    match (near().any(|tap| attends(tap.last_site())), mixes) {
        (true, false) => "reads the K/V cache",
        (false, true) => "takes up the state of a convolution or an SSM",
        _ => "takes up what the pass before left (a K/V cache, or the state of a convolution or an SSM)",
    }
}
