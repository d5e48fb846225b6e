//! Pairs two tensors element by element: which element of the candidate belongs to which of the reference, and which are masked.

use std::ops::Range;
use std::sync::Arc;

use firstdiff_trace::{QkRows, Rows, Site, Values as Held};

use crate::layout::elements::{PairElements, TensorRef, borrow};
use crate::layout::mismatch::{NotComparable, ShapeMismatch};
use crate::layout::rows::{SelectedRows, positions_apart, select_rows};
use crate::layout::shapes::match_shapes;
use crate::layout::types::Layout;
use crate::metrics::{Metrics, Squares};
use crate::threads;
use crate::tolerance::judge::{EXP_VANISHES, MASKED, is_masked};
use crate::tolerance::layout::PLACED_CORRELATION;
use crate::words::{index_in_words, unravel};

/// Two tensors, element by element, in the reference's shape and row-major order.
#[derive(Clone)]
pub struct Pair<'a> {
    site: Site,
    shape: Vec<usize>,
    reference: PairElements<'a>,
    candidate: PairElements<'a>,
    layout: Layout,
    /// Number of heads, where the shape does not show it.
    merged_heads: Option<usize>,
    /// The token positions of the step that are compared, where not all.
    positions: Option<Arc<[usize]>>,
    /// The token position at which the step begins.
    start: usize,
}

