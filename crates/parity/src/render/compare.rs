//! Renders the screen of a comparison: where, which operation, how far off, where in the tensor, and what was not checked.

use firstdiff_compare::{Verdict, number};

use crate::render::divergence::{CAUSE, Divergence};
use crate::render::screen::{BAD, BOLD, DIM, Detail, GOOD, Screen, WARN, paint};
use crate::render::table::taps;
use crate::report::{Compare, JudgedIn, NoiseRun, Provenance};
use crate::session::Comparison;
use crate::session::arithmetic::parity;
use crate::session::incomplete::Incomplete;
use crate::words::{safe, taps_in_words};

/// The screen of a comparison.
pub fn render(judged: &Comparison, detail: Detail) -> Screen {
    let mut screen = Screen::default();
    let compare_report = Compare::new("compare", judged);
    screen.line(&format!("reference  {}", described(&compare_report.reference)));
    screen.line(&format!("candidate  {}", described(&compare_report.candidate)));
    let (JudgedIn { profile, profile_reason, .. }, cache) =
        (&compare_report.judged_in, judged.session.cache_in_words());
    screen.line(&paint(DIM, &format!("judged as  {profile} ({profile_reason}){cache}")));
    if let Some(noise) = &compare_report.noise {
        screen.line(&paint(DIM, &format!("noise      {}", beside_noise(noise))));
    }
    if let Some(alignment) = &compare_report.alignment {
        screen.line(&paint(DIM, &format!("alignment  {}", crate::render::alignment::heading(alignment))));
    }
    screen.line("");
    taps(&mut screen, &judged.report, detail);
    screen.line("");
    conclusion(&mut screen, judged, &compare_report);
    not_checked(&mut screen, &compare_report.not_checked);
    for warning in &compare_report.warnings {
        screen.line(&format!("{} {}", paint(WARN, "note:"), safe(warning)));
    }
    screen
}

pub fn described(dump: &Provenance) -> String {
    let (path, what) = (safe(&dump.path), metadata_in_brackets(dump));
    if what.is_empty() { path } else { format!("{path}  {}", paint(DIM, &what)) }
}

/// A dump's metadata, in brackets; empty where it has none.
pub fn metadata_in_brackets(dump: &Provenance) -> String {
    let mut parts = Vec::new();
    parts.extend(dump.producer.as_deref().map(safe));
    parts.extend(dump.model.as_deref().map(safe));
    parts.extend(dump.precision.as_deref().map(safe));
    match (&dump.tokens, &dump.decode_tokens) {
        (Some(tokens), Some(decode)) if !decode.is_empty() => {
            parts.push(format!("{} tokens + {} decoded", tokens.len(), decode.len()));
        }
        (Some(tokens), _) if tokens.len() == 1 => parts.push("1 token".to_owned()),
        (Some(tokens), _) => parts.push(format!("{} tokens", tokens.len())),
        _ => {}
    }
    if parts.is_empty() { String::new() } else { format!("({})", parts.join(", ")) }
}

/// The error relative to that of a second right run: the median of the taps, and the worst.
pub fn beside_noise(noise: &NoiseRun) -> String {
    let path = safe(&noise.path);
    match &noise.error_over_noise {
        Some(ratios) => format!(
            "{path}: error over noise {} in the middle, {} at {} ({} allowed)",
            number(ratios.median),
            number(ratios.worst),
            ratios.worst_at,
            noise.room
        ),
        None => format!("{path}: nothing was measured by it"),
    }
}

/// What was not checked, and why.
pub fn not_checked(screen: &mut Screen, lines: &[String]) {
    for line in lines {
        screen.line(&format!("{} {line}", paint(WARN, "not checked:")));
    }
}

fn conclusion(screen: &mut Screen, judged: &Comparison, compare_report: &Compare) {
    let report = &judged.report;
    if let Some(text) = &compare_report.unmapped_hint {
        screen.line(&format!("{} {text}", paint(BAD, "names:")));
    }
    match (&report.verdict, &report.first) {
        (Verdict::Incomparable(reason), _) => screen.line(&format!("{} {}", paint(BAD, "incomparable:"), safe(reason))),
        (Verdict::Diverged, Some(_)) => {
            let next = compare_report.next.clone().map(|next| ("next", next));
            divergence(screen, judged, compare_report, &next.into_iter().collect::<Vec<_>>());
        }
        (Verdict::Diverged, None) => screen.line(&paint(BAD, "diverged")),
        (Verdict::Parity, _) => {
            let how = paint(GOOD, &parity(judged.session.coarser_profile));
            screen.line(&format!("{how} {}", agreement(judged, compare_report)));
        }
    }
}

/// How many taps agree, and under which conditions.
pub fn agreement(judged: &Comparison, compare_report: &Compare) -> String {
    let (agree, all) = (compare_report.counts.agree(), compare_report.counts.all());
    let exact = compare_report.counts.exact;
    let agreeing =
        if agree == all { format!("all {}", taps_in_words(all)) } else { format!("{agree} of {}", taps_in_words(all)) };
    let rest = Incomplete::suffix(&judged.session.sides()) + &judged.session.assumed_cache();
    format!("{agreeing} agree, {exact} of them exactly{rest}")
}

/// The first divergence; `ending` are its last lines: what was examined, and what to do about it.
pub fn divergence(
    screen: &mut Screen,
    judged: &Comparison,
    compare_report: &Compare,
    ending: &[(&'static str, String)],
) {
    let Some(Divergence { headline, place, notes, lines }) = Divergence::describe(judged, compare_report) else {
        return;
    };
    let headline = headline.replacen(&place, &paint(BOLD, &place), 1);
    screen.line(&format!("{} {headline}", paint(BAD, "first divergence:")));
    notes.iter().for_each(|note| screen.line(&format!("  {note}")));
    for (name, text) in lines.iter().chain(ending) {
        let text = if *name == CAUSE { paint(BOLD, text) } else { text.clone() };
        screen.line(&format!("  {name:<10} {text}"));
    }
    let alone = |alignment: &std::sync::Arc<_>| {
        let step = compare_report.first_divergence.as_ref().map_or(0, |first| first.step);
        crate::render::alignment::without_reference(alignment, &judged.report, step)
    };
    if let Some(alone) = judged.report.alignment.as_ref().and_then(alone) {
        screen.line(&format!("  {:<10} {alone}", ""));
    }
}
