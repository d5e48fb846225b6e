//! What did the candidate hold at a tap, in the model's own layout? Its recorded tensors, whatever their axes and row order.

use std::borrow::Cow;
use std::collections::BTreeSet;

use firstdiff_compare::{Misfit, Operand, Pair, Place};
use firstdiff_model::Model;
use firstdiff_trace::{Dump, DumpError, Entry, NamedRows, QkRows, Rows, Site, Values};
use ndarray::ArrayD;

/// A candidate's dump, read as the model would have written it.
pub(crate) struct Recorded<'a> {
    pub(crate) dump: &'a Dump,
    pub(crate) model: &'a Model,
    /// Tokens of every step.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// Which positions taps with fewer than all hold, where the dump does not say.
    pub(crate) rows: Option<Rows>,
    /// The order of the rows of Q and K in the dump.
    pub(crate) qk_rows: QkRows,
    /// Whether tensors of heads hold them first, \[H,T,d\], where the shape leaves that open.
    pub(crate) heads_first: bool,
    /// Whether shapes list the axes in the other direction, as ggml does: fastest first.
    pub(crate) backwards: bool,
    /// Whether contexts, whose heads are split or flat, hold them first.
    pub(crate) context_first: bool,
    /// Taps that were recorded wrongly: computed, as if they were not there.
    pub(crate) left_out: BTreeSet<Place>,
}

/// Why a tensor cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// It was not recorded.
    #[error("was not recorded")]
    Absent,
    /// It holds some positions only.
    #[error("holds some positions only")]
    Partial,
    /// Its shape is not the model's.
    #[error("{0}")]
    Misfit(String),
    /// Its file cannot be read.
    #[error(transparent)]
    Dump(#[from] DumpError),
}

impl Recorded<'_> {
    /// How many positions came before `step`.
    pub(crate) fn start(&self, step: u32) -> usize {
        self.tokens.iter().take(step as usize).map(Vec::len).sum()
    }

    pub(crate) fn holds(&self, place: Place) -> bool {
        !self.left_out.contains(&place) && self.dump.find(place.tap, place.step).is_some()
    }

    /// Whether all of a tap was recorded in a step.
    pub(crate) fn is_whole(&self, place: Place) -> bool {
        self.holds(place) && self.positions(place).is_none()
    }

    /// The shape the model gives to a tap in a step.
    pub(crate) fn shape(&self, place: Place) -> Vec<usize> {
        let dims = &self.model.plan.dims;
        let tokens = self.tokens.get(place.step as usize).map_or(1, Vec::len);
        let extent = |&axis: &char| match axis {
            'T' => tokens,
            'S' => self.start(place.step) + tokens,
            _ => dims.extent(axis).unwrap_or(dims.hidden),
        };
        place.tap.site.axes().iter().map(extent).collect()
    }

    /// The positions a tap holds, where fewer than all.
    pub(crate) fn positions(&self, place: Place) -> Option<Rows> {
        let entry = self.dump.find(place.tap, place.step)?;
        // Of a step of one token, the last row is all.
        let one = self.tokens.get(place.step as usize).is_some_and(|tokens| tokens.len() == 1);
        if one && entry.rows == Some(Rows::Named(NamedRows::Last)) {
            return None;
        }
        if let Some(rows) = entry.rows.clone().filter(|rows| !rows.is_all()) {
            return Some(rows);
        }
        let whole: usize = self.shape(place).iter().product();
        let fewer = entry.shape.iter().product::<usize>() < whole;
        self.rows.clone().filter(|rows| !rows.is_all() && fewer)
    }

    /// The whole tensor of a tap.
    pub(crate) fn read(&self, place: Place) -> Result<ArrayD<f64>, Unusable> {
        if self.positions(place).is_some() {
            return Err(Unusable::Partial);
        }
        let shape = self.shape(place);
        let mut values = self.laid_out(place, &shape, None)?;
        if turned(place.tap.site) && self.qk_rows != self.model.qk_rows {
            values = reordered(&values, self.model.qk_rows, self.model.plan.dims.head_dim);
        }
        ArrayD::from_shape_vec(shape, values).map_err(|_| Unusable::Absent)
    }

    /// The rows `positions` of a tap that holds no others; a row is all of its tensor but the first axis.
    pub(crate) fn read_rows(&self, place: Place, positions: &[usize]) -> Result<ArrayD<f64>, Unusable> {
        let (mut shape, axis) = (self.shape(place), place.tap.site.position_axis());
        let rows = Rows::List(positions.to_vec());
        let mut values = match self.positions(place) {
            None => self.laid_out(place, &shape, Some(&rows))?,
            Some(_) => {
                shape[axis] = positions.len();
                self.laid_out(place, &shape, None)?
            }
        };
        shape[axis] = positions.len();
        if turned(place.tap.site) && self.qk_rows != self.model.qk_rows {
            values = reordered(&values, self.model.qk_rows, self.model.plan.dims.head_dim);
        }
        ArrayD::from_shape_vec(shape, values).map_err(|_| Unusable::Partial)
    }

    /// The elements in the order of `shape`, or of its rows `rows`.
    fn laid_out(&self, place: Place, shape: &[usize], rows: Option<&Rows>) -> Result<Vec<f64>, Unusable> {
        let entry = self.dump.find(place.tap, place.step).ok_or(Unusable::Absent)?;
        let tensor = self.dump.read(entry)?;
        let values = tensor.values();
        if self.heads_first && rows.is_none() && leaves_heads_open(entry, shape) {
            return Ok(heads_second(&values, shape));
        }
        let dims = &self.model.plan.dims;
        if self.context_first && rows.is_none() && leaves_context_open(entry, dims.heads) {
            return Ok(heads_second(&values, &[shape[0], dims.heads, dims.head_dim]));
        }
        if let Some(cut) = without_padding(place.tap.site, &values, &entry.shape, shape).filter(|_| rows.is_none()) {
            return Ok(cut);
        }
        // Compare's own eye for layouts: a reference of that shape, of which nothing but the shape is looked at.
        let blank = Values::F64(Cow::Owned(vec![0.0; shape.iter().product()]));
        let reference = Operand { values: &blank, shape, rows: None };
        let held = if self.backwards && is_backwards(entry, shape) { shape } else { &entry.shape };
        let candidate = Operand { values: &values, shape: held, rows: None };
        let pair = Pair::new(place.tap.site, &reference, &candidate, rows).map_err(|misfit| match misfit {
            Misfit::Shapes(reason) => Unusable::Misfit(reason.replace("the reference's", "the model's")),
            Misfit::NoRows => Unusable::Partial,
        })?;
        Ok((0..pair.len()).map(|i| pair.candidate(i)).collect())
    }
}