impl<'a> Pair<'a> {
    /// Pairs `candidate` with `reference`, which are the same `site`. `rows` are the positions to compare.
    ///
    /// # Errors
    /// When the shapes cannot be matched.
    pub fn new(
        site: Site,
        reference: &TensorRef<'a>,
        candidate: &TensorRef<'a>,
        rows: Option<&Rows>,
    ) -> Result<Pair<'a>, NotComparable> {
        let axis = site.position_axis();
        let (left, right) = (SelectedRows::new(site, reference, axis), SelectedRows::new(site, candidate, axis));
        let wanted = rows.filter(|r| !r.is_all());
        let (left, right, positions) = select_rows(left, right, wanted)?;
        let shape = left.shape.clone();
        let (layout, map) = match_shapes(site, &shape, &right.shape).ok_or_else(|| {
            let row = |one: &[usize], other: &[usize]| other.get(1..) == Some(one);
            let one_row = axis == 0 && (row(&left.shape, &right.shape) || row(&right.shape, &left.shape));
            NotComparable::Shapes(ShapeMismatch::Shapes {
                candidate: candidate.shape.to_vec(),
                witness: reference.shape.to_vec(),
                // For a tap outside the vocabulary it is unknown whether rows are token positions: an expert has rows of its own.
                may_be_rows: !site.is_open() && (one_row || positions_apart(axis, &left.shape, &right.shape)),
            })
        })?;
        let mut side = right.side;
        if let Some(map) = map {
            side = side.after(map);
        }
        Ok(Pair { site, shape, reference: left.side, candidate: side, layout, merged_heads: None, positions, start: 0 })
    }

    /// Two sides seen in `shape`, the reference's.
    pub(crate) fn seen_as(
        site: Site,
        shape: Vec<usize>,
        reference: PairElements<'a>,
        candidate: PairElements<'a>,
        layout: Layout,
    ) -> Pair<'a> {
        Pair { site, shape, reference, candidate, layout, merged_heads: None, positions: None, start: 0 }
    }

    /// The same with other values on both sides, in the pair's own order.
    pub(crate) fn pair_with_values<'b>(&self, reference: &'b Held<'b>, candidate: &'b Held<'b>) -> Pair<'b> {
        let side = |values| PairElements { values, map: None };
        Pair {
            site: self.site,
            shape: self.shape.clone(),
            reference: side(reference),
            candidate: side(candidate),
            layout: self.layout.clone(),
            merged_heads: self.merged_heads,
            positions: self.positions.clone(),
            start: self.start,
        }
    }

    /// The site compared.
    pub fn site(&self) -> Site {
        self.site
    }

    /// The shape both sides are seen in.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How the candidate was read.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The reference's element `index`.
    pub fn reference(&self, index: usize) -> f64 {
        self.reference.get(index)
    }

    /// Whether a key is masked on both sides, as the value of either shows: such places are not counted.
    pub(crate) fn is_masked(&self, reference: f64, candidate: f64) -> bool {
        is_masked(self.site, reference) && is_masked(self.site, candidate)
    }

    /// Both sides of an element, minus infinity for what is masked: how large a fill is, is no size of an error.
    pub(crate) fn unmasked(&self, index: usize) -> (f64, f64) {
        let unmasked = |value: f64| if is_masked(self.site, value) { f64::NEG_INFINITY } else { value };
        (unmasked(self.reference(index)), unmasked(self.candidate(index)))
    }

    /// The candidate's element `index`.
    pub fn candidate(&self, index: usize) -> f64 {
        self.candidate.get(index)
    }

    /// The elements in `range` of both sides, the reference's first; copied to the buffers where they are not stored so as f64.
    pub(crate) fn span<'b>(&'b self, range: Range<usize>, buffers: &'b mut [Vec<f64>; 2]) -> (&'b [f64], &'b [f64]) {
        let [left, right] = buffers;
        (self.reference.span(range.clone(), left), self.candidate.span(range, right))
    }

    /// Where the candidate holds element `index`.
    pub(crate) fn place(&self, index: usize) -> usize {
        self.candidate.map.as_ref().map_or(index, |map| map(index))
    }

    /// The token position, within the step, of row `row` of the position axis.
    pub fn position(&self, row: usize) -> usize {
        self.positions.as_ref().map_or(row, |list| list[row])
    }

    /// The pair, with the token position at which its step begins.
    pub fn beginning_at(self, start: usize) -> Pair<'a> {
        Pair { start, ..self }
    }

    /// The token position, counted from the first of the run, of row `row` of the position axis.
    pub fn token_position(&self, row: usize) -> usize {
        self.start + self.position(row)
    }

    /// The token positions of the step that are compared, where not all.
    pub fn positions(&self) -> Option<&[usize]> {
        self.positions.as_deref()
    }

    /// Number of positions T along the position axis, and the contiguous length behind it. The map of an image has more axes than its tap has in the
    /// vocabulary, and its position axes are unknown: it counts as one row.
    pub fn rows(&self) -> (usize, usize) {
        if !self.site.is_open() && self.shape.len() > self.site.axes().len() {
            return (1, self.len());
        }
        let axis = self.site.position_axis().min(self.shape.len().saturating_sub(1));
        let positions = self.shape.get(axis).copied().unwrap_or(1);
        (positions, self.shape.iter().skip(axis + 1).product())
    }

    /// The pair, with the number of heads merged in its last axis.
    pub fn with_heads(self, heads: usize) -> Pair<'a> {
        let fits = heads > 0 && self.shape.last().is_some_and(|width| width.is_multiple_of(heads));
        Pair { merged_heads: fits.then_some(heads), ..self }
    }

    /// Number of heads, where there are any.
    pub fn heads(&self) -> Option<usize> {
        match (self.shape.len(), self.site.position_axis()) {
            (3, 1) => Some(self.shape[0]),
            (3, _) => Some(self.shape[1]),
            _ if self.site == Site::Context => self.merged_heads,
            _ => None,
        }
    }

    /// The head of element `index`, of `heads` in all.
    pub fn head_of(&self, index: usize, heads: usize) -> usize {
        let (_, row) = self.rows();
        match self.site.position_axis() {
            1 => index * heads / self.len(),
            _ => index % row * heads / row,
        }
    }

    /// `head 0, position 3, key 5`: where element `index` is.
    pub(crate) fn place_in_words(&self, index: usize) -> String {
        let mut at = unravel(index, &self.shape);
        if let Some(row) = at.get_mut(self.site.position_axis()) {
            *row = self.token_position(*row);
        }
        index_in_words(self.site, &at)
    }

    /// The pair with the candidate's elements at `map` of each element's place.
    pub fn candidate_at(&self, layout: Layout, map: impl Fn(usize) -> usize + Send + Sync + 'static) -> Pair<'a> {
        Pair { candidate: self.candidate.clone().after(Arc::new(map)), layout, ..self.clone() }
    }

    /// Q and K with the rows of each head in the other RoPE orders.
    pub fn other_row_orders(&self) -> Vec<Pair<'a>> {
        let Some(&d) = self.shape.last().filter(|d| self.site.has_rope_rows() && **d >= 4 && **d % 2 == 0) else {
            return Vec::new();
        };
        let half = d / 2;
        let axes = match &self.layout {
            Layout::Permuted(order) => Some(order.clone()),
            _ => None,
        };
        let layout = |rows| Layout::Rows { rows, axes: axes.clone() };
        let adjacent = self.candidate_at(layout(QkRows::Adjacent), move |at| {
            let (head, j) = (at - at % d, at % d);
            head + 2 * (j % half) + j / half
        });
        let halves = self.candidate_at(layout(QkRows::Half), move |at| {
            let (head, j) = (at - at % d, at % d);
            head + (j % 2) * half + j / 2
        });
        vec![adjacent, halves]
    }

    /// Metrics of every contiguous run of elements behind the position axis, in order: run b belongs to position b % T.
    ///
    /// In `scores`, places masked on both sides are in no sum, whatever number stands for "masked".
    pub fn row_metrics(&self) -> Vec<Metrics> {
        let (_, row) = self.rows();
        if row == 0 || self.is_empty() {
            return Vec::new();
        }
        if self.site != Site::Scores && self.reference.map.is_none() && self.candidate.map.is_none() {
            return Metrics::measure_rows(borrow(self.reference.values), borrow(self.candidate.values), row);
        }
        threads::map(self.len() / row, |b| self.block_metrics(b * row, row))
    }

    /// NMSE of each position relative to its own energy; infinite where the two differ and that energy is zero or a value is not finite.
    pub fn nmse_by_position(&self) -> Vec<f64> {
        let nmse = |metrics: Metrics| metrics.nmse().unwrap_or(f64::INFINITY);
        by_position(self, self.row_metrics()).into_iter().map(nmse).collect()
    }

    fn block_metrics(&self, start: usize, len: usize) -> Metrics {
        const BLOCK: usize = 4096;
        let range = start..start + len;
        let mut buffers = Default::default();
        if self.site == Site::Scores {
            let (reference, candidate) = self.span(range, &mut buffers);
            let (mut reference, mut candidate) = (reference.to_vec(), candidate.to_vec());
            unify_masks(&mut reference, &mut candidate);
            return Metrics::measure_f64(&reference, &candidate);
        }
        let mut whole = Metrics::default();
        for from in range.clone().step_by(BLOCK) {
            let (reference, candidate) = self.span(from..(from + BLOCK).min(range.end), &mut buffers);
            whole = whole.merge(Metrics::measure_f64(reference, candidate));
        }
        whole
    }

    /// The mean correlation of the two sides' positions.
    pub fn mean_correlation(&self) -> f64 {
        let rows = by_position(self, self.row_metrics());
        rows.iter().filter_map(Metrics::correlation).sum::<f64>() / rows.len().max(1) as f64
    }

    /// Whether the two sides resemble each other position by position, as misplaced values do not, and more than with a mean correlation of `plain`.
    pub fn resembles(&self, plain: f64) -> bool {
        let here = self.mean_correlation();
        here > PLACED_CORRELATION && here > plain.abs() + PLACED_CORRELATION / 2.0
    }

    /// NMSE in this layout over some elements: enough to decide whether to look closer.
    pub fn estimated_nmse(&self) -> f64 {
        self.sampled_nmse((self.len() / SAMPLE).max(1) | 1)
    }

    /// NMSE in this layout over every `stride`-th element; infinite where a value is not finite.
    pub fn sampled_nmse(&self, stride: usize) -> f64 {
        let mut squares = Squares::default();
        for i in (0..self.len()).step_by(stride.max(1)) {
            let (r, c) = (self.reference(i), self.candidate(i));
            if self.is_masked(r, c) {
                continue;
            }
            squares.add(r, c);
        }
        let nmse = squares.ratio();
        if nmse.is_finite() { nmse } else { f64::INFINITY }
    }
}

