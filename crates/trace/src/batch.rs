//! Detects a batch of several sequences by the shapes of its tensors, and splits it into one dump for each sequence.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::dump::import::{KnownElements, Partial};
use crate::dump::{Dump, DumpError, Entry, not_a_dump};
use crate::element::element_count;
use crate::meta::{AttentionMask, Meta, SequenceTokens};
use crate::tap::{Site, Tap};
use crate::tensor::Tensor;

/// Gives the shape that a tap of a step has for a single sequence, from another dump or from a model.
pub type SingleShape<'a> = &'a dyn Fn(Tap, u32) -> Option<Vec<usize>>;

/// A batch: the number of sequences, and the shape that each tap has for one of them.
#[derive(Clone, Debug)]
pub struct Batch {
    count: usize,
    shapes: BTreeMap<(u32, Tap), Vec<usize>>,
    unsplit: Vec<(u32, Tap)>,
}

impl Batch {
    /// Detects the batch in a dump: from dump.json (a list of token ids for each sequence), else from the shapes. A tap with one axis more than the
    /// vocabulary's shows a batch. Where that axis could also be heads or experts, the tap counts only if `one` gives the shape of a single sequence.
    pub fn detect(dump: &Dump, one: SingleShape<'_>) -> Option<Batch> {
        if let Some(declared) = dump.meta().sequences.as_ref().map(Vec::len) {
            return (declared > 1).then(|| Batch::with_count(dump, declared, one));
        }
        let BatchVote { count, strongly } = count_by_shapes(dump, one)?;
        if are_rows(dump, count) {
            return None;
        }
        let batch = Batch::with_count(dump, count, one);
        // A single sequence with heads, experts or other stacked tensors looks like a batch, but its other taps have no batch axis.
        let against = batch.unsplit.iter().filter(|(step, tap)| {
            let positions_first = tap.site.axes().len() == 2 && !has_inner_axes(tap.site);
            positions_first || has_the_heads_of_one(dump, *tap, *step, one)
        });
        let against = against.count();
        let most = batch.unsplit.len() <= batch.shapes.len();
        (most && (strongly || against == 0)).then_some(batch)
    }

    /// The same for a dump that is known to hold `count` sequences.
    pub fn with_count(dump: &Dump, count: usize, one: SingleShape<'_>) -> Batch {
        let lengths = lengths(dump, count);
        let (mut shapes, mut unsplit) = (BTreeMap::new(), Vec::new());
        for (tap, step, shape) in tensors_with_shapes(dump) {
            let length = lengths.get(&step).copied();
            match shape_of_one(tap.site, shape, count, length, one(tap, step).as_deref()) {
                Some(own) => _ = shapes.insert((step, tap), own),
                None => unsplit.push((step, tap)),
            }
        }
        Batch { count, shapes, unsplit }
    }

    /// Number of sequences.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether every tensor can be split into the sequences.
    pub fn is_whole(&self) -> bool {
        self.unsplit.is_empty()
    }

    /// The shape of a tap of a step for one sequence.
    pub fn shape(&self, tap: Tap, step: u32) -> Option<&[usize]> {
        self.shapes.get(&(step, tap)).map(Vec::as_slice)
    }

    /// The dump of sequence `index`: its part of every tap. A tap that cannot be split is left out and marked as doubtful, because the values that belong
    /// to the sequence are unknown.
    ///
    /// # Errors
    /// When there is no sequence `index`.
    pub fn sequence(&self, whole: &Arc<Dump>, index: usize) -> Result<Dump, DumpError> {
        let count = self.count;
        if index >= count {
            return Err(not_a_dump(whole.path(), &format!("sequence {index} asked for, of {count} (counted from 0)")));
        }
        let cut = |entry: &Entry| Some(split_entry(whole, entry, self.shape(entry.tap, entry.step)?.to_vec(), index));
        let entries = whole.entries().iter().filter_map(cut).collect();
        let mut dump = whole.with_entries(self.meta(whole, index), entries)?;
        let part = |part: &Partial| split_part(part, self.shape(part.tap, part.step)?, index);
        dump.parts = whole.parts().iter().filter_map(part).collect();
        for &(step, tap) in &self.unsplit {
            dump.doubt(tap, step, format!("its shape cannot be cut into the batch's {count} sequences"));
        }
        Ok(dump)
    }

