//! Aligns by token position two runs that took the tokens in different chunks. Cuts both at the step boundaries of either, or cuts and joins the candidate's
//! steps into the reference's.
//!
//! A cell is a range of positions between two adjacent boundaries: it lies within one step of each side, or is one step of the reference. Each cell becomes
//! one step of two new dumps, which are compared like any two. Keys grow with the steps: the raw products (qk) of a cell are cut to the keys up to its end.
//! Scores and probs are not cut, because the part cut off may hold the error: a one-pass run without a causal mask differs from a token-by-token run only
//! there. The side with fewer keys gets masked keys of probability 0 instead.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use firstdiff_trace::{
    Dump, DumpError, Entry, KnownElements, Meta, NamedRows, Partial, Rows, Site, Tap, TapMeta, Tensor,
    split_stored_name,
};

use crate::align::extents::slowest_first;
use crate::align::open::OpenTapAxes;
use crate::graph::Place;
use crate::run::embeddings;
use crate::run::infer_steps::{chunks, one_a_token_by};
use crate::run::positions::{with_merged_heads, with_positions};
use crate::run::slice::{AxisOrder, Cut, CutError, custom, cut, heads, keys, listed};
use crate::run::steps::Chunks;
use crate::run::tokens::{TokenEdits, token_edits};

/// Two runs aligned by token position.
#[derive(Debug)]
pub struct ChunkAlignment {
    /// The positions of each cell; a [`Place`]'s step is the number of its cell.
    pub cells: Vec<Range<usize>>,
    /// The chunks in which the reference took the tokens.
    pub reference: Chunks,
    /// The chunks in which the candidate took them.
    pub candidate: Chunks,
    /// The two dumps, uncut.
    pub runs: [Arc<Dump>; 2],
    /// From which position on the two were fed different tokens.
    pub tokens_differ_at: Option<usize>,
    /// What cannot be compared, and why.
    pub(crate) unchecked: BTreeMap<Place, Unaligned>,
}

/// Two dumps whose steps hold the same token positions, as far as they could be aligned.
#[derive(Debug)]
pub struct Aligned {
    /// The reference, or its cells.
    pub reference: Dump,
    /// The candidate, or its cells.
    pub candidate: Dump,
    /// How they were aligned, where their steps held different positions.
    pub alignment: Option<Arc<ChunkAlignment>>,
}

/// In which cells two runs with different chunks are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellsOf {
    /// Each cell lies within one step of both runs.
    Both,
    /// Each cell is a step of the reference.
    Reference,
}

