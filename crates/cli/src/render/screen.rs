//! What does a person read? One screen: where, which operation, how far off, where in the tensor, and what was not checked.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use firstdiff_compare::{Change, Place, Reason, Report, Status, TapReport, Verdict, number};

use crate::render::table::taps;
use crate::report::{Compare, Factor, JudgedIn, NoiseRun, Provenance};
use crate::session::Judged;
use crate::session::arithmetic::parity;
use crate::session::incomplete::Incomplete;
use crate::words::{between, places, safe, shorten, taps_in_words};

/// How much of the taps is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Layers folded to a line while all is alike; the first wrong layer unfolded.
    Folded,
    /// Every tap on a line of its own.
    Every,
}

/// Text with colours, which [`Screen::to_plain`] takes out again.
#[derive(Clone, Debug, Default)]
pub struct Screen(String);

pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
pub(crate) const BOLD: Style = Style::new().bold();

impl Screen {
    /// The text with its colours; print it through `anstream`, which drops them where there is no terminal.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text alone.
    pub fn to_plain(&self) -> String {
        anstream::adapter::strip_str(&self.0).to_string()
    }

    /// What another screen holds, below.
    pub(crate) fn append(&mut self, other: &Screen) {
        self.0.push_str(&other.0);
    }

    pub(crate) fn line(&mut self, text: &str) {
        self.0.push_str(&crate::render::wrap::wrapped(text.trim_end(), crate::render::wrap::width()));
        self.0.push('\n');
    }
}

pub(crate) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// The screen of a comparison.
pub fn render(judged: &Judged, detail: Detail) -> Screen {
    let mut screen = Screen::default();
    let told = Compare::of("compare", judged);
    screen.line(&format!("reference  {}", described(&told.reference)));
    screen.line(&format!("candidate  {}", described(&told.candidate)));
    let (JudgedIn { profile, profile_reason, .. }, cache) = (&told.judged_in, judged.session.cache_in_words());
    screen.line(&paint(DIM, &format!("judged as  {profile} ({profile_reason}){cache}")));
    if let Some(noise) = &told.noise {
        screen.line(&paint(DIM, &beside_noise(noise)));
    }
    if let Some(alignment) = &told.alignment {
        screen.line(&paint(DIM, &crate::render::alignment::heading(alignment)));
    }
    screen.line("");
    taps(&mut screen, &judged.report, detail);
    screen.line("");
    conclusion(&mut screen, judged, &told);
    not_checked(&mut screen, &told.not_checked);
    for warning in &told.warnings {
        screen.line(&format!("{} {}", paint(WARN, "note:"), safe(warning)));
    }
    screen
}

pub(crate) fn described(dump: &Provenance) -> String {
    let mut parts = Vec::new();
    parts.extend(dump.producer.as_deref().map(safe));
    parts.extend(dump.model.as_deref().map(safe));
    parts.extend(dump.precision.as_deref().map(safe));
    match (&dump.tokens, &dump.decode_tokens) {
        (Some(tokens), Some(decode)) if !decode.is_empty() => {
            parts.push(format!("{} tokens + {} decoded", tokens.len(), decode.len()));
        }
        (Some(tokens), _) => parts.push(format!("{} tokens", tokens.len())),
        _ => {}
    }
    let path = safe(&dump.path);
    if parts.is_empty() { path } else { format!("{path}  {}", paint(DIM, &format!("({})", parts.join(", ")))) }
}

/// How large the error is beside that of a second right run: the median of the taps, and the worst.
fn beside_noise(noise: &NoiseRun) -> String {
    let path = safe(&noise.path);
    match &noise.error_over_noise {
        Some(ratios) => format!(
            "noise      {path}: error over noise {} in the middle, {} at {} ({} allowed)",
            number(ratios.median),
            number(ratios.worst),
            ratios.worst_at,
            noise.room
        ),
        None => format!("noise      {path}: nothing was measured by it"),
    }
}

/// What was not checked, and why.
pub(crate) fn not_checked(screen: &mut Screen, lines: &[String]) {
    for line in lines {
        screen.line(&format!("{} {line}", paint(WARN, "not checked:")));
    }
}

fn conclusion(screen: &mut Screen, judged: &Judged, told: &Compare) {
    let report = &judged.report;
    if let Some(text) = &told.unmapped_hint {
        screen.line(&format!("{} {text}", paint(BAD, "names:")));
    }
    match (&report.verdict, &report.first) {
        (Verdict::Incomparable(reason), _) => screen.line(&format!("{} {}", paint(BAD, "incomparable:"), safe(reason))),
        (Verdict::Diverged, Some(_)) => {
            let next = told.next.clone().map(|next| ("next", next));
            divergence(screen, judged, told, &next.into_iter().collect::<Vec<_>>());
        }
        (Verdict::Diverged, None) => screen.line(&paint(BAD, "diverged")),
        (Verdict::Parity, _) => {
            let (agree, all) = (told.counts.agree(), told.counts.all());
            let exact = told.counts.exact;
            let of = if agree == all {
                format!("all {}", taps_in_words(all))
            } else {
                format!("{agree} of {}", taps_in_words(all))
            };
            let rest = Incomplete::suffix(&judged.session.sides()) + &judged.session.assumed_cache();
            screen.line(&format!(
                "{} {of} agree, {exact} of them bit for bit{rest}",
                paint(GOOD, &parity(judged.session.loosened))
            ));
        }
    }
}

