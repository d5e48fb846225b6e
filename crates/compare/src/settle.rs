//! Is another layout the dump's own, or the mistake? Settled by what follows, once every tap is judged.

use firstdiff_trace::{QkRows, Site, Tap};

use crate::first::{Found, Run};
use crate::graph::Place;
use crate::pair::Layout;

impl Run<'_> {
    /// A layout explains a difference away only if what follows agrees; what nothing confirms is judged as it stands.
    pub(crate) fn settle_layouts(&self, found: &mut [Found]) {
        for index in (0..found.len()).rev() {
            if found[index].provisional().is_some()
                && !self.confirmed(found, index)
                && let Found::Judged(judged) = &mut found[index]
                && let Some(plain) = judged.plain.take()
            {
                judged.judgement = plain;
                judged.layout = Layout::Same;
            }
        }
    }

    fn confirmed(&self, found: &[Found], index: usize) -> bool {
        let Some(layout) = found[index].provisional() else { return true };
        let rotated = matches!(layout, Layout::CandidateAdjacent | Layout::CandidateHalf);
        if rotated && self.declared() == Some(layout.clone()) {
            return true;
        }
        if self.customary(found, index, layout) {
            return true;
        }
        let site = self.graph.places()[index].tap.site;
        let partner = match site {
            Site::QRope => Some(Site::KRope),
            Site::KRope => Some(Site::QRope),
            _ => None,
        };
        if let (true, Some(partner)) = (rotated, partner) {
            // Rotated Q and K both in the other order have the same products: the order is the dump's own.
            let place = self.graph.places()[index];
            let other = Place { tap: Tap { site: partner, ..place.tap }, ..place };
            let other = self.graph.places().iter().position(|p| *p == other).map(|at| &found[at]);
            match other {
                Some(Found::Judged(theirs)) if theirs.judgement.outcome.agrees() => return theirs.layout == *layout,
                Some(Found::Judged(_)) => return false,
                _ => {}
            }
        }
        let (after, _) = self.graph.nearest_after(index, |i| found[i].is_judged());
        // Later readers were settled before: what is still provisional among them is confirmed.
        let follows = |&i: &usize| found[i].agrees() && (!rotated || self.same_order(found, i, layout));
        // A reader that differs speaks against a layout that the shape shows only if all else it reads agrees.
        let other_cause = |&i: &usize| {
            let (before, _) = self.graph.nearest_before(i, |b| found[b].is_judged());
            !rotated && before.iter().any(|&b| b != index && !found[b].agrees())
        };
        !after.is_empty() && after.iter().all(|i| follows(i) || other_cause(i))
    }

    /// Axes in an order that the shapes show at two sites or more are the dump's custom; at one alone they may be its mistake.
    fn customary(&self, found: &[Found], index: usize, layout: &Layout) -> bool {
        let places = self.graph.places();
        let alike = |(i, other): (usize, &Found)| {
            let same = matches!(other, Found::Judged(theirs) if theirs.layout == *layout);
            same && other.agrees() && places[i].tap.site != places[index].tap.site
        };
        matches!(layout, Layout::Permuted(_)) && found.iter().enumerate().any(alike)
    }

    /// Q before RoPE is in the other order only if Q after RoPE is too.
    fn same_order(&self, found: &[Found], index: usize, layout: &Layout) -> bool {
        let site = self.graph.places()[index].tap.site;
        let rotated = matches!(site, Site::QNorm | Site::KNorm | Site::QRope | Site::KRope);
        !rotated || matches!(&found[index], Found::Judged(theirs) if theirs.layout == *layout)
    }

    /// The layout of Q and K that the two dumps declare.
    fn declared(&self) -> Option<Layout> {
        match (self.reference.meta().qk_rows?, self.candidate.meta().qk_rows?) {
            (QkRows::Half, QkRows::Adjacent) => Some(Layout::CandidateAdjacent),
            (QkRows::Adjacent, QkRows::Half) => Some(Layout::CandidateHalf),
            _ => None,
        }
    }
}

/// One line on the row orders that were undone.
pub(crate) fn undone_orders(found: &[Found]) -> Option<String> {
    let mut undone = found.iter().filter_map(Found::provisional);
    let first = undone.next()?;
    Some(match first {
        Layout::CandidateAdjacent | Layout::CandidateHalf => {
            format!("Q and K: {first}; undone in {} taps", undone.filter(|l| *l == first).count() + 1)
        }
        other => format!("{other}; undone, as what follows agrees"),
    })
}
