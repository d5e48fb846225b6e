//! Finds which token positions each step of a run holds: by its token ids where they fit what was recorded, else by the shapes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use firstdiff_trace::{Dump, Partial, Rows, Site, Tap};

use crate::layout::rows::{are_all, squeezed, unlike_positions};
use crate::run::infer_steps::{beyond_the_prefill, steps};
use crate::run::side::Side;

/// How a run took its tokens: in one pass, a prefill and then one by one, or in other chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Token positions of each step.
    pub lengths: Vec<usize>,
    /// Ids of the tokens from the first on, as far as they are known.
    pub ids: Option<Vec<i64>>,
}

impl Chunks {
    /// The chunks of a dump, where its metadata and its tensors allow only one answer.
    pub fn find(dump: &Dump) -> Option<Chunks> {
        let steps: BTreeSet<u32> = steps(dump).into_iter().chain([0]).collect();
        let decoded = dump.meta().decode_tokens.as_deref().unwrap_or_default();
        let last = steps.last().map_or(0, |&last| last as usize);
        // A step's number is untrusted input, and must not allocate for steps that nobody recorded.
        if last > decoded.len() && last + 1 != steps.len() {
            return None;
        }
        let ids: Option<Vec<i64>> =
            dump.meta().tokens.as_ref().map(|tokens| tokens.iter().chain(decoded).copied().collect());
        let shown = lengths_by_shapes(dump, last);
        let by_rows = || shown_by_rows(dump, last, ids.as_ref()?.len());
        let whole = shown.iter().copied().collect::<Option<Vec<usize>>>().or_else(by_rows);
        let lengths = match (&ids, whole) {
            // All ids, however dump.json divides them between `tokens` and `decode_tokens`.
            (Some(ids), Some(whole)) if ids.len() == whole.iter().sum::<usize>() => whole,
            // The decoded tokens were not recorded.
            (Some(ids), Some(whole)) if decoded.is_empty() && whole[0] == ids.len() => whole,
            // One token a step, however little was recorded of each.
            (Some(ids), _) if last > 0 && ids.len() == last + 1 && shown.iter().flatten().all(|&rows| rows == 1) => {
                vec![1; ids.len()]
            }
            (Some(_), _) => {
                let named = Chunks::from_token_ids(dump)?;
                let fits = shown[0].is_none_or(|rows| rows <= named.lengths[0])
                    && shown.iter().skip(1).flatten().all(|&rows| rows == 1);
                return fits.then_some(named);
            }
            (None, whole) => whole?,
        };
        lengths.iter().all(|&length| length > 0).then_some(Chunks { lengths, ids })
    }

    /// The prompt and one token a step, by the ids of a dump alone, whatever its tensors hold.
    pub(crate) fn from_token_ids(dump: &Dump) -> Option<Chunks> {
        let last = steps(dump).last().map_or(0, |&last| last as usize);
        let decoded = dump.meta().decode_tokens.as_deref().unwrap_or_default();
        let prompt = dump.meta().tokens.as_deref().filter(|prompt| !prompt.is_empty() && decoded.len() >= last)?;
        let lengths = std::iter::once(prompt.len()).chain(std::iter::repeat_n(1, last)).collect();
        Some(Chunks { lengths, ids: Some([prompt, decoded].concat()) })
    }

    /// Number of token positions.
    pub fn total(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// The positions of each step, one after the other.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let range = |&length: &usize| {
            end += length;
            end - length..end
        };
        self.lengths.iter().map(range).collect()
    }

    /// The step that a position is in.
    pub fn step_of(&self, position: usize) -> Option<u32> {
        let mut ends = self.lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        u32::try_from(ends.position(|end| position < end)?).ok()
    }

    /// Whether there is a prefill of several tokens, and steps after it.
    pub fn has_prefill(&self) -> bool {
        self.lengths.len() > 1 && self.lengths[0] > 1
    }

    /// The ids of some positions, as far as they are known.
    pub(crate) fn ids_of(&self, positions: Range<usize>) -> Option<Vec<i64>> {
        let ids = self.ids.as_ref()?;
        Some(ids.get(positions.start..positions.end.min(ids.len())).unwrap_or_default().to_vec())
    }
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lengths[..] {
            [_] => f.write_str("in one pass"),
            all if all.iter().all(|&length| length == 1) => f.write_str("token by token"),
            [first, rest @ ..] if rest.iter().all(|&length| length == 1) => {
                write!(f, "{first} tokens at once and {} one by one", rest.len())
            }
            all => write!(f, "in {} chunks", all.len()),
        }
    }
}

/// A tensor that may show how many positions its step has.
pub(crate) struct LengthWitness<'a> {
    pub(crate) tap: Tap,
    step: u32,
    pub(crate) shape: &'a [usize],
    /// Whether it holds all positions.
    pub(crate) whole: bool,
}