/// Aligns two dumps by token position where their steps hold different positions; otherwise returns them unchanged. `rows` are the positions to compare,
/// within each of the candidate's steps.
///
/// # Errors
/// When a tap would occur twice.
pub fn align(cell_kind: CellsOf, reference: Dump, candidate: Dump, rows: Option<&Rows>) -> Result<Aligned, DumpError> {
    let candidate = with_merged_heads(candidate, &reference);
    let reference = with_positions(with_merged_heads(reference, &candidate));
    let candidate = with_positions(one_a_token_by(&reference, candidate));
    let edits = token_edits(&reference, &candidate)?.filter(|edits| edits.is_proved);
    let Some((ours, theirs, tokens_differ_at)) = other_chunks(&reference, &candidate, edits.as_ref())? else {
        return Ok(Aligned { reference, candidate, alignment: None });
    };
    let candidate = slowest_first(&reference, &ours, candidate, &theirs)?;
    let runs = [Arc::new(reference), Arc::new(candidate)];
    let cells = match cell_kind {
        CellsOf::Reference => ours.ranges(),
        CellsOf::Both => {
            let steps = [&ours, &theirs].into_iter().flat_map(Chunks::ranges);
            let ends: BTreeSet<usize> =
                steps.map(|step| step.end).chain(tokens_differ_at).filter(|&end| end > 0).collect();
            std::iter::once(0).chain(ends.iter().copied()).zip(&ends).map(|(start, &end)| start..end).collect()
        }
    };
    let wanted = rows.filter(|rows| !rows.is_all());
    let mut unchecked = BTreeMap::new();
    let [left, right] = {
        let sides = [ChunkedRun::new(&runs[0], &ours), ChunkedRun::new(&runs[1], &theirs)];
        let open = OpenTapAxes::find(runs.each_ref().map(|run| &**run), [&ours, &theirs]);
        let [ours, theirs] = &sides;
        let left = ours.cells(&cells, theirs, (&open, 0), None, &mut unchecked)?;
        [left, theirs.cells(&cells, ours, (&open, 1), wanted, &mut unchecked)?]
    };
    let alignment = ChunkAlignment { cells, reference: ours, candidate: theirs, runs, tokens_differ_at, unchecked };
    let at = alignment.tokens_differ_at.unwrap_or(usize::MAX);
    let places = [&left, &right].into_iter().flat_map(|dump| {
        let entries = dump.entries().iter().map(|e| Place { step: e.step, tap: e.tap });
        let open = dump.unmapped().iter().map(|name| split_stored_name(name));
        let open = open.map(|(name, step)| Place { step, tap: Tap::named(name) });
        entries.chain(open).chain(dump.parts().iter().map(|p| Place { step: p.step, tap: p.tap }))
    });
    // h0 of every prompt position that both have is compared even beyond `at`: it is where the tokens first differ.
    let prompts = edits.map_or(0, |edits| edits.counts[0].min(edits.counts[1]));
    let h0 = Tap { layer: None, site: Site::H0 };
    let is_beyond = |cell: &Range<usize>, tap: Tap| cell.start >= at && (tap != h0 || cell.end > prompts);
    let beyond = places.filter(|place| is_beyond(&alignment.cells[place.step as usize], place.tap));
    let beyond = beyond.filter_map(|place| Some((place, Unaligned::Parted(alignment.parting()?))));
    let unchecked = alignment.unchecked.clone().into_iter().chain(beyond).collect();
    let alignment = ChunkAlignment { unchecked, ..alignment };
    Ok(Aligned { reference: left, candidate: right, alignment: Some(Arc::new(alignment)) })
}

/// The chunks of both runs, and the position from which they were fed different tokens (which `edits` may give). `None` where the chunks are unknown, or are
/// the same as far as both runs go and no token differs.
type OtherChunks = Option<(Chunks, Chunks, Option<usize>)>;
fn other_chunks(reference: &Dump, candidate: &Dump, edits: Option<&TokenEdits>) -> Result<OtherChunks, DumpError> {
    let Some(ours) = Chunks::find(reference) else { return Ok(None) };
    let Some(theirs) = chunks(candidate, reference, &ours) else { return Ok(None) };
    let ids_known = ours.ids.is_some() && theirs.ids.is_some();
    let moved = edits.filter(|edits| edits.counts[0] != edits.counts[1]).and_then(|edits| edits.edits.first());
    let parted = match ids_known {
        true => parted(&ours, &theirs),
        false if let Some((_, at, _)) = moved => Some(at[0].min(at[1])),
        false => embeddings::parted((reference, &ours), (candidate, &theirs))?,
    };
    let same = ours.lengths.iter().zip(&theirs.lengths).all(|(ours, theirs)| ours == theirs);
    if same && parted.is_none() {
        return Ok(None);
    }
    // The run with fewer positions may hold the first, the last, or the last of each step. It holds the first if the ids say so, if its queries see no other
    // keys, or if it has more steps than the other run.
    let (shorter, longer, dump) = match ours.total() < theirs.total() {
        true => (&ours, &theirs, reference),
        false => (&theirs, &ours, candidate),
    };
    let one_by_one = shorter.lengths.len() > longer.lengths.len() && shorter.lengths.iter().all(|&length| length == 1);
    let begins = ours.total() == theirs.total() || one_by_one || attends_only_to_first_step(dump, shorter.lengths[0]);
    Ok((ids_known || begins || same || moved.is_some()).then_some((ours, theirs, parted)))
}

/// Whether attention of the first step, which has this many positions, sees no more keys than these.
fn attends_only_to_first_step(dump: &Dump, positions: usize) -> bool {
    dump.entries().iter().any(|entry| entry.step == 0 && keys(entry) == Some(positions))
}

