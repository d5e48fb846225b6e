//! Cuts some token positions out of a tap of one step, along the position axis, where that axis is certain.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use firstdiff_trace::{Entry, NamedRows, Rows, Site, Tensor, Values, to_bf16, to_f16};

use crate::layout::rows::squeezed;

/// What is known of a dump before one of its taps is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisOrder {
    /// Whether tensors of heads hold the positions first, \[T,H,d\], as an unambiguous shape shows; `None` without one.
    pub(crate) positions_first: Option<bool>,
}

/// The elements of a tap that are some positions of its step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cut {
    /// The shape they have.
    pub(crate) shape: Vec<usize>,
    /// The positions held, counted from the first requested one; `None` where all requested positions are.
    pub(crate) rows: Option<Rows>,
    /// The position axis of that shape.
    pub(crate) axis: usize,
    /// Extents before, along and behind it.
    outer: usize,
    extent: usize,
    inner: usize,
    pub(crate) picks: Vec<usize>,
    keys: Option<Keys>,
}

/// How many keys there are, how many there must be, and the fill value of missing ones.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Keys {
    from: usize,
    to: usize,
    fill: f64,
}

/// The number of keys of a tap that has an axis of them.
pub(crate) fn keys(entry: &Entry) -> Option<usize> {
    let shape = squeezed(entry.tap.site, &entry.shape);
    (entry.tap.site.position_axis() == 1 && shape.len() == 3).then(|| shape[2])
}

/// The number of heads of a tap of keys.
pub(crate) fn heads(entry: &Entry) -> Option<usize> {
    keys(entry).map(|_| squeezed(entry.tap.site, &entry.shape)[0])
}

/// Cuts the positions `cell` out of a tap of a step that holds the positions `step`. `width` is the number of keys that it must have, where it has an axis of
/// keys: raw products are cut to it; in scores and probs, missing keys are masked and have probability 0. `requested` are the positions of the step to be compared.
/// `None`: it holds none of them.
pub(crate) fn cut(
    entry: &Entry,
    step: &Range<usize>,
    cell: &Range<usize>,
    width: Option<usize>,
    requested: Option<&Rows>,
    custom: AxisOrder,
) -> Result<Option<Cut>, CutError> {
    let site = entry.tap.site;
    let length = step.len();
    if entry.shape.contains(&0) {
        return Err(CutError::Empty);
    }
    let shape = squeezed(site, &entry.shape);
    let declared = entry.rows.as_ref().filter(|rows| !rows.is_all());
    let attends = site.position_axis() == 1;
    let fits = width.is_none() || keys(entry).is_none() || keys(entry) == width;
    if step == cell && fits && requested.is_none() {
        return Ok(Some(Cut::whole(entry)));
    }
    let held = declared.or(requested).map(|rows| listed(rows, length));
    let count = declared.map_or(length, |_| held.as_ref().map_or(length, Vec::len));
    let named = |why| CutError::Axis { shape: entry.shape.clone(), positions: length, why };
    let (axis, count, shape) = match position(site, &shape, count, custom) {
        Ok((axis, shape)) => (axis, count, shape),
        // Fewer positions than the step has: the requested ones.
        Err(reason) => {
            let held = held.as_ref().filter(|held| declared.is_none() && held.len() < length);
            let Some(count) = held.map(Vec::len) else { return Err(named(reason)) };
            let (axis, shape) = position(site, &shape, count, custom).map_err(named)?;
            (axis, count, shape)
        }
    };
    // The step's position of each row.
    let rows =
        if count == length && declared.is_none() { (0..length).collect() } else { held.clone().unwrap_or_default() };
    let is_requested = |position: &usize| held.as_ref().is_none_or(|held| held.contains(position));
    let within = |position: usize| cell.contains(&(step.start + position)) && is_requested(&position);
    let picks: Vec<usize> = (0..count).filter(|&row| rows.get(row).is_some_and(|&at| within(at))).collect();
    if picks.is_empty() {
        return Ok(None);
    }
    let offset = cell.start - step.start;
    let left = (picks.len() < cell.len()).then(|| Rows::List(picks.iter().map(|&row| rows[row] - offset).collect()));
    let mut out = shape.clone();
    out[axis] = picks.len();
    let keys = if attends { Some(keys_of(site, &shape, cell, width)?) } else { None };
    if let (Some(keys), Some(last)) = (keys, out.last_mut()) {
        *last = keys.to;
    }
    let product = |part: &[usize]| part.iter().product();
    let (outer, inner) = (product(&shape[..axis]), product(&shape[axis + 1..]));
    Ok(Some(Cut { shape: out, rows: left, axis, outer, extent: count, inner, picks, keys }))
}

/// The positions of a step that `rows` names.
pub(crate) fn listed(rows: &Rows, length: usize) -> Vec<usize> {
    match rows {
        Rows::List(list) => list.clone(),
        Rows::Named(NamedRows::Last) => vec![length.saturating_sub(1)],
        Rows::Named(NamedRows::All) => (0..length).collect(),
    }
}