/// All tensors of a dump with known shapes, including those known in part.
pub(crate) fn length_witnesses(dump: &Dump) -> impl Iterator<Item = LengthWitness<'_>> {
    let entries = dump.entries().iter().map(move |e| LengthWitness {
        tap: e.tap,
        step: e.step,
        shape: &e.shape,
        whole: are_all(&e.rows),
    });
    let alone = |p: &&Partial| !p.tap.is_open() && dump.find(p.tap, p.step).is_none();
    let parts = dump.parts().iter().filter(alone).filter_map(move |p| {
        let shape = p.part.shape.as_deref()?;
        Some(LengthWitness { tap: p.tap, step: p.step, shape, whole: are_all(&p.rows) })
    });
    entries.chain(parts)
}

/// Positions and how many tensors show them, for each step.
type LengthVotes = Vec<BTreeMap<usize, usize>>;

/// How many positions each step up to `last` has, by the majority of its taps: those with all axes of the vocabulary, else the flat ones, else those with
/// merged heads, which may as well be the heads of one position.
pub(crate) fn lengths_by_shapes(dump: &Dump, last: usize) -> Vec<Option<usize>> {
    let full = votes(dump, last, |site, shape| shape.len() == site.axes().len());
    let merged = votes(dump, last, |site, shape| shape.len() != site.axes().len());
    let vectors = lengths_by_vectors(dump, last);
    (0..=last).map(|step| most(&full[step]).or(vectors[step]).or_else(|| most(&merged[step]))).collect()
}

/// The same by taps of two axes alone, where these hold as many positions as tokens are recorded: the first of three axes may be the heads.
fn shown_by_rows(dump: &Dump, last: usize, tokens: usize) -> Option<Vec<usize>> {
    let votes = votes(dump, last, |site, shape| site.axes().len() == 2 && shape.len() == 2);
    let lengths: Vec<usize> = votes.iter().map(most).collect::<Option<_>>()?;
    (lengths.iter().sum::<usize>() == tokens).then_some(lengths)
}

/// How many positions each step up to `last` has by the whole tensors whose site and shape `counts`.
fn votes(dump: &Dump, last: usize, counts: impl Fn(Site, &[usize]) -> bool) -> LengthVotes {
    let mut votes: LengthVotes = vec![BTreeMap::new(); last + 1];
    for held in
        length_witnesses(dump).filter(|held| held.whole && counts(held.tap.site, &squeezed(held.tap.site, held.shape)))
    {
        if let (Some(rows), Some(votes)) = (leading(held.tap.site, held.shape), votes.get_mut(held.step as usize)) {
            *votes.entry(rows).or_insert(0) += 1;
        }
    }
    votes
}

/// The position axis as the vocabulary has it, where the shape has at least two axes.
fn leading(site: Site, shape: &[usize]) -> Option<usize> {
    let shape = squeezed(site, shape);
    match site.position_axis() {
        0 => shape.first().copied().filter(|_| shape.len() > 1),
        // With queries and keys, there are at least as many keys.
        _ => shape.get(1).copied().filter(|rows| shape.len() == 3 && shape[2] >= *rows),
    }
}

/// Step and elements of every flat tensor of a tap.
type FlatSizes = BTreeMap<(Option<u32>, Site), Vec<(u32, usize)>>;

/// The positions by flat tensors: each position has an equal part of what all steps hold, where the tokens of all are recorded; else a step is measured in
/// multiples of the smallest step, if that has a single position.
fn lengths_by_vectors(dump: &Dump, last: usize) -> Vec<Option<usize>> {
    let flat =
        |witness: &LengthWitness<'_>| witness.shape.len() == 1 && witness.tap.site.position_axis() == 0 && last > 0;
    let mut sizes: FlatSizes = BTreeMap::new();
    for held in length_witnesses(dump).filter(flat) {
        let Tap { layer, site } = held.tap;
        sizes.entry((layer, site)).or_default().push((held.step, held.shape[0]));
    }
    let meta = dump.meta();
    let decoded = meta.decode_tokens.as_ref().map_or(0, Vec::len);
    let tokens = meta.tokens.as_ref().map(|tokens| tokens.len() + decoded).filter(|tokens| *tokens > 0);
    let mut votes: LengthVotes = vec![BTreeMap::new(); last + 1];
    for steps in sizes.values().filter(|steps| steps.len() > 1) {
        let sizes = || steps.iter().map(|(_, size)| *size);
        let part = tokens.filter(|_| steps.len() == last + 1).map(|tokens| sizes().sum::<usize>() / tokens);
        let part = part.filter(|&part| part > 0 && sizes().all(|size| size.is_multiple_of(part)));
        let row = part.unwrap_or_else(|| sizes().min().unwrap_or(0));
        for &(step, size) in steps.iter().filter(|(_, size)| row > 0 && size.is_multiple_of(row)) {
            if let Some(votes) = votes.get_mut(step as usize) {
                *votes.entry(size / row).or_insert(0) += 1;
            }
        }
    }
    votes.iter().map(most).collect()
}

/// What more than half of the tensors show.
fn most(votes: &BTreeMap<usize, usize>) -> Option<usize> {
    let all: usize = votes.values().sum();
    let (&rows, &count) = votes.iter().max_by_key(|(_, count)| **count)?;
    (2 * count > all).then_some(rows)
}

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
