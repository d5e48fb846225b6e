//! What does a person read? One screen: where, which operation, how far off, where in the tensor, and what was not checked.

use std::collections::BTreeSet;
use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use firstdiff_compare::{Anatomy, Change, FirstDivergence, Place, Reason, Report, Status, TapReport, Verdict, number};
use firstdiff_trace::{Dump, Site};

use crate::render::table::{reasons, taps};
use crate::session::Judged;
use crate::session::arithmetic::parity;
use crate::session::cause::Why;
use crate::session::embedding::{first_embedding, rounded_table};
use crate::session::incomplete::Incomplete;
use crate::words::{between, concentrated, group, places, safe, shorten, taps_in_words, with_suggestion};

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
    let Judged { session, report, .. } = judged;
    let [reference, candidate] = session.recorded();
    screen.line(&format!("reference  {}", described(reference)));
    screen.line(&format!("candidate  {}", described(candidate)));
    let cache = session.cache_in_words();
    screen.line(&paint(DIM, &format!("judged as  {} ({}){cache}", report.profile, session.profile_reason)));
    if let Some(noise) = &session.noise {
        screen.line(&paint(DIM, &noise.heading(report)));
    }
    if let Some(laid) = &report.laid {
        screen.line(&crate::render::laid::heading(laid));
    }
    screen.line("");
    taps(&mut screen, report, detail);
    screen.line("");
    conclusion(&mut screen, judged);
    unchecked(&mut screen, report, &judged.session.candidate.path().to_string_lossy());
    for warning in &report.warnings {
        screen.line(&format!("{} {}", paint(WARN, "note:"), safe(&warning.to_string())));
    }
    screen
}

pub(crate) fn described(dump: &Dump) -> String {
    let meta = dump.meta();
    let mut parts = Vec::new();
    parts.extend(meta.producer.name().map(safe));
    parts.extend(meta.model.as_deref().map(safe));
    parts.extend(meta.precision.as_deref().map(safe));
    match (&meta.tokens, &meta.decode_tokens) {
        (Some(tokens), Some(decode)) if !decode.is_empty() => {
            parts.push(format!("{} tokens + {} decoded", tokens.len(), decode.len()));
        }
        (Some(tokens), _) => parts.push(format!("{} tokens", tokens.len())),
        _ => {}
    }
    let path = safe(&dump.path().to_string_lossy());
    if parts.is_empty() { path } else { format!("{path}  {}", paint(DIM, &format!("({})", parts.join(", ")))) }
}

/// How many of a side's names are no taps, where it is most of them, and the command that proposes taps.
fn unknown_names(judged: &Judged) -> Option<String> {
    let dumps = judged.session.recorded();
    let left: BTreeSet<&String> = judged.report.unnamed.iter().filter(|name| !name.starts_with("weights.")).collect();
    let of = |side: usize| {
        let unknown = dumps[side].unnamed().iter().filter(|name| left.contains(name)).count();
        let known = dumps[side].entries().len() + dumps[side].parts().len();
        (2 * unknown > known).then_some((side, unknown, unknown + known))
    };
    let (side, unknown, all) = of(1).or_else(|| of(0))?;
    let [name, other] = [side, 1 - side].map(|at| safe(&dumps[at].path().to_string_lossy()));
    let whose = if side == 1 { "candidate" } else { "reference" };
    Some(format!(
        "{unknown} of the {whose}'s {all} names are unknown; proposals: firstdiff align {other} {name} -o firstdiff.toml"
    ))
}

