//! Finds which token positions each step of a run holds: by its token ids where they fit what was recorded, else by the shapes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use firstdiff_trace::{Dump, Partial, Site, Tap};

use crate::layout::rows::{are_all, squeezed};

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

/// The steps of which a dump holds anything.
pub(crate) fn steps(dump: &Dump) -> BTreeSet<u32> {
    dump.entries().iter().map(|entry| entry.step).chain(dump.parts().iter().map(|part| part.step)).collect()
}

/// A tensor that may show how many positions its step has.
pub(crate) struct LengthWitness<'a> {
    pub(crate) tap: Tap,
    pub(crate) step: u32,
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
