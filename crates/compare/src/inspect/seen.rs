//! Gives the checks one tensor of a dump row by row, with the token position of each row.

use std::collections::BTreeMap;

use firstdiff_trace::{DType, Dump, Entry, NamedRows, Rows, Site, Tap, Values, to_bf16, to_f16};

use super::finding::Certainty;
use super::{place_of, position_count};
use crate::graph::Place;

/// A dump, and how many token positions each of its steps has.
pub(super) struct InspectedDump<'a> {
    pub(super) dump: &'a Dump,
    rows: Option<&'a Rows>,
    counts: BTreeMap<u32, usize>,
    /// The position at which each step begins, for steps before which every step is known.
    starts: Vec<usize>,
    /// Whether values are rounded to 16 bits somewhere.
    pub(super) coarse: bool,
    plain: bool,
}

/// Architectures that are plain decoders: RoPE in every layer, causal softmax attention, pre-norm blocks one after the other, sums without factors. No right
/// engine of these breaks the rules of plain decoders; another architecture may do so on purpose: layers without RoPE, bidirectional, sigmoid or differential
/// attention, parallel blocks that share a norm, scaled branches, one matrix for queries and keys.
const PLAIN: [&str; 5] = ["llama", "mistral", "qwen2", "qwen3", "minimind"];

impl<'a> InspectedDump<'a> {
    pub(super) fn new(dump: &'a Dump, rows: Option<&'a Rows>) -> InspectedDump<'a> {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        let mut after_a_prefill = false;
        for entries in dump.entries().chunk_by(|one, other| one.step == other.step) {
            let (step, usual) = (entries[0].step, most_common_positions(entries));
            after_a_prefill |= step == 0 && usual.is_some();
            if let Some(count) = usual.or_else(|| flat(dump, entries, after_a_prefill)) {
                counts.insert(step, count);
            }
        }
        if let Some(tokens) = &dump.meta().tokens {
            counts.insert(0, tokens.len());
        }
        let mut starts = vec![0usize];
        while let Some(end) = counts.get(&(starts.len() as u32 - 1)).and_then(|n| starts.last()?.checked_add(*n)) {
            starts.push(end);
        }
        let precision = dump.meta().precision.as_deref();
        let coarse = matches!(precision, Some("f16" | "bf16" | "ggml"))
            || dump.entries().iter().any(|e| matches!(e.dtype, DType::F16 | DType::BF16))
            || of_sixteen_bits(dump);
        let meta = dump.meta();
        let named = meta.architecture.as_deref().or(meta.model.as_deref());
        let plain = named.is_some_and(|name| PLAIN.contains(&name));
        InspectedDump { dump, rows, counts, starts, coarse, plain }
    }

    /// How sure a finding is that breaks a rule of plain decoders: certain where dump.json names such an architecture, as any other may do it on purpose.
    pub(super) fn law(&self) -> Certainty {
        if self.plain { Certainty::Certain } else { Certainty::Likely }
    }

    /// The same for attention to later keys. Embedding models are plain decoders otherwise, but have no head and never decode; a dump that does not show a
    /// decoder may be an encoder's.
    pub(super) fn causal_law(&self) -> Certainty {
        let generates = |e: &Entry| e.tap.site == Site::Logits || e.step > 0;
        match self.dump.entries().iter().any(generates) {
            true => self.law(),
            false if self.plain => Certainty::Likely,
            false => Certainty::Note,
        }
    }

    pub(super) fn find(&self, site: Site, place: Place) -> Option<&'a Entry> {
        self.dump.find(Tap { layer: place.tap.layer, site }, place.step)
    }

    /// Token positions of a step.
    pub(super) fn count(&self, step: u32) -> Option<usize> {
        self.counts.get(&step).copied()
    }

    /// The token position at which a step begins, where every step before it is known.
    pub(super) fn start(&self, step: u32) -> Option<usize> {
        self.starts.get(step as usize).copied()
    }

    /// The ids of a step's tokens, where the dump says.
    pub(super) fn tokens(&self, step: u32) -> Option<&'a [i64]> {
        let meta = self.dump.meta();
        match step {
            0 => meta.tokens.as_deref(),
            n => meta.decode_tokens.as_deref()?.get(n as usize - 1..n as usize),
        }
    }

    /// Whether the columns of an entry are the keys of all positions up to its last query.
    pub(super) fn keys_are_positions(&self, entry: &Entry) -> bool {
        let positions = position_count(entry).and_then(|held| self.positions(entry, held));
        entry.shape.last().is_some_and(|&keys| ends_at(positions.as_deref(), keys))
    }

    /// The token positions of an entry's rows, where they are known.
    pub(super) fn positions(&self, entry: &Entry, row_count: usize) -> Option<Vec<usize>> {
        let (start, count) = (self.start(entry.step)?, self.count(entry.step)?);
        let rows = entry.rows.as_ref().or(self.rows.filter(|_| row_count != count));
        let within = match rows {
            None | Some(Rows::Named(NamedRows::All)) => (0..count).collect(),
            // In a prompt of unknown length, the last position is unknown.
            Some(Rows::Named(NamedRows::Last)) => vec![count.checked_sub(1)?],
            Some(Rows::List(list)) => list.clone(),
        };
        (within.len() == row_count).then(|| within.into_iter().map(|p| start + p).collect())
    }
}