fn conclusion(screen: &mut Screen, judged: &Judged) {
    let report = &judged.report;
    if let Some(text) = unknown_names(judged) {
        screen.line(&format!("{} {text}", paint(BAD, "names:")));
    }
    match (&report.verdict, &report.first) {
        (Verdict::Incomparable(reason), _) => screen.line(&format!("{} {}", paint(BAD, "incomparable:"), safe(reason))),
        (Verdict::Diverged, Some(first)) => {
            divergence(screen, judged, first, &|tap| vec![("next", next_step(judged, first, tap))])
        }
        (Verdict::Diverged, None) => screen.line(&paint(BAD, "diverged")),
        (Verdict::Parity, _) => {
            let (agree, all) = (report.count(Status::agrees), report.taps.len());
            let exact = report.count(|s| s == Status::Exact);
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

/// The first divergence, and what `ending` says: what was looked at, and what is to be done about it.
pub(crate) fn divergence(
    screen: &mut Screen,
    judged: &Judged,
    first: &FirstDivergence,
    ending: &dyn Fn(&TapReport) -> Vec<(&'static str, String)>,
) {
    let report = &judged.report;
    let tap = &report.taps[first.index];
    let place = match &report.laid {
        Some(laid) => format!("{} ({}) at {}", tap.place.tap, tap.op, laid.label(tap.place.step..tap.place.step + 1)),
        None => format!("{} ({})", tap.place, tap.op),
    };
    let seen = if first.unseen_keys { " at the positions compared" } else { "" };
    let after = first.after.map_or("the tokens".to_owned(), |after| {
        let named = if after.step == tap.place.step { after.tap.to_string() } else { report.name(after) };
        format!("{}, which agrees{seen}", if report.laid.is_some() { named } else { after.to_string() })
    });
    match first.unchecked_between.is_empty() && first.unrecorded_layers.is_empty() {
        true => screen.line(&format!("{} {}, after {after}", paint(BAD, "first divergence:"), paint(BOLD, &place))),
        false => {
            let between = between(first, tap.place.step);
            let (shown, any) = (shorten(&between, 6), if between.len() == 1 { "it" } else { "any of these" });
            screen.line(&format!("{} between {after}, and {}", paint(BAD, "first divergence:"), paint(BOLD, &place)));
            screen.line(&format!("  not checked in between: {shown}; the fault is in {any} or in {}", tap.op));
        }
    }
    if first.unseen_keys {
        screen.line(
            "  keys and values of token positions that were not compared are read on the way: the fault may be in theirs, at any tap before",
        );
    }
    if let Some(laid) = &report.laid {
        screen.line(&format!(
            "  {:<10} {}",
            "when",
            crate::report::when(laid, report, tap.place.step, judged.session.options.only.is_some())
        ));
    } else if tap.place.step > 0 && report.taps.iter().any(|t| t.place.step == 0 && t.status.agrees()) {
        let step = tap.place.step;
        screen.line(&format!(
            "  {:<10} what was checked of the prefill agrees; decode step {step} is the first wrong one",
            "when"
        ));
    }
    if let Some(why) = tap.why() {
        screen.line(&format!("  {:<10} {}", "why", safe(&why)));
    }
    how_far(screen, report, tap);
    where_in_the_tensor(screen, report, tap, &first.anatomy);
    let nmse = tap.metrics.and_then(|m| m.nmse()).unwrap_or(0.0);
    let telling = |(f, rest): &(f64, f64)| f.is_finite() && *rest < 0.5 * nmse && first.anatomy.undone_by.is_empty();
    let factor = first.anatomy.factor.filter(telling);
    if let Some((factor, remaining)) = factor {
        let leaves = number(remaining);
        screen.line(&format!("  {:<10} best constant factor {factor:.5}, which leaves NMSE {leaves}", "scale"));
    }
    // One factor for all is a factor for each position and channel too: that need not be said again.
    let one = first.anatomy.undone_by.iter().any(|u| matches!(u.change, Change::Factor(_)));
    let told = |change: &Change| one && matches!(change, Change::FactorByPosition | Change::FactorByChannel);
    for undone in first.anatomy.undone_by.iter().filter(|u| !told(&u.change)).take(3) {
        let leaves = number(undone.residual_nmse);
        screen.line(&format!("  {:<10} {} (leaves NMSE {leaves})", "it is", paint(BOLD, &undone.change.to_string())));
    }
    if let Some(from) = first.harmless_from {
        screen.line(&format!(
            "  {:<10} what reads it agrees again, from {from} on: the difference does not reach further",
            "but"
        ));
    }
    match &judged.why {
        Some(Why::Cause { what, proof, .. }) => {
            screen.line(&format!("  {:<10} {}", "cause", paint(BOLD, what)));
            screen.line(&format!("  {:<10} {proof}", ""));
        }
        Some(Why::Right) => screen.line(&format!(
            "  {:<10} {}",
            "but",
            "by the model, the candidate's is what comes out of what it read: the reference may be the wrong side"
        )),
        None => {}
    }
    let others = report.taps.iter().filter(|t| t.status == Status::Diverged && t.place != tap.place);
    let others: Vec<Place> = others.map(|t| t.place).collect();
    let others: Vec<String> = match &report.laid {
        Some(laid) => crate::render::laid::places(laid, &others),
        None => places(&others),
    };
    if !others.is_empty() {
        screen.line(&format!("  {:<10} {} (their inputs agree too)", "also", shorten(&others, 6)));
    }
    for (name, text) in ending(tap) {
        screen.line(&format!("  {name:<10} {text}"));
    }
    if let Some(alone) =
        report.laid.as_ref().and_then(|laid| crate::render::laid::without_reference(laid, report, tap.place.step))
    {
        screen.line(&format!("  {:<10} {alone}", ""));
    }
}

fn how_far(screen: &mut Screen, report: &Report, tap: &TapReport) {
    let Some(metrics) = tap.metrics else { return };
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
    if !text.is_empty() {
        screen.line(&format!("  {:<10} {text}", "how far"));
    }
}

fn where_in_the_tensor(screen: &mut Screen, report: &Report, tap: &TapReport, anatomy: &Anatomy) {
    let allowed = tap.allowed.unwrap_or(0.0);
    if anatomy.positions.len() > 1 {
        let label = |row| report.token_position(tap.place.step, tap.position(row));
        screen.line(&format!("  {:<10} {}", "positions", group(&anatomy.positions, allowed, "position", label)));
    }
    if anatomy.heads.len() > 1 {
        screen.line(&format!("  {:<10} {}", "heads", group(&anatomy.heads, allowed, "head", |head| head)));
    }
    if let Some(text) = anatomy.ranks_in_words() {
        screen.line(&format!("  {:<10} {}", "ranks", safe(&text)));
    }
    if let Some(text) = concentrated(&anatomy.channels, &anatomy.channel_nmse, allowed) {
        let name = if matches!(tap.place.tap.site.axes().last(), Some('S')) { "keys" } else { "channels" };
        screen.line(&format!("  {name:<10} {text}"));
    }
}

/// What to do next, from what is known and nothing more.
pub(crate) fn next_step(judged: &Judged, first: &FirstDivergence, tap: &TapReport) -> String {
    let report = &judged.report;
    if let Some(Why::Cause { fix, .. }) = &judged.why {
        return format!("{fix}, and compare again");
    }
    if !first.unrecorded_layers.is_empty() {
        return "record layers.N.h of the layers in between in both runs, and compare again".into();
    }
    if let Some(missing) = first.unchecked_between.first() {
        let last = first.unchecked_between.last().unwrap_or(missing);
        let how = if judged.session.options.only.is_some() { "compare without --taps, or record" } else { "record" };
        let which = match missing.tap == last.tap {
            true => missing.tap.to_string(),
            false => format!("{} to {}", missing.tap, last.tap),
        };
        return format!("{how} {which} in both runs, and compare again");
    }
    if first.unseen_keys {
        return format!("record every token position up to {} in both runs, and compare again", tap.place.tap);
    }
    if tap.place.tap.site == Site::H0 {
        let nmse = tap.metrics.and_then(|m| m.nmse());
        return rounded_table(nmse).unwrap_or_else(|| first_embedding(judged, tap.place.step)).into();
    }
    if first.anatomy.undone_by.iter().any(|u| matches!(u.change, Change::RowOrder(_))) {
        let layer = tap.place.tap.layer.unwrap_or_default();
        return format!(
            "if that order is the dump's own, say so ('qk_rows' in dump.json) or record layers.{layer}.q_rope and k_rope; else mend '{}'",
            tap.op
        );
    }
    let reads: Vec<String> =
        first.reads.iter().filter(|p| p.step == tap.place.step).map(|p| p.tap.to_string()).collect();
    let inputs = if reads.is_empty() { "the token ids".into() } else { reads.join(" and ") };
    if products_are_off_alike(report) {
        return "all products with weights that can be judged here are off alike and without structure: another arithmetic (quantised, or of 16 bits)? \
                `firstdiff explain MODEL CAND` tries which; beside a second right run of it, compare --noise REF2"
            .to_owned();
    }
    let also = report.count(|s| s == Status::Diverged) > 1;
    let order = if also { "; mend it first and compare again" } else { "" };
    let model = if judged.session.model.is_none() { "; with --model, known mistakes are tried" } else { "" };
    format!("look at the operation '{}' that makes {} from {inputs}{order}{model}", tap.op, tap.place.tap)
}

/// Whether all that differs though its inputs agree are products with weights, of several kinds, as far off as each other, and by no one factor.
fn products_are_off_alike(report: &Report) -> bool {
    const KINDS: usize = 3;
    const ALIKE: f64 = 30.0;
    let rounding = 1e-9..=0.1;
    let first: Vec<&TapReport> = report.taps.iter().filter(|t| t.status == Status::Diverged).collect();
    let product = |t: &TapReport| {
        use Site::{AttnOut, FfnGate, FfnOut, FfnUp, K, Logits, Q, V};
        matches!(t.place.tap.site, Q | K | V | AttnOut | FfnGate | FfnUp | FfnOut | Logits)
    };
    let sizes: Vec<f64> = first
        .iter()
        .filter(|t| product(t))
        .filter_map(|t| {
            let (metrics, nmse) = (t.metrics?, t.metrics?.nmse()?);
            let by_a_factor = metrics.best_factor().is_some_and(|best| best.remaining_nmse < 0.8 * nmse);
            (rounding.contains(&nmse) && !by_a_factor).then_some(nmse)
        })
        .collect();
    let kinds: std::collections::BTreeSet<Site> = first.iter().map(|t| t.place.tap.site).collect();
    let (least, most) = sizes.iter().fold((f64::INFINITY, 0.0), |(l, m): (f64, f64), s| (l.min(*s), m.max(*s)));
    sizes.len() == first.len() && kinds.len() >= KINDS && most <= ALIKE * least
}

/// What was not checked of a report, and of what `candidate` holds beside it.
pub(crate) fn unchecked(screen: &mut Screen, report: &Report, candidate: &str) {
    let run: Vec<&TapReport> = report.taps.iter().filter(|t| t.status == Status::Unchecked).collect();
    if !run.is_empty() {
        // Of a step of which nothing was checked, the step says enough.
        let empty = |step: u32| report.taps.iter().all(|t| t.place.step != step || t.status == Status::Unchecked);
        let (whole, single): (Vec<&TapReport>, Vec<&TapReport>) =
            run.iter().copied().partition(|t| t.place.step > 0 && empty(t.place.step));
        let mut names: Vec<String> = single.iter().map(|t| report.name(t.place)).collect();
        if names.len() > 4 {
            names = vec![shorten(&names, 4)];
        }
        if let (Some(first), Some(last)) = (whole.first(), whole.last()) {
            let (first, last) = (first.place.step, last.place.step);
            names.push(match &report.laid {
                Some(laid) => laid.positions(first..last + 1),
                None if first == last => format!("decode step {first}"),
                None => format!("decode steps {first}-{last}"),
            });
        }
        let text =
            format!("{} of {} ({}): {}", run.len(), taps_in_words(report.taps.len()), names.join(", "), reasons(&run));
        screen.line(&format!("{} {text}", paint(WARN, "not checked:")));
    }
    let (weights, names): (Vec<&String>, Vec<&String>) = report.unnamed.iter().partition(|n| n.starts_with("weights."));
    if !weights.is_empty() {
        let text =
            format!("{} dumped weights; `firstdiff weights MODEL {}` looks at them", weights.len(), safe(candidate));
        screen.line(&format!("{} {text}", paint(WARN, "not checked:")));
    }
    if !names.is_empty() {
        let names: Vec<String> = names.into_iter().map(|n| with_suggestion(n)).collect();
        screen.line(&format!("{} names that are no taps: {}", paint(WARN, "not checked:"), shorten(&names, 6)));
    }
}
