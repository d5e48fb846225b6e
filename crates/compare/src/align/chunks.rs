//! How are two runs aligned by token position that took the tokens in other chunks? Both are cut at the step boundaries of either.
//!
//! A cell is a run of positions between two neighbouring boundaries: it lies within one step of each side. Cell by cell, what both recorded
//! makes two dumps with the same steps, which are compared as any two. Keys grow with the steps: the raw products of a cell are cut to the
//! keys up to its end. Scores and probs are not cut, as what is cut off might be what is wrong: a one-pass run without a causal mask differs
//! from a token-by-token one in nothing else. The side with fewer keys gets masked ones, without probability, in the others' place.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use firstdiff_trace::{
    Dump, DumpError, Entry, Meta, Part, Partial, Rows, Site, Tap, TapMeta, Tensor, split_stored_name,
};

use crate::align::extents::slowest_first;
use crate::align::open::OpenTaps;
use crate::graph::Place;
use crate::run::embeddings;
use crate::run::infer_steps::{chunks, one_a_token_by};
use crate::run::positions::{with_merged_heads, with_positions};
use crate::run::slice::{Custom, Cut, CutError, custom, cut, heads, keys, listed};
use crate::run::steps::Chunks;
use crate::run::tokens::{TokenEdits, token_edits};

/// Two runs aligned by token position.
#[derive(Debug)]
pub struct ChunkAlignment {
    /// The positions of each cell; a [`Place`]'s step is the number of its cell.
    pub cells: Vec<Range<usize>>,
    /// How the reference took the tokens.
    pub reference: Chunks,
    /// How the candidate did.
    pub candidate: Chunks,
    /// The two dumps as they are.
    pub runs: [Arc<Dump>; 2],
    /// From which position on the two were fed different tokens.
    pub parted: Option<usize>,
    /// What cannot be compared, and why.
    pub(crate) unchecked: BTreeMap<Place, Unaligned>,
}

/// Two dumps whose steps stand for the same token positions, as far as that can be had.
#[derive(Debug)]
pub struct Aligned {
    /// The reference, or its cells.
    pub reference: Dump,
    /// The candidate, or its cells.
    pub candidate: Dump,
    /// How they were aligned, where their steps stand for other positions.
    pub alignment: Option<Arc<ChunkAlignment>>,
}

/// Lays two dumps together by token position, where their steps stand for other positions; else they stay as they are. `rows` are the
/// positions, within each of the candidate's steps, that are asked for.
///
/// # Errors
/// When a tap would be there twice.
pub fn align(reference: Dump, candidate: Dump, rows: Option<&Rows>) -> Result<Aligned, DumpError> {
    let candidate = with_merged_heads(candidate, &reference);
    let reference = with_positions(with_merged_heads(reference, &candidate));
    let candidate = with_positions(one_a_token_by(&reference, candidate));
    let edits = token_edits(&reference, &candidate)?.filter(|edits| edits.is_certain);
    let Some((ours, theirs, parted)) = other_chunks(&reference, &candidate, edits.as_ref())? else {
        return Ok(Aligned { reference, candidate, alignment: None });
    };
    let candidate = slowest_first(&reference, &ours, candidate, &theirs)?;
    let runs = [Arc::new(reference), Arc::new(candidate)];
    let mut ends: Vec<usize> = [&ours, &theirs].iter().flat_map(|c| c.ranges()).map(|r| r.end).chain(parted).collect();
    ends.sort_unstable();
    ends.dedup();
    ends.retain(|&end| end > 0);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let cells: Vec<Range<usize>> = starts.zip(&ends).map(|(start, &end)| start..end).collect();
    let wanted = rows.filter(|rows| !rows.is_all());
    let mut unchecked = BTreeMap::new();
    let [left, right] = {
        let sides = [Side::new(&runs[0], &ours), Side::new(&runs[1], &theirs)];
        let open = OpenTaps::of(runs.each_ref().map(|run| &**run), [&ours, &theirs]);
        let [ours, theirs] = &sides;
        let mut left = ours.cells(&cells, theirs, None, &mut unchecked)?;
        let mut right = theirs.cells(&cells, ours, wanted, &mut unchecked)?;
        left.put_open(ours.open_cells(&cells, (&open, 0), None, &mut unchecked), &[]);
        right.put_open(theirs.open_cells(&cells, (&open, 1), wanted, &mut unchecked), &[]);
        [left, right]
    };
    let alignment = ChunkAlignment { cells, reference: ours, candidate: theirs, runs, parted, unchecked };
    let at = alignment.parted.unwrap_or(usize::MAX);
    let places = [&left, &right].into_iter().flat_map(|dump| {
        let entries = dump.entries().iter().map(|e| Place { step: e.step, tap: e.tap });
        let open = dump.unmapped().iter().map(|name| split_stored_name(name));
        let open = open.map(|(name, step)| Place { step, tap: Tap::named(name) });
        entries.chain(open).chain(dump.parts().iter().map(|p| Place { step: p.step, tap: p.tap }))
    });
    // What each was fed of its prompt is compared: that is where they part.
    let prompts = edits.map_or(0, |edits| edits.counts[0].min(edits.counts[1]));
    let h0 = Tap { layer: None, site: Site::H0 };
    let is_beyond = |cell: &Range<usize>, tap: Tap| cell.start >= at && (tap != h0 || cell.end > prompts);
    let beyond = places.filter(|place| is_beyond(&alignment.cells[place.step as usize], place.tap));
    let beyond = beyond.filter_map(|place| Some((place, Unaligned::Parted(alignment.parting()?))));
    let unchecked = alignment.unchecked.clone().into_iter().chain(beyond).collect();
    let alignment = ChunkAlignment { unchecked, ..alignment };
    Ok(Aligned { reference: left, candidate: right, alignment: Some(Arc::new(alignment)) })
}

