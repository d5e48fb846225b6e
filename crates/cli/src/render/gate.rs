//! Renders the answer of `gate`: what it holds the engine to, and what is worse than that.

use std::path::Path;

use crate::baseline::{Accepted, Baseline, ROOM, Regression};
use crate::report::{RequiredUnchecked, not_checked};
use crate::session::Comparison;
use crate::session::arithmetic::as_it_asks;
use crate::words::{safe, shorten, taps_in_words};

/// The message of a gate that passes. `accepted`: who accepted the differences.
pub(crate) fn passed_in_words(
    path: &Path,
    judged: &Comparison,
    baseline: Option<&Baseline>,
    accepted: Option<&Accepted>,
) -> String {
    let taps = taps_in_words(baseline.map_or(0, Baseline::len));
    let (how, path) = (as_it_asks(judged.session.coarser_profile), path.display());
    let what = if accepted.is_some() { "not parity: held to its own baseline, " } else { "" };
    let (assumed, why) = (judged.session.assumed_cache(), accepted_suffix(accepted));
    format!(
        "gate: passed{how}, {what}{taps} within what {path} allows, {ROOM} times its NMSE{assumed}{why}\n{}",
        note(judged)
    )
}

/// Who accepted the differences, and why, to follow other words.
pub(crate) fn accepted_suffix(accepted: Option<&Accepted>) -> String {
    accepted.map_or(String::new(), |accepted| format!("; {}", safe(&accepted.in_words())))
}

/// The taps that had to be compared and were not, on a line.
pub(crate) fn unmet_line(unmet: &[RequiredUnchecked]) -> String {
    unmet_in_words(unmet).map_or(String::new(), |text| format!("gate: FAILED, {text}\n"))
}

/// Notes, each on a line of its own: that only the candidate asks for such a profile, and what was not checked.
pub(crate) fn note(judged: &Comparison) -> String {
    let loosened = judged.session.coarser_profile.map(|loosened| format!("note: {}\n", loosened.note()));
    let open = not_checked(&judged.report, &judged.session.candidate.path().to_string_lossy());
    let open = open.into_iter().map(|line| format!("not checked: {line}\n"));
    loosened.into_iter().chain(open).collect()
}

pub(crate) fn worse_number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.1e}"))
}

/// The taps for which the gate fails, the first ten.
pub(crate) fn failed_in_words(regressions: &[Regression]) -> String {
    let mut text = format!("gate: FAILED, {}\n", taps_in_words(regressions.len()));
    for r in regressions.iter().take(10) {
        text += &format!(
            "  {:<26} NMSE was {}, is {}: {}\n",
            safe(&r.place.to_string()),
            worse_number(r.baseline_nmse),
            worse_number(r.now),
            r.reason
        );
    }
    if regressions.len() > 10 {
        text += &format!("  ... and {} more\n", regressions.len() - 10);
    }
    if regressions.iter().any(|worse| worse.outgrown) {
        text += "next: write the baseline again (--update), so that it allows no more than is needed\n";
    }
    text
}

/// The report on taps that had to be compared; `None` where all were.
pub(crate) fn unmet_in_words(unmet: &[RequiredUnchecked]) -> Option<String> {
    let first = unmet.first()?;
    let names: Vec<String> = unmet.iter().map(|tap| safe(&tap.place)).collect();
    let reason = first.reason.as_deref().map_or(String::new(), |reason| format!(": {}", safe(reason)));
    Some(format!("{} required, but unchecked ({}){reason}", taps_in_words(unmet.len()), shorten(&names, 4)))
}
