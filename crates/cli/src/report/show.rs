//! Defines the report of `show`: what a dump holds.

use firstdiff_compare::unravel;
use firstdiff_trace::{Dump, DumpError, Entry, Site, Tensor};
use serde::Serialize;

use crate::report::{Header, Provenance};

/// The most rows and columns of a map.
const ROWS: usize = 24;
const COLUMNS: usize = 48;
/// How many values are printed.
const FIRST: usize = 6;

/// The report of `firstdiff show`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Show {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// Where the dump comes from.
    pub dump: Provenance,
    /// How many tensors it holds in all.
    pub tensors: usize,
    /// The requested ones.
    pub taps: Vec<TensorSummary>,
    /// Where only one was requested: how large its values are, and where.
    pub map: Option<Map>,
    /// Names that cannot be read as a tensor of floats.
    pub unreadable: Vec<String>,
    /// Other notes.
    pub warnings: Vec<String>,
}

/// A tensor's values in a few numbers. Values that are not finite are counted, and enter no other number.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "shown"))]
pub struct TensorSummary {
    /// Its name.
    pub tap: String,
    /// 0 is the prefill, n the n-th decode step.
    pub step: u32,
    /// Extent of every axis.
    pub shape: Vec<usize>,
    /// Element type on disk.
    pub dtype: &'static str,
    /// How many values there are.
    pub count: usize,
    /// How many of them are NaN or infinite.
    pub not_finite: usize,
    /// How many are exactly zero.
    pub zeros: usize,
    /// The smallest; null where no value is finite.
    pub min: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
    /// The index of the value with the largest magnitude.
    pub peak_at: Option<Vec<usize>>,
    /// The mean.
    pub mean: Option<f64>,
    /// Root of the mean square.
    pub rms: Option<f64>,
    /// The first values.
    pub first: Vec<f64>,
}

/// Root of the mean square of groups of values: token positions downwards, the elements of a position to the right.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Map {
    /// Its head, where it shows a single one.
    pub head: Option<usize>,
    /// What each column counts: `channels of all heads`, `keys` ..
    pub across: &'static str,
    /// How many token positions each row stands for.
    pub positions_each: usize,
    /// How many values of a position each column stands for.
    pub columns_each: usize,
    /// Row by row; null where a value is not finite.
    pub rms: Vec<Vec<Option<f64>>>,
}

impl Show {
    pub(crate) fn new(dump: &Dump, tensors: usize, taps: Vec<TensorSummary>, map: Option<Map>) -> Show {
        let unreadable = dump.unmapped().iter().filter(|name| dump.unmapped_size(name).is_none()).cloned().collect();
        let warnings = dump.notes().to_vec();
        Show { header: Header::new("show"), dump: Provenance::new(dump), tensors, taps, map, unreadable, warnings }
    }
}

impl TensorSummary {
    /// The numbers of a dump's tensor.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read(dump: &Dump, entry: &Entry) -> Result<TensorSummary, DumpError> {
        let tensor = dump.read(entry)?;
        let values = tensor.values();
        let (mut not_finite, mut zeros, mut sum) = (0, 0, 0.0);
        let (mut min, mut max, mut peak) = (f64::INFINITY, f64::NEG_INFINITY, None);
        for index in 0..values.len() {
            let value = values.get(index);
            if !value.is_finite() {
                not_finite += 1;
                continue;
            }
            zeros += usize::from(value == 0.0);
            sum += value;
            (min, max) = (min.min(value), max.max(value));
            if peak.is_none_or(|(_, largest)| value.abs() > largest) {
                peak = Some((index, value.abs()));
            }
        }
        let finite = values.len() - not_finite;
        let of_finite = |value: f64| (finite > 0).then_some(value);
        Ok(TensorSummary {
            tap: entry.tap.to_string(),
            step: entry.step,
            shape: entry.shape.clone(),
            dtype: entry.dtype.name(),
            count: values.len(),
            not_finite,
            zeros,
            min: of_finite(min),
            max: of_finite(max),
            peak_at: peak.map(|(index, _)| unravel(index, &entry.shape)),
            mean: of_finite(sum / finite as f64).filter(|mean| mean.is_finite()),
            rms: rms((0..values.len()).map(|index| values.get(index)).filter(|value| value.is_finite())),
            first: (0..values.len().min(FIRST)).map(|index| values.get(index)).collect(),
        })
    }

    /// The largest magnitude.
    pub(crate) fn peak(&self) -> Option<f64> {
        Some(self.max?.max(-self.min?))
    }

    /// Anything unusual about its values.
    pub(crate) fn anomaly(&self) -> Option<String> {
        match () {
            () if self.count == 0 => Some("holds nothing".into()),
            () if self.not_finite > 0 => Some(format!("{} not finite", self.not_finite)),
            () if self.zeros == self.count => Some("all zeros".into()),
            () if self.count > 1 && self.min == self.max => Some("all equal".into()),
            () => None,
        }
    }
}

