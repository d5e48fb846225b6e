//! Removes the positions of a run that are padding, and their keys: by its mask, its ids, else by what is nearest to the other run.

use std::ops::Range;
use std::sync::Arc;

use firstdiff_trace::{Dump, DumpError, Entry, NamedRows, PaddingSide, Rows, SequenceTokens, Site, Tensor};

use crate::layout::rows::{are_all, squeezed};
use crate::layout::types::Layout;
use crate::metrics::Metrics;
use crate::run::slice::{AxisOrder, Cut, CutError, custom, cut};
use crate::run::steps::{lengths_by_shapes, steps};
use crate::tolerance::run::SAME_TOKENS;

/// The positions of a prefill that are tokens, of how many, and how that is known.
struct TokenRange {
    range: Range<usize>,
    all: usize,
    by: &'static str,
    /// Positions declared as padding that hold tokens which may be those of the other run.
    doubted: Option<Range<usize>>,
}

/// The dump without its padding, as far as that is known: by its own metadata, by `other`, a run of the same prompt, and by what the sequences of its `batch`
/// were fed.
///
/// # Errors
/// When its mask contradicts its tensors or its ids, or a tensor cannot be read.
pub fn without_padding(dump: Dump, other: Option<&Dump>, batch: &[SequenceTokens]) -> Result<Dump, DumpError> {
    let real = match masked(&dump, other)?.or_else(|| by_ids(&dump, other, batch)) {
        Some(real) => Some(real),
        None => other.map(|other| nearest(&dump, other)).transpose()?.flatten(),
    };
    match real.filter(|real| real.range.len() < real.all && dump.parts().is_empty()) {
        Some(real) => real.cut_off(dump),
        None => Ok(dump),
    }
}

/// Whether the positions that a tap holds in a layout beyond those compared are padding: the prefill as a whole must have as many. That the compared rows
/// agree proves no padding where no id, mask or other tap shows it; a decode step has none.
pub fn is_padded(dump: &Dump, step: u32, layout: &Layout) -> bool {
    layout.padding().is_none_or(|(held, _)| step == 0 && lengths_by_shapes(dump, 0)[0] == Some(held))
}

/// What the mask says.
fn masked(dump: &Dump, other: Option<&Dump>) -> Result<Option<TokenRange>, DumpError> {
    let Some(mask) = dump.meta().attention_mask.as_ref().and_then(|mask| mask.sequence(0)) else { return Ok(None) };
    let wrong =
        |reason: String| DumpError::Meta { path: dump.path().into(), reason: format!("'attention_mask' {reason}") };
    let ends = mask.iter().position(|&one| one != 0).zip(mask.iter().rposition(|&one| one != 0));
    let range = ends.map(|(first, last)| first..last + 1).filter(|range| !mask[range.clone()].contains(&0));
    let range = range
        .ok_or_else(|| wrong("is not one run of tokens: padding stands before them, behind them, or both".into()))?;
    // It holds other positions than these, or several of which one may be the last.
    let is_of_others = |e: &Entry| {
        let shape = squeezed(e.tap.site, &e.shape);
        let is_one = e.tap.site == Site::Logits && shape.iter().rev().skip(1).all(|&extent| extent == 1);
        are_all(&e.rows) && !is_one && !e.shape.contains(&mask.len())
    };
    let mut first = dump.entries().iter().filter(|entry| entry.step == 0).peekable();
    if first.peek().is_some() && range.len() < mask.len() && first.all(is_of_others) {
        return Err(wrong(format!("has {} positions, and no tensor has as many", mask.len())));
    }
    let ids = dump.meta().tokens.as_ref().map(Vec::len);
    match ids.filter(|ids| *ids != mask.len() && *ids != range.len()) {
        Some(ids) => {
            Err(wrong(format!("has {} tokens among {} positions, and 'tokens' {ids}", range.len(), mask.len())))
        }
        None => {
            let doubted = declared_away(dump, other, &range, mask.len());
            Ok(Some(TokenRange { range, all: mask.len(), by: "by its attention mask", doubted }))
        }
    }
}

/// Positions that the mask declares as padding but that may be tokens of the prompt: their ids are not a single repeated id, or the other run continues with
/// a token there that is not shown to be another.
fn declared_away(dump: &Dump, other: Option<&Dump>, range: &Range<usize>, all: usize) -> Option<Range<usize>> {
    let ids = dump.meta().tokens.as_deref().filter(|ids| ids.len() == all);
    let is_of_many =
        |part: &Range<usize>| ids.is_some_and(|ids| ids[part.clone()].windows(2).any(|two| two[0] != two[1]));
    let after = range.end..all;
    let goes_on = || {
        let theirs = other?.meta().tokens.as_deref()?;
        let tokens = ids.map(|ids| &ids[range.clone()]).or(dump.meta().tokens.as_deref())?;
        let next = theirs.strip_prefix(tokens)?.first()?;
        Some(!after.is_empty() && ids.is_none_or(|ids| ids[after.start] == *next))
    };
    [0..range.start, after.clone()].into_iter().find(is_of_many).or_else(|| goes_on()?.then(|| after.clone()))
}

