//! Which sequences of a batch are of the one prompt that the other side has? Their embeddings tell.

use anyhow::Result;
use firstdiff_compare::Verdict;
use firstdiff_trace::{Site, Tap};

use crate::session::Judged;

/// Embeddings further apart than this are of other tokens.
const OTHER_TOKENS: f64 = 0.1;

/// Judges every sequence of a batch of `count` against the one prompt of the other side: `first` is the first, `judge` gives another. The first that is of
/// that prompt and diverged is the answer, else one at parity. Where no embedding tells the prompts apart, one that differs may be of another prompt; of a
/// batch of references (`of_references`) the one that the candidate agrees with is its own.
pub(crate) fn of_one_prompt(
    first: Judged,
    count: usize,
    of_references: bool,
    judge: impl Fn(usize) -> Result<Judged>,
) -> Result<Judged> {
    let (mut parity, mut differs, mut fallback) = (None, None, None);
    let mut others = Vec::new();
    let mut first = Some(first);
    for index in 0..count {
        let judged = match first.take() {
            Some(judged) => judged,
            None => judge(index)?,
        };
        let of_prompt = same_prompt(&judged);
        match (judged.report.verdict == Verdict::Parity, of_prompt) {
            (true, _) => parity = Some((index, judged)),
            (false, Some(true)) => {
                let said = format!(
                    "a batch of {count} sequences: sequence {index} is shown; those behind it were not looked at"
                );
                return Ok(with_note(judged, said));
            }
            (false, Some(false)) => {
                others.push(index);
                fallback = fallback.or(Some(judged));
            }
            (false, None) => differs = differs.or(Some((index, judged))),
        }
    }
    let list = others.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let apart = match others.is_empty() {
        true => String::new(),
        false => format!("; sequence {list}: another prompt than the reference's by its h0, not compared"),
    };
    match (parity, differs, fallback) {
        (Some((index, judged)), Some((other, _)), _) if !of_references => Ok(undecided(
            judged,
            format!(
                "a batch of {count} sequences against a reference of one: sequence {index} agrees, sequence {other} differs, and no h0 tells whether it is of \
                 the same prompt; say --sequence N"
            ),
        )),
        (Some((index, judged)), Some(_), _) => Ok(with_note(
            judged,
            format!("a batch of {count} sequences: the candidate is at parity with sequence {index}"),
        )),
        (Some((index, judged)), None, _) => {
            let said = match others.is_empty() {
                true => "each was compared by itself; all are at parity, the last is shown".to_owned(),
                false => format!("sequence {index} is shown{apart}; --sequence N compares one"),
            };
            Ok(with_note(judged, format!("a batch of {count} sequences: {said}")))
        }
        (None, Some((index, judged)), _) if judged.report.verdict == Verdict::Diverged => Ok(undecided(
            judged,
            format!(
                "a batch of {count} sequences against one: sequence {index} differs{apart}, and no h0 tells whether it is of the same prompt; say --sequence N"
            ),
        )),
        (None, Some((index, judged)), _) => {
            Ok(with_note(judged, format!("a batch of {count} sequences: sequence {index} is shown{apart}")))
        }
        (None, None, Some(judged)) => {
            let said = "is any of the reference's prompt? By their embeddings none is; the first is shown";
            Ok(with_note(judged, format!("a batch of {count} sequences: {said}")))
        }
        (None, None, None) => judge(0),
    }
}

/// What is neither passed nor blamed.
fn undecided(mut judged: Judged, reason: String) -> Judged {
    (judged.report.verdict, judged.report.first, judged.why) = (Verdict::Incomparable(reason), None, None);
    judged
}

/// Whether the sequence is of the reference's prompt, as far as an embedding tells.
fn same_prompt(judged: &Judged) -> Option<bool> {
    let tap = Tap { layer: None, site: Site::H0 };
    let h0 = judged.report.tap(tap, 0)?;
    let Some(metrics) = h0.metrics.as_ref() else {
        // Taken back with all the rest, of which nothing agrees.
        let held = judged.session.recorded().iter().all(|dump| dump.find(tap, 0).is_some());
        return (held && judged.report.taps.iter().all(|tap| tap.metrics.is_none())).then_some(false);
    };
    let nmse = metrics.nmse();
    Some(h0.status.agrees() || nmse.is_some_and(|nmse| nmse <= OTHER_TOKENS))
}

fn with_note(mut judged: Judged, said: String) -> Judged {
    judged.report.warnings.push(said);
    judged
}
