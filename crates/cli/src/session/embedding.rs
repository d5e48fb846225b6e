//! What is looked at before an embedding is suspected? The file's type, and the tokens.

use firstdiff_trace::Dump;

use crate::session::Judged;

/// Rows of a table off by what rounding to 16 bits costs: another file, not another operation.
pub(crate) fn rounded_table(nmse: Option<f64>) -> Option<&'static str> {
    match nmse? {
        n if (2e-8..2e-7).contains(&n) => Some(
            "h0 is off as values rounded to f16 are: if the candidate's weights are f16, judge with --profile f16, and look at them with `firstdiff weights`",
        ),
        n if (1e-6..1e-5).contains(&n) => Some(
            "h0 is off as values rounded to bf16 are: if the candidate's weights are bf16, judge with --profile bf16, and look at them with `firstdiff weights`",
        ),
        _ => None,
    }
}

/// Before the embedding is suspected, the tokens are.
pub(crate) fn first_embedding(judged: &Judged, step: u32) -> &'static str {
    let [reference, candidate] = [&judged.session.reference, &judged.session.candidate].map(Dump::meta);
    let (ours, theirs) = match (judged.session.alignment(), step) {
        (Some(alignment), _) => (&alignment.reference.ids, &alignment.candidate.ids),
        (None, 0) => (&reference.tokens, &candidate.tokens),
        _ => (&reference.decode_tokens, &candidate.decode_tokens),
    };
    // ChunkAlignment together, what both were fed is the same, as far as both go.
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
