//! Applies the layouts that were found: a tap with an unconfirmed layout is judged as it stands, and a difference is measured in the dump's own layout.

use std::collections::BTreeMap;

use firstdiff_trace::{Dump, DumpError, Entry, Site};

use crate::graph::Place;
use crate::layout::convention::LayoutConvention;
use crate::layout::rows::squeezed;
use crate::layout::strided::StridedLayout;
use crate::layout::types::{Layout, layout_notes};
use crate::layout::{Claim, LayoutEvidence, resolve};
use crate::metrics::Metrics;
use crate::report::reason::Reason;
use crate::rules::draft::RuleDraft;
use crate::rules::evidence::ReferenceWitness;
use crate::rules::{Changes, RuleResult};
use crate::taps::context::{Compared, ComparisonContext, TapJudgement};
use crate::taps::tap::TapJudge;
use crate::tolerance::layout::MISPLACED_CORRELATION;

impl ComparisonContext<'_> {
    /// A layout explains a difference only if later taps agree; without confirmation the tap is judged as it stands.
    pub(crate) fn resolve_layouts(&self, taps: &[TapJudgement]) -> RuleResult {
        let here = self.graph.places().iter().zip(taps);
        let claims =
            here.filter_map(|(place, here)| Some(Claim { place: *place, layout: here.provisional()?.clone() }));
        let resolved = resolve(claims.collect(), &mut ReferenceWitness::new(self, taps))?;
        let mut draft = RuleDraft::new(taps);
        for (index, (place, here)) in self.graph.places().iter().zip(taps).enumerate() {
            match (resolved.evidence(*place), here.provisional()) {
                (Some(LayoutEvidence::None), Some(layout)) => draft.set(index, undecided_layout(layout)),
                (Some(LayoutEvidence::Against), _) => draft.set(index, here.as_it_stands()),
                _ => {}
            }
        }
        let confirmed = resolved.claims_with(LayoutEvidence::For).map(Claim::convention);
        // Products that are transposed may be the mistake.
        let open = resolved.claims_with(LayoutEvidence::None).map(Claim::convention);
        let known = confirmed.chain(open.filter(|known| !known.exchanges_queries_and_keys()));
        self.measure_in_conventions(&mut draft, &known.collect::<Vec<_>>())?;
        self.doubt_unlike_rows(&mut draft);
        Ok(draft.into_changes())
    }

    /// Queries and keys whose rows are in different orders have other products: where no product shows that they are right, they are unchecked.
    fn doubt_unlike_rows(&self, draft: &mut RuleDraft) {
        let places = self.graph.places();
        let is_at = |place: &Place, sites: &[Site]| sites.contains(&place.tap.site);
        const QUERIES: [Site; 3] = [Site::Q, Site::QNorm, Site::QRope];
        const KEYS: [Site; 3] = [Site::K, Site::KNorm, Site::KRope];
        const PRODUCTS: [Site; 4] = [Site::Qk, Site::Scores, Site::Probs, Site::Context];
        let mut layers: BTreeMap<(u32, Option<u32>), Vec<usize>> = BTreeMap::new();
        for (index, place) in places.iter().enumerate() {
            layers.entry((place.step, place.tap.layer)).or_default().push(index);
        }
        for layer in layers.values() {
            let rows = |sites: &[Site], taps: &[TapJudgement]| -> Vec<(usize, Layout)> {
                let here = layer.iter().filter(|&&i| is_at(&places[i], sites));
                here.filter_map(|&i| Some((i, taps[i].agreeing_layout()?.clone()))).collect()
            };
            let (queries, keys) = (rows(&QUERIES, draft), rows(&KEYS, draft));
            let unlike = queries.iter().any(|(_, q)| keys.iter().any(|(_, k)| q.rows() != k.rows()));
            if !unlike || layer.iter().any(|&i| is_at(&places[i], &PRODUCTS) && draft[i].is_compared()) {
                continue;
            }
            for (index, layout) in queries.iter().chain(&keys).filter(|(_, layout)| layout.rows().is_some()) {
                draft.set(*index, undecided_layout(layout));
            }
        }
    }

    /// Measures differences in the order that other taps show for the dump: otherwise the error could not be interpreted.
    fn measure_in_conventions(&self, draft: &mut RuleDraft, known: &[LayoutConvention]) -> Result<(), DumpError> {
        let agreeing: Vec<Layout> = draft.iter().filter_map(TapJudgement::agreeing_layout).cloned().collect();
        let seen = |is: &dyn Fn(&StridedLayout) -> bool| {
            agreeing.iter().any(|l| matches!(l, Layout::Stored(stored) if is(stored)))
        };
        if known.is_empty() && agreeing.iter().all(|l| l.rows().is_none() && !matches!(l, Layout::Stored(_))) {
            return Ok(());
        }
        let mut changed = false;
        for index in 0..draft.len() {
            let place = self.graph.places()[index];
            // Taps that read one measured only now may have inherited its error.
            if changed && matches!(&draft[index], TapJudgement::Compared(judged) if !judged.judgement.outcome.agrees())
            {
                let judged = self.with_input_error_as_stored(draft, index, draft[index].clone())?;
                draft.set(index, judged);
            }
            let (off, permuted) = match &draft[index] {
                TapJudgement::Compared(judged) if judged.judgement.outcome.agrees() || judged.as_stored.is_some() => {
                    continue;
                }
                TapJudgement::Compared(judged) if !matches!(judged.layout, Layout::Stored(_)) => {
                    (judged.judgement.metrics.nmse(), matches!(judged.layout, Layout::Permuted(_)))
                }
                // The order that its shape shows is not its own where the values are entirely different.
                TapJudgement::Compared(judged) if judged.layout.is_shown() && looks_misplaced(judged) => {
                    (judged.judgement.metrics.nmse(), true)
                }
                TapJudgement::ShapeMismatch(_) => (None, false),
                _ => continue,
            };
            let is_own = |layout: &Layout| {
                let shown = || agreeing.iter().any(|other| other.rows() == layout.rows());
                let rows = layout.rows().is_none() || layout.rows() == self.declared() || shown();
                let Layout::Stored(stored) = layout else { return rows };
                let ordered = match stored.in_order() {
                    // Extents listed in another order than memory has; or padding, which needs no order.
                    true => !permuted || seen(&|other| other.in_order()),
                    false => {
                        let own = LayoutConvention::from_tap(place.tap, layout);
                        known.iter().any(|known| own.follows_from(known))
                    }
                };
                let padded = stored.padding().is_none() || seen(&|other| other.same_positions(stored));
                rows && ordered && padded && (permuted || stored.padding().is_some() || stored.moves())
            };
            let in_own =
                |alignment: &TapJudge<'_>, own: f64| alignment.nearest(off, &self.allowance(place, own), is_own);
            if let Some(other) = self.with_tap_judge(place, in_own)?.flatten() {
                let judged = self.with_input_error_as_stored(draft, index, other)?;
                draft.set(index, judged);
                changed = true;
            }
        }
        Ok(())
    }

    /// A tap in another shape than the reference's that is far off, though all later taps agree, may be in an order of axes that was not found, or was
    /// recorded wrongly: no operation's fault.
    pub(crate) fn doubt_orders(&self, taps: &[TapJudgement]) -> RuleResult {
        let strange: Vec<bool> = (0..taps.len()).map(|index| self.has_unknown_layout(taps, index)).collect();
        let vouched_for = |&index: &usize| {
            if !strange[index] {
                return false;
            }
            let (after, _) = self.graph.nearest_after(index, |i| taps[i].is_compared() && !strange[i]);
            !after.is_empty() && after.iter().all(|&i| taps[i].agrees())
        };
        let mut doubted = Vec::new();
        for index in (0..taps.len()).filter(vouched_for) {
            if self.has_its_values(taps, index)? {
                doubted.push(index);
            }
        }
        Ok(Changes::all(doubted.into_iter(), &TapJudgement::Unchecked(Reason::OrderUnknown)))
    }

    /// Whether the candidate holds the reference's numbers in any order: each of the reference's is among them.
    fn has_its_values(&self, taps: &[TapJudgement], index: usize) -> Result<bool, DumpError> {
        let TapJudgement::Compared(judged) = &taps[index] else { return Ok(false) };
        let (Some(ours), Some(theirs)) = self.both(self.graph.places()[index]) else { return Ok(false) };
        let sorted = |dump: &Dump, entry: &Entry| -> Result<Vec<f64>, DumpError> {
            let mut values: Vec<f64> =
                dump.read(entry)?.values().to_f64().iter().copied().filter(|x| x.is_finite()).collect();
            values.sort_by(f64::total_cmp);
            Ok(values)
        };
        let (ours, theirs) = (sorted(self.reference, &ours)?, sorted(self.candidate, &theirs)?);
        // Where the candidate holds more values, leaving out those that differ could bring the rest near.
        let Some(more) = theirs.len().checked_sub(ours.len()) else { return Ok(false) };
        let mut skipped = 0;
        let nearest = ours.iter().enumerate().map(|(at, &wanted)| {
            let off = |skipped: usize| (theirs[at + skipped] - wanted).abs();
            while skipped < more && off(skipped + 1) < off(skipped) {
                skipped += 1;
            }
            theirs[at + skipped]
        });
        let nearest: Vec<f64> = nearest.collect();
        Ok(Metrics::measure_f64(&ours, &nearest).nmse().is_some_and(|nmse| nmse <= judged.judgement.own))
    }

    /// Whether a place of another shape than the reference's, which does not show its order of axes, is as far off as misplaced values are.
    fn has_unknown_layout(&self, taps: &[TapJudgement], index: usize) -> bool {
        let TapJudgement::Compared(judged) = &taps[index] else { return false };
        let far = looks_misplaced(judged) && judged.judgement.outcome.differs_by_size() && !judged.layout.is_shown();
        if !far {
            return false;
        }
        let (left, right) = self.both(self.graph.places()[index]);
        let shape = |entry: &Entry| squeezed(entry.tap.site, &entry.shape);
        left.zip(right).is_some_and(|(left, right)| shape(&left) != shape(&right))
    }
}

