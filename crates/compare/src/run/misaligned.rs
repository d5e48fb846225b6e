//! Finds why the steps of two runs do not hold the same token positions, and what a run says of its tokens that its tensors contradict.

use std::fmt;

use firstdiff_trace::{Dump, Rows, Site, Tap};

use crate::layout::rows::unlike_positions;
use crate::run::infer_steps::beyond_the_prefill;
use crate::run::side::Side;
use crate::run::steps::{Chunks, length_witnesses, lengths_by_shapes, steps};

/// Why the steps of two dumps do not hold the same token positions, where they do not and could not be aligned.
pub(crate) fn misaligned(reference: &Dump, candidate: &Dump, rows: Option<&Rows>) -> Option<Misaligned> {
    let all = rows.is_none_or(Rows::is_all);
    if let Some(at) = other_ids(reference, candidate) {
        return Some(Misaligned::OtherTokens { from: at });
    }
    if let Some(ours) = Chunks::find(reference).filter(|_| all)
        && let Some(held) = beyond_the_prefill(candidate, reference, &ours)
    {
        let prefill = ours.lengths[0];
        return Some(Misaligned::BeyondThePrefill { held, prefill, decoded: ours.total() - prefill });
    }
    let steps = |dump: &Dump| length_witnesses(dump).map(|held| held.step).max().unwrap_or(0);
    let declared = [reference, candidate].map(|dump| dump.meta().tokens.as_ref());
    let same = declared[0].is_some() && declared[0] == declared[1];
    if same || steps(reference).max(steps(candidate)) == 0 {
        return None;
    }
    let (ours, theirs) = match prefills(reference, candidate, rows) {
        Some(prefills) => prefills,
        // Nothing but flat tensors.
        None if all => (Chunks::find(reference)?.lengths[0], Chunks::find(candidate)?.lengths[0]),
        None => return None,
    };
    (ours != theirs).then_some(Misaligned::OtherPrefills { reference: ours, candidate: theirs })
}

/// What the reference or the candidate declares about its tokens that its own tensors contradict; `rows` are the token positions that were asked for.
pub(crate) fn contradicted([reference, candidate]: [&Dump; 2], rows: Option<&Rows>) -> Option<Misaligned> {
    let of = |dump, side| Some(Misaligned::Contradicted { side, what: contradiction(dump, rows)? });
    of(reference, Side::Reference).or_else(|| of(candidate, Side::Candidate))
}

/// What a dump declares about its tokens that its tensors contradict. More positions than tokens may be padding.
fn contradiction(dump: &Dump, asked: Option<&Rows>) -> Option<Contradiction> {
    let meta = dump.meta();
    let prompt = meta.tokens.as_ref()?.len();
    let decoded = meta.decode_tokens.as_ref().map_or(0, Vec::len);
    let last = steps(dump).last().map_or(0, |&last| last as usize);
    if last > prompt + decoded {
        return Some(Contradiction::Step { tokens: prompt + decoded, step: last });
    }
    let shown = lengths_by_shapes(dump, last);
    let rows = shown[0].unwrap_or(1);
    // A single row may be one of several, the others unrecorded.
    let are_asked = matches!(asked, Some(Rows::List(list)) if list.len() == rows);
    let fewer = last == 0 && rows > 1 && rows < prompt && !are_asked && !may_be_of_its_tokens(dump);
    if fewer {
        return Some(Contradiction::Positions { tokens: prompt, positions: rows });
    }
    let padded = rows > prompt && decoded >= last && shown.iter().skip(1).flatten().all(|&rows| rows == 1);
    let unfit = last > 0 && Chunks::find(dump).is_none() && !padded && shown.iter().all(Option::is_some);
    unfit.then_some(Contradiction::Steps { tokens: prompt, decoded, steps: last + 1 })
}

/// The first position at which two dumps record different tokens, as far as both do.
fn other_ids(reference: &Dump, candidate: &Dump) -> Option<usize> {
    let (ours, theirs) = (reference.meta().tokens.as_ref()?, candidate.meta().tokens.as_ref()?);
    ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs)
}

/// Why it is unknown whether two runs in which nothing agrees hold the same positions: their numbers of positions differ, and not both record their tokens. A
/// prompt padded on the left looks like that, and so does another prompt.
pub(crate) fn unwitnessed(reference: &Dump, candidate: &Dump) -> Option<UnknownPositions> {
    let [ours, theirs] = [reference, candidate].map(Chunks::find);
    let ids = |chunks: &Option<Chunks>| chunks.as_ref().is_some_and(|chunks| chunks.ids.is_some());
    let total = |chunks: &Option<Chunks>| chunks.as_ref().map(Chunks::total);
    match (total(&ours), total(&theirs)) {
        _ if ids(&ours) && ids(&theirs) || is_without_tokens([reference, candidate]) => None,
        (Some(reference), Some(candidate)) if reference != candidate => {
            Some(UnknownPositions::Counts { reference, candidate })
        }
        (Some(_), None) if !may_be_of_its_tokens(candidate) => Some(UnknownPositions::NotItsTokens),
        _ => None,
    }
}