/// How many elements an estimate reads.
const SAMPLE: usize = 512;

/// Replaces masked values by -inf: on both sides that agrees and is in no sum, on one side it differs.
fn unify_masks(reference: &mut [f64], candidate: &mut [f64]) {
    let top = |row: &[f64]| row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let masked = |value: f64, top: f64| value <= MASKED && (top <= MASKED || top - value >= -MASKED / 2.0);
    let (top_r, top_c) = (top(reference), top(candidate));
    for (r, c) in reference.iter_mut().zip(candidate) {
        let (by_r, by_c) = (masked(*r, top_r), masked(*c, top_c));
        // Where the other side is masked, a value counts as masked too if e^x makes it 0: some engines add their fill before they scale.
        if by_r || (by_c && top_r - *r >= EXP_VANISHES) {
            *r = f64::NEG_INFINITY;
        }
        if by_c || (by_r && top_c - *c >= EXP_VANISHES) {
            *c = f64::NEG_INFINITY;
        }
    }
}

/// Metrics of each position, over all heads.
pub(crate) fn by_position(pair: &Pair<'_>, rows: Vec<Metrics>) -> Vec<Metrics> {
    let (positions, _) = pair.rows();
    if rows.len() == positions {
        return rows;
    }
    let mut merged = vec![Metrics::default(); positions];
    for (b, row) in rows.into_iter().enumerate() {
        merged[b % positions] = merged[b % positions].merge(row);
    }
    merged
}

