//! Checks the file's type and the tokens before an embedding is suspected.

use firstdiff_compare::Place;
use firstdiff_trace::{Dump, to_bf16, to_f16};

use crate::session::Comparison;

/// Rows of a table that are the reference's, rounded to 16 bits: another file, not another operation.
pub fn rounded_table(judged: &Comparison, place: Place) -> Option<String> {
    let values = |dump: &Dump| Some(dump.read(dump.find(place.tap, place.step)?).ok()?.values().to_f64());
    let (due, own) = (values(&judged.session.reference)?, values(&judged.session.candidate)?);
    let is = |round: fn(f64) -> f64| due.len() == own.len() && due.iter().zip(&own).all(|(r, c)| round(*r) == *c);
    let bf16 = is(|x| to_bf16(x).to_f64()).then_some("bf16");
    let name = if is(|x| to_f16(x).to_f64()) { "f16" } else { bf16? };
    Some(format!(
        "h0 is the reference's, rounded to {name}: if the candidate's weights are {name}, judge with --profile {name}, and look at them with `firstdiff weights`"
    ))
}

/// The tokens are to be checked before the embedding.
pub fn first_embedding(judged: &Comparison, step: u32) -> &'static str {
    let [reference, candidate] = [&judged.session.reference, &judged.session.candidate].map(Dump::meta);
    let (ours, theirs) = match (judged.session.alignment(), step) {
        (Some(alignment), _) => (&alignment.reference.ids, &alignment.candidate.ids),
        (None, 0) => (&reference.tokens, &candidate.tokens),
        _ => (&reference.decode_tokens, &candidate.decode_tokens),
    };
    // Where the two are aligned, both were fed the same tokens, as far as both go.
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if ours == theirs || judged.session.alignment().is_some() => {
            "look at the operation 'embedding': both say they were fed the same tokens"
        }
        (Some(_), Some(_)) => "feed both runs the same tokens, and compare again",
        _ => {
            "see that both runs were fed the same tokens (not both dumps say which); then look at the operation 'embedding'"
        }
    }
}