/// The first position at which the two were fed different tokens, as far as both record ids.
fn parted(ours: &Chunks, theirs: &Chunks) -> Option<usize> {
    let (ours, theirs) = (ours.ids.as_ref()?, theirs.ids.as_ref()?);
    ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs)
}

impl ChunkAlignment {
    /// Why nothing is reported for the positions from [`ChunkAlignment::tokens_differ_at`] on.
    pub(crate) fn parting(&self) -> Option<TokenDivergence> {
        let at = self.tokens_differ_at?;
        let ids_known = self.reference.ids.is_some() && self.candidate.ids.is_some();
        Some(match ids_known {
            true => TokenDivergence::Ids { at },
            false if at == 0 => TokenDivergence::Moved,
            false => TokenDivergence::Embeddings { at },
        })
    }

    /// How many token positions both runs have.
    pub fn common_positions(&self) -> usize {
        let both = self.reference.total().min(self.candidate.total());
        self.tokens_differ_at.map_or(both, |at| at.min(both))
    }

    /// The run by whose prefill and decode steps the report names positions: the candidate where it has both, else the reference.
    pub fn phased(&self) -> Option<&Chunks> {
        [&self.candidate, &self.reference].into_iter().find(|chunks| chunks.has_prefill())
    }

    /// Whether a cell is in the prefill of that run; `None` where no run has both.
    pub fn is_prefill(&self, cell: u32) -> Option<bool> {
        let start = self.cells.get(cell as usize).map_or(0, |cell| cell.start);
        self.phased().map(|run| run.step_of(start) == Some(0))
    }

    /// The cells that a step of the reference (0) or the candidate (1) is in.
    pub(crate) fn cells_of(&self, side: usize, step: u32) -> impl Iterator<Item = u32> {
        let range = [&self.reference, &self.candidate][side].ranges().get(step as usize).cloned().unwrap_or(0..0);
        let is_in = move |cell: &Range<usize>| range.start < cell.end && cell.start < range.end;
        (0u32..).zip(&self.cells).filter(move |(_, cell)| is_in(cell)).map(|(number, _)| number)
    }

    /// `position 11`, `positions 0-10`.
    pub fn positions(&self, cells: Range<u32>) -> String {
        let end = |cell: u32| self.cells.get(cell as usize);
        let (Some(first), Some(last)) = (end(cells.start), end(cells.end.saturating_sub(1))) else {
            return String::new();
        };
        match last.end - first.start {
            1 => format!("position {}", first.start),
            _ => format!("positions {}-{}", first.start, last.end - 1),
        }
    }

    /// The part of a run that some cells are: `prefill`, `decode step 2`. Empty where neither run has both a prefill and decode steps.
    pub fn phase(&self, cells: Range<u32>) -> Option<String> {
        let run = self.phased()?;
        let step = |cell: u32| run.step_of(self.cells.get(cell as usize)?.start);
        let whose = if run == &self.candidate { "" } else { "the reference's " };
        Some(match (step(cells.start)?, step(cells.end.checked_sub(1)?)?) {
            (0, 0) => format!("{whose}prefill"),
            (first, last) if first == last => format!("{whose}decode step {first}"),
            (first, last) => format!("{whose}decode steps {first}-{last}"),
        })
    }

    /// `position 12 (decode step 2)`.
    pub fn label(&self, cells: Range<u32>) -> String {
        let phase = self.phase(cells.clone()).map_or(String::new(), |phase| format!(" ({phase})"));
        self.positions(cells) + &phase
    }
}

/// The name of a place: its tap, and where in the run it is.
pub(crate) fn name_of(alignment: Option<&ChunkAlignment>, place: Place) -> String {
    match alignment {
        Some(alignment) => format!("{} at {}", place.tap, alignment.label(place.step..place.step.saturating_add(1))),
        None => place.to_string(),
    }
}

/// Cuts some positions out of a tensor of a step.
type Cutter<'a> = dyn Fn(&Entry, &Range<usize>, &Range<usize>) -> Result<Option<Cut>, CutError> + 'a;

/// The pieces of a cell's tensor.
struct Pieces {
    shape: Vec<usize>,
    rows: Option<Rows>,
    /// The axis along which they are joined.
    axis: usize,
    /// The step of each piece, and what is cut from it.
    cuts: Vec<(u32, Cut)>,
}