/// The chunks of both, where they are known and not the same as far as both go, or were of other tokens; and from which position on they were.
/// That may be known by `edits`.
type Parted = Option<(Chunks, Chunks, Option<usize>)>;
fn other_chunks(reference: &Dump, candidate: &Dump, edits: Option<&TokenEdits>) -> Result<Parted, DumpError> {
    let Some(ours) = Chunks::of(reference) else { return Ok(None) };
    let Some(theirs) = chunks(candidate, reference, &ours) else { return Ok(None) };
    let told = ours.ids.is_some() && theirs.ids.is_some();
    let moved = edits.filter(|edits| edits.counts[0] != edits.counts[1]).and_then(|edits| edits.edits.first());
    let parted = match told {
        true => parted(&ours, &theirs),
        false if let Some((_, at, _)) = moved => Some(at[0].min(at[1])),
        false => embeddings::parted((reference, &ours), (candidate, &theirs))?,
    };
    let same = ours.lengths.iter().zip(&theirs.lengths).all(|(ours, theirs)| ours == theirs);
    if same && parted.is_none() {
        return Ok(None);
    }
    // Fewer positions may be the last of the same tokens, or of each step, as well as the first: the ids can tell, or that they see no other keys, or that
    // they are more steps than the other side's.
    let (shorter, longer, dump) = match ours.total() < theirs.total() {
        true => (&ours, &theirs, reference),
        false => (&theirs, &ours, candidate),
    };
    let one_by_one = shorter.lengths.len() > longer.lengths.len() && shorter.lengths.iter().all(|&length| length == 1);
    let begins = ours.total() == theirs.total() || one_by_one || sees_itself(dump, shorter.lengths[0]);
    Ok((told || begins || same || moved.is_some()).then_some((ours, theirs, parted)))
}

/// Whether attention of the first step, of so many positions, has no more keys than these.
fn sees_itself(dump: &Dump, positions: usize) -> bool {
    dump.entries().iter().any(|entry| entry.step == 0 && keys(entry) == Some(positions))
}

/// The first position at which the two were fed different tokens, as far as both say.
fn parted(ours: &Chunks, theirs: &Chunks) -> Option<usize> {
    let (ours, theirs) = (ours.ids.as_ref()?, theirs.ids.as_ref()?);
    ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs)
}

impl ChunkAlignment {
    /// Why nothing is said of the positions from [`ChunkAlignment::parted`] on.
    pub(crate) fn parting(&self) -> Option<Parting> {
        let at = self.parted?;
        let told = self.reference.ids.is_some() && self.candidate.ids.is_some();
        Some(match told {
            true => Parting::Ids { at },
            false if at == 0 => Parting::Moved,
            false => Parting::Embeddings { at },
        })
    }

    /// How many token positions are in both.
    pub fn together(&self) -> usize {
        let both = self.reference.total().min(self.candidate.total());
        self.parted.map_or(both, |at| at.min(both))
    }

    /// The run whose prefill and decode steps the report speaks of: the candidate where it has a prefill and steps, else the reference.
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
        let is_in = move |cell: &Range<usize>| range.start <= cell.start && cell.end <= range.end;
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

