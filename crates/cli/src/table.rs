//! What does a report say of its taps? A line each, in order, neighbours of one kind folded to one.

use firstdiff_compare::{Report, Status, TapReport, number};

use crate::screen::{BAD, BOLD, DIM, Detail, GOOD, Screen, WARN, paint};
use crate::words::{safe, taps_in_words};

/// The taps in order, neighbours of one kind folded.
pub(crate) fn taps(screen: &mut Screen, report: &Report, detail: Detail) {
    let first = report.first.as_ref().map(|f| report.taps[f.index].place);
    let unfold = |tap: &TapReport| {
        detail == Detail::Every || first.is_some_and(|f| f.step == tap.place.step && f.tap.layer == tap.place.tap.layer)
    };
    if let Some(laid) = &report.laid {
        return crate::laid::taps(screen, report, laid, detail, &unfold);
    }
    let mut rest = &report.taps[..];
    while let Some(tap) = rest.first() {
        let step = tap.place.step;
        let absent = rest.iter().take_while(|t| step > 0 && t.status == Status::Unchecked && !unfold(t)).count();
        if let Some(last) = whole_steps(rest, absent) {
            let steps = if last == step { format!("step {step}") } else { format!("steps {step}-{last}") };
            screen.line(&fold_line(&format!("decode {steps}"), &rest[..absent]));
            rest = &rest[absent..];
            continue;
        }
        let here = rest.iter().take_while(|t| t.place.step == step).count();
        one_step(screen, &rest[..here], &unfold, detail);
        rest = &rest[here..];
    }
}

/// The last of the steps that the first `count` taps make up, if they are whole ones.
fn whole_steps(taps: &[TapReport], count: usize) -> Option<u32> {
    let last = taps.get(count.checked_sub(1)?)?.place.step;
    let ends = taps.get(count).is_none_or(|next| next.place.step != last);
    ends.then_some(last)
}

fn one_step(screen: &mut Screen, taps: &[TapReport], unfold: &impl Fn(&TapReport) -> bool, detail: Detail) {
    let step = taps.first().map_or(0, |t| t.place.step);
    let quiet = taps.iter().all(|t| !t.status.differs() && !unfold(t));
    if step > 0 && quiet {
        screen.line(&fold_line(&format!("decode step {step}"), taps));
        return;
    }
    if step > 0 {
        screen.line(&paint(BOLD, &format!("decode step {step}")));
    }
    step_lines(screen, taps, unfold, detail);
}

/// The lines of one step.
pub(crate) fn step_lines(
    screen: &mut Screen,
    taps: &[TapReport],
    unfold: &impl Fn(&TapReport) -> bool,
    detail: Detail,
) {
    let name = |run: &[TapReport]| match run {
        [one] => one.place.tap.to_string(),
        [from, .., to] => format!("{} .. {}", from.place.tap, to.place.tap),
        [] => String::new(),
    };
    let mut rest = taps;
    while let Some(tap) = rest.first() {
        let run = if unfold(tap) {
            let unchecked = |t: &&TapReport| unfold(t) && t.status == Status::Unchecked && detail == Detail::Folded;
            rest.iter().take_while(unchecked).count().max(1)
        } else {
            folded_run(rest, unfold)
        };
        let (here, after) = rest.split_at(run);
        screen.line(&if run == 1 { tap_line(tap) } else { fold_line(&name(here), here) });
        rest = after;
    }
}

/// How many taps from the first on say the same. What is unchecked between them goes with them, and is counted.
fn folded_run(taps: &[TapReport], unfold: &impl Fn(&TapReport) -> bool) -> usize {
    let run = taps.iter().take_while(|t| !unfold(t));
    let Some(said) = run.clone().find(|t| t.status != Status::Unchecked).map(|t| kind(t.status)) else {
        return run.count();
    };
    run.take_while(|t| t.status == Status::Unchecked || kind(t.status) == said).count()
}