/// Whether values are as far off as misplaced ones: they do not resemble each other, or equally many are masked, but in other places.
fn looks_misplaced(compared: &Compared) -> bool {
    let metrics = &compared.judgement.metrics;
    let [ours, theirs] = [metrics.non_finite().inf_reference.count, metrics.non_finite().inf_candidate.count];
    metrics.correlation().is_some_and(|correlation| correlation < MISPLACED_CORRELATION) || ours > 0 && ours == theirs
}

/// The layout that explains a tap: the one in which it agrees, or the order of rows in which it was measured.
fn undone_layout(judgement: &TapJudgement) -> Option<&Layout> {
    match judgement {
        TapJudgement::Compared(judged) if matches!(judged.layout, Layout::Rows { .. }) => Some(&judged.layout),
        _ => judgement.agreeing_layout(),
    }
}

/// A tap that agrees in this layout, where nothing shows whether the dump has it.
fn undecided_layout(layout: &Layout) -> TapJudgement {
    TapJudgement::Unchecked(Reason::Unconfirmed(layout.clone()))
}

/// The layouts that were applied, a line for each.
pub(crate) fn undone_orders(taps: &[TapJudgement]) -> Vec<String> {
    let layouts: Vec<&Layout> = taps.iter().filter_map(undone_layout).collect();
    layout_notes(&layouts, "reference")
}
