//! Renders a comparison of two files of weights.

use std::collections::BTreeMap;

use firstdiff_compare::{Verdict, number};
use firstdiff_explain::weights::{Compared, Comparison, Note, State};

use crate::render::screen::{BAD, BOLD, DIM, GOOD, Screen, WARN, paint};
use crate::report::{NotChecked, Weights};
use crate::words::{layers_in_short, safe, shorten};

/// The screen; `verbose`: every tensor on a line of its own.
pub(crate) fn render(report: &Weights, comparison: &Comparison, verdict: &Verdict, verbose: bool) -> Screen {
    let mut screen = Screen::default();
    for (letter, side) in [("A", &report.a), ("B", &report.b)] {
        let what = paint(DIM, &format!("({}, {})", side.format, tensors(side.tensors)));
        screen.line(&format!("weights {letter}  {}  {what}", safe(&side.path)));
    }
    screen.line("");
    if verbose {
        comparison.tensors.iter().for_each(|tensor| screen.line(&tensor_line(tensor)));
        screen.line("");
    }
    let another = report.unlike;
    if let Some(unlike) = another {
        screen.line(&format!(
            "{} another model's weights, or untrained ones: {} of {} matrices have nothing in common with A's, and no mistake or law known here makes one of the other",
            paint(BAD, "diverged:"),
            unlike.unlike,
            unlike.of
        ));
    }
    screen.line(&summary(comparison, verdict, another.is_some()));
    let most = if another.is_some() && !verbose { OF_ANOTHER } else { usize::MAX };
    for finding in report.findings.iter().take(most) {
        let cause = finding.cause.map_or_else(|| paint(WARN, "cause unknown"), |cause| paint(BAD, cause));
        screen.line(&format!("  {}  {cause}", paint(BOLD, &fold_layers(&finding.tensors))));
        let left = finding.residual_nmse.map(|r| format!(" (leaves NMSE {})", number(r))).unwrap_or_default();
        screen.line(&format!("    {}{left}", safe(&finding.note)));
    }
    if report.findings.len() > most {
        screen.line(&format!("  ... and {} more kinds of differences (-v shows all)", report.findings.len() - most));
    }
    if let Some(next) = report.next {
        screen.line(&format!("next: {next}"));
    }
    for NotChecked { reason, tensors: names } in &report.not_checked {
        let names: Vec<String> = names.iter().map(|name| safe(name)).collect();
        screen.line(&format!(
            "{} {} ({}): {}",
            paint(WARN, "not checked:"),
            tensors(names.len()),
            shorten(&names, 3),
            safe(reason)
        ));
    }
    for side in [&report.a, &report.b].into_iter().filter(|side| !side.doubles.is_empty()) {
        let names: Vec<String> = side.doubles.iter().map(|n| safe(n)).collect();
        screen.line(&format!(
            "{} {}: names of weights that are there already",
            paint(WARN, "not checked:"),
            shorten(&names, 3)
        ));
    }
    for warning in notes(&comparison.warnings) {
        screen.line(&format!("{} {}", paint(WARN, "note:"), safe(&warning)));
    }
    screen
}

/// How many differences are shown where the weights are another model's.
const OF_ANOTHER: usize = 3;

/// `is_said`: the verdict was printed before. `parity: 291 tensors: 290 identical, 1 tied`.
fn summary(comparison: &Comparison, verdict: &Verdict, is_said: bool) -> String {
    let (identical, tied) = (comparison.count(|s| *s == State::Identical), comparison.count(|s| *s == State::Tied));
    let rounded: Vec<&Compared> = comparison.tensors.iter().filter(|t| t.state == State::Rounded).collect();
    let worst = rounded.iter().filter_map(|t| t.nmse).fold(0.0, f64::max);
    let mut kinds: Vec<&str> =
        rounded.iter().flat_map(|t| t.types.into_iter().flatten()).filter(|k| *k != "f32").collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut parts = Vec::new();
    if identical > 0 {
        parts.push(format!("{identical} identical"));
    }
    if !rounded.is_empty() {
        let kinds_text = if kinds.is_empty() { "rounding".to_owned() } else { kinds.join(" and ") };
        parts.push(format!("{} as near as {kinds_text} allows (worst NMSE {})", rounded.len(), number(worst)));
    }
    if tied > 0 {
        parts.push(format!("{tied} tied"));
    }
    let wrong = comparison.count(|s| *s == State::Wrong);
    if wrong > 0 {
        parts.push(format!("{wrong} wrong"));
    }
    let checked = comparison.count(|s| !matches!(s, State::Unchecked(_)));
    let text = format!("{}: {}", tensors(checked), parts.join(", "));
    match verdict {
        Verdict::Parity => format!("{} {text}", paint(GOOD, "parity:")),
        Verdict::Diverged if is_said => format!("  {text}"),
        Verdict::Diverged => format!("{} {text}", paint(BAD, "diverged:")),
        Verdict::Incomparable(reason) => format!("{} {reason}", paint(WARN, "incomparable:")),
    }
}

fn tensor_line(tensor: &Compared) -> String {
    let (mark, text) = match &tensor.state {
        State::Identical => (paint(GOOD, "ok  "), "identical".to_owned()),
        State::Rounded => (paint(GOOD, "ok  "), measured(tensor)),
        State::Tied => (paint(GOOD, "ok  "), "tied".into()),
        State::Wrong => (paint(BAD, "DIFF"), measured(tensor)),
        State::Unchecked(reason) => (paint(DIM, "?   "), format!("unchecked: {}", safe(reason))),
    };
    let types = tensor.types.map(|t| t.unwrap_or("-")).join(" / ");
    format!("  {mark} {:<48} {} {text}", safe(&tensor.name), paint(DIM, &format!("{types:<13} {:?}", tensor.shape)))
}

fn measured(tensor: &Compared) -> String {
    let part = |name: &str, value: Option<f64>| value.map(|v| format!("{name} {}", number(v)));
    let parts = [part("NMSE", tensor.nmse), part("allowed", tensor.allowed)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn tensors(count: usize) -> String {
    format!("{count} tensor{}", if count == 1 { "" } else { "s" })
}

/// `model.layers.0-2.self_attn.q_proj.weight, ...`: names of one role folded over their layers.
fn fold_layers(names: &[String]) -> String {
    let mut roles: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut rest = Vec::new();
    for name in names {
        match name.split('.').find_map(|part| part.parse().ok()) {
            Some(layer) => {
                roles.entry(name.replacen(&format!(".{layer}."), ".{}.", 1)).or_default().push(layer);
            }
            None => rest.push(safe(name)),
        }
    }
    rest.extend(roles.into_iter().map(|(name, layers)| name.replace("{}", &layers_in_short(layers))));
    match rest.len() > 4 {
        true => format!("{} ... {} ({})", rest[..3].join(", "), rest[rest.len() - 1], tensors(names.len())),
        false => rest.join(", "),
    }
}

/// Equal notes on several tensors become one.
fn notes(warnings: &[Note]) -> Vec<String> {
    let mut seen: BTreeMap<&str, (usize, &Note)> = BTreeMap::new();
    for note in warnings {
        seen.entry(&note.text).or_insert((0, note)).0 += 1;
    }
    let words = |(text, (count, first)): (&str, (usize, &Note))| match count {
        1 => first.to_string(),
        count => format!("{}: {text}", tensors(count)),
    };
    seen.into_iter().map(words).collect()
}