/// The padding by ids: fewer ids than positions, on the declared side; or the ids of the other run with one repeated id around them, while another sequence
/// of the batch does not begin, or end, with that id.
fn by_ids(dump: &Dump, other: Option<&Dump>, batch: &[SequenceTokens]) -> Option<TokenRange> {
    let ids = dump.meta().tokens.as_ref()?;
    if let Some(side) = dump.meta().padding {
        let (all, count) = (lengths_by_shapes(dump, 0)[0]?, ids.len());
        let from = if side == PaddingSide::Left { all.checked_sub(count)? } else { 0 };
        return (count <= all).then(|| TokenRange::new(from..from + count, all, "by the side that is named"));
    }
    let other_ids = other?.meta().tokens.as_ref().filter(|wanted| wanted.len() < ids.len() && !wanted.is_empty())?;
    let all = ids.len();
    let is_rectangle = batch.iter().all(|fed| fed.tokens.len() == all);
    let at = |from: usize| {
        let range = from..from + other_ids.len();
        let mut rest = ids[..range.start].iter().chain(&ids[range.end..]);
        let pad = *rest.next()?;
        let end =
            |fed: &SequenceTokens| if from == 0 { fed.tokens.last().copied() } else { fed.tokens.first().copied() };
        let is_padding = rest.all(|id| *id == pad) && batch.iter().any(|fed| end(fed) != Some(pad));
        (is_rectangle && is_padding && ids[range.clone()] == other_ids[..])
            .then(|| TokenRange::new(range, all, "by its token ids"))
    };
    at(all - other_ids.len()).or_else(|| at(0))
}

/// Where the recorded tokens are among more positions: before the padding or behind it, whichever brings more taps nearest to the other run. `None` where a
/// tap is nearest to that run only in the middle.
fn nearest(dump: &Dump, other: &Dump) -> Result<Option<TokenRange>, DumpError> {
    let (ids, theirs) = (dump.meta().tokens.as_ref(), other.meta().tokens.as_ref());
    let Some(count) = ids.filter(|ids| theirs.is_none_or(|theirs| theirs == *ids)).map(Vec::len) else {
        return Ok(None);
    };
    let decoded = dump.meta().decode_tokens.as_ref().map_or(0, Vec::len);
    let last = steps(dump).last().map_or(0, |&last| last as usize);
    let rows = lengths_by_shapes(dump, last.min(decoded));
    // Its tokens may be in other chunks: all of them are recorded.
    if rows.iter().copied().sum::<Option<usize>>() == Some(count + decoded) {
        return Ok(None);
    }
    let Some(all) = rows[0].filter(|all| *all > count && count > 0) else { return Ok(None) };
    let (mut before, mut behind) = (0, 0);
    for entry in dump.entries().iter().filter(|e| e.step == 0 && are_all(&e.rows)) {
        let Some(reference) = other.find(entry.tap, 0) else { continue };
        let [ours, shape] = [entry, reference].map(|entry| squeezed(entry.tap.site, &entry.shape));
        let (&[rows, width], Some(&like)) = (&ours[..], shape.last()) else { continue };
        let size = shape.iter().product::<usize>();
        let is_last = size == width
            && (reference.rows == Some(Rows::Named(NamedRows::Last)) || (reference.rows.is_none() && count > 1));
        let is_whole = size == count * width && shape.len() == 2 && are_all(&reference.rows);
        if rows != all || like != width || !(is_whole || is_last) {
            continue;
        }
        let (ours, theirs) =
            (dump.read(entry)?.values().to_f64().to_vec(), other.read(reference)?.values().to_f64().to_vec());
        let looked_at = if is_whole { vec![0, count / 3, 2 * count / 3, count - 1] } else { vec![count - 1] };
        let row = |values: &[f64], at: usize| values[at * width..(at + 1) * width].to_vec();
        let reference_rows: Vec<f64> =
            looked_at.iter().flat_map(|&at| row(&theirs, if is_whole { at } else { 0 })).collect();
        let nmse_at = |from: usize| {
            let rows_here: Vec<f64> = looked_at.iter().flat_map(|&at| row(&ours, from + at)).collect();
            Metrics::measure_f64(&reference_rows, &rows_here)
                .nmse()
                .filter(|nmse| nmse.is_finite())
                .unwrap_or(f64::INFINITY)
        };
        let ends = [nmse_at(0), nmse_at(all - count)];
        if ends.iter().all(|end| *end >= SAME_TOKENS) && (1..all - count).any(|from| nmse_at(from) < SAME_TOKENS) {
            return Ok(None);
        }
        behind += usize::from(ends[0] < ends[1]);
        before += usize::from(ends[1] < ends[0]);
    }
    let from = if before > behind { all - count } else { 0 };
    let by = "nearer so; nothing names the side ('padding' or 'attention_mask' in dump.json)";
    Ok((before != behind).then(|| TokenRange::new(from..from + count, all, by)))
}

