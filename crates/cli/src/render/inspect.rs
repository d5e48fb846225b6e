//! Renders what one dump shows by itself.

use std::collections::BTreeSet;

use anstyle::Style;
use firstdiff_compare::{Certainty, InspectFinding, Inspection};
use firstdiff_trace::{Site, Tap};

use crate::render::compare::described;
use crate::render::screen::{BAD, BOLD, DIM, GOOD, Screen, WARN, paint};
use crate::report::Inspect;
use crate::words::{by_stack, layers_of, safe, shorten, taps_in_words, with_suggestion};

/// Lines of findings on the screen, unless all are requested.
const LINES: usize = 12;

/// The screen; `verbose`: every finding.
pub(crate) fn render(report: &Inspect, inspection: &Inspection, verbose: bool) -> Screen {
    let mut screen = Screen::default();
    screen.line(&format!("candidate  {}", described(&report.candidate)));
    let read = format!(
        "looked at  {}, with no reference and no weights: nothing here is a verdict",
        taps_in_words(report.looked_at)
    );
    screen.line(&paint(DIM, &read));
    screen.line("");
    let groups = group_findings(inspection, verbose);
    let most = if verbose { usize::MAX } else { LINES };
    for group in groups.iter().take(most) {
        finding(&mut screen, group);
    }
    if groups.len() > most {
        screen.line(&format!("  ... and {} more (-v shows all)", groups.len() - most));
    }
    let [certain, likely, notes] = [Certainty::Certain, Certainty::Likely, Certainty::Note]
        .map(|sure| groups.iter().filter(|g| g[0].sure == sure).count());
    let counts = format!("{certain} certain, {likely} likely, {notes} to note");
    match certain + likely {
        0 => screen.line(&format!("{} nothing that right engines do not do, {notes} to note", paint(GOOD, "found:"))),
        _ => screen.line(&format!("{} {counts}", paint(if certain > 0 { BAD } else { WARN }, "found:"))),
    }
    for text in &report.unseen {
        screen.line(&format!("{} {}", paint(WARN, "not looked at:"), safe(text)));
    }
    if !report.unmapped.is_empty() {
        let names: Vec<String> = report.unmapped.iter().map(|n| with_suggestion(n)).collect();
        screen.line(&format!("{} names that are no taps: {}", paint(WARN, "not looked at:"), shorten(&names, 6)));
    }
    for note in &report.warnings {
        screen.line(&format!("{} {note}", paint(WARN, "note:")));
    }
    screen.line(&format!("next: {}", report.next));
    screen
}

/// Findings grouped by kind, the most certain first, else in the order in which they were found.
fn group_findings(inspection: &Inspection, verbose: bool) -> Vec<Vec<&InspectFinding>> {
    let mut groups: Vec<Vec<&InspectFinding>> = Vec::new();
    for finding in &inspection.findings {
        let same = |g: &&mut Vec<&InspectFinding>| {
            (g[0].sure, g[0].what, g[0].points_to) == (finding.sure, finding.what, finding.points_to)
        };
        match if verbose { None } else { groups.iter_mut().find(same) } {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups.sort_by_key(|g| g[0].sure);
    groups
}

fn style(sure: Certainty) -> Style {
    match sure {
        Certainty::Certain => BAD,
        Certainty::Likely => WARN,
        Certainty::Note => DIM,
    }
}

fn finding(screen: &mut Screen, group: &[&InspectFinding]) {
    let first = group[0];
    let sure = paint(style(first.sure), &format!("{:<7}", first.sure.name()));
    let more = if group.len() > 1 { " (the first)" } else { "" };
    screen.line(&format!("  {sure}  {}: {}{more}", paint(BOLD, &places(group)), safe(&first.detail)));
    if !first.points_to.is_empty() {
        screen.line(&paint(DIM, &format!("           {}", first.points_to)));
    }
}

/// `layers 0-21, q_rope`; the first few names where sites are several.
fn places(group: &[&InspectFinding]) -> String {
    if group.len() == 1 {
        return group[0].place.to_string();
    }
    let (low, high) = (group.iter().map(|f| f.place.step).min(), group.iter().map(|f| f.place.step).max());
    let steps = match (low, high) {
        (Some(0), Some(0)) => String::new(),
        (Some(low), Some(high)) if low == high => format!(" (decode step {low})"),
        (Some(low), Some(high)) => format!(" (steps {low}-{high})"),
        _ => String::new(),
    };
    let taps: BTreeSet<Tap> = group.iter().map(|f| f.place.tap).collect();
    let stacks = by_stack(taps.iter().copied());
    let sites: BTreeSet<Site> = taps.iter().map(|t| t.site).collect();
    if let [layers] = stacks.values().collect::<Vec<_>>().as_slice()
        && let (Some(low), Some(high)) = (layers.first(), layers.last())
        && low < high
        && (high - low) as usize + 1 == layers.len()
        && layers.len() * sites.len() == taps.len()
    {
        let sites: Vec<String> = sites.iter().map(|s| s.name().to_owned()).collect();
        return format!("{}, {}{steps}", layers_of(taps), shorten(&sites, 4));
    }
    let names: Vec<String> = taps.iter().map(ToString::to_string).collect();
    format!("{}{steps}", shorten(&names, 4))
}