#[cfg(test)]
mod tests {
    use firstdiff_trace::NamedRows;

    use super::*;

    fn stored(values: &[f64]) -> Held<'static> {
        Held::F64(std::borrow::Cow::Owned(values.to_vec()))
    }

    fn count(n: usize) -> Vec<f64> {
        (0..n).map(|i| i as f64 + 1.0).collect()
    }

    #[test]
    fn permuted_axes_are_read_in_the_references_order() {
        // candidate[h][t] = reference[t][h]
        let (reference, candidate) = (stored(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), stored(&[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]));
        let left = TensorRef { values: &reference, shape: &[3, 2], rows: None };
        let right = TensorRef { values: &candidate, shape: &[2, 3], rows: None };
        let pair = Pair::new(Site::H, &left, &right, None).unwrap();
        assert!((0..6).all(|i| pair.reference(i) == pair.candidate(i)));
    }

    #[test]
    fn rows_are_lined_up() {
        let (reference, last) = (stored(&count(12)), stored(&[9.0, 10.0, 11.0, 12.0]));
        let left = TensorRef { values: &reference, shape: &[3, 4], rows: None };
        for shape in [&[1usize, 4][..], &[4]] {
            let rows = Rows::Named(NamedRows::Last);
            let right = TensorRef { values: &last, shape, rows: Some(&rows) };
            let pair = Pair::new(Site::H, &left, &right, None).unwrap();
            assert_eq!(pair.shape(), [1, 4]);
            assert!((0..4).all(|i| pair.reference(i) == pair.candidate(i)));
        }
        let right = TensorRef { values: &reference, shape: &[3, 4], rows: None };
        let pair = Pair::new(Site::H, &left, &right, Some(&Rows::List(vec![2, 0]))).unwrap();
        assert_eq!((pair.shape(), pair.reference(0)), (&[2usize, 4][..], 1.0));
        let right = TensorRef { values: &last, shape: &[1, 4], rows: None };
        assert!(Pair::new(Site::H, &left, &right, None).is_err());
        assert!(Pair::new(Site::H, &left, &left, Some(&Rows::List(vec![7]))).is_err());
    }

    #[test]
    fn gguf_row_order_is_undone() {
        // GGUF row 2i+s is Hugging Face row s*d/2+i.
        let (hf, gguf) = (stored(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), stored(&[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
        let (left, right) = (
            TensorRef { values: &hf, shape: &[1, 1, 6], rows: None },
            TensorRef { values: &gguf, shape: &[1, 1, 6], rows: None },
        );
        let same = |pair: &Pair<'_>| (0..6).all(|i| pair.reference(i) == pair.candidate(i));
        let orders = Pair::new(Site::Q, &left, &right, None).unwrap().other_row_orders();
        assert!(same(&orders[0]) && !same(&orders[1]));
        let orders = Pair::new(Site::Q, &right, &left, None).unwrap().other_row_orders();
        assert!(!same(&orders[0]) && same(&orders[1]));
    }

    #[test]
    fn masks_agree_by_meaning() {
        let settle = |r: &[f64], c: &[f64]| {
            let (mut r, mut c) = (r.to_vec(), c.to_vec());
            unify_masks(&mut r, &mut c);
            Metrics::measure_f64(&r, &c)
        };
        let ninf = f64::NEG_INFINITY;
        assert!(settle(&[1.0, f64::from(f32::MIN)], &[1.0, ninf]).is_equal());
        assert!(settle(&[1.0, ninf], &[1.0, -1e9]).is_equal());
        assert!(settle(&[1.0, ninf], &[1.0, -1000.0]).is_equal());
        assert!(!settle(&[1.0, ninf], &[1.0, -700.0]).is_finite());
        assert!(!settle(&[1.0, ninf], &[1.0, 0.5]).is_finite());
        assert!(!settle(&[1.0, 0.5], &[1.0, ninf]).is_finite());
        assert!(!settle(&[1.0, ninf], &[1.0, f64::NAN]).is_finite());
        assert!(!settle(&[1.0, ninf], &[1.0, f64::INFINITY]).is_finite());
    }
}