    /// `prefill`, `decode step 2`: which part of a run with a prefill and steps some cells are. Nothing where neither run has both.
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

/// What a place is called: its tap, and where in the run it is.
pub(crate) fn name_of(alignment: Option<&ChunkAlignment>, place: Place) -> String {
    match alignment {
        Some(alignment) => format!("{} at {}", place.tap, alignment.label(place.step..place.step.saturating_add(1))),
        None => place.to_string(),
    }
}

/// One of the two runs.
struct Side<'a> {
    dump: &'a Arc<Dump>,
    ranges: Vec<Range<usize>>,
    chunks: &'a Chunks,
    custom: Custom,
    read: Arc<Reader>,
}

impl<'a> Side<'a> {
    fn new(dump: &'a Arc<Dump>, chunks: &'a Chunks) -> Side<'a> {
        let custom = custom(dump.entries(), |step| chunks.lengths.get(step as usize).copied());
        let read = Arc::new(Reader { dump: Arc::clone(dump), kept: Mutex::default() });
        Side { dump, ranges: chunks.ranges(), chunks, custom, read }
    }

    /// The step that a cell lies in, and its positions.
    fn step(&self, cell: &Range<usize>) -> Option<(u32, &Range<usize>)> {
        let at = self.ranges.partition_point(|range| range.end <= cell.start);
        Some((u32::try_from(at).ok()?, self.ranges.get(at)?))
    }

    fn entries(&self, step: u32) -> &'a [Entry] {
        let all = self.dump.entries();
        let from = all.partition_point(|e| e.step < step);
        &all[from..from + all[from..].partition_point(|e| e.step == step)]
    }

    /// How many keys a tap shall have in a cell, where it has an axis of them on a side.
    fn width(&self, other: &Side<'_>, cell: &Range<usize>, entry: &Entry) -> Option<usize> {
        let mine = keys(entry);
        let theirs = other.step(cell).and_then(|(step, _)| other.dump.find(entry.tap, step));
        if entry.tap.site == Site::Qk {
            return mine.or(theirs.and_then(keys)).map(|_| cell.end);
        }
        let alike = theirs.filter(|theirs| heads(theirs) == heads(entry));
        Some(mine?.max(alike.and_then(keys)?))
    }

    /// The dump of the cells.
    fn cells(
        &self,
        cells: &[Range<usize>],
        other: &Side<'_>,
        wanted: Option<&Rows>,
        unchecked: &mut BTreeMap<Place, Unaligned>,
    ) -> Result<Dump, DumpError> {
        let (mut made, mut parts) = (Vec::new(), Vec::new());
        for (number, cell) in (0u32..).zip(cells) {
            let Some((at, step)) = self.step(cell) else { continue };
            // What is known in part is not cut, but may be all of a cell; what was printed whole is cut as tensors are.
            for part in self.dump.parts().iter().filter(|part| part.step == at) {
                let mut here = part.clone();
                here.step = number;
                if step != cell || wanted.is_some() {
                    let Some(whole) = part.whole().filter(|_| self.dump.find(part.tap, at).is_none()) else { continue };
                    let width = self.width(other, cell, &whole);
                    match cut(&whole, step, cell, width, wanted, self.custom) {
                        Ok(Some(cut)) => lay(&mut here, &cut, self.dump.read(&whole)?),
                        Ok(None) => continue,
                        Err(error) => {
                            unchecked.entry(Place { step: number, tap: part.tap }).or_insert(Unaligned::NotCut(error));
                        }
                    }
                }
                parts.push(here);
            }
            for entry in self.entries(at) {
                let width = self.width(other, cell, entry);
                let part = cut(entry, step, cell, width, wanted, self.custom);
                made.extend(self.made(entry, (at, number), part, unchecked));
            }
        }
        Ok(Dump::assembled(self.dump.path(), self.meta(cells), made)?.with_parts(parts))
    }

    /// What the cells hold of taps that the vocabulary does not have. What cannot be cut stands there whole, and is not compared.
    fn open_cells(
        &self,
        cells: &[Range<usize>],
        (open, side): (&OpenTaps, usize),
        wanted: Option<&Rows>,
        unchecked: &mut BTreeMap<Place, Unaligned>,
    ) -> Vec<Entry> {
        let mut made = Vec::new();
        for (number, cell) in (0u32..).zip(cells) {
            let Some((at, step)) = self.step(cell) else { continue };
            let wanted = wanted.map(|rows| listed(rows, step.len()));
            for entry in open.of_step(side, at) {
                let part = open.cut(side, entry, step, cell, wanted.as_deref());
                made.extend(self.made(entry, (at, number), part, unchecked));
            }
        }
        made
    }

    /// A tensor of a cell, which is all, or a part, of that of a step; whole where it cannot be cut, and unchecked. `None` where it has nothing of the cell.
    fn made(
        &self,
        entry: &Entry,
        (step, cell): (u32, u32),
        part: Result<Option<Cut>, CutError>,
        unchecked: &mut BTreeMap<Place, Unaligned>,
    ) -> Option<Entry> {
        let (shape, rows, part) = match part {
            Ok(part) => part.map(|part| (part.shape.clone(), part.rows.clone(), Some(part)))?,
            Err(error) => {
                unchecked.entry(Place { step: cell, tap: entry.tap }).or_insert(Unaligned::NotCut(error));
                (entry.shape.clone(), entry.rows.clone(), None)
            }
        };
        let (read, tap) = (Arc::clone(&self.read), entry.tap);
        Some(Entry::made(tap, cell, shape, entry.dtype, rows, move || {
            let tensor = read.tensor(tap, step)?;
            match &part {
                Some(part) => part.of(tensor).ok_or_else(|| read.changed()),
                None => Ok(tensor),
            }
        }))
    }

    /// What the run says of itself, its tokens shared out among the cells.
    fn meta(&self, cells: &[Range<usize>]) -> Meta {
        let first = cells.first().map_or(0, |cell| cell.end);
        let own = self.dump.meta();
        Meta {
            tokens: self.chunks.ids_of(0..first),
            decode_tokens: self.chunks.ids_of(first..self.chunks.total()),
            rows: None,
            // In which order they were recorded, and that they are taps.
            taps: own.taps.as_ref().map(|taps| {
                let mut met = HashSet::new();
                taps.iter().filter(|entry| met.insert(&entry.tap)).map(|entry| named(&entry.tap)).collect()
            }),
            ..own.clone()
        }
    }
}