/// Whether wider types hold only values of a 16-bit type, in taps where an f32 engine would not.
fn of_sixteen_bits(dump: &Dump) -> bool {
    const ENOUGH: usize = 3;
    let computed = dump.entries().iter().filter(|e| e.tap.site != Site::H0 && e.tap.site.position_axis() == 0);
    let some: Vec<Vec<f64>> =
        computed.take(ENOUGH).filter_map(|e| Some(dump.read(e).ok()?.values().to_f64())).collect();
    !some.is_empty() && sixteen_bits(|| some.iter().flatten().copied())
}

/// Whether all values are values of one 16-bit type.
pub(super) fn sixteen_bits<I: Iterator<Item = f64>>(values: impl Fn() -> I) -> bool {
    let all = |is: fn(f64) -> bool| values().filter(|x| x.is_finite() && *x != 0.0).all(is);
    all(|x| to_bf16(x).to_f64() == x) || all(|x| to_f16(x).to_f64() == x)
}

/// The number of positions that most taps of a step have.
fn most_common_positions(entries: &[Entry]) -> Option<usize> {
    let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
    let in_shape = |e: &&Entry| e.shape.len() >= e.tap.site.axes().len();
    for held in entries.iter().filter(in_shape).filter_map(position_count) {
        *votes.entry(held).or_default() += 1;
    }
    votes.into_iter().max_by_key(|(held, votes)| (*votes, *held)).map(|(held, _)| held)
}

/// One position, where flat tensors have the same size in two steps, or follow a prefill of known shape; else the number of positions of a flat tensor is
/// unknown.
fn flat(dump: &Dump, entries: &[Entry], after_a_prefill: bool) -> Option<usize> {
    let step = entries.first()?.step;
    let flat = entries.iter().filter(|e| e.shape.len() == 1 && e.tap.site.position_axis() == 0);
    let mut pairs = flat.filter_map(|e| Some((e, dump.find(e.tap, u32::from(step == 0))?))).peekable();
    let have_equal_shapes = pairs.peek().is_some() && pairs.all(|(one, other)| one.shape == other.shape);
    (have_equal_shapes || (step > 0 && after_a_prefill)).then_some(1)
}

/// A shape without leading axes of length 1 that the vocabulary does not have; a single row gets back its missing axis.
pub(super) fn squeezed(entry: &Entry) -> Vec<usize> {
    let axes = entry.tap.site.axes().len();
    let mut shape = entry.shape.clone();
    while shape.len() > axes && shape[0] == 1 {
        shape.remove(0);
    }
    if axes == 2 && shape.len() == 1 {
        shape.insert(0, 1);
    }
    shape
}

/// Whether the last position is the last key.
fn ends_at(positions: Option<&[usize]>, keys: usize) -> bool {
    positions.and_then(|p| p.last()).is_some_and(|&last| last + 1 == keys)
}

/// A tensor as rows of its last axis (of heads and their channels, for queries, keys and values).
pub(super) struct TensorRows<'a> {
    pub(super) place: Place,
    pub(super) rows: usize,
    pub(super) width: usize,
    /// The number of heads, where the shape has such an axis.
    pub(super) heads: Option<usize>,
    /// The token position of every row along the axis of positions.
    pub(super) positions: Option<Vec<usize>>,
    pub(super) shape: Vec<usize>,
    pub(super) values: &'a Values<'a>,
}

impl<'a> TensorRows<'a> {
    pub(super) fn new(run: &InspectedDump<'_>, entry: &Entry, values: &'a Values<'a>) -> TensorRows<'a> {
        let (shape, site) = (squeezed(entry), entry.tap.site);
        let fits = shape.len() == site.axes().len();
        let merged = site.axes().len() == 3 && site.position_axis() == 0 && shape.len() == 2;
        let held = if fits || merged { shape.get(site.position_axis()).copied() } else { None };
        let positions = held.and_then(|held| run.positions(entry, held));
        let all: usize = shape.iter().product();
        let rows = match (site.position_axis(), held) {
            (0, Some(held)) => held,
            (_, Some(held)) => shape[0] * held,
            (_, None) => all / shape.last().copied().unwrap_or(1).max(1),
        };
        let heads = (fits && shape.len() == 3).then(|| shape[1 - site.position_axis()]);
        TensorRows {
            place: place_of(entry),
            rows,
            width: all.checked_div(rows).unwrap_or(0),
            heads,
            positions,
            shape,
            values,
        }
    }

    pub(super) fn site(&self) -> Site {
        self.place.tap.site
    }

    /// Whether the rows run over keys: qk, scores, probs.
    pub(super) fn over_keys(&self) -> bool {
        self.site().position_axis() == 1
    }

    /// The token position of a row.
    pub(super) fn position(&self, row: usize) -> Option<usize> {
        let positions = self.positions.as_ref().filter(|p| !p.is_empty())?;
        positions.get(row % positions.len()).copied()
    }

    /// The row's values, as f64.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = f64> + use<'_, 'a> {
        (row * self.width..(row + 1) * self.width).map(|i| self.values.get(i))
    }

    /// `head 2, position 4, channel 1`.
    pub(super) fn index_in_words(&self, mut index: usize) -> String {
        let mut at = vec![0; self.shape.len()];
        for (place, &extent) in at.iter_mut().zip(&self.shape).rev() {
            *place = index % extent.max(1);
            index /= extent.max(1);
        }
        crate::words::index_in_words(self.site(), &at)
    }

    /// Whether the columns are the keys from the first position on, none cut and none padded.
    pub(super) fn keys_are_positions(&self) -> bool {
        self.heads.is_some() && ends_at(self.positions.as_deref(), self.width)
    }
}
