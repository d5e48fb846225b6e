//! What did the candidate hold at a tap, in the model's own layout? Its recorded tensors, whatever their axes and row order.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{Layout, LayoutCandidates, NotComparable, Pair, Place, TensorRef};
use firstdiff_model::{Cache, Model, Step};
use firstdiff_trace::{Dump, DumpError, NamedRows, QkRows, Rows, Site, Values};
use ndarray::{ArrayD, Axis};

use crate::replay::reason::Unfit;
use crate::replay::{ReplayError, Run, rowwise};

/// A candidate's dump, read as the model would have written it.
pub(crate) struct Recorded<'a> {
    pub(crate) dump: &'a Dump,
    pub(crate) model: &'a Model,
    /// Tokens of every step.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// Which positions taps with fewer than all hold, where the dump does not say.
    pub(crate) rows: Option<Rows>,
    /// The type keys and values were kept in: what attention reads of them is rounded to it.
    pub(crate) cache: Cache,
    /// The order of the rows of Q and K, where the dump declares one that is not the model's.
    pub(crate) declared: Option<QkRows>,
    /// The layout of a tap, where it is not as it stands.
    pub(crate) layouts: BTreeMap<Place, Layout>,
    /// Taps that agree in a layout that nothing confirms: computed, as if they were not there.
    pub(crate) unconfirmed: BTreeMap<Place, Layout>,
    /// Taps that are wrong in every order of axes, so that nobody knows in which of them they were read.
    pub(crate) unordered: BTreeSet<Place>,
    /// Taps that were recorded wrongly: computed, as if they were not there.
    pub(crate) left_out: BTreeSet<Place>,
}