/// That there is a tap of this name.
fn named(tap: &str) -> TapMeta {
    TapMeta { tap: tap.to_owned(), step: 0, file: None, shape: None, dtype: None, rows: None, dims: None }
}

/// Leaves of what was printed whole, whose values are those of `tensor`, what is of a cell.
fn lay(part: &mut Partial, cut: &Cut, tensor: Tensor) {
    let Some(of_cell) = cut.of(tensor) else { return };
    part.values = of_cell.values().to_f64().into();
    part.part = Part { elements: (0..part.values.len()).collect(), shape: Some(cut.shape.clone()), sum: None };
    part.rows = cut.rows.clone();
}

/// Reads tensors of a dump, and keeps some: a step of many positions is read once for each of its cells.
struct Reader {
    dump: Arc<Dump>,
    kept: Mutex<Kept>,
}

/// Tensors that are kept, and their bytes.
type Kept = (usize, HashMap<(Tap, u32), Tensor>);

/// Bytes of tensors that are kept at the most.
const KEPT: usize = 256 << 20;

impl Reader {
    fn tensor(&self, tap: Tap, step: u32) -> Result<Tensor, DumpError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = kept.1.get(&(tap, step)) {
            return Ok(tensor.clone());
        }
        let entry = self.dump.entry(tap, step).ok_or_else(|| self.changed())?;
        let tensor = self.dump.read(&entry)?;
        let size = tensor.shape().iter().product::<usize>() * tensor.dtype().size();
        if kept.0 + size > KEPT {
            *kept = (0, HashMap::new());
        }
        if size <= KEPT {
            kept.0 += size;
            kept.1.insert((tap, step), tensor.clone());
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
    /// The two runs were fed other tokens from a position on.
    Parted(Parting),
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
pub enum Parting {
    /// By the ids that both name.
    Ids {
        /// The first position.
        at: usize,
    },
    /// By embeddings that are of the same tokens before it.
    Embeddings {
        /// The first position.
        at: usize,
    },
    /// By embeddings that are those of the other's tokens at other positions.
    Moved,
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parting::Ids { at } => write!(f, "the two runs were fed different tokens from position {at} on"),
            Parting::Moved => f.write_str(
                "the embeddings of one are those of the other's tokens at other positions: its prompt is padded on the left, or has more or fewer tokens in front \
                 (--tokens)",
            ),
            Parting::Embeddings { at } => write!(
                f,
                "the embeddings are those of the same tokens before position {at}, and of other tokens or of padding from there on, and not both dumps say which \
                 tokens they were fed (--tokens, --decode-tokens)"
            ),
        }
    }
}