/// The axis of `count` positions, and the shape that has it; or why it is unknown.
fn position(site: Site, shape: &[usize], count: usize, custom: AxisOrder) -> Result<(usize, Vec<usize>), AxisUnknown> {
    let at = |axis: usize| Ok((axis, shape.to_vec()));
    if site.position_axis() == 1 {
        let right = shape.len() == 3 && shape[1] == count;
        return if right { at(1) } else { Err(AxisUnknown::NotHeadsPositionsKeys) };
    }
    let along: Vec<usize> = (0..shape.len()).filter(|&axis| shape[axis] == count).collect();
    let with_heads = matches!(site.axes(), ['T', 'H' | 'K', 'd']) || (site == Site::Context && shape.len() == 3);
    match (shape.len(), &along[..]) {
        // A row without its axis.
        (axes, []) if count == 1 && (axes == 1 || axes + 1 == site.axes().len()) => Ok((0, [&[1], shape].concat())),
        (_, [0, ..]) if count == 1 => at(0),
        // In a flat tensor the positions are the slower axis; with heads that is unknown.
        (1, _) if count > 0 && shape[0].is_multiple_of(count) && !with_heads => Ok((0, vec![count, shape[0] / count])),
        (1, _) => Err(AxisUnknown::List),
        (3, [0, 1, ..]) if with_heads => match custom.positions_first {
            Some(true) => at(0),
            Some(false) => at(1),
            None => Err(AxisUnknown::HeadsOrPositions(count)),
        },
        (_, [0, ..]) => at(0),
        (2, [1]) => at(1),
        (3, [1, ..]) if with_heads => at(1),
        _ => Err(AxisUnknown::None),
    }
}

/// Raw products end at the last key of the cell. Scores and probs keep every key, and get those that the other side has.
fn keys_of(site: Site, shape: &[usize], cell: &Range<usize>, width: Option<usize>) -> Result<Keys, CutError> {
    let (from, due) = (shape.last().copied().unwrap_or(0), cell.end);
    if from < due {
        return Err(CutError::Keys { held: from, due });
    }
    let wide = width.unwrap_or(from).max(from);
    Ok(match site {
        Site::Qk => Keys { from, to: due, fill: 0.0 },
        Site::Scores => Keys { from, to: wide, fill: f64::NEG_INFINITY },
        _ => Keys { from, to: wide, fill: 0.0 },
    })
}

impl Cut {
    /// The rows `range` along an axis of a tensor of this shape.
    pub(crate) fn along(shape: &[usize], axis: usize, range: Range<usize>) -> Cut {
        let mut out = shape.to_vec();
        out[axis] = range.len();
        let product = |part: &[usize]| part.iter().product();
        let (outer, inner) = (product(&shape[..axis]), product(&shape[axis + 1..]));
        Cut { shape: out, rows: None, axis, outer, extent: shape[axis], inner, picks: range.collect(), keys: None }
    }

    /// The rows `picks` along an axis, of a cell of `positions` positions that begins at `offset` of its step.
    pub(crate) fn rows(shape: &[usize], axis: usize, picks: Vec<usize>, positions: usize, offset: usize) -> Cut {
        let left = (picks.len() < positions).then(|| Rows::List(picks.iter().map(|&row| row - offset).collect()));
        let all = Cut::along(shape, axis, 0..picks.len());
        Cut { rows: left, picks, ..all }
    }

    /// All of a tap, as it stands.
    pub(crate) fn whole(entry: &Entry) -> Cut {
        let rows = entry.rows.clone();
        Cut { shape: entry.shape.clone(), rows, axis: 0, outer: 1, extent: 0, inner: 0, picks: Vec::new(), keys: None }
    }

    /// The elements, cut out of the tap's tensor. `None` where that is not the tensor that the cut was made for.
    pub(crate) fn apply(&self, tensor: Tensor) -> Option<Tensor> {
        if self.extent == 0 {
            return Some(tensor);
        }
        let values = tensor.values();
        if values.len() != self.outer.checked_mul(self.extent)?.checked_mul(self.inner)? {
            return None;
        }
        let fill = self.keys.map_or(0.0, |keys| keys.fill);
        let values = match values {
            Values::F64(v) => Values::F64(Cow::Owned(self.gather(&v, fill))),
            Values::F32(v) => Values::F32(Cow::Owned(self.gather(&v, fill as f32))),
            Values::F16(v) => Values::F16(Cow::Owned(self.gather(&v, to_f16(fill)))),
            Values::BF16(v) => Values::BF16(Cow::Owned(self.gather(&v, to_bf16(fill)))),
        };
        Tensor::held(self.shape.clone(), values).ok()
    }

    fn gather<E: Copy>(&self, values: &[E], fill: E) -> Vec<E> {
        let mut out = Vec::new();
        let rows = (0..self.outer).flat_map(|outer| self.picks.iter().map(move |pick| outer * self.extent + pick));
        for row in rows {
            let row = &values[row * self.inner..(row + 1) * self.inner];
            match self.keys {
                Some(keys) => {
                    out.extend_from_slice(&row[..keys.from.min(keys.to)]);
                    out.extend(std::iter::repeat_n(fill, keys.to.saturating_sub(keys.from)));
                }
                None => out.extend_from_slice(row),
            }
        }
        out
    }
}

