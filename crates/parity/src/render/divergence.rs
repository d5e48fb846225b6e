//! Describes the first divergence: a headline, and a line for each known fact.

use std::fmt::Write;

use firstdiff_compare::{Change, Place, Reason, Report, Status, TapReport, number};

use crate::report::{Compare, Factor};
use crate::session::Comparison;
use crate::session::is_recorded;
use crate::words::{between, places, safe, shorten};

/// The name of the line with the cause.
pub const CAUSE: &str = "cause";

/// A first divergence in words.
pub struct Divergence {
    /// Where it is, and behind which tap.
    pub headline: String,
    /// The part of the headline that names the tap.
    pub place: String,
    /// Reasons not to blame that operation alone.
    pub notes: Vec<String>,
    /// The known facts, by name; one without a name belongs to the line before.
    pub lines: Vec<(&'static str, String)>,
}

impl Divergence {
    /// The first divergence of a comparison, if there is one.
    pub fn describe(judged: &Comparison, compare_report: &Compare) -> Option<Divergence> {
        let report = &judged.report;
        let (first, first_place) = (report.first.as_ref()?, compare_report.first_divergence.as_ref()?);
        let tap = &report.taps[first.index];
        let place = match &report.alignment {
            Some(alignment) => {
                format!("{} ({}) at {}", tap.place.tap, tap.op, alignment.label(tap.place.step..tap.place.step + 1))
            }
            None => format!("{} ({})", first_place.place, first_place.op),
        };
        let seen = if first_place.keys_not_compared { " at the positions compared" } else { "" };
        let input = if tap.place.tap.is_open() { "the model's input" } else { "the tokens" };
        let after = first.after.map_or(input.to_owned(), |after| {
            let named = if after.step == tap.place.step { after.tap.to_string() } else { report.name(after) };
            format!("{}, which agrees{seen}", if report.alignment.is_some() { named } else { after.to_string() })
        });
        let mut notes = Vec::new();
        let headline = match first_place.unchecked_between.is_empty() && first_place.unrecorded_layers.is_empty() {
            true => format!("{place}, after {after}"),
            false => {
                let between = between(first, tap.place.step);
                let shown = shorten(&between, 6);
                let fault = match is_recorded(judged.session.recorded()[0].path()) {
                    // A recorded program has operations that no tap shows, and some that read weights alone.
                    true => format!(
                        "the fault may be there, or in any other operation that makes {} of what was compared and of weights",
                        tap.place.tap
                    ),
                    false => {
                        format!(
                            "the fault is in {} or in {}",
                            if between.len() == 1 { "it" } else { "any of these" },
                            first_place.op
                        )
                    }
                };
                notes.push(format!("not checked in between: {shown}; {fault}"));
                format!("between {after}, and {place}")
            }
        };
        if first_place.keys_not_compared {
            notes.push("keys and values of token positions that were not compared are read on the way: the fault may be in theirs, at any tap before".to_owned());
        }
        let mut lines = Vec::new();
        let mut line = |name: &'static str, text: String| lines.push((name, text));
        if let Some(when) = &first_place.when {
            line("when", when.clone());
        }
        if let Some(why) = &first_place.reason {
            line("error", safe(why));
        }
        if let Some(text) = how_far(report, tap) {
            line("how far", text);
        }
        for region in &first_place.regions {
            line(region.axis, safe(&region.text));
        }
        let nmse = first_place.measures.nmse.unwrap_or(0.0);
        let telling = |f: &&Factor| f.factor.is_finite() && f.remaining_nmse * f.factor.powi(2) < 0.5 * nmse;
        let is_explained = !first_place.anatomy.explained_by.is_empty();
        if let Some(Factor { factor, remaining_nmse }) =
            first_place.anatomy.factor.as_ref().filter(telling).filter(|_| !is_explained)
        {
            let left = number(remaining_nmse * factor.powi(2));
            line("scale", format!("{factor:.5} times the reference is nearest, which leaves NMSE {left}"));
        }
        if let Some((factor, account)) = first.anatomy.by_chance {
            line("how", format!("a factor of {factor:.6} gives it, and so would chance: {account}"));
        }
        // One common factor is also a factor of each position and channel: that is not repeated.
        let one = first.anatomy.explained_by.iter().any(|u| matches!(u.change, Change::Factor(_)));
        let again = |change: &Change| one && matches!(change, Change::FactorByPosition | Change::FactorByChannel);
        for undone in first.anatomy.explained_by.iter().filter(|u| !again(&u.change)).take(3) {
            line("it is", format!("{} (leaves NMSE {})", undone.change, number(undone.residual_nmse)));
        }
        if let Some(from) = first.recovers_at {
            line("but", format!("all that is made of it agrees again, from {from} on"));
        }
        if let Some(cause) = &first_place.why {
            line(CAUSE, cause.summary.clone().unwrap_or_default());
            line("", cause.proof.clone().unwrap_or_default());
        }
        if first_place.candidate_is_right {
            let text =
                "by the model, the candidate's is what comes out of what it read: the reference may be the wrong side";
            line("but", text.to_owned());
        }
        let others = report.taps.iter().filter(|t| t.status == Status::Diverged && t.place != tap.place);
        let others: Vec<Place> = others.map(|t| t.place).collect();
        let others: Vec<String> = match &report.alignment {
            Some(alignment) => crate::render::alignment::places(alignment, &others),
            None => places(&others),
        };
        if !others.is_empty() {
            line("also", format!("{} (no compared input differs)", shorten(&others, 6)));
        }
        Some(Divergence { headline, place, notes, lines })
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
    // For a tap known in part, the text begins with the known part.
    let reason_has_nmse = tap.part.is_none() && tap.reason.as_ref().is_some_and(Reason::names_the_nmse);
    part("NMSE", metrics.nmse().filter(|_| !reason_has_nmse));
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