/// Why a tensor cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// It does not hold what is asked for.
    #[error(transparent)]
    Unfit(#[from] Unfit),
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
        let is_out = self.left_out.contains(&place) || self.unconfirmed.contains_key(&place);
        !is_out && self.dump.find(place.tap, place.step).is_some()
    }

    /// Whether a tap can be computed with as it was recorded.
    pub(crate) fn is_readable(&self, place: Place) -> bool {
        self.holds(place) && !self.unordered.contains(&place)
    }

    /// Whether all of a tap was recorded in a step, and can be computed with.
    pub(crate) fn is_whole(&self, place: Place) -> bool {
        self.is_readable(place) && self.positions(place).is_none()
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
            return Err(Unfit::Partial.into());
        }
        self.in_its_layout(place, self.shape(place))
    }

    /// The rows `positions` of a tap that holds no others; a row is all of its tensor but the first axis.
    pub(crate) fn read_rows(&self, place: Place, positions: &[usize]) -> Result<ArrayD<f64>, Unusable> {
        let (mut shape, axis) = (self.shape(place), place.tap.site.position_axis());
        if self.positions(place).is_none() {
            return Ok(self.in_its_layout(place, shape)?.select(Axis(axis), positions));
        }
        shape[axis] = positions.len();
        self.in_its_layout(place, shape)
    }

    /// The elements in the model's order.
    fn in_its_layout(&self, place: Place, shape: Vec<usize>) -> Result<ArrayD<f64>, Unusable> {
        let blank = ArrayD::zeros(shape);
        let values = self.with_layouts(place, &blank, |layouts| {
            let pair = match self.layouts.get(&place) {
                Some(layout) => layouts.under(layout).ok_or(Unfit::Absent)?,
                None => self.as_it_stands(place.tap.site, layouts)?,
            };
            Ok::<Vec<f64>, Unusable>((0..pair.len()).map(|i| pair.candidate(i)).collect())
        })??;
        ArrayD::from_shape_vec(blank.raw_dim(), values).map_err(|_| Unfit::Absent.into())
    }

    /// What was recorded of a tap beside its witness, in all layouts that compare knows.
    pub(crate) fn with_layouts<X>(
        &self,
        place: Place,
        witness: &ArrayD<f64>,
        then: impl FnOnce(&LayoutCandidates<'_>) -> X,
    ) -> Result<X, Unusable> {
        let entry = self.dump.find(place.tap, place.step).ok_or(Unfit::Absent)?;
        let tensor = self.dump.read(entry)?;
        let (values, witness) = (tensor.values(), witness.as_standard_layout());
        let due = Values::F64(Cow::Borrowed(witness.as_slice().ok_or(Unfit::Absent)?));
        let reference = TensorRef { values: &due, shape: witness.shape(), rows: None };
        let candidate = TensorRef { values: &values, shape: &entry.shape, rows: None };
        let heads = (place.tap.site == Site::Context).then_some(self.model.plan.dims.heads);
        Ok(then(&LayoutCandidates::new(place.tap.site, reference, candidate, heads, None)))
    }

    /// As the shape says, and in the order of rows that the dump declares.
    fn as_it_stands<'c>(&self, site: Site, layouts: &LayoutCandidates<'c>) -> Result<Pair<'c>, Unusable> {
        let pair = layouts.as_it_stands().map_err(|misfit| match misfit {
            NotComparable::Shapes(mismatch) => Unfit::Shape(mismatch.clone()),
            NotComparable::NoRows => Unfit::Partial,
        })?;
        match self.declared.filter(|_| site.has_rope_rows()) {
            None => Ok(pair.clone()),
            declared => {
                let mut orders = pair.other_row_orders().into_iter();
                Ok(orders.find(|pair| pair.layout().rows() == declared).unwrap_or_else(|| pair.clone()))
            }
        }
    }

    /// Whether a layout has a tap's rows of Q and K in the model's order, where the dump declares another.
    pub(crate) fn is_misdeclared(&self, site: Site, layout: &Layout) -> bool {
        self.declared.is_some() && site.has_rope_rows() && layout.rows().is_none()
    }

    /// Whether a tap may have its rows of Q and K in the order that a layout gives them.
    pub(crate) fn permits(&self, site: Site, layout: &Layout) -> bool {
        let told = self.dump.meta().qk_rows.is_some();
        match layout.rows() {
            None => !told || self.declared.is_none() || !site.has_rope_rows(),
            Some(rows) if told => self.declared == Some(rows),
            Some(rows) => rows != self.model.qk_rows,
        }
    }

    /// Whether a tap has the very shape that the model gives it, or as many axes of these lengths.
    pub(crate) fn has_its_own_shape(&self, place: Place) -> bool {
        self.dump.find(place.tap, place.step).is_some_and(|entry| entry.shape == self.shape(place))
    }
}

/// What the candidate recorded, and at which positions where not at all.
#[allow(clippy::type_complexity)]
pub(crate) fn own(run: &Run<'_>, place: Place) -> Result<Option<(ArrayD<f64>, Option<Vec<usize>>)>, ReplayError> {
    let positions = match run.recorded.positions(place) {
        None => None,
        Some(rows) => match run.listed(&rows, place) {
            Some(list) => Some(list),
            None => return Ok(None),
        },
    };
    let own = match &positions {
        None => run.recorded.read(place),
        Some(list) => run.recorded.read_rows(place, list),
    };
    match own {
        Ok(own) => Ok(Some((own, positions))),
        Err(Unusable::Dump(e)) => Err(e.into()),
        Err(Unusable::Unfit(_)) => Ok(None),
    }
}

/// What a step reads at some positions, if the candidate recorded it there.
pub(crate) fn row_inputs(
    run: &Run<'_>,
    step: &Step,
    number: u32,
    list: &[usize],
) -> Result<Option<Vec<ArrayD<f64>>>, ReplayError> {
    if !rowwise(&step.op) {
        return Ok(None);
    }
    let mut inputs = Vec::new();
    for &tap in &step.reads {
        let place = Place { step: number, tap };
        if !run.recorded.is_readable(place) {
            return Ok(None);
        }
        match run.recorded.read_rows(place, list) {
            Ok(rows) => inputs.push(rows),
            Err(Unusable::Dump(e)) => return Err(e.into()),
            Err(Unusable::Unfit(_)) => return Ok(None),
        }
    }
    Ok(Some(inputs))
}