/// Whether a tensor of heads may hold them first or second, by its shape.
pub(crate) fn leaves_heads_open(entry: &Entry, shape: &[usize]) -> bool {
    let flat = entry.shape.len() == 1 && entry.shape[0] == shape.iter().product::<usize>();
    has_heads(entry.tap.site) && shape.len() == 3 && (flat || (entry.shape == shape && shape[0] == shape[1]))
}

/// Whether a context may hold its heads first: flat, or as \[H,T,d\].
pub(crate) fn leaves_context_open(entry: &Entry, heads: usize) -> bool {
    entry.tap.site == Site::Context && (entry.shape.len() == 1 || (entry.shape.len() == 3 && entry.shape[0] == heads))
}

/// Whether a shape is the model's, listed from the other end, and not the same so.
pub(crate) fn is_backwards(entry: &Entry, shape: &[usize]) -> bool {
    entry.shape != shape && entry.shape.iter().rev().eq(shape)
}

/// The elements of the keys there are, of a tensor with a longer axis of them.
fn without_padding(site: Site, values: &Values<'_>, held: &[usize], shape: &[usize]) -> Option<Vec<f64>> {
    let ([heads, rows, keys], [h, t, longer]) = (shape, held) else { return None };
    if site.axes().last() != Some(&'S') || (heads, rows) != (h, t) || longer <= keys {
        return None;
    }
    Some(
        (0..heads * rows)
            .flat_map(|row| (0..*keys).map(move |key| row * longer + key))
            .map(|i| values.get(i))
            .collect(),
    )
}

/// Whether a tap is of positions, heads, and elements of a head.
fn has_heads(site: Site) -> bool {
    matches!(site.axes(), ['T', 'H' | 'K', 'd'])
}

/// \[H,T,d\] as \[T,H,d\], both of the same shape.
fn heads_second(values: &Values<'_>, shape: &[usize]) -> Vec<f64> {
    let [tokens, heads, width] = *shape else { return Vec::new() };
    let at = |t: usize, h: usize| (h * tokens + t) * width;
    let all = (0..tokens).flat_map(|t| (0..heads).map(move |h| (t, h)));
    all.flat_map(|(t, h)| (0..width).map(move |i| at(t, h) + i)).map(|i| values.get(i)).collect()
}

/// Whether the elements of a tap's heads come in the order of the checkpoint's rows.
pub(crate) fn turned(site: Site) -> bool {
    matches!(site, Site::Q | Site::K | Site::QNorm | Site::KNorm | Site::QRope | Site::KRope)
}

/// Heads of `width` elements brought into the order `to` from the other one.
pub(crate) fn reordered(values: &[f64], to: QkRows, width: usize) -> Vec<f64> {
    let mut out = vec![0.0; values.len()];
    for (from, out) in values.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        for i in 0..width / 2 {
            let (half, adjacent) = ([i, i + width / 2], [2 * i, 2 * i + 1]);
            let (source, target) = match to {
                QkRows::Adjacent => (half, adjacent),
                QkRows::Half => (adjacent, half),
            };
            out[target[0]] = from[source[0]];
            out[target[1]] = from[source[1]];
        }
    }
    out
}