/// What is folded together.
pub(crate) fn kind(status: Status) -> u8 {
    match status {
        Status::Exact | Status::Rounding => 0,
        Status::Unchecked => 1,
        Status::Diverged | Status::Downstream => 2,
    }
}

fn mark(status: Status) -> String {
    match status {
        Status::Exact | Status::Rounding => paint(GOOD, "ok  "),
        Status::Diverged => paint(BAD, "DIFF"),
        Status::Downstream => paint(WARN, "off "),
        Status::Unchecked => paint(DIM, "?   "),
    }
}

fn tap_line(tap: &TapReport) -> String {
    let name = format!("{:<22}", tap.place.tap.to_string());
    let numbers = match (tap.status, tap.metrics) {
        (Status::Exact, _) => "exact".to_owned(),
        (Status::Unchecked, _) => format!("unchecked: {}", safe(tap.reason.as_deref().unwrap_or_default())),
        (_, Some(metrics)) => {
            let part = |name: &str, value: Option<f64>| value.map(|v| format!("{name} {}", number(v)));
            let nmse = part("NMSE", metrics.nmse()).or_else(|| tap.reason.clone());
            let correlation = metrics.correlation().filter(|_| tap.status.differs());
            let max = metrics.max_abs_diff().filter(|_| tap.status.differs()).map(|p| p.abs_diff);
            [nmse, part("corr", correlation), part("max", max)].into_iter().flatten().collect::<Vec<_>>().join("  ")
        }
        (_, None) => String::new(),
    };
    let undone = match (tap.status.agrees(), &tap.reason) {
        (true, Some(reason)) => paint(DIM, &format!("  ({reason})")),
        _ => String::new(),
    };
    format!("  {} {name} {} {numbers}{undone}", mark(tap.status), paint(DIM, &format!("{:<9}", tap.op)))
}

pub(crate) fn fold_line(name: &str, run: &[TapReport]) -> String {
    let checked: Vec<&TapReport> = run.iter().filter(|t| t.status != Status::Unchecked).collect();
    let unchecked: Vec<&TapReport> = run.iter().filter(|t| t.status == Status::Unchecked).collect();
    let missing = if unchecked.is_empty() { String::new() } else { format!("; {} unchecked", unchecked.len()) };
    let Some(first) = checked.first() else {
        return format!(
            "  {} {name:<32} {} unchecked: {}",
            mark(Status::Unchecked),
            taps_in_words(run.len()),
            reasons(&unchecked)
        );
    };
    let status = if checked.iter().any(|t| t.status == Status::Diverged) { Status::Diverged } else { first.status };
    let what = if status.agrees() {
        let worst =
            checked.iter().filter_map(|t| Some((t.metrics?.nmse()?, t.place.tap))).max_by(|a, b| a.0.total_cmp(&b.0));
        match worst {
            Some((nmse, tap)) if nmse > 0.0 => format!("{} agree, worst NMSE {} at {tap}", checked.len(), number(nmse)),
            _ => format!("{} agree, all exact", checked.len()),
        }
    } else {
        let wrong = checked.iter().filter(|t| t.status == Status::Diverged).count();
        let more = if wrong > 0 && wrong < checked.len() {
            format!(", {wrong} of them with inputs that agree")
        } else {
            String::new()
        };
        let word = if wrong == checked.len() { "diverged" } else { "differ" };
        format!("{} {word}{more}", checked.len())
    };
    format!("  {} {name:<32} {what}{}", mark(status), paint(DIM, &missing))
}

pub(crate) fn reasons(run: &[&TapReport]) -> String {
    let mut reasons: Vec<String> = run.iter().filter_map(|t| t.reason.as_deref().map(safe)).collect();
    reasons.sort();
    reasons.dedup();
    let more = reasons.len().saturating_sub(2);
    reasons.truncate(2);
    let more = if more > 0 { format!("; {more} other reasons") } else { String::new() };
    format!("{}{more}", reasons.join("; "))
}
