//! Turns a finding of explain into its report: the cause with its proof, and what to change.

use firstdiff_explain::Measured;
use firstdiff_explain::explain::{Cause, Finding, Match as Found, Remainder};
use firstdiff_explain::mistakes::what;
use firstdiff_laws::Status;
use firstdiff_parity::report::{
    Bits, CauseCertainty, CauseOf, Diagnosis, MeasuredLaw, OtherArithmetic, Params, ProvedOn, Residual, Support, names,
};
use firstdiff_trace::Site;

use crate::session::cause::{arithmetic_text, beside_another_arithmetic, cause_text, fix, in_words, proof};
use crate::words::{by_stack, layers_in_short};

/// What is known about a fault, and what to change.
pub(crate) fn diagnosis(finding: &Finding) -> Diagnosis {
    let fix = proved(finding).map(|cause| fix(cause.id, finding));
    diagnosis_with_fix(finding, fix)
}

/// What is known about a fault, with a known fix.
pub(crate) fn diagnosis_with_fix(finding: &Finding, fix: Option<String>) -> Diagnosis {
    let proved = proved(finding);
    let mut alternatives: Vec<&'static str> = Vec::new();
    for other in finding.alternatives.iter().filter(|other| proved.is_some_and(|p| p.id != other.id)) {
        if !alternatives.contains(&other.id) {
            alternatives.push(other.id);
        }
    }
    Diagnosis {
        cause: proved.map(|cause| cause.id),
        params: proved.map(params).unwrap_or_default(),
        matched: match_of(finding.matched),
        residual_nmse: Some(finding.residual_nmse),
        residuals: finding.remainders.iter().map(residual).collect(),
        alternatives,
        also: finding.alternatives.iter().map(cause_of).collect(),
        what: proved.map(|cause| what(cause.id)),
        summary: proved.map(cause_text),
        proof: proved.map(|_| proof(finding)),
        fix,
        arithmetic: finding.arithmetic.as_ref().map(other_arithmetic),
        misrecorded: names(&finding.misrecorded),
        taken_back: names(&finding.taken_back),
        measured: finding.measured.as_ref().map(|measured| measured_law(measured, finding)),
    }
}

fn measured_law(measured: &Measured, finding: &Finding) -> MeasuredLaw {
    let Measured { law, proof, places, .. } = measured;
    let all = |words: &Option<String>| words.clone().unwrap_or_else(|| "all".to_owned());
    let describe = |(stack, layers)| format!("{stack} {}", layers_in_short(layers)).trim_start().to_owned();
    let stacks = by_stack(finding.shown_at.iter().map(|place| place.tap));
    let layers = stacks.into_iter().map(describe).collect::<Vec<String>>().join(", ");
    let at = |which: &[usize]| names(which.iter().filter_map(|&at| places.get(at)));
    MeasuredLaw {
        form: law.form.name(),
        words: law.words.clone(),
        parameters: law.parameters.iter().map(|(name, value)| (*name, value.clone())).collect(),
        support: Support {
            layers,
            heads: all(&law.support.heads),
            positions: all(&law.support.positions),
            channels: all(&law.support.channels),
        },
        residual_nmse: proof.residual_nmse,
        before_nmse: proof.before_nmse,
        is_of_scores: finding.shown_at.first().is_some_and(|place| place.tap.site == Site::Scores),
        bits: Bits { paid: law.bits.round(), gained: proof.gained.round() },
        proved_on: ProvedOn { fitted: at(&proof.fitted), held_out: at(&proof.held_out) },
        equivalent: law.equivalent.clone(),
        status: match law.status {
            Status::Measured => "measured",
            Status::Table => "table",
        },
        data: law.data.clone(),
    }
}

fn cause_of(cause: &Cause) -> CauseOf {
    CauseOf { cause: cause.id, params: params(cause), words: in_words(cause) }
}

fn residual(left: &Remainder) -> Residual {
    Residual { at: left.place.to_string(), base_nmse: left.base_nmse, residual_nmse: left.residual_nmse }
}

/// All products with weights in another arithmetic.
pub(crate) fn other_arithmetic(other: &firstdiff_explain::OtherArithmetic) -> OtherArithmetic {
    OtherArithmetic {
        products: other.judged,
        off: other.places.len(),
        alone: other.alone,
        nmse: other.nmse,
        looks_like: other.nearest.map(firstdiff_explain::Rounding::words),
        left_share: other.share,
        words: arithmetic_text(other),
        next: beside_another_arithmetic(other),
    }
}

fn proved(finding: &Finding) -> Option<&Cause> {
    finding.cause.as_ref().filter(|_| finding.matched == Found::Reproduced)
}

fn params(cause: &Cause) -> Params {
    cause.params.iter().map(|(name, value)| (*name, value.clone())).collect()
}

/// How certain a finding is.
pub(crate) fn match_of(found: Found) -> CauseCertainty {
    match found {
        Found::Reproduced => CauseCertainty::Reproduced,
        Found::Measured => CauseCertainty::Measured,
        Found::Closest => CauseCertainty::Closest,
        Found::Unknown => CauseCertainty::Unknown,
    }
}