/// One of the two runs.
struct ChunkedRun<'a> {
    dump: &'a Arc<Dump>,
    ranges: Vec<Range<usize>>,
    chunks: &'a Chunks,
    custom: AxisOrder,
    read: Arc<Reader>,
}

impl<'a> ChunkedRun<'a> {
    fn new(dump: &'a Arc<Dump>, chunks: &'a Chunks) -> ChunkedRun<'a> {
        let custom = custom(dump.entries(), |step| chunks.lengths.get(step as usize).copied());
        let read = Arc::new(Reader { dump: Arc::clone(dump), kept_cells: Mutex::default() });
        ChunkedRun { dump, ranges: chunks.ranges(), chunks, custom, read }
    }

    /// The steps that a cell lies in, and their positions.
    fn steps(&self, cell: &Range<usize>) -> impl Iterator<Item = (u32, &Range<usize>)> {
        let from = self.ranges.partition_point(|range| range.end <= cell.start);
        let end = cell.end;
        (0u32..).zip(&self.ranges).skip(from).take_while(move |(_, range)| range.start < end)
    }

    fn entries(&self, step: u32) -> &'a [Entry] {
        let all = self.dump.entries();
        let from = all.partition_point(|e| e.step < step);
        &all[from..from + all[from..].partition_point(|e| e.step == step)]
    }

    /// How many keys a tap must have in a cell, where either side has an axis of keys.
    fn width(&self, other: &ChunkedRun<'_>, cell: &Range<usize>, entry: &Entry) -> Option<usize> {
        let of_side = |side: &'_ ChunkedRun<'_>, like: &dyn Fn(&Entry) -> bool| {
            let here = side.steps(cell).filter_map(|(step, _)| side.dump.find(entry.tap, step));
            here.filter(|entry| like(entry)).filter_map(keys).max()
        };
        if entry.tap.site == Site::Qk {
            return keys(entry).or_else(|| of_side(other, &|_| true)).map(|_| cell.end);
        }
        let has_equal_heads = |other: &Entry| heads(other) == heads(entry);
        Some(of_side(self, &has_equal_heads)?.max(of_side(other, &has_equal_heads)?))
    }

    /// The dump of the cells. Open taps that cannot be cut stay whole, and are not compared.
    fn cells(
        &self,
        cells: &[Range<usize>],
        other: &ChunkedRun<'_>,
        (open, side): (&OpenTapAxes, usize),
        requested: Option<&Rows>,
        unchecked: &mut BTreeMap<Place, Unaligned>,
    ) -> Result<Dump, DumpError> {
        let (mut made, mut made_open, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (number, cell) in (0u32..).zip(cells) {
            let steps: Vec<_> = self.steps(cell).collect();
            let Some(&(at, step)) = steps.first() else { continue };
            // A tensor known in part is not cut, but may be all of a cell; one that was printed whole is cut like any tensor.
            for part in self.dump.parts().iter().filter(|part| part.step == at && steps.len() == 1) {
                let mut here = part.clone();
                here.step = number;
                if step != cell || requested.is_some() {
                    let Some(whole) = part.whole().filter(|_| self.dump.find(part.tap, at).is_none()) else { continue };
                    let width = self.width(other, cell, &whole);
                    match cut(&whole, step, cell, width, requested, self.custom) {
                        Ok(Some(cut)) => keep_cell_of_part(&mut here, &cut, self.dump.read(&whole)?),
                        Ok(None) => continue,
                        Err(error) => {
                            unchecked.entry(Place { step: number, tap: part.tap }).or_insert(Unaligned::NotCut(error));
                        }
                    }
                }
                parts.push(here);
            }
            // To join a tensor with others, its axis of tokens must be known.
            let wanted = requested.or((steps.len() > 1).then_some(&Rows::Named(NamedRows::All)));
            let cut = |entry: &Entry, step: &Range<usize>, part: &Range<usize>| {
                if entry.tap.is_open() {
                    let wanted = wanted.map(|rows| listed(rows, step.len()));
                    return open.cut(side, entry, step, part, wanted.as_deref());
                }
                cut(entry, step, part, self.width(other, cell, entry), wanted, self.custom)
            };
            let all = steps.iter().flat_map(|&(at, _)| self.entries(at).iter().chain(open.entries_of_step(side, at)));
            let mut met = HashSet::new();
            for entry in all.filter(|entry| met.insert(entry.tap)) {
                let tensors = if entry.tap.is_open() { &mut made_open } else { &mut made };
                tensors.extend(self.cell_tensor(entry, (number, cell), &cut, unchecked));
            }
        }
        let mut dump = Dump::assembled(self.dump.path(), self.meta(cells), made)?.with_parts(parts);
        dump.set_open_tensors(made_open, &[]);
        Ok(dump)
    }

    /// A cell's tensor: all or part of one step's tensor, or joined from several; whole and unchecked where it cannot be cut. `None` where the step holds
    /// nothing of the cell.
    fn cell_tensor(
        &self,
        entry: &Entry,
        (number, cell): (u32, &Range<usize>),
        cut: &Cutter<'_>,
        unchecked: &mut BTreeMap<Place, Unaligned>,
    ) -> Option<Entry> {
        let (read, tap, step) = (Arc::clone(&self.read), entry.tap, entry.step);
        let Pieces { shape, rows, axis, cuts } = match self.pieces(tap, cell, cut) {
            Ok(pieces) => pieces?,
            Err(error) => {
                unchecked.entry(Place { step: number, tap }).or_insert(Unaligned::NotCut(error));
                let whole = move || read.tensor(tap, step);
                return Some(Entry::computed(tap, number, entry.shape.clone(), entry.dtype, entry.rows.clone(), whole));
            }
        };
        Some(Entry::computed(tap, number, shape, entry.dtype, rows, move || {
            let read_part =
                |(step, cut): &(u32, Cut)| cut.apply(read.tensor(tap, *step)?).ok_or_else(|| read.changed());
            let parts = cuts.iter().map(read_part).collect::<Result<Vec<_>, _>>()?;
            Tensor::concatenated(parts, axis).ok_or_else(|| read.changed())
        }))
    }

    /// What a cell holds of a tap; `None` for nothing.
    fn pieces(&self, tap: Tap, cell: &Range<usize>, cut: &Cutter<'_>) -> Result<Option<Pieces>, CutError> {
        let (mut cuts, mut held, mut end): (Vec<(u32, Cut)>, Vec<usize>, usize) = (Vec::new(), Vec::new(), 0);
        for (at, step) in self.steps(cell) {
            let part = step.start.max(cell.start)..step.end.min(cell.end);
            end = part.end;
            let Some(entry) = self.dump.entry(tap, at) else { continue };
            let Some(cut) = cut(&entry, step, &part)? else { continue };
            let rows = cut.rows.as_ref().map_or_else(|| (0..part.len()).collect(), |rows| listed(rows, part.len()));
            held.extend(rows.into_iter().map(|row| row + part.start - cell.start));
            cuts.push((at, cut));
        }
        if end < cell.end {
            return Err(CutError::Short { held: end - cell.start, due: cell.len() });
        }
        // With one token, several axes may be the axis of tokens.
        let Some((_, most)) = cuts.iter().max_by_key(|(_, cut)| cut.picks.len()) else { return Ok(None) };
        let (axis, mut shape, mut rows) = (most.axis, most.shape.clone(), most.rows.clone());
        if cuts.len() > 1 {
            shape[axis] = held.len();
            rows = (held.len() < cell.len()).then_some(Rows::List(held));
        }
        for (_, cut) in cuts.iter().filter(|_| cuts.len() > 1) {
            let mut like = shape.clone();
            like[axis] = cut.picks.len();
            // Each step's raw products have only that step's keys: joined, they would lack keys of the cell.
            if cut.shape != like && tap.site == Site::Qk {
                return Ok(None);
            }
            if cut.shape != like || (cut.axis != axis && cut.picks.len() > 1) {
                return Err(CutError::Apart { one: most.shape.clone(), other: cut.shape.clone() });
            }
        }
        Ok(Some(Pieces { shape, rows, axis, cuts }))
    }

    /// The run's own metadata, with its tokens divided among the cells.
    fn meta(&self, cells: &[Range<usize>]) -> Meta {
        let first = cells.first().map_or(0, |cell| cell.end);
        let own = self.dump.meta();
        Meta {
            tokens: self.chunks.ids_of(0..first),
            decode_tokens: self.chunks.ids_of(first..self.chunks.total()),
            rows: None,
            // Only the order of recording, and that these names are taps.
            taps: own.taps.as_ref().map(|taps| {
                let mut met = HashSet::new();
                taps.iter().filter(|entry| met.insert(&entry.tap)).map(|entry| tap_without_tensor(&entry.tap)).collect()
            }),
            ..own.clone()
        }
    }
}

