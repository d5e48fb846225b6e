//! Lists the layouts in which a tensor may be read: as it stands, and in every other order of axes or rows, or with padding, that its size allows.
//!
//! A witness gives the expected values: those of a reference (`compare`), or what the model's own operation computes from recorded inputs (`replay`,
//! `explain`).

use firstdiff_trace::{Rows, Site};

use crate::layout::elements::{PairElements, TensorRef};
use crate::layout::mismatch::NotComparable;
use crate::layout::pair::Pair;
use crate::layout::rows::squeezed;
use crate::layout::strided::layouts;
use crate::layout::types::Layout;

/// A tensor with its witness, and the layouts in which it may be read.
pub struct LayoutCandidates<'a> {
    site: Site,
    witness: TensorRef<'a>,
    candidate: TensorRef<'a>,
    /// The number of heads merged in a context.
    heads: Option<usize>,
    /// The token position at which the step begins.
    start: usize,
    as_it_stands: Result<Pair<'a>, NotComparable>,
}

impl<'a> LayoutCandidates<'a> {
    /// The layouts of `candidate`, which is the same `site` as its witness. `heads` is the number of heads merged in a context; `rows` are the positions to
    /// compare.
    pub fn new(
        site: Site,
        witness: TensorRef<'a>,
        candidate: TensorRef<'a>,
        heads: Option<usize>,
        rows: Option<&Rows>,
    ) -> LayoutCandidates<'a> {
        let pair = Pair::new(site, &witness, &candidate, rows);
        let as_it_stands = match heads {
            Some(heads) => pair.map(|pair| pair.with_heads(heads)),
            None => pair,
        };
        LayoutCandidates { site, witness, candidate, heads, start: 0, as_it_stands }
    }

    /// The same, with the token position at which the step begins.
    pub fn beginning_at(self, start: usize) -> LayoutCandidates<'a> {
        LayoutCandidates { start, as_it_stands: self.as_it_stands.map(|pair| pair.beginning_at(start)), ..self }
    }

    /// The pair as the shapes say.
    ///
    /// # Errors
    /// Where the shapes do not fit.
    pub fn as_it_stands(&self) -> Result<&Pair<'a>, &NotComparable> {
        self.as_it_stands.as_ref()
    }

    /// Every other layout. Agreement in one does not prove that the dump has it: misplaced values may be the mistake.
    pub fn others(&self) -> Vec<Pair<'a>> {
        let rows = self.as_it_stands.as_ref().map(Pair::other_row_orders).unwrap_or_default();
        // Already covered by the tensor as it stands, and its row orders.
        let in_place = self.as_it_stands.as_ref().is_ok_and(|pair| !matches!(pair.layout(), Layout::Permuted(_)));
        let layouts = layouts(self.site, &self.witness, &self.candidate, self.heads);
        let stored = layouts.into_iter().filter(|(stored, _)| !(in_place && stored.in_order())).map(|(stored, map)| {
            let side = PairElements { values: self.candidate.values, map: Some(map) };
            let witness = PairElements { values: self.witness.values, map: None };
            let shape = squeezed(self.site, self.witness.shape);
            Pair::seen_as(self.site, shape, witness, side, Layout::Stored(stored))
        });
        let with_heads = |pair: Pair<'a>| match self.heads {
            Some(heads) => pair.with_heads(heads).beginning_at(self.start),
            None => pair.beginning_at(self.start),
        };
        rows.into_iter().chain(stored.map(with_heads)).collect()
    }

    /// The pair under `layout`, where it is possible.
    pub fn under(&self, layout: &Layout) -> Option<Pair<'a>> {
        match layout {
            Layout::Same | Layout::Reshaped | Layout::Permuted(_) => self.as_it_stands.as_ref().ok().cloned(),
            _ => self.others().into_iter().find(|pair| pair.layout() == layout),
        }
    }

    /// What is wrong outside the witness's part, in a layout with padding or repeated heads.
    pub fn padding_error(&self, pair: &Pair<'_>) -> Option<String> {
        match pair.layout() {
            Layout::Stored(stored) => stored.padding_error(pair.site(), &self.candidate),
            _ => None,
        }
    }

    /// The same for another candidate's elements of the same shape.
    pub(crate) fn with_candidate<'b>(&self, candidate: TensorRef<'b>) -> LayoutCandidates<'b>
    where
        'a: 'b,
    {
        LayoutCandidates::new(self.site, self.witness, candidate, self.heads, None).beginning_at(self.start)
    }

    pub(crate) fn candidate(&self) -> &TensorRef<'a> {
        &self.candidate
    }
}
