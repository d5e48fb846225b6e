//! Pairs the two sides of a tap and judges them: as the shapes say, else in a layout that the content shows.

use firstdiff_trace::{DumpError, Entry, QkRows, Site, Tap, Values};

use crate::graph::Place;
use crate::judge::judge;
use crate::judge::tensor::{Difference, Outcome, PairJudgement, Tolerance};
use crate::layout::candidates::LayoutCandidates;
use crate::layout::elements::TensorRef;
use crate::layout::explains;
use crate::layout::mismatch::{NotComparable, ShapeMismatch};
use crate::layout::pair::Pair;
use crate::layout::types::Layout;
use crate::report::reason::Reason;
use crate::taps::context::{AsStored, Compared, ComparisonContext, TapJudgement};
use crate::taps::open::judged_as;
use crate::tolerance::Profile;
use crate::tolerance::layout::SAMPLE_ROOM;

/// Both sides of a place, read.
pub(crate) struct TapJudge<'a> {
    sides: LayoutCandidates<'a>,
    profile: Profile,
    /// The candidate's order of the rows of Q and K, where both sides declare theirs and they differ.
    declared: Option<QkRows>,
    /// Whether token positions were requested.
    has_requested_rows: bool,
}

impl<'a> TapJudge<'a> {
    /// The pair under `layout`, where it is possible.
    pub(crate) fn under(&self, layout: &Layout) -> Option<Pair<'a>> {
        self.sides.under(layout)
    }

    /// What is wrong beyond the reference's part, in a layout.
    pub(crate) fn padding_error(&self, layout: &Layout) -> Option<String> {
        self.sides.under(layout).and_then(|pair| self.sides.padding_error(&pair))
    }

    /// The layouts in which they may be read.
    pub(crate) fn sides(&self) -> &LayoutCandidates<'a> {
        &self.sides
    }

    /// The same for another candidate's elements of the same shape.
    pub(crate) fn with_candidate<'b>(&self, values: &'b Values<'b>) -> TapJudge<'b>
    where
        'a: 'b,
    {
        let candidate = TensorRef { values, ..*self.sides.candidate() };
        TapJudge { sides: self.sides.with_candidate(candidate), ..*self }
    }

    /// Every other layout.
    pub(crate) fn others(&self) -> Vec<Pair<'a>> {
        self.sides.others()
    }

    /// Judges the two sides as they stand and, where they differ, in every other layout.
    pub(crate) fn judge(&self, allowed: &Tolerance) -> TapJudgement {
        let plain = match self.sides.as_it_stands() {
            Ok(pair) if pair.is_empty() => return TapJudgement::ShapeMismatch(ShapeMismatch::Empty),
            Err(NotComparable::NoRows) => return TapJudgement::without_rows(self.has_requested_rows),
            Err(NotComparable::Shapes(reason)) => AsStored::ShapeMismatch(reason.clone()),
            Ok(pair) => {
                let judgement = judge(pair, self.profile, allowed);
                if judgement.outcome.agrees() && self.contradicts_declared(pair, allowed) {
                    return TapJudgement::Unchecked(Reason::RowOrderContradicted);
                }
                if judgement.outcome.agrees() {
                    return self.compared(pair, judgement.clone(), as_shown(pair, judgement));
                }
                AsStored::Compared(Box::new(judgement))
            }
        };
        let has_no_pair = matches!(plain, AsStored::ShapeMismatch(_));
        let mut nearest: Option<((bool, f64), Pair<'_>)> = None;
        for other in self.others() {
            let off = other.estimated_nmse();
            if has_no_pair && other.layout().is_shown() {
                // Padding is empty: keys that were seen are no padding, however near the rest is.
                let is_full = self.sides.padding_error(&other).is_some();
                let is_nearer = |(full, least): (bool, f64)| if is_full == full { off < least } else { full };
                if nearest.as_ref().is_none_or(|(least, _)| is_nearer(*least)) {
                    nearest = Some(((is_full, off), other.clone()));
                }
            }
            // Written so that a NaN does not agree.
            let near = off <= SAMPLE_ROOM * allowed.whole(self.profile);
            if near && let Some(found) = self.agreeing(&other, allowed, &plain) {
                return found;
            }
        }
        match (plain, self.sides.as_it_stands(), nearest) {
            // A difference is measured in the order that both sides declare: otherwise the error could not be interpreted.
            (AsStored::Compared(judgement), Ok(pair), _) => match self.in_declared_rows(pair) {
                Some(pair) => self.compared(&pair, judge(&pair, self.profile, allowed), None),
                None => self.compared(pair, *judgement, None),
            },
            // The shape allows only this layout, and the values differ.
            (AsStored::ShapeMismatch(_), _, Some((_, pair))) => {
                self.compared(&pair, judge(&pair, self.profile, allowed), None)
            }
            (AsStored::ShapeMismatch(reason), ..) => TapJudgement::ShapeMismatch(reason),
            (AsStored::Compared(judgement), Err(_), _) => unreachable!("judged without a pair: {judgement:?}"),
        }
    }

    /// The pair with the rows of Q and K in the reference's order, where both sides declare different ones.
    fn in_declared_rows(&self, pair: &Pair<'a>) -> Option<Pair<'a>> {
        let declared = self.declared?;
        pair.other_row_orders().into_iter().find(|other| other.layout().rows() == Some(declared))
    }

    /// Whether the rows of Q and K of a pair that agrees are in one order, where both sides declare different ones.
    fn contradicts_declared(&self, pair: &Pair<'a>, allowed: &Tolerance) -> bool {
        let other = self.in_declared_rows(pair);
        other.is_some_and(|other| !judge(&other, self.profile, allowed).outcome.agrees())
    }

    /// The judgement in another layout, if it agrees there, or may.
    fn agreeing(&self, pair: &Pair<'_>, allowed: &Tolerance, plain: &AsStored) -> Option<TapJudgement> {
        let mut other = judge(pair, self.profile, allowed);
        let was = match plain {
            AsStored::Compared(judgement) => judgement.metrics.nmse(),
            AsStored::ShapeMismatch(_) => None,
        };
        if !explains(&other.metrics, was) {
            return None;
        }
        let differs =
            matches!(plain, AsStored::Compared(judgement) if matches!(judgement.outcome, Outcome::Differs(_)));
        if differs && other.outcome == Outcome::Inconclusive {
            return Some(self.compared(pair, other, None));
        }
        if !other.outcome.agrees() {
            return None;
        }
        let needs = pair.layout().needs_confirming();
        if let Some(what) = self.sides.padding_error(pair) {
            // Copies and padding that its shape does not show may not be real.
            if !pair.layout().is_of_its_shape() {
                return None;
            }
            other.outcome = Outcome::Differs(Difference::Padding { what });
            return Some(self.compared(pair, other, None));
        }
        let plain = match plain {
            AsStored::Compared(judgement) => AsStored::Compared(judgement.clone()),
            AsStored::ShapeMismatch(reason) => AsStored::ShapeMismatch(reason.clone()),
        };
        Some(self.compared(pair, other, needs.then_some(plain)))
    }

    /// The judgement in the nearest layout for which `is` holds, where that is nearer than `off`.
    pub(crate) fn nearest(
        &self,
        off: Option<f64>,
        allowed: &Tolerance,
        is: impl Fn(&Layout) -> bool,
    ) -> Option<TapJudgement> {
        let has_layout = |pair: &Pair<'_>| is(pair.layout());
        let judged =
            self.others().into_iter().filter(has_layout).map(|pair| (judge(&pair, self.profile, allowed), pair));
        let size = |judgement: &PairJudgement| judgement.metrics.nmse().unwrap_or(f64::INFINITY);
        let (judgement, pair) = judged.min_by(|a, b| size(&a.0).total_cmp(&size(&b.0)))?;
        off.is_none_or(|off| size(&judgement) < off).then(|| self.compared(&pair, judgement, None))
    }

    pub(crate) fn compared(
        &self,
        pair: &Pair<'_>,
        judgement: PairJudgement,
        as_stored: Option<AsStored>,
    ) -> TapJudgement {
        let (shape, positions) = (pair.shape().to_vec(), pair.positions().map(<[usize]>::to_vec));
        TapJudgement::from(Compared {
            judgement,
            shape,
            positions,
            layout: pair.layout().clone(),
            as_stored,
            part: None,
        })
    }
}

/// Axes in the order that only the shape shows: if nothing confirms it, that is the finding.
fn as_shown(pair: &Pair<'_>, judgement: PairJudgement) -> Option<AsStored> {
    let Layout::Permuted(_) = pair.layout() else { return None };
    let outcome = Outcome::Differs(Difference::Layout { what: pair.layout().to_string() });
    Some(AsStored::Compared(Box::new(PairJudgement { outcome, ..judgement })))
}

impl ComparisonContext<'_> {
    /// Two tensors of one place, to be judged.
    pub(crate) fn tap_judge<'b>(
        &self,
        left: &'b Entry,
        reference: &'b Values<'b>,
        right: &'b Entry,
        candidate: &'b Values<'b>,
    ) -> TapJudge<'b> {
        let reference = TensorRef { values: reference, shape: &left.shape, rows: left.rows.as_ref() };
        let candidate = TensorRef { values: candidate, shape: &right.shape, rows: right.rows.as_ref() };
        let (site, heads, options) = (judged_as(left.tap, &left.shape), self.heads(left), self.options);
        let sides = LayoutCandidates::new(site, reference, candidate, heads, options.rows.as_ref());
        TapJudge {
            sides: sides.beginning_at(self.start(left.step)),
            profile: options.profile,
            declared: self.declared(),
            has_requested_rows: options.rows.is_some(),
        }
    }

    /// Reads both sides of `place` and passes them on with the table's tolerance.
    pub(crate) fn with_tap_judge<X>(
        &self,
        place: Place,
        then: impl FnOnce(&TapJudge<'_>, f64) -> X,
    ) -> Result<Option<X>, DumpError> {
        let (left, right) = self.both(place);
        let (Some(left), Some(right)) = (left, right) else { return Ok(None) };
        let (reference, candidate) = (self.reference.read(&left)?, self.candidate.read(&right)?);
        let (reference, candidate) = (reference.values(), candidate.values());
        let tap = self.tap_judge(&left, &reference, &right, &candidate);
        Ok(Some(then(&tap, self.allowed(place, &left, &right))))
    }

    /// The same under a known layout.
    pub(crate) fn with_pair<X>(
        &self,
        place: Place,
        layout: &Layout,
        then: impl FnOnce(&Pair<'_>, f64) -> X,
    ) -> Result<Option<X>, DumpError> {
        self.with_tap_judge(place, |overlay, own| overlay.under(layout).map(|pair| then(&pair, own)))
            .map(Option::flatten)
    }

    /// How many heads are merged in a context, by the reference's taps of the same layer.
    fn heads(&self, context: &Entry) -> Option<usize> {
        let shape = |site, axis: usize| {
            let entry = self.reference.find(Tap { site, ..context.tap }, context.step)?;
            entry.shape.get(axis).copied().filter(|_| entry.shape.len() == 3)
        };
        [(Site::Q, 1), (Site::QRope, 1), (Site::Probs, 0), (Site::Qk, 0)]
            .into_iter()
            .find_map(|(site, axis)| shape(site, axis))
    }
}
