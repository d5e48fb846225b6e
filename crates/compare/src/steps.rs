//! Do the steps of two dumps stand for the same token positions?

use firstdiff_trace::{Dump, Rows};

use crate::rows::unlike_positions;

/// Why they do not, where they do not: a token-by-token run has no step in common with a run that takes the prompt in one pass.
pub(crate) fn misaligned(reference: &Dump, candidate: &Dump, rows: Option<&Rows>) -> Option<String> {
    let steps = |dump: &Dump| dump.entries().iter().map(|e| e.step).max().unwrap_or(0);
    let declared = [reference, candidate].map(|dump| dump.meta().tokens.as_ref());
    let same = declared[0].is_some() && declared[0] == declared[1];
    if same || steps(reference).max(steps(candidate)) == 0 {
        return None;
    }
    let (ours, theirs) = prefills(reference, candidate, rows)?;
    (ours != theirs).then(|| {
        format!(
            "the reference's prefill has {ours} token positions and the candidate's {theirs}. If these are the last of the same prompt, say \
             --rows last; if the candidate was run token by token, its steps stand for other tokens: run both alike (the dump scripts feed \
             a reference one by one with --tokens FIRST --decode-tokens REST)"
        )
    })
}

/// Token positions of each side's prefill: as the shapes of a tap of both show, else as declared.
fn prefills(reference: &Dump, candidate: &Dump, rows: Option<&Rows>) -> Option<(usize, usize)> {
    let first = reference.entries().iter().filter(|e| e.step == 0);
    let shared = first.filter_map(|left| Some((left, candidate.find(left.tap, 0)?)));
    let shown = shared.filter_map(|(left, right)| match left.shape == right.shape {
        true => Some((0, 0)),
        false => unlike_positions(left, right),
    });
    let declared = || Some((reference.meta().tokens.as_ref()?.len(), candidate.meta().tokens.as_ref()?.len()));
    let chosen = rows.is_some_and(|rows| !rows.is_all());
    if chosen { declared() } else { shown.into_iter().next().or_else(declared) }
}