/// Whether tensors of heads hold positions first, by those with unambiguous shapes. `length` gives the positions of a step.
pub(crate) fn custom(entries: &[Entry], length: impl Fn(u32) -> Option<usize>) -> AxisOrder {
    let shown = entries.iter().filter(|e| e.rows.is_none()).filter_map(|entry| {
        let shape = squeezed(entry.tap.site, &entry.shape);
        let count = length(entry.step)?;
        // [1,T,K*d] has a batch axis in front, or one head: it shows nothing.
        let heads = matches!(entry.tap.site.axes(), ['T', 'H' | 'K', 'd']) && shape.len() == 3 && shape[0] > 1;
        match (shape.first() == Some(&count), shape.get(1) == Some(&count)) {
            (true, false) if heads => Some(true),
            (false, true) if heads => Some(false),
            _ => None,
        }
    });
    let (mut first, mut second) = (false, false);
    shown.for_each(|positions_first| if positions_first { first = true } else { second = true });
    AxisOrder { positions_first: (first != second).then_some(first) }
}

/// Why the positions of a step cannot be cut out of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutError {
    /// It has no elements.
    Empty,
    /// It holds fewer keys than there are, and it is unknown which.
    Keys {
        /// Keys it holds.
        held: usize,
        /// Keys there are.
        due: usize,
    },
    /// The run ends earlier.
    Short {
        /// Positions it has.
        held: usize,
        /// Positions there are.
        due: usize,
    },
    /// The tensors of two steps cannot be joined.
    Apart {
        /// The shape of the one.
        one: Vec<usize>,
        /// The shape of the other.
        other: Vec<usize>,
    },
    /// The axis of positions is unknown.
    Axis {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// How many positions its step has.
        positions: usize,
        /// Why.
        why: AxisUnknown,
    },
}

/// Why the axis of a tensor's positions is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisUnknown {
    /// It lacks the axes heads, positions and keys of scores and the like.
    NotHeadsPositionsKeys,
    /// A list of values with heads.
    List,
    /// As many heads as positions.
    HeadsOrPositions(usize),
    /// No axis is as long.
    None,
    /// Outside the vocabulary: no axis has the step's number of tokens in all steps of both runs.
    NotOfTokens,
    /// Outside the vocabulary: several axes do.
    Several,
    /// Its rows are those of the tokens that were sent to an expert.
    OfExpert,
}

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CutError::Empty => f.write_str("it has no elements"),
            CutError::Keys { held, due } => {
                write!(f, "it holds {held} keys where there are {due}: it cannot be said which")
            }
            CutError::Short { held, due } => write!(f, "the run ends after {held} of these {due} token positions"),
            CutError::Apart { one, other } => {
                write!(f, "recorded as {one:?} in one step and as {other:?} in another, which cannot be joined")
            }
            CutError::Axis {
                why: why @ (AxisUnknown::OfExpert | AxisUnknown::NotOfTokens | AxisUnknown::Several),
                ..
            } => why.fmt(f),
            CutError::Axis { shape, positions, why } => {
                write!(f, "of the shape {shape:?} with {positions} token positions: {why}")
            }
        }
    }
}

impl fmt::Display for AxisUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AxisUnknown::NotHeadsPositionsKeys => f.write_str("the axes are not those of heads, positions and keys"),
            AxisUnknown::List => f.write_str("which values are of a position cannot be told; write its axes, [T,H,d]"),
            AxisUnknown::HeadsOrPositions(count) => {
                write!(f, "cannot tell {count} positions from as many heads; take a token more or less")
            }
            AxisUnknown::None => {
                f.write_str("no axis is that of the positions ('rows' in dump.json says which positions a tap holds)")
            }
            AxisUnknown::NotOfTokens => {
                f.write_str("in the steps of the two runs no axis is always as long as there are tokens, so nothing was cut (run both in the same chunks)")
            }
            AxisUnknown::Several => f.write_str("more than one axis is as long as there are tokens, so nothing was cut (run both in the same chunks)"),
            AxisUnknown::OfExpert => f.write_str(
                "rows of an expert, which are those of the tokens that were sent to it: not taken apart by token (run both in the same chunks)",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use firstdiff_trace::{DType, Tap};

    use super::*;

    #[test]
    fn a_batch_axis_is_no_head() {
        let shown = |shape: &[usize]| {
            let tap = Tap::layer(0, Site::V);
            let made = || unreachable!("nobody reads it");
            custom(&[Entry::computed(tap, 0, shape.to_vec(), DType::F32, None, made)], |_| Some(8)).positions_first
        };
        assert_eq!(shown(&[8, 4, 16]), Some(true));
        assert_eq!(shown(&[4, 8, 16]), Some(false));
        assert_eq!(shown(&[1, 8, 64]), None);
    }
}
