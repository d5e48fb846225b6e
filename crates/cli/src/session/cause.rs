//! Words a proved cause in the same way on the screens of explain, replay and compare: what it is, the proof, and what to change.

use firstdiff_compare::{Place, number};
use firstdiff_explain::OtherArithmetic;
use firstdiff_explain::explain::{Cause, Counted, Finding, Match};
use firstdiff_explain::mistakes::{advice, what};
use firstdiff_parity::report::IN_PROBABILITIES;

use crate::words::shorten;

/// The proved cause of what one recorded tap shows, and its finding.
pub(crate) fn cause_at(findings: &[Finding], place: Place) -> Option<(&Finding, &Cause)> {
    causes_at(findings, place).next()
}

/// Every proved cause that shows at a place: it may have several together.
pub(crate) fn causes_at(findings: &[Finding], place: Place) -> impl Iterator<Item = (&Finding, &Cause)> {
    let stated = findings.iter().filter(move |f| f.matched == Match::Reproduced && f.shown_at.contains(&place));
    stated.filter_map(|finding| Some((finding, finding.cause.as_ref()?)))
}

/// `the rotation has another base (rope-theta, theta 10000)`.
pub(crate) fn cause_text(cause: &Cause) -> String {
    format!("{} ({})", what(cause.id), in_words(cause))
}

/// `with this mistake in the model the error falls from NMSE 0.74 to 3e-14; and with .. too`; of causes that give a place together what each leaves alone too.
pub(crate) fn proof(finding: &Finding) -> String {
    let Finding { together, alone_nmse, residual_nmse, base_nmse, .. } = finding;
    if *base_nmse == 0.0 {
        return "what was recorded shows it".to_owned();
    }
    let counted = match finding.counted {
        Counted::All => "",
        Counted::MaskedKeys => ", of the probabilities of masked keys",
        Counted::OfProbabilities => IN_PROBABILITIES,
        Counted::OneSided => ", with the share of the cells that are masked or no number on one side alone",
    };
    let and_others = match together.is_empty() {
        true => String::new(),
        false => format!(" and {}", shorten(&together.iter().map(in_words).collect::<Vec<_>>(), 4)),
    };
    let [base, left] = [*base_nmse, *residual_nmse].map(number);
    let mut proof = match residual_nmse < base_nmse {
        true => {
            format!("with this mistake{and_others} in the model the error falls from NMSE {base} to {left}{counted}")
        }
        false => format!("with this{and_others} in the model NMSE {left} is left, and {base} without it{counted}"),
    };
    if !together.is_empty() {
        proof.push_str(&format!("; with this one alone to {}", number(*alone_nmse)));
    }
    if !finding.alternatives.is_empty() {
        let others: Vec<String> = finding.alternatives.iter().map(in_words).collect();
        proof.push_str(&format!("; so does {}", shorten(&others, 4)));
    }
    proof
}

/// `another arithmetic, not a mistake: all 45 products with weights are off alike ..`, and which one it looks like.
pub(crate) fn arithmetic_text(other: &OtherArithmetic) -> [String; 2] {
    let [least, most] = other.nmse.map(number);
    let rest = if other.alone { "; every other operation is right" } else { "" };
    let all = if other.places.len() == other.judged { "all" } else { "nearly all" };
    let what = format!(
        "another arithmetic, not a mistake: {all} products with weights ({} of {}) are off alike, NMSE {least} to {most}, and without structure{rest}",
        other.places.len(),
        other.judged
    );
    let which = match other.nearest {
        Some(rounding) if other.is_reproduced() => {
            format!(
                "it is {} (with it the error falls from NMSE {most} to {})",
                rounding.words(),
                number(other.residual_nmse)
            )
        }
        Some(rounding) => format!(
            "it looks like {}, but is not quite it: with that {:.0} % of the error is left (at the median)",
            rounding.words(),
            100.0 * other.share
        ),
        None => {
            "no rounding of weights or activations to 8 or 4 bits that is known here gives these numbers".to_owned()
        }
    };
    [what, which]
}

/// The next step for another arithmetic.
pub(crate) fn beside_another_arithmetic(other: &OtherArithmetic) -> String {
    let weights = match other.nearest {
        Some(rounding) if !rounding.is_of_weights_alone() => "",
        _ => "give the engine's own (dequantised) weights as MODEL: they give parity if that is all; or ",
    };
    format!(
        "it is not parity: {weights}compare it beside a second right run of that arithmetic (compare --noise REF2), or hold it to what it is (gate --update \
         --accept-diverged)"
    )
}

/// What to change, with the right number.
pub(crate) fn fix(id: &str, finding: &Finding) -> String {
    if let Some(other) = &finding.arithmetic {
        return beside_another_arithmetic(other);
    }
    let due = finding.due.as_ref().map_or_else(String::new, |value| format!(": {value}"));
    let where_it_is = if finding.through.is_empty() { "" } else { "; at which of the places named, is not told" };
    // Other mistakes that give the same numbers are as likely, but are fixed differently: the first few of them.
    let mut known = vec![advice(id)];
    let other = |other: &Cause| {
        let advice = advice(other.id);
        let is_new = known.len() < 3 && !known.contains(&advice);
        known.extend(is_new.then_some(advice));
        is_new.then(|| format!("; or, if it is {}: {advice}", other.id))
    };
    // Where the reference's own number and line are known, they also fix the other mistakes.
    let is_told = finding.due.is_some();
    let others: String = finding.alternatives.iter().filter(|_| !is_told).filter_map(other).collect();
    format!("{}{due}{where_it_is}{others}", advice(id))
}

/// `rope-theta, theta 10000`.
pub(crate) fn in_words(cause: &Cause) -> String {
    let params = cause
        .params
        .iter()
        .map(|(name, value)| format!(", {name} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
    format!("{}{}", cause.id, params.collect::<String>())
}