/// Whether a dump records neither its tokens, nor how many sequences they are, nor which are padding.
pub(crate) fn names_no_tokens(dump: &Dump) -> bool {
    let meta = dump.meta();
    meta.tokens.is_none() && meta.sequences.is_none() && meta.attention_mask.is_none() && meta.padding.is_none()
}

/// Whether two runs are of a model that reads no tokens, such as a vision model: neither records any, and by the graph of one, whose recorder would record
/// tokens, h0 is computed from other taps. A single row of such a run stands for all positions together.
pub(crate) fn is_without_tokens(dumps: [&Dump; 2]) -> bool {
    let h0 = Tap { layer: None, site: Site::H0 }.to_string();
    let is_made = |dump: &Dump| dump.meta().graph.iter().flatten().any(|node| node.tap == h0 && !node.reads.is_empty());
    dumps.into_iter().all(names_no_tokens) && dumps.into_iter().any(is_made)
}

/// Whether some axis of its tensors may be that of its recorded tokens, or it records none.
fn may_be_of_its_tokens(dump: &Dump) -> bool {
    let Some(tokens) = dump.meta().tokens.as_ref().map(Vec::len) else { return true };
    dump.entries().iter().any(|entry| entry.step == 0 && entry.shape.contains(&tokens))
}

/// Token positions of each side's prefill: as the shapes of a tap on both sides show, else as declared.
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

/// Why the steps of two dumps do not hold the same token positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misaligned {
    /// Both record the ids of their tokens, and these differ.
    OtherTokens {
        /// The first position where they differ.
        from: usize,
    },
    /// The candidate's single pass is longer than the reference's prefill, and no tokens are recorded.
    BeyondThePrefill {
        /// Its token positions.
        held: usize,
        /// Those of the reference's prefill.
        prefill: usize,
        /// Those of the reference's later steps.
        decoded: usize,
    },
    /// The prefills have different lengths, and no tokens are recorded.
    OtherPrefills {
        /// Token positions of the reference's.
        reference: usize,
        /// And of the candidate's.
        candidate: usize,
    },
    /// A dump's tensors contradict what it declares about its tokens.
    Contradicted {
        /// Which of the two.
        side: Side,
        /// The contradiction.
        what: Contradiction,
    },
}

/// What a dump declares about its tokens that its tensors contradict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// It holds a step beyond the last token.
    Step {
        /// The tokens that it records.
        tokens: usize,
        /// The step.
        step: usize,
    },
    /// Its tensors have fewer token positions than it records tokens.
    Positions {
        /// The tokens that it records.
        tokens: usize,
        /// The positions of its tensors.
        positions: usize,
    },
    /// Its tokens cannot be divided among its steps.
    Steps {
        /// The tokens of the prompt.
        tokens: usize,
        /// The tokens of the decode steps.
        decoded: usize,
        /// The steps.
        steps: usize,
    },
}

impl fmt::Display for Misaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misaligned::OtherTokens { from } => {
                write!(f, "the two runs were fed different tokens from position {from} on, by the ids that both name")
            }
            Misaligned::BeyondThePrefill { held, prefill, decoded } => write!(
                f,
                "the candidate holds {held} token positions and no decode steps, the reference's prefill {prefill} and its steps {decoded}: whether the rest \
                 are of these, or padding, cannot be told. Name the candidate's tokens (--tokens, or 'tokens' in its dump.json), or cut the padding off"
            ),
            Misaligned::OtherPrefills { reference, candidate } => write!(
                f,
                "the reference's prefill has {reference} token positions and the candidate's {candidate}, and it cannot be said which positions each \
                 step stands for. Name the tokens of both runs (--tokens and --decode-tokens, or 'tokens' and 'decode_tokens' in dump.json); if \
                 these are the last of the same prompt, say --rows last"
            ),
            Misaligned::Contradicted { side, what } => {
                write!(f, "the {side} names ")?;
                match what {
                    Contradiction::Step { tokens, step } => write!(f, "{tokens} tokens and holds step {step}"),
                    Contradiction::Positions { tokens, positions } => write!(
                        f,
                        "{tokens} tokens and its tensors hold {positions} token positions: correct 'tokens', or say which rows they are ('rows' in its \
                         dump.json, or --rows)"
                    ),
                    Contradiction::Steps { tokens, decoded, steps } => {
                        write!(f, "{tokens} tokens and {decoded} decode tokens, which do not fit its {steps} steps")
                    }
                }
            }
        }
    }
}

/// Why it is unknown whether two runs in which nothing agrees hold the same positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownPositions {
    /// Their numbers of positions differ, and not both record their tokens.
    Counts {
        /// The reference's.
        reference: usize,
        /// The candidate's.
        candidate: usize,
    },
    /// The number of positions of the candidate's tensors is not its recorded number of tokens.
    NotItsTokens,
}

impl fmt::Display for UnknownPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing agrees; ")?;
        match self {
            UnknownPositions::Counts { reference, candidate } => write!(
                f,
                "the reference has {reference} token positions and the candidate {candidate}, and not both say of which tokens"
            )?,
            UnknownPositions::NotItsTokens => {
                f.write_str("the candidate's tensors have another number of token positions than it names tokens")?;
            }
        }
        f.write_str(
            ": is its prompt padded, or another? Name the tokens of both runs (--tokens, or 'tokens' in dump.json), or cut the padding off",
        )
    }
}
