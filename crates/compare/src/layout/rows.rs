//! Selects the token positions that both sides hold: batch axes, declared rows, and requested rows.

use std::sync::Arc;

use firstdiff_trace::{Entry, NamedRows, Rows, Site};

use crate::layout::elements::{PairElements, TensorRef};
use crate::layout::mismatch::{NotComparable, ShapeMismatch};

/// A shape without its batch axis: [T, D] for [1, T, D]. Unchanged where the vocabulary does not define the axes.
pub(crate) fn squeezed(site: Site, shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    while !site.is_open() && shape.len() > site.axes().len() && shape[0] == 1 {
        shape.remove(0);
    }
    shape
}

/// One side without axes of length 1 that the vocabulary does not have.
pub(crate) struct SelectedRows<'a> {
    pub(crate) shape: Vec<usize>,
    pub(crate) side: PairElements<'a>,
    axis: usize,
    rows: Option<Rows>,
}

impl<'a> SelectedRows<'a> {
    pub(crate) fn new(site: Site, operand: &TensorRef<'a>, axis: usize) -> SelectedRows<'a> {
        let shape = squeezed(site, operand.shape);
        let side = PairElements { values: operand.values, map: None };
        SelectedRows { shape, side, axis, rows: operand.rows.cloned().filter(|r| !r.is_all()) }
    }

    /// Keeps only `positions` of the position axis.
    fn keep(mut self, positions: &[usize]) -> Result<SelectedRows<'a>, NotComparable> {
        let extent = self.shape[self.axis];
        if let Some(outside) = positions.iter().find(|&&p| p >= extent) {
            return Err(NotComparable::Shapes(ShapeMismatch::RowOutside { row: *outside, rows: extent }));
        }
        let inner: usize = self.shape[self.axis + 1..].iter().product();
        let positions: Arc<[usize]> = positions.into();
        self.shape[self.axis] = positions.len();
        let span = positions.len() * inner;
        self.side = self.side.after(Arc::new(move |at| {
            let (outer, within) = (at / span, at % span);
            outer * extent * inner + positions[within / inner] * inner + within % inner
        }));
        self.rows = None;
        Ok(self)
    }
}

/// Whether two shapes differ only in their number of token positions.
pub(crate) fn positions_apart(axis: usize, left: &[usize], right: &[usize]) -> bool {
    left.len() == right.len() && axis < left.len() && (0..left.len()).all(|i| (left[i] == right[i]) != (i == axis))
}

/// Whether recording at `rows` means at all positions.
pub(crate) fn are_all(rows: &Option<Rows>) -> bool {
    rows.as_ref().is_none_or(Rows::is_all)
}

/// How many token positions each side holds, where the shapes differ only in that and no rows are declared.
pub(crate) fn unlike_positions(left: &Entry, right: &Entry) -> Option<(usize, usize)> {
    let axis = left.tap.site.position_axis();
    let [one, other] = [left, right].map(|entry| squeezed(left.tap.site, &entry.shape));
    (are_all(&left.rows) && are_all(&right.rows) && positions_apart(axis, &one, &other))
        .then(|| (one[axis], other[axis]))
}

/// Both sides at the same token positions, and these positions.
type AtPositions<'a> = (SelectedRows<'a>, SelectedRows<'a>, Option<Arc<[usize]>>);

/// Brings both sides to the same token positions.
pub(crate) fn select_rows<'a>(
    reference: SelectedRows<'a>,
    candidate: SelectedRows<'a>,
    requested_rows: Option<&Rows>,
) -> Result<AtPositions<'a>, NotComparable> {
    if reference.rows.is_none() && candidate.rows.is_none() && requested_rows.is_none() {
        return Ok((reference, candidate, None));
    }
    let vector = |mut side: SelectedRows<'a>| {
        // A single row may come without its axis: [D] for [1, D].
        if side.axis == 0 && side.shape.len() == 1 {
            side.shape.insert(0, 1);
        }
        side
    };
    // Rows of which only the numbers are known, in the other side's axes.
    let flat = |mut side: SelectedRows<'a>, other: &[usize]| {
        let count = match side.rows.as_ref().or(requested_rows) {
            Some(Rows::List(list)) => list.len(),
            Some(Rows::Named(NamedRows::Last)) => 1,
            _ => return side,
        };
        let mut shape = other.to_vec();
        if let Some(extent) = shape.get_mut(side.axis).filter(|_| side.axis > 0 && side.shape.len() == 1) {
            *extent = count;
            if shape.iter().product::<usize>() == side.shape[0] {
                side.shape = shape;
            }
        }
        side
    };
    let [left, right] = [&reference, &candidate].map(|side| side.shape.clone());
    let (reference, candidate) = (vector(flat(reference, &right)), vector(flat(candidate, &left)));
    let extent = |side: &SelectedRows<'_>| {
        side.shape.get(side.axis).copied().ok_or(NotComparable::Shapes(ShapeMismatch::NoRowAxis))
    };
    // A declared row is within the step, even where both sides hold only a few rows.
    let named = [&reference.rows, &candidate.rows].into_iter().flatten().filter_map(|rows| match rows {
        Rows::List(list) => list.iter().max().map(|last| last + 1),
        Rows::Named(_) => None,
    });
    let total = extent(&reference)?.max(extent(&candidate)?).max(named.max().unwrap_or(0));
    let listed = |rows: &Rows| match rows {
        Rows::List(list) => list.clone(),
        Rows::Named(NamedRows::Last) => vec![total.saturating_sub(1)],
        Rows::Named(NamedRows::All) => (0..total).collect(),
    };
    // The positions that each side holds: those it declares, else all, else (with fewer rows than the other side) the requested ones.
    let holds = |side: &SelectedRows<'_>| -> Result<Vec<usize>, NotComparable> {
        let count = extent(side)?;
        let held = match (&side.rows, requested_rows) {
            (Some(rows), _) => listed(rows),
            (None, _) if count == total => (0..total).collect(),
            (None, Some(rows)) => listed(rows),
            (None, None) => (0..count).collect(),
        };
        match held.len() == count {
            true => Ok(held),
            false => Err(NotComparable::Shapes(ShapeMismatch::RowCount { held: count, declared: held.len() })),
        }
    };
    let (left, right) = (holds(&reference)?, holds(&candidate)?);
    let requested = requested_rows.map(&listed);
    let common: Vec<usize> = left
        .iter()
        .copied()
        .filter(|p| right.contains(p) && requested.as_ref().is_none_or(|a| a.contains(p)))
        .collect();
    if common.is_empty() {
        return Err(NotComparable::NoRows);
    }
    let places =
        |held: &[usize]| -> Vec<usize> { common.iter().filter_map(|p| held.iter().position(|q| q == p)).collect() };
    let (left, right) = (places(&left), places(&right));
    Ok((reference.keep(&left)?, candidate.keep(&right)?, Some(common.into())))
}