/// States only that a tap of this name exists.
fn tap_without_tensor(tap: &str) -> TapMeta {
    TapMeta { tap: tap.to_owned(), step: 0, file: None, shape: None, dtype: None, rows: None, dims: None }
}

/// Keeps the part of a cell of a tensor that was printed whole; `tensor` holds its values.
fn keep_cell_of_part(part: &mut Partial, cut: &Cut, tensor: Tensor) {
    let Some(of_cell) = cut.apply(tensor) else { return };
    part.values = of_cell.values().to_f64().into();
    part.part = KnownElements { elements: (0..part.values.len()).collect(), shape: Some(cut.shape.clone()), sum: None };
    part.rows = cut.rows.clone();
}

/// Reads a dump's tensors and caches some: without that, a step of many positions would be read once for each of its cells.
struct Reader {
    dump: Arc<Dump>,
    kept_cells: Mutex<KeptCells>,
}

/// Tensors that are kept, and their bytes.
type KeptCells = (usize, HashMap<(Tap, u32), Tensor>);

/// The most bytes of tensors that are kept.
const CACHED_BYTES: usize = 256 << 20;

impl Reader {
    fn tensor(&self, tap: Tap, step: u32) -> Result<Tensor, DumpError> {
        let mut cached = self.kept_cells.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = cached.1.get(&(tap, step)) {
            return Ok(tensor.clone());
        }
        let entry = self.dump.entry(tap, step).ok_or_else(|| self.changed())?;
        let tensor = self.dump.read(&entry)?;
        let size = tensor.shape().iter().product::<usize>() * tensor.dtype().size();
        if cached.0 + size > CACHED_BYTES {
            *cached = (0, HashMap::new());
        }
        if size <= CACHED_BYTES {
            cached.0 += size;
            cached.1.insert((tap, step), tensor.clone());
        }
        Ok(tensor)
    }