/// Root of the mean square, for values of any size; `None` where there are none, or one is not finite.
fn rms(values: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let peak = values.clone().map(f64::abs).fold(0.0, |a, b| if b.is_nan() || b > a { b } else { a });
    let (squares, count) = values.fold((0.0, 0), |(sum, count), value| (sum + (value / peak).powi(2), count + 1));
    match count {
        0 => None,
        _ if peak == 0.0 => Some(0.0),
        _ => Some(peak * (squares / count as f64).sqrt()).filter(|rms| rms.is_finite()),
    }
}

impl Map {
    /// The map of a tensor of that site, or of one head of it if requested. `None` where it has no values, or is not a matrix.
    ///
    /// # Errors
    /// When the tensor has no such head.
    pub(crate) fn new(site: Site, tensor: &Tensor, head: Option<usize>) -> Result<Option<Map>, NoHead> {
        let (shape, values) = (tensor.shape(), tensor.values());
        let three = shape.len() == 3;
        let axis = site.position_axis().min(shape.len().saturating_sub(1));
        let heads = if three && !site.is_open() { shape[1 - axis] } else { 0 };
        if let Some(head) = head.filter(|&head| head >= heads) {
            return Err(NoHead { head, heads });
        }
        // Axes beyond the tap's own are those of a batch, and which is which is unknown.
        let too_many = !site.is_open() && shape.len() > site.axes().len();
        if shape.len() < 2 || too_many || values.is_empty() {
            return Ok(None);
        }
        let positions = shape[axis];
        let (behind, before) = (shape[axis + 1..].iter().product::<usize>(), shape[..axis].iter().product::<usize>());
        // With heads before the positions: all of them together, or one; with heads behind them: one beside the other.
        let (blocks, channels) = match head {
            Some(head) if axis == 1 => (head..head + 1, 0..behind),
            Some(head) => (0..before, head * shape[2]..(head + 1) * shape[2]),
            None => (0..before, 0..behind),
        };
        let across = match (axis, three, head) {
            (1, _, None) => "keys, all heads together",
            (1, ..) => "keys",
            (0, true, None) => "channels of all heads",
            _ => "channels",
        };
        let (positions_each, columns_each) = (positions.div_ceil(ROWS).max(1), channels.len().div_ceil(COLUMNS).max(1));
        let cell = |row: usize, column: usize| {
            let rows = row..(row + positions_each).min(positions);
            let columns = column..(column + columns_each).min(channels.end);
            let places =
                blocks.clone().flat_map(|block| rows.clone().map(move |row| (block * positions + row) * behind));
            let of_row = |start: usize| columns.clone().map(move |column| start + column);
            rms(places.flat_map(of_row).map(|at| values.get(at)))
        };
        let row = |row: usize| channels.clone().step_by(columns_each).map(|column| cell(row, column)).collect();
        let rms = (0..positions).step_by(positions_each).map(row).collect();
        Ok(Some(Map { head, across, positions_each, columns_each, rms }))
    }
}

/// A head that a tensor does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHead {
    /// The head that was asked for.
    pub head: usize,
    /// How many there are.
    pub heads: usize,
}

#[cfg(test)]
mod tests {
    use firstdiff_trace::Values;

    use super::*;

    fn map(site: Site, shape: &[usize], values: &[f64], head: Option<usize>) -> Result<Option<Map>, NoHead> {
        let tensor = Tensor::held(shape.to_vec(), Values::F64(values.to_vec().into())).unwrap();
        Map::new(site, &tensor, head)
    }

    #[test]
    fn a_map_has_positions_downwards() {
        let q = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, f64::NAN, 8.0];
        let rms = |head| map(Site::Q, &[2, 2, 2], &q, head).unwrap().unwrap().rms;
        let some = |row: &[f64]| row.iter().map(|v| Some(*v)).collect::<Vec<_>>();
        assert_eq!(rms(None), [some(&[1.0, 2.0, 3.0, 4.0]), vec![Some(5.0), Some(6.0), None, Some(8.0)]]);
        assert_eq!(rms(Some(0)), [some(&[1.0, 2.0]), some(&[5.0, 6.0])]);
        assert_eq!(map(Site::Q, &[2, 2, 2], &q, Some(2)).unwrap_err(), NoHead { head: 2, heads: 2 });
        let probs = [1.0, 0.0, 0.5, 0.5, 1.0, 0.0, 0.1, 0.7];
        let rms = |head| map(Site::Probs, &[2, 2, 2], &probs, head).unwrap().unwrap().rms;
        assert_eq!(rms(Some(1)), [some(&[1.0, 0.0]), some(&[0.1, 0.7])]);
        assert_eq!(rms(None)[0], some(&[1.0, 0.0]));
        assert_eq!(
            map(Site::H, &[1, 3], &[1e-200, 1e300, 0.0], None).unwrap().unwrap().rms[0],
            some(&[1e-200, 1e300, 0.0])
        );
        assert!(map(Site::H, &[4], &[1.0; 4], None).unwrap().is_none());
    }

    #[test]
    fn long_axes_stand_together() {
        let map = map(Site::H, &[100, 100], &[2.0; 10_000], None).unwrap().unwrap();
        assert_eq!((map.positions_each, map.columns_each), (5, 3));
        assert_eq!((map.rms.len(), map.rms[0].len(), map.rms[19][33]), (20, 34, Some(2.0)));
    }
}
