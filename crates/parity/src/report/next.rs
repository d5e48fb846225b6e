//! Suggests the next step after a first divergence, from what is known and nothing more.

use firstdiff_compare::{Change, FirstDivergence, Place, Report, Status, TapReport};
use firstdiff_trace::{Dump, Site, Tap};

use crate::session::ByModel;
use crate::session::Comparison;
use crate::session::embedding::{first_embedding, rounded_table};
use crate::session::is_recorded;
use crate::words::shorten;

/// What to do next, from what is known and nothing more.
pub fn next_step(judged: &Comparison, first: &FirstDivergence, tap: &TapReport) -> String {
    let report = &judged.report;
    if let Some(ByModel::Cause(cause)) = &judged.why
        && let Some(fix) = &cause.fix
    {
        return format!("{fix}, and compare again");
    }
    if !first.unrecorded_layers.is_empty() {
        return "record layers.N.h of the layers in between in both runs, and compare again".into();
    }
    if !first.unchecked_between.is_empty() {
        return what_lies_between(judged, &first.unchecked_between, tap);
    }
    if first.keys_not_compared {
        let in_part = |dump: &Dump| dump.meta().rows.is_some() || dump.all_entries().iter().any(|e| e.rows.is_some());
        let runs = runs_where(judged, in_part).unwrap_or("both runs");
        return format!("record every token position up to {} in {runs}, and compare again", tap.place.tap);
    }
    let is_embedding = tap.place.tap.site == Site::H0;
    let rounded = if is_embedding { rounded_table(judged, tap.place) } else { None };
    if let Some(next) = rounded.or_else(|| next_if_recording_is_wrong(first, tap)) {
        return next;
    }
    // Where an earlier tap agrees, both were fed the same.
    if is_embedding && first.after.is_none() {
        return first_embedding(judged, tap.place.step).into();
    }
    if is_in_other_rows(first) {
        let layer = tap.place.tap.layer.unwrap_or_default();
        return format!(
            "if that order is the dump's own, say so ('qk_rows' in dump.json) or record layers.{layer}.q_rope and k_rope; else fix '{}'",
            tap.op
        );
    }
    let reads: Vec<String> =
        first.reads.iter().filter(|p| p.step == tap.place.step).map(|p| p.tap.to_string()).collect();
    let inputs = match reads.is_empty() {
        true if is_embedding => "the token ids".into(),
        true => "the model's input".into(),
        false => reads.join(" and "),
    };
    if products_are_off_alike(report) {
        return "all products with weights that can be judged here are off alike and without structure: another arithmetic (quantised, or of 16 bits)? \
                `firstdiff explain MODEL CAND` tries which; beside a second right run of it, compare --noise REF2"
            .to_owned();
    }
    let also = report.count(|s| s == Status::Diverged) > 1;
    let order = if also { "; fix it first and compare again" } else { "" };
    if !first.inputs_known {
        let name = tap.place.tap;
        return format!(
            "look at what makes {name}{order}; its inputs are not known ('graph' in dump.json states them)"
        );
    }
    let model =
        if judged.session.model.is_none() { "; `firstdiff explain MODEL CAND` tries known mistakes" } else { "" };
    let (op, name) = (&tap.op, tap.place.tap);
    match is_recorded(judged.session.recorded()[0].path()) {
        // A recorder names only the last of the operations that make a tap.
        true => format!("look at the operations that make {name} from {inputs}, up to '{op}'{order}{model}"),
        false => format!("look at the operation '{op}' that makes {name} from {inputs}{order}{model}"),
    }
}

/// Whether the other order of the rows of Q and K explains it.
fn is_in_other_rows(first: &FirstDivergence) -> bool {
    first.anatomy.explained_by.iter().any(|u| matches!(u.change, Change::RowOrder(_)))
}

