//! Holds the elements of one side of a pair, and where in them each element of the pair is.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use firstdiff_trace::{Rows, Values as Held};

use crate::metrics::Values;

pub(crate) type IndexMap = Arc<dyn Fn(usize) -> usize + Send + Sync>;

/// One side's elements, and where in them each element of the pair is.
#[derive(Clone)]
pub(crate) struct PairElements<'a> {
    pub(crate) values: &'a Held<'a>,
    pub(crate) map: Option<IndexMap>,
}

impl PairElements<'_> {
    pub(super) fn get(&self, index: usize) -> f64 {
        self.values.get(self.map.as_ref().map_or(index, |map| map(index)))
    }

    /// The elements in `range`: borrowed where they are stored so as f64, else copied to `buffer`.
    pub(super) fn span<'b>(&'b self, range: Range<usize>, buffer: &'b mut Vec<f64>) -> &'b [f64] {
        match &self.map {
            None => borrow(self.values).slice(range).as_f64(buffer),
            Some(map) => {
                buffer.clear();
                buffer.extend(range.map(|i| self.values.get(map(i))));
                buffer
            }
        }
    }

    pub(crate) fn after(mut self, outer: IndexMap) -> Self {
        self.map = Some(match self.map.take() {
            Some(inner) => Arc::new(move |i| inner(outer(i))),
            None => outer,
        });
        self
    }
}

/// A tensor as one side of a comparison.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    /// Its elements.
    pub values: &'a Held<'a>,
    /// Its shape.
    pub shape: &'a [usize],
    /// The token positions it holds, where not all.
    pub rows: Option<&'a Rows>,
}

/// The elements of a stored tensor, borrowed for the metrics.
pub(crate) fn borrow<'a>(values: &'a Held<'_>) -> Values<'a> {
    match values {
        Held::F64(Cow::Borrowed(v)) => Values::F64(v),
        Held::F64(Cow::Owned(v)) => Values::F64(v),
        Held::F32(Cow::Borrowed(v)) => Values::F32(v),
        Held::F32(Cow::Owned(v)) => Values::F32(v),
        Held::F16(Cow::Borrowed(v)) => Values::F16(v),
        Held::F16(Cow::Owned(v)) => Values::F16(v),
        Held::BF16(Cow::Borrowed(v)) => Values::BF16(v),
        Held::BF16(Cow::Owned(v)) => Values::BF16(v),
    }
}