impl TokenRange {
    fn new(range: Range<usize>, all: usize, by: &'static str) -> TokenRange {
        TokenRange { range, all, by, doubted: None }
    }

    fn cut_off(&self, dump: Dump) -> Result<Dump, DumpError> {
        let TokenRange { range, all, by, doubted } = self;
        let mut meta = dump.meta().clone();
        meta.tokens = meta.tokens.map(|ids| if ids.len() == *all { ids[range.clone()].to_vec() } else { ids });
        (meta.attention_mask, meta.padding) = (None, None);
        let whole = Arc::new(dump);
        let order = custom(whole.entries(), |step| (step == 0).then_some(*all));
        let (mut entries, mut open, mut doubts) = (Vec::new(), Vec::new(), Vec::new());
        for entry in whole.all_entries() {
            match self.cuts(&entry, order) {
                Ok(cuts) if entry.tap.is_open() => open.push(cut_entry(&whole, entry, cuts)),
                Ok(cuts) => entries.push(cut_entry(&whole, entry, cuts)),
                Err(error) => doubts.push((entry, error)),
            }
        }
        let mut dump = whole.with_entries(meta, entries)?;
        dump.set_open_tensors(open, &[]);
        for (entry, error) in doubts {
            let error = error.map_or_else(|| "it holds none of the tokens".to_owned(), |error| error.to_string());
            dump.doubt(entry.tap, entry.step, format!("its padding was not cut off: {error}"));
        }
        if let (Some(part), Some(entry)) = (doubted, dump.entries().iter().find(|entry| entry.step == 0)) {
            let (tap, last) = (entry.tap, part.end - 1);
            dump.doubt(tap, 0, format!("its attention mask calls the positions {} to {last} padding, and they may hold tokens of the prompt: what stands there was not checked", part.start));
        }
        let (before, behind) = (range.start, all - range.end);
        let sides = [(before, "before"), (behind, "behind")].into_iter().filter(|(count, _)| *count > 0);
        let sides: Vec<String> = sides.map(|(count, side)| format!("{count} {side} the tokens")).collect();
        dump.note(format!("{all} token positions, of which padding is not compared: {} ({by})", sides.join(", ")));
        Ok(dump)
    }

    /// The cuts of a tensor, one after the other; an error where it holds no token, or where its cut is unknown.
    fn cuts(&self, entry: &Entry, order: AxisOrder) -> Result<Vec<Cut>, Option<CutError>> {
        let TokenRange { range, all, .. } = self;
        let shape = squeezed(entry.tap.site, &entry.shape);
        let is_attended = entry.tap.site.position_axis() == 1 && shape.len() == 3;
        let mut cuts = Vec::new();
        if entry.tap.is_open() {
            let mut axes = (0..shape.len()).filter(|&axis| shape[axis] == *all && entry.step == 0);
            if let (Some(axis), None) = (axes.next(), axes.next()) {
                cuts.push(Cut::along(&shape, axis, range.clone()));
            }
            return Ok(cuts);
        }
        if entry.step == 0 {
            match cut(entry, &(0..*all), range, None, None, order) {
                Ok(cut) => cuts.push(cut.ok_or(None)?),
                // One row of the last token, or a tensor without padding.
                Err(_) if !shape.contains(all) && (range.end == *all || shape.contains(&range.len())) => {}
                Err(error) => return Err(Some(error)),
            }
        }
        let last = cuts.last().map_or(&shape, |cut| &cut.shape);
        // A step with only its own keys has none of the padding's.
        if is_attended && if entry.step == 0 { !cuts.is_empty() } else { last[2] > *all } {
            let is_key = |key: &usize| range.contains(key) || (entry.step > 0 && key >= all);
            let keys: Vec<usize> = (0..last[2]).filter(is_key).collect();
            cuts.push(Cut::rows(last, 2, keys.clone(), keys.len(), 0));
        }
        Ok(cuts)
    }
}

fn cut_entry(whole: &Arc<Dump>, entry: Entry, cuts: Vec<Cut>) -> Entry {
    let (tap, step, dtype) = (entry.tap, entry.step, entry.dtype);
    let rows = cuts.first().map_or(entry.rows.clone(), |cut| cut.rows.clone());
    let shape = cuts.last().map_or(entry.shape.clone(), |cut| cut.shape.clone());
    let whole = Arc::clone(whole);
    Entry::computed(tap, step, shape, dtype, rows, move || {
        let tensor = whole.read(&entry)?;
        let cut = |tensor: Option<Tensor>, cut: &Cut| tensor.and_then(|tensor| cut.apply(tensor));
        let reason = || "a tensor is not of its shape".to_owned();
        cuts.iter()
            .fold(Some(tensor), cut)
            .ok_or_else(|| DumpError::NotADump { path: whole.path().into(), reason: reason() })
    })
}
