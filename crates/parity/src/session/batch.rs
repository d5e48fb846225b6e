//! Takes one sequence out of runs of several, and finds which sequences of a batch have the other side's prompt, by their token ids or their embeddings.

use anyhow::{Result, bail};
use firstdiff_compare::{Prompt, SeenPadding, Sequences, Verdict, grids, prompt, seen_padding, without_padding};
use firstdiff_trace::{Batch, Dump, Entry};

use crate::session::Comparison;
use crate::session::Tools;
use crate::session::is_recorded;
use crate::session::reading::take_sequence;

/// Both runs of one sequence, without padding.
pub struct OneSequence {
    pub reference: Dump,
    pub candidate: Dump,
    /// Where the candidate sees keys of padding.
    pub padding: Vec<SeenPadding>,
    /// Whether padding was cut off it.
    pub is_padded: bool,
    /// How many sequences were run at once, of which this is one.
    pub batch: usize,
    /// Whether the reference, and the candidate, are such batches.
    pub are_batches: [bool; 2],
}

impl OneSequence {
    /// The requested sequence, where either run is a batch, else the first.
    ///
    /// # Errors
    /// When there is no such sequence, or a tensor cannot be read.
    pub fn cut_out(reference: Dump, candidate: Dump, requested: Option<usize>) -> Result<OneSequence> {
        let [reference, candidate] = match requested {
            None => grids(reference, candidate),
            Some(_) => [reference, candidate],
        };
        // A recorder of operations records one sequence: another run of the same size is one sequence too, whatever its axes.
        let size = |entry: &Entry| entry.shape.iter().product::<usize>();
        let like = |one: &Entry| candidate.find(one.tap, one.step).is_none_or(|other| size(one) == size(other));
        let is_recorded = is_recorded(reference.path());
        let found = match is_recorded && reference.entries().iter().all(like) {
            true => Sequences::default(),
            false => Sequences::count_in(&reference, &candidate),
        };
        match (&found.reference, &found.candidate, requested) {
            (None, None, Some(index)) if index > 0 => bail!(
                "--sequence {index}: neither dump is of a batch by its shapes; where they do not show it, name the token ids of each sequence \
             ('tokens': [[..], [..]] in dump.json)"
            ),
            (Some(ours), Some(theirs), None) if ours.count() != theirs.count() => bail!(
                "the reference holds {} sequences and the candidate {}: --sequence N compares one of both",
                ours.count(),
                theirs.count()
            ),
            _ => {}
        }
        let cut = |dump: Dump, batch: &Option<Batch>| match batch {
            Some(batch) => take_sequence(dump, requested, batch).map(|(one, _)| one),
            None => Ok(dump),
        };
        let are_batches = [found.reference.is_some(), found.candidate.is_some()];
        let fed = [&reference, &candidate].map(|dump| dump.meta().sequences.clone().unwrap_or_default());
        let (reference, candidate) = (cut(reference, &found.reference)?, cut(candidate, &found.candidate)?);
        let padding = seen_padding(&candidate)?;
        let numbers = |dump: &Dump| dump.entries().iter().map(size).sum::<usize>();
        let whole = numbers(&candidate);
        let mut candidate = without_padding(candidate, Some(&reference), &fed[1])?;
        padding
            .iter()
            .filter(|seen| seen.is_of_scores)
            .for_each(|seen| candidate.doubt(seen.scores.tap, seen.scores.step, seen.to_string()));
        let reference = without_padding(reference, Some(&candidate), &fed[0])?;
        let is_padded = numbers(&candidate) < whole;
        Ok(OneSequence { reference, candidate, padding, is_padded, batch: found.count(), are_batches })
    }
}

/// Judges every sequence of a batch of `count` against the one prompt of the other side: `first` is the first judgement, `judge` gives the others. A sequence
/// counts unless it is shown to have another prompt. The answer is the first that has that prompt and is not at parity. Where nothing distinguishes the
/// prompts, one that differs may have another prompt: undecided; but in a batch of references (`of_references`), the one that the candidate agrees with is
/// its own.
pub fn of_one_prompt(
    first: Comparison,
    count: usize,
    of_references: bool,
    tools: &Tools<'_>,
    judge: impl Fn(usize) -> Result<Comparison>,
) -> Result<Comparison> {
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
                let note = format!(
                    "a batch of {count} sequences: sequence {index} is shown; those behind it were not looked at"
                );
                return Ok(with_note(judged, note));
            }
            Prompt::Other => {
                others.push(index);
                let what = if of_references { None } else { (tools.sign_of_error)(&judged.session)? };
                match what {
                    Some(what) => broken = broken.or(Some((index, what, judged))),
                    None => other = other.or(Some(judged)),
                }
            }
            Prompt::Unknown => open = open.or(Some((index, judged))),
        }
    }
    let list = others.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let other_prompts = match others.is_empty() {
        true => String::new(),
        false => format!("; sequence {list}: another prompt than the reference's by its h0 or token ids, not compared"),
    };
    let batch = format!("a batch of {count} sequences");
    if let Some((index, what, judged)) = broken {
        return Ok(into_undecided(
            judged,
            format!("{batch}: sequence {index} is of another prompt, and no right run: {what}"),
        ));
    }
    Ok(match (parity, open, other) {
        (Some((index, judged)), Some((other, _)), _) if !of_references => into_undecided(
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
            with_note(judged, format!("{batch}: sequence {index} is shown{other_prompts}; --sequence N compares one"))
        }
        (None, Some((index, judged)), _) if judged.report.verdict == Verdict::Diverged => into_undecided(
            judged,
            format!(
                "{batch} against one: sequence {index} differs{other_prompts}, and neither h0 nor token ids show whether it is of the same prompt; say --sequence N"
            ),
        ),
        (None, Some((index, judged)), _) => {
            with_note(judged, format!("{batch}: sequence {index} is shown{other_prompts}"))
        }
        (None, None, Some(judged)) => into_undecided(
            judged,
            format!("{batch}: by their h0 or token ids none is of the reference's prompt; --sequence N compares one"),
        ),
        (None, None, None) => judge(0)?,
    })
}

/// How many tokens both sides of a sequence record, and how many positions they hold, where that is more: which of them are padding is unknown.
pub fn padded(judged: &Comparison) -> Option<(usize, usize)> {
    let tokens_and_positions = |dump: &Dump| {
        let tokens = dump.meta().tokens.as_ref()?.len();
        let rows =
            |entry: &Entry| entry.shape.first().copied().filter(|_| entry.shape.len() == 2 && entry.rows.is_none());
        let stream = |entry: &&Entry| entry.step == 0 && matches!(entry.tap.site.axes(), ['T', 'D' | 'V']);
        let positions = dump.entries().iter().filter(stream).filter_map(rows).max()?;
        (positions > tokens).then_some((tokens, positions))
    };
    let [reference, candidate] = judged.session.recorded();
    tokens_and_positions(reference).filter(|padded| tokens_and_positions(candidate) == Some(*padded))
}

/// The judgement turned into neither a pass nor a blame.
pub fn into_undecided(mut judged: Comparison, reason: String) -> Comparison {
    (judged.report.verdict, judged.report.first, judged.why) = (Verdict::Incomparable(reason), None, None);
    judged
}

pub fn with_note(mut judged: Comparison, note: String) -> Comparison {
    judged.report.warnings.push(note.into());
    judged
}
