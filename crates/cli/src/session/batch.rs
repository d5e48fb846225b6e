//! Which sequences of a batch are of the one prompt that the other side has? Their token ids tell, or their embeddings.

use anyhow::Result;
use firstdiff_compare::{Prompt, Verdict, prompt, spoiled};
use firstdiff_trace::{Dump, Entry};

use crate::session::Judged;

/// Judges every sequence of a batch of `count` against the one prompt of the other side: `first` is the first, `judge` gives another. Each that is not shown to
/// be of another prompt counts. The first that is of that prompt and is not at parity is the answer. Where nothing tells the prompts apart, one that differs may
/// be of another prompt: undecided; but of a batch of references (`of_references`) the one that the candidate agrees with is its own.
pub(crate) fn of_one_prompt(
    first: Judged,
    count: usize,
    of_references: bool,
    judge: impl Fn(usize) -> Result<Judged>,
) -> Result<Judged> {
    let (mut parity, mut open, mut broken, mut other) = (None, None, None, None);
    let mut others = Vec::new();
    let mut first = Some(first);
    for index in 0..count {
        let judged = match first.take() {
            Some(judged) => judged,
            None => judge(index)?,
        };
        let [reference, candidate] = judged.session.recorded();
        match prompt(reference, candidate)? {
            _ if judged.report.verdict == Verdict::Parity => parity = Some((index, judged)),
            Prompt::Same => {
                let said = format!(
                    "a batch of {count} sequences: sequence {index} is shown; those behind it were not looked at"
                );
                return Ok(with_note(judged, said));
            }
            Prompt::Other => {
                others.push(index);
                let what = if of_references { None } else { spoiled(candidate)? };
                match what {
                    Some(what) => broken = broken.or(Some((index, what, judged))),
                    None => other = other.or(Some(judged)),
                }
            }
            Prompt::Unknown => open = open.or(Some((index, judged))),
        }
    }
    let list = others.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let apart = match others.is_empty() {
        true => String::new(),
        false => format!("; sequence {list}: another prompt than the reference's by its h0 or token ids, not compared"),
    };
    let batch = format!("a batch of {count} sequences");
    if let Some((index, what, judged)) = broken {
        return Ok(undecided(
            judged,
            format!("{batch}: sequence {index} is of another prompt, and no right run: {what}"),
        ));
    }
    Ok(match (parity, open, other) {
        (Some((index, judged)), Some((other, _)), _) if !of_references => undecided(
            judged,
            format!(
                "{batch} against a reference of one: sequence {index} agrees, sequence {other} differs, and neither h0 nor token ids show that it is of \
                 another prompt; say --sequence N"
            ),
        ),
        (Some((index, judged)), Some(_), _) => {
            with_note(judged, format!("{batch}: the candidate is at parity with sequence {index}"))
        }
        (Some((_, judged)), None, _) if others.is_empty() => {
            with_note(judged, format!("{batch}: each was compared by itself; all are at parity, the last is shown"))
        }
        (Some((index, judged)), None, _) => {
            with_note(judged, format!("{batch}: sequence {index} is shown{apart}; --sequence N compares one"))
        }
        (None, Some((index, judged)), _) if judged.report.verdict == Verdict::Diverged => undecided(
            judged,
            format!(
                "{batch} against one: sequence {index} differs{apart}, and neither h0 nor token ids show whether it is of the same prompt; say --sequence N"
            ),
        ),
        (None, Some((index, judged)), _) => with_note(judged, format!("{batch}: sequence {index} is shown{apart}")),
        (None, None, Some(judged)) => undecided(
            judged,
            format!("{batch}: by their h0 or token ids none is of the reference's prompt; --sequence N compares one"),
        ),
        (None, None, None) => judge(0)?,
    })
}

/// How many tokens both sides of a sequence name, and how many positions they hold, where that is more: which of them are padding nobody says.
pub(crate) fn padded(judged: &Judged) -> Option<(usize, usize)> {
    let of = |dump: &Dump| {
        let tokens = dump.meta().tokens.as_ref()?.len();
        let rows =
            |entry: &Entry| entry.shape.first().copied().filter(|_| entry.shape.len() == 2 && entry.rows.is_none());
        let stream = |entry: &&Entry| entry.step == 0 && matches!(entry.tap.site.axes(), ['T', 'D' | 'V']);
        let positions = dump.entries().iter().filter(stream).filter_map(rows).max()?;
        (positions > tokens).then_some((tokens, positions))
    };
    let [reference, candidate] = judged.session.recorded();
    of(reference).filter(|padded| of(candidate) == Some(*padded))
}

/// What is neither passed nor blamed.
pub(crate) fn undecided(mut judged: Judged, reason: String) -> Judged {
    (judged.report.verdict, judged.report.first, judged.why) = (Verdict::Incomparable(reason), None, None);
    judged
}

pub(crate) fn with_note(mut judged: Judged, said: String) -> Judged {
    judged.report.warnings.push(said.into());
    judged
}