    /// The metadata for one sequence, with its own token ids if known.
    fn meta(&self, whole: &Dump, index: usize) -> Meta {
        let meta = whole.meta();
        let mask = meta.attention_mask.as_ref().and_then(|all| all.sequence(index)).map(<[u8]>::to_vec);
        let mut own = Meta { sequences: None, attention_mask: mask.map(AttentionMask::One), ..meta.clone() };
        if let Some(SequenceTokens { tokens, decode_tokens }) = meta.sequences.as_ref().and_then(|all| all.get(index)) {
            (own.tokens, own.decode_tokens) = (Some(tokens.clone()), decode_tokens.clone());
            return own;
        }
        // The ids of all sequences, concatenated.
        let length = lengths(whole, self.count).get(&0).copied().unwrap_or(0);
        if let Some(all) = meta.tokens.as_ref().filter(|all| length > 0 && all.len() == self.count * length) {
            own.tokens = Some(all[index * length..(index + 1) * length].to_vec());
        }
        own
    }
}

/// Every tensor of a dump whose shape is known, also those of which only some values are.
fn tensors_with_shapes(dump: &Dump) -> impl Iterator<Item = (Tap, u32, &[usize])> {
    let entries = dump.entries().iter().map(|entry| (entry.tap, entry.step, entry.shape.as_slice()));
    let alone = |part: &&Partial| !part.tap.is_open() && dump.find(part.tap, part.step).is_none();
    let parts = dump.parts().iter().filter(alone);
    entries.chain(parts.filter_map(|part| Some((part.tap, part.step, part.part.shape.as_deref()?))))
}

/// The number of sequences that the shapes show.
struct BatchVote {
    count: usize,
    /// Whether a tensor shows it that in no model has another axis before the positions.
    strongly: bool,
}

/// Counts the sequences by the shapes, if they show a batch.
fn count_by_shapes(dump: &Dump, one: SingleShape<'_>) -> Option<BatchVote> {
    #[derive(Default)]
    struct Votes {
        taps: usize,
        sure: bool,
        strongly: bool,
    }
    let tokens = dump.meta().tokens.as_ref().map(Vec::len);
    let mut votes: BTreeMap<usize, Votes> = BTreeMap::new();
    for (tap, step, shape) in tensors_with_shapes(dump) {
        let single = one(tap, step);
        if let Some(count) = batch_axis(tap.site, shape, single.as_deref(), tokens) {
            let votes = votes.entry(count).or_default();
            votes.taps += 1;
            votes.strongly |= !has_inner_axes(tap.site) && squeezed(shape, 0).len() > tap.site.axes().len();
            votes.sure |= votes.strongly || single.is_some();
        }
    }
    let (count, votes) = votes.into_iter().max_by_key(|(_, votes)| (votes.sure, votes.strongly, votes.taps))?;
    votes.sure.then_some(BatchVote { count, strongly: votes.strongly })
}

/// Whether most of the plain tensors have as many rows as there would be sequences: those are the positions of one sequence, and what has one axis more holds
/// several tensors a position.
fn are_rows(dump: &Dump, count: usize) -> bool {
    let is_plain = |(tap, ..): &(Tap, u32, &[usize])| tap.site.axes().len() == 2 && !has_inner_axes(tap.site);
    let (mut rows, mut all) = (0, 0);
    for (_, step, shape) in tensors_with_shapes(dump).filter(is_plain) {
        if step == 0
            && let [first, rest @ ..] = squeezed(shape, 2)
        {
            all += 1;
            rows += usize::from(rest.len() == 1 && *first == count);
        }
    }
    2 * rows > all
}

/// Whether a position may have more axes than in the vocabulary: split heads, or experts.
fn has_inner_axes(site: Site) -> bool {
    use Site::{Context, FfnAct, FfnGate, FfnOut, FfnUp, RouterLogits, RouterProbs};
    matches!(site, Context | FfnGate | FfnUp | FfnAct | FfnOut | RouterLogits | RouterProbs)
}

/// Whether an attention tap begins with the number of heads of a single sequence.
fn has_the_heads_of_one(dump: &Dump, tap: Tap, step: u32, one: SingleShape<'_>) -> bool {
    let heads = |shape: &[usize]| squeezed(shape, 3).first().copied();
    let own = dump.find(tap, step).and_then(|entry| heads(&entry.shape));
    tap.site.position_axis() == 1 && own.is_some() && own == one(tap, step).and_then(|one| heads(&one))
}

/// Whether the tap has an axis of heads for each position.
fn has_heads(site: Site) -> bool {
    matches!(site.axes(), ['T', 'H' | 'K', 'd'])
}