/// The next step where the tap rather than its operation may be wrong: later taps agree again, or it is another tap of the reference.
fn next_if_recording_is_wrong(first: &FirstDivergence, tap: &TapReport) -> Option<String> {
    let (name, op) = (tap.place.tap, &tap.op);
    let other = first.anatomy.explained_by.iter().find_map(|u| match &u.change {
        Change::OtherTap(other) => Some(other),
        _ => None,
    });
    match (first.recovers_at, other) {
        _ if is_in_other_rows(first) => None,
        (Some(reader), other) if first.recovers_behind.is_empty() || other.is_none() => {
            let behind = first.recovers_behind.iter().map(|place| place.tap);
            let names: Vec<String> = std::iter::once(name).chain(behind).map(|tap| tap.to_string()).collect();
            let reads = if names.len() == 1 { "reads it" } else { "is made of them" };
            let is_factor = first.anatomy.explained_by.iter().any(|u| matches!(u.change, Change::Factor(_)));
            let factor = if is_factor { ": a factor may be applied in another place" } else { "" };
            Some(format!(
                "look at what the candidate records under {}: {reader}, which {reads}, agrees, so that '{op}' need not be wrong{factor}",
                shorten(&names, 4)
            ))
        }
        (_, Some(other)) => {
            let is_read = first.reads.iter().any(|read| read.tap.to_string() == *other);
            let what =
                if is_read { format!("'{op}' is left out") } else { "it takes the one for the other".to_owned() };
            Some(format!(
                "look at what the candidate records under {name}: it is the reference's {other}: if the engine goes on with it, {what}"
            ))
        }
        _ => None,
    }
}

/// The sides for which something holds, in words.
fn runs_where(judged: &Comparison, holds: impl Fn(&Dump) -> bool) -> Option<&'static str> {
    let [reference, candidate] = judged.session.recorded().map(holds);
    let one = if reference { "the reference" } else { "the candidate" };
    (reference || candidate).then_some(if reference && candidate { "both runs" } else { one })
}

/// The next step for unchecked taps on the way to `tap`: record the missing ones, unless the reference's own recording shows that they do not exist.
fn what_lies_between(judged: &Comparison, between: &[Place], tap: &TapReport) -> String {
    let lacks = |dump: &Dump, tap: Tap| !dump.all_entries().iter().any(|entry| entry.tap == tap);
    let either = |tap: &Tap| judged.session.recorded().iter().any(|dump| lacks(dump, *tap));
    // What the reference holds of other steps alone, as a convolution of the whole prompt, is not made in this one.
    let entries = judged.session.recorded()[0].all_entries();
    let is_of_step = |place: &&Place| {
        let mut steps = entries.iter().filter(|entry| entry.tap == place.tap).map(|entry| entry.step).peekable();
        steps.peek().is_none() || steps.any(|step| step == place.step)
    };
    let given: Vec<Tap> = between
        .iter()
        .filter(is_of_step)
        .map(|place| place.tap)
        .filter(|tap| judged.recorder_gives.as_ref().is_none_or(|all| all.contains(tap)))
        .collect();
    let missing: Vec<Tap> = given.iter().copied().filter(either).collect();
    let how = if judged.session.options.only.is_some() { "compare without --taps, or record" } else { "record" };
    match (missing.as_slice(), runs_where(judged, |dump| missing.iter().any(|tap| lacks(dump, *tap)))) {
        ([first, .., last], Some(runs)) if first != last => {
            format!("{how} {first} to {last} in {runs}, and compare again")
        }
        ([first, ..], Some(runs)) => format!("{how} {first} in {runs}, and compare again"),
        _ if given.is_empty() => {
            format!("look at all that makes {}: the reference's recording gives no tap in between", tap.place.tap)
        }
        _ if judged.session.options.only.is_some() => "compare without --taps".to_owned(),
        _ => format!("{} was recorded, and not checked: compare --why {} says why", given[0], given[0]),
    }
}

/// Whether all taps that differ though their inputs agree are products with weights, of several kinds, with similar errors, and with no common factor.
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