    fn changed(&self) -> DumpError {
        DumpError::Meta { path: self.dump.path().into(), reason: "it changed while it was read".into() }
    }
}

/// Why a place of two runs that took the tokens in other chunks cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unaligned {
    /// The positions of one side's step could not be cut out of its tensor.
    NotCut(CutError),
    /// The two runs were fed different tokens from a position on.
    Parted(TokenDivergence),
}

impl fmt::Display for Unaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unaligned::NotCut(error) => error.fmt(f),
            Unaligned::Parted(parting) => parting.fmt(f),
        }
    }
}

/// From where on two runs were fed different tokens, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenDivergence {
    /// By the token ids that both record.
    Ids {
        /// The first position.
        at: usize,
    },
    /// By embeddings, which are those of the same tokens up to this position.
    Embeddings {
        /// The first position.
        at: usize,
    },
    /// By embeddings: the candidate's are those of the reference's tokens at other positions.
    Moved,
}

impl fmt::Display for TokenDivergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenDivergence::Ids { at } => write!(f, "the two dumps name different tokens from position {at} on"),
            TokenDivergence::Moved => f.write_str(
                "the embeddings of one are those of the other's tokens at other positions: its prompt is padded on the left, or has more or fewer tokens in front \
                 (--tokens)",
            ),
            TokenDivergence::Embeddings { at } => write!(
                f,
                "the embeddings are those of the same tokens before position {at}, and of other tokens or of padding from there on, and not both dumps say which \
                 tokens they were fed (--tokens, --decode-tokens)"
            ),
        }
    }
}