/// The extent of the batch axis, if the shape shows one. `one`: the shape of a single sequence; `tokens`: the number of tokens in the dump; both if known.
fn batch_axis(site: Site, shape: &[usize], one: Option<&[usize]>, tokens: Option<usize>) -> Option<usize> {
    let axes = site.axes().len();
    let shape = squeezed(shape, axes + 1);
    let (&first, rest) = shape.split_first()?;
    let one = one.map(|one| squeezed(one, axes));
    // No batch: positions first and as many elements as a single sequence, followed by grouped heads or an axis of length 1.
    let positions = [one.and_then(|one| one.first().copied()), tokens];
    let is_one = || rest.first() == Some(&1) || one.is_some_and(|one| element_count(one) == element_count(shape));
    if first < 2 || (positions.contains(&Some(first)) && is_one()) {
        return None;
    }
    // As many ids as the first axis is long: of so many sequences each would be one token long.
    if tokens == Some(first) && rest.first().is_some_and(|&next| next != 1 && next != first) {
        return None;
    }
    match one {
        // Sequences, positions and merged heads, where a single sequence has its heads split or merged.
        Some(one) if shape.len() == 3 && (has_heads(site) || has_inner_axes(site)) => {
            let width = one.iter().skip(1).product::<usize>();
            (rest[1] == width && rest[0] >= one[0] && element_count(one) != element_count(shape)).then_some(first)
        }
        _ => (shape.len() == axes + 1).then_some(first),
    }
}

/// The number of token positions of one sequence in each step, from the tensors that show it.
fn lengths(dump: &Dump, count: usize) -> BTreeMap<u32, usize> {
    let mut votes: BTreeMap<u32, BTreeMap<usize, usize>> = BTreeMap::new();
    for (tap, step, shape) in tensors_with_shapes(dump) {
        let axes = tap.site.axes().len();
        let shape = squeezed(shape, axes + 1);
        if axes == 2 && shape.len() == 3 && shape[0] == count && !has_inner_axes(tap.site) {
            *votes.entry(step).or_default().entry(shape[1]).or_default() += 1;
        }
    }
    let most =
        |votes: BTreeMap<usize, usize>| votes.into_iter().max_by_key(|(_, taps)| *taps).map(|(length, _)| length);
    let mut lengths: BTreeMap<u32, usize> =
        votes.into_iter().filter_map(|(step, votes)| Some((step, most(votes)?))).collect();
    // Otherwise the length of the longest prompt.
    if let Some(longest) = dump.meta().sequences.as_ref().and_then(|all| all.iter().map(|fed| fed.tokens.len()).max()) {
        lengths.entry(0).or_insert(longest);
    }
    lengths
}

/// Removes leading axes of length 1 beyond `axes`.
fn squeezed(shape: &[usize], axes: usize) -> &[usize] {
    let ones = shape.iter().take_while(|&&extent| extent == 1).count();
    &shape[ones.min(shape.len().saturating_sub(axes))..]
}

/// The shape of one of `count` sequences, if each is one contiguous part of the tensor, else nothing. `length`: the positions of the step; `one`: the shape
/// in a run of a single sequence; both if known.
fn shape_of_one(
    site: Site,
    shape: &[usize],
    count: usize,
    length: Option<usize>,
    one: Option<&[usize]>,
) -> Option<Vec<usize>> {
    let axes = site.axes().len();
    let shape = squeezed(shape, axes + 1);
    let (&first, rest) = shape.split_first()?;
    let part = || first.is_multiple_of(count).then(|| [&[first / count], rest].concat());
    if rest.is_empty() {
        return part();
    }
    let attention = site.position_axis() == 1;
    if first == count {
        let merged = has_heads(site) && rest.len() == 2;
        let split = has_inner_axes(site) && rest.len() == axes + 1;
        if rest.len() == axes || merged || split {
            return Some(rest.to_vec());
        }
        // One row for each sequence: all sequences concatenated along the positions, one position each.
        if axes == 2 && rest.len() == 1 {
            return Some([&[1], rest].concat());
        }
    }
    let heads = one.filter(|one| one.len() == 3).map(|one| one[0]);
    let length = length.or_else(|| one.filter(|_| !attention).and_then(|one| squeezed(one, axes).first().copied()));
    match shape.len() {
        // The heads of all sequences, concatenated.
        3 if attention => {
            heads.is_none_or(|heads| heads * count == first).then(part)?.filter(|_| first != count || heads == Some(1))
        }
        3 if has_heads(site) && Some(rest[0]) == length && length != Some(1) => part(),
        // The positions of all sequences, concatenated.
        _ => part().filter(|own| Some(own[0]) == length && shape.len() <= axes),
    }
}