/// The first divergence, and what comes at its end: what was looked at, and what is to be done about it.
pub(crate) fn divergence(screen: &mut Screen, judged: &Judged, told: &Compare, ending: &[(&'static str, String)]) {
    let report = &judged.report;
    let (Some(first), Some(said)) = (&report.first, &told.first_divergence) else { return };
    let tap = &report.taps[first.index];
    let place = match &report.alignment {
        Some(alignment) => {
            format!("{} ({}) at {}", tap.place.tap, tap.op, alignment.label(tap.place.step..tap.place.step + 1))
        }
        None => format!("{} ({})", said.place, said.op),
    };
    let seen = if said.keys_not_compared { " at the positions compared" } else { "" };
    let after = first.after.map_or("the tokens".to_owned(), |after| {
        let named = if after.step == tap.place.step { after.tap.to_string() } else { report.name(after) };
        format!("{}, which agrees{seen}", if report.alignment.is_some() { named } else { after.to_string() })
    });
    match said.unchecked_between.is_empty() && said.unrecorded_layers.is_empty() {
        true => screen.line(&format!("{} {}, after {after}", paint(BAD, "first divergence:"), paint(BOLD, &place))),
        false => {
            let between = between(first, tap.place.step);
            let (shown, any) = (shorten(&between, 6), if between.len() == 1 { "it" } else { "any of these" });
            screen.line(&format!("{} between {after}, and {}", paint(BAD, "first divergence:"), paint(BOLD, &place)));
            screen.line(&format!("  not checked in between: {shown}; the fault is in {any} or in {}", said.op));
        }
    }
    if said.keys_not_compared {
        screen.line(
            "  keys and values of token positions that were not compared are read on the way: the fault may be in theirs, at any tap before",
        );
    }
    let mut line = |name: &str, text: &str| screen.line(&format!("  {name:<10} {text}"));
    if let Some(when) = &said.when {
        line("when", when);
    }
    if let Some(why) = &said.reason {
        line("why", &safe(why));
    }
    if let Some(text) = how_far(report, tap) {
        line("how far", &text);
    }
    for region in &said.regions {
        line(region.axis, &safe(&region.text));
    }
    let nmse = said.measures.nmse.unwrap_or(0.0);
    let telling = |f: &&Factor| f.factor.is_finite() && f.remaining_nmse < 0.5 * nmse;
    let is_explained = !said.anatomy.explained_by.is_empty();
    if let Some(Factor { factor, remaining_nmse }) =
        said.anatomy.factor.as_ref().filter(telling).filter(|_| !is_explained)
    {
        line("scale", &format!("best constant factor {factor:.5}, which leaves NMSE {}", number(*remaining_nmse)));
    }
    // One factor for all is a factor for each position and channel too: that need not be said again.
    let one = first.anatomy.explained_by.iter().any(|u| matches!(u.change, Change::Factor(_)));
    let again = |change: &Change| one && matches!(change, Change::FactorByPosition | Change::FactorByChannel);
    for undone in first.anatomy.explained_by.iter().filter(|u| !again(&u.change)).take(3) {
        let leaves = number(undone.residual_nmse);
        line("it is", &format!("{} (leaves NMSE {leaves})", paint(BOLD, &undone.change.to_string())));
    }
    if let Some(from) = first.recovers_at {
        line("but", &format!("what reads it agrees again, from {from} on: the difference does not reach further"));
    }
    if let Some(cause) = &said.why {
        line("cause", &paint(BOLD, cause.summary.as_deref().unwrap_or_default()));
        line("", cause.proof.as_deref().unwrap_or_default());
    }
    if said.candidate_is_right {
        line(
            "but",
            "by the model, the candidate's is what comes out of what it read: the reference may be the wrong side",
        );
    }
    let others = report.taps.iter().filter(|t| t.status == Status::Diverged && t.place != tap.place);
    let others: Vec<Place> = others.map(|t| t.place).collect();
    let others: Vec<String> = match &report.alignment {
        Some(alignment) => crate::render::alignment::places(alignment, &others),
        None => places(&others),
    };
    if !others.is_empty() {
        line("also", &format!("{} (their inputs agree too)", shorten(&others, 6)));
    }
    for (name, text) in ending {
        line(name, text);
    }
    let alone =
        |alignment: &std::sync::Arc<_>| crate::render::alignment::without_reference(alignment, report, tap.place.step);
    if let Some(alone) = report.alignment.as_ref().and_then(alone) {
        line("", alone);
    }
}

/// How far off a tap is, in numbers.
fn how_far(report: &Report, tap: &TapReport) -> Option<String> {
    let metrics = tap.metrics?;
    let mut text = String::new();
    let mut part = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = write!(text, "{name} {}, ", number(value));
        }
    };
    // Known in part, it begins with how much is.
    let said = tap.part.is_none() && tap.reason.as_ref().is_some_and(Reason::names_the_nmse);
    part("NMSE", metrics.nmse().filter(|_| !said));
    part("RMSE", metrics.rmse());
    part("correlation", metrics.correlation());
    if let Some(peak) = metrics.max_abs_diff() {
        let mut at = tap.max_at().unwrap_or_default();
        let axis = tap.place.tap.site.axes().iter().position(|a| *a == 'T');
        if let Some(row) = axis.and_then(|axis| at.get_mut(axis)) {
            *row = report.token_position(tap.place.step, *row);
        }
        let _ = write!(
            text,
            "max |d| {} at {}: {} where the reference has {}",
            number(peak.abs_diff),
            tap.index_in_words(&at),
            number(peak.candidate),
            number(peak.reference)
        );
    }
    let text = text.trim_end_matches(", ");
    (!text.is_empty()).then(|| text.to_owned())
}
