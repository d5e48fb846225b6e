//! Lists what was not checked, and why.

use std::collections::BTreeSet;

use firstdiff_compare::{Report, Status, TapReport};

use crate::session::Comparison;
use crate::words::{safe, shorten, taps_in_words, with_suggestion};

/// What was not checked of a report, and of the other tensors of `candidate`, as lines.
pub fn not_checked(report: &Report, candidate: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let run: Vec<&TapReport> = report.taps.iter().filter(|t| t.status == Status::Unchecked).collect();
    if !run.is_empty() {
        // Where nothing of a step was checked, it is enough to name the step.
        let empty = |step: u32| report.taps.iter().all(|t| t.place.step != step || t.status == Status::Unchecked);
        let (whole, single): (Vec<&TapReport>, Vec<&TapReport>) =
            run.iter().copied().partition(|t| t.place.step > 0 && empty(t.place.step));
        let mut names: Vec<String> = single.iter().map(|t| report.name(t.place)).collect();
        if names.len() > 4 {
            names = vec![shorten(&names, 4)];
        }
        if let (Some(first), Some(last)) = (whole.first(), whole.last()) {
            let (first, last) = (first.place.step, last.place.step);
            names.push(match &report.alignment {
                Some(alignment) => alignment.positions(first..last + 1),
                None if first == last => format!("decode step {first}"),
                None => format!("decode steps {first}-{last}"),
            });
        }
        let all = taps_in_words(report.taps.len());
        lines.push(format!("{} of {all} ({}): {}", run.len(), names.join(", "), reasons(&run)));
    }
    if !report.one_sided.is_empty() {
        let names: Vec<String> = report.one_sided.iter().map(|name| safe(name)).collect();
        lines.push(format!("in one of the two dumps alone: {}", shorten(&names, 6)));
    }
    let (weights, names): (Vec<&String>, Vec<&String>) =
        report.unmapped.iter().partition(|n| n.starts_with("weights."));
    if !weights.is_empty() {
        let count = weights.len();
        lines.push(format!("{count} dumped weights; `firstdiff weights MODEL {}` looks at them", safe(candidate)));
    }
    if !names.is_empty() {
        let names: Vec<String> = names.into_iter().map(|n| with_suggestion(n)).collect();
        lines.push(format!("names that are no taps: {}", shorten(&names, 6)));
    }
    lines
}

/// The reasons of some taps, each once; only the first of many.
pub fn reasons(run: &[&TapReport]) -> String {
    let mut reasons: Vec<String> = run.iter().filter_map(|t| t.why().as_deref().map(safe)).collect();
    reasons.sort();
    reasons.dedup();
    let more = reasons.len().saturating_sub(2);
    reasons.truncate(2);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{more}", reasons.join("; "))
}

/// How many of a side's names are no taps, where it is most of them, and the command that proposes taps.
pub fn unmapped_hint(judged: &Comparison) -> Option<String> {
    let dumps = judged.session.recorded();
    let left: BTreeSet<&String> = judged.report.unmapped.iter().filter(|name| !name.starts_with("weights.")).collect();
    let mostly_unmapped = |side: usize| {
        let unknown = dumps[side].unmapped().iter().filter(|name| left.contains(name)).count();
        let known = dumps[side].entries().len() + dumps[side].parts().len();
        (2 * unknown > known).then_some((side, unknown, unknown + known))
    };
    let (side, unknown, all) = mostly_unmapped(1).or_else(|| mostly_unmapped(0))?;
    let [name, other] = [side, 1 - side].map(|at| safe(&dumps[at].path().to_string_lossy()));
    let whose = if side == 1 { "candidate" } else { "reference" };
    Some(format!(
        "{unknown} of the {whose}'s {all} names are unknown; proposals: firstdiff align {other} {name} -o firstdiff.toml"
    ))
}