fn split_entry(whole: &Arc<Dump>, entry: &Entry, shape: Vec<usize>, index: usize) -> Entry {
    let (dump, source, own) = (Arc::clone(whole), entry.clone(), shape.clone());
    let make = move || {
        let tensor = dump.read(&source)?;
        let length: usize = own.iter().product();
        let part = tensor.values().slice(index * length..(index + 1) * length);
        Tensor::held(own.clone(), part)
            .map_err(|_| not_a_dump(dump.path(), "a batch that is no multiple of its sequences"))
    };
    Entry::computed(entry.tap, entry.step, shape, entry.dtype, entry.rows.clone(), make)
}

/// The known values of one sequence, of a tap of which only some values are known.
fn split_part(whole: &Partial, shape: &[usize], index: usize) -> Option<Partial> {
    let length = element_count(shape)?;
    let range = index * length..(index + 1) * length;
    let own = whole.part.elements.iter().zip(whole.values.iter()).filter(|(at, _)| range.contains(at));
    let (elements, values): (Vec<usize>, Vec<f64>) = own.map(|(at, value)| (at - range.start, *value)).unzip();
    let part = KnownElements { elements, shape: Some(shape.to_vec()), sum: None };
    (!values.is_empty()).then(|| Partial { values: values.into(), part, ..whole.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_one_sequence() {
        let single = |site, shape: &[usize], length| shape_of_one(site, shape, 2, length, None);
        for (site, shape, due) in [
            (Site::H, &[2, 5, 64][..], Some(&[5, 64][..])),
            (Site::H, &[640], Some(&[320])),
            (Site::H, &[10, 64], Some(&[5, 64])),
            (Site::H, &[1, 2, 5, 64], Some(&[5, 64])),
            (Site::Logits, &[2, 151], Some(&[1, 151])),
            (Site::H, &[5, 64], None),
            (Site::H, &[12, 64], None),
            (Site::Q, &[2, 5, 6, 16], Some(&[5, 6, 16])),
            (Site::Q, &[2, 5, 96], Some(&[5, 96])),
            (Site::Q, &[10, 6, 16], Some(&[5, 6, 16])),
            (Site::Q, &[12, 5, 16], Some(&[6, 5, 16])),
            (Site::Q, &[10, 96], Some(&[5, 96])),
            (Site::Q, &[7, 6, 16], None),
            (Site::Probs, &[2, 6, 5, 5], Some(&[6, 5, 5])),
            (Site::Probs, &[12, 5, 5], Some(&[6, 5, 5])),
            (Site::Probs, &[2, 5, 5], None),
            (Site::Context, &[2, 5, 6, 16], Some(&[5, 6, 16])),
            (Site::Context, &[2, 5, 96], Some(&[5, 96])),
        ] {
            assert_eq!(single(site, shape, Some(5)).as_deref(), due, "{site:?} {shape:?}");
        }
        assert_eq!(single(Site::H, &[10, 64], None), None, "of how many positions nobody knows");
        assert_eq!(shape_of_one(Site::Probs, &[6, 5, 5], 2, Some(5), Some(&[6, 5, 5])), None, "all heads of one");
    }

    #[test]
    fn the_batch_axis() {
        for (site, shape, one, due) in [
            (Site::Logits, &[2, 5, 151][..], None, Some(2)),
            (Site::H, &[2, 5, 64], Some(&[5, 64][..]), Some(2)),
            (Site::H, &[5, 1, 64], Some(&[5, 64]), None),
            (Site::FfnUp, &[4, 5, 80], Some(&[5, 40]), None),
            (Site::H, &[5, 64], None, None),
            (Site::Q, &[2, 5, 96], None, None),
            (Site::Q, &[2, 5, 96], Some(&[5, 6, 16]), Some(2)),
            (Site::Q, &[2, 7, 96], Some(&[5, 6, 16]), Some(2)),
            (Site::Q, &[6, 5, 16], Some(&[5, 6, 16]), None),
            (Site::Q, &[2, 6, 5, 16], None, Some(2)),
            (Site::Context, &[5, 6, 16], Some(&[5, 96]), None),
            (Site::Context, &[2, 5, 96], Some(&[5, 96]), Some(2)),
        ] {
            assert_eq!(batch_axis(site, shape, one, None), due, "{site:?} {shape:?} {one:?}");
        }
        let multi_query = |tokens| batch_axis(Site::K, &[12, 1, 8], Some(&[1, 1, 8]), tokens);
        assert_eq!(
            (multi_query(Some(12)), multi_query(None)),
            (None, Some(12)),
            "as many positions as tokens are named"
        );
    }
}
