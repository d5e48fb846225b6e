//! Is another layout the dump's own, or the mistake? Settled by what follows, once every tap is judged.

use firstdiff_trace::{DumpError, QkRows, Site, Tap};

use crate::first::{Found, Judged, Plain, Run};
use crate::graph::Place;
use crate::judge::{Allowance, by_position};
use crate::metrics::Metrics;
use crate::overlay::Overlay;
use crate::pair::{Layout, Pair};
use crate::readings::Stored;

impl Run<'_> {
    /// A layout explains a difference away only if what follows agrees; what nothing confirms is judged as it stands.
    pub(crate) fn settle_layouts(&self, found: &mut [Found]) -> Result<(), DumpError> {
        let before: Vec<Option<Layout>> = found.iter().map(|here| agreeing_layout(here).cloned()).collect();
        let (mut unsettled, mut customs) = (Vec::new(), Vec::new());
        for index in (0..found.len()).rev() {
            let Some(layout) = found[index].provisional().cloned() else { continue };
            let site = self.graph.places()[index].tap.site;
            match layout {
                Layout::Stored(stored) => match self.followed(found, &before, index, &stored)? {
                    Says::Right => customs.push((site, stored)),
                    says => {
                        let plain = match says {
                            Says::Wrong => as_it_stands(&found[index]),
                            _ => cannot_tell(&stored),
                        };
                        unsettled.push((index, stored, std::mem::replace(&mut found[index], plain)));
                    }
                },
                _ if self.confirmed(found, index) => {}
                _ if self.is_read_from_afar(found, index) && !self.orders_are_told() => {
                    found[index] = cannot_tell(&layout);
                }
                _ => found[index] = as_it_stands(&found[index]),
            }
        }
        let known = customs.len();
        for (index, stored, otherwise) in unsettled {
            let site = self.graph.places()[index].tap.site;
            if customs[..known].iter().any(|(at, custom)| same_custom((site, &stored), (*at, custom))) {
                found[index] = otherwise;
            } else if let Found::Unchecked(_) = found[index] {
                customs.push((site, stored));
            }
        }
        self.measure_in_custom(found, &customs)
    }

    /// What the operations that read a tap say of its layout: one that cannot have made its output of misplaced values and agrees, confirms it.
    fn followed(
        &self,
        found: &[Found],
        before: &[Option<Layout>],
        index: usize,
        stored: &Stored,
    ) -> Result<Says, DumpError> {
        if stored.rows().is_some() && !self.confirmed(found, index) {
            let open = self.is_read_from_afar(found, index) && !self.orders_are_told();
            return Ok(if open { Says::Nothing } else { Says::Wrong });
        }
        let (after, _) = self.graph.nearest_after(index, |i| before[i].is_some() || found[i].is_judged());
        let mut says = if after.is_empty() { Says::Wrong } else { Says::Nothing };
        for &i in &after {
            let along = matches!(&before[i], Some(Layout::Stored(theirs)) if theirs.order() == stored.order());
            let by_itself = keeps_places(self.graph.places()[i].tap.site) && self.graph.reads(i).contains(&index);
            let here = match &before[i] {
                // Misplaced alike on both sides of an operation that takes each value by itself: what reads that one says.
                Some(_) if along && by_itself => match &found[i] {
                    Found::Unchecked(_) => Says::Nothing,
                    other if other.agrees() => Says::Right,
                    _ => Says::Wrong,
                },
                Some(_) => Says::Right,
                None if self.otherwise_wrong(before, found, i, index) => Says::Nothing,
                None if !self.graph.reads(i).contains(&index) && !self.says_its_shape(index) => Says::Nothing,
                None => self.off_but_nearer(i, stored)?,
            };
            says = says.max(here);
        }
        // Rows are looked up whole: no mistake makes another order of axes of an embedding.
        let looked_up = self.graph.places()[index].tap.site == Site::H0 && !after.is_empty();
        Ok(if looked_up && says == Says::Wrong { Says::Nothing } else { says })
    }

    /// Whether nothing that reads a tap at once was compared: what differs further on may have a cause of its own.
    fn is_read_from_afar(&self, found: &[Found], index: usize) -> bool {
        let (after, _) = self.graph.nearest_after(index, |i| found[i].is_judged());
        !after.is_empty() && !after.iter().any(|&i| self.graph.reads(i).contains(&index))
    }

    /// Whether something else that an operation reads agrees in no layout: then that it differs says nothing.
    fn otherwise_wrong(&self, before: &[Option<Layout>], found: &[Found], reader: usize, index: usize) -> bool {
        let (read, _) = self.graph.nearest_before(reader, |i| before[i].is_some() || found[i].is_judged());
        read.iter().any(|&i| i != index && before[i].is_none())
    }

    /// What a reader that differs says: a rotation that is right at position 0, where it is none, cannot have read misplaced values; and what is
    /// nearly right in this order, and far off as it stands, may have its own mistake.
    fn off_but_nearer(&self, index: usize, stored: &Stored) -> Result<Says, DumpError> {
        let place = self.graph.places()[index];
        let rotated = matches!(place.tap.site, Site::QRope | Site::KRope);
        let says = |laid: &Overlay<'_>, own: f64| {
            let same =
                |pair: &Pair<'_>| matches!(pair.layout(), Layout::Stored(theirs) if theirs.order() == stored.order());
            let alike = |pair: &Pair<'_>| {
                let rows = by_position(pair, &pair.row_metrics());
                rows.iter().filter_map(Metrics::correlation).sum::<f64>() / rows.len() as f64
            };
            let plain = laid.under(&Layout::Same).map_or(0.0, |pair| alike(&pair));
            let heads = |pair: &Pair<'_>| pair.heads().is_some_and(|heads| heads > 1) && pair.rows().0 > 1;
            let right = |pair: &Pair<'_>| heads(pair) && right_but_for_a_factor(pair, 100.0 * own);
            let mut readings = laid.others().into_iter().filter(same);
            match rotated {
                true if place.step == 0 && readings.any(|pair| right(&pair)) => Says::Right,
                false if readings.any(|pair| alike(&pair) > ALIKE && alike(&pair) > plain.abs() + ALIKE / 2.0) => {
                    Says::Nothing
                }
                _ => Says::Wrong,
            }
        };
        Ok(self.with_overlay(place, says)?.unwrap_or(Says::Wrong))
    }

    /// What differs is measured in the order that the dump has there, where others show it: else the error could not be read.
    fn measure_in_custom(&self, found: &mut [Found], customs: &[(Site, Stored)]) -> Result<(), DumpError> {
        let agreeing: Vec<Layout> = found.iter().filter_map(agreeing_layout).cloned().collect();
        let seen =
            |is: &dyn Fn(&Stored) -> bool| agreeing.iter().any(|l| matches!(l, Layout::Stored(stored) if is(stored)));
        if customs.is_empty() && agreeing.iter().all(|l| l.rows().is_none() && !matches!(l, Layout::Stored(_))) {
            return Ok(());
        }
        for (index, here) in found.iter_mut().enumerate() {
            let place = self.graph.places()[index];
            let (off, permuted) = match here {
                Found::Judged(judged) if judged.judgement.outcome.agrees() || judged.plain.is_some() => continue,
                Found::Judged(judged)
                    if matches!(judged.layout, Layout::Same | Layout::Reshaped | Layout::Permuted(_)) =>
                {
                    (judged.judgement.metrics.nmse(), matches!(judged.layout, Layout::Permuted(_)))
                }
                Found::Misfit(_) => (None, false),
                _ => continue,
            };
            let custom = |layout: &Layout| {
                let rows = layout.rows().is_none() || agreeing.iter().any(|other| other.rows() == layout.rows());
                let Layout::Stored(stored) = layout else { return rows };
                let ordered = match stored.in_order() {
                    // Extents listed otherwise than memory holds them; or padding, which needs no order.
                    true => !permuted || seen(&|other| other.in_order()),
                    false => customs.iter().any(|(at, custom)| same_custom((place.tap.site, stored), (*at, custom))),
                };
                let padded = !stored.pads_positions() || seen(&|other| other.same_positions(stored));
                rows && ordered && padded && (permuted || stored.pads_positions() || stored.moves())
            };
            let in_custom = |laid: &Overlay<'_>, own: f64| laid.in_custom(off, &Allowance::own(own), custom);
            if let Some(other) = self.with_overlay(place, in_custom)?.flatten() {
                *here = other;
            }
        }
        Ok(())
    }

    fn confirmed(&self, found: &[Found], index: usize) -> bool {
        let Some(layout) = found[index].provisional() else { return true };
        let rotated = layout.rows().is_some();
        if rotated && self.declared() == layout.rows() {
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
                Some(Found::Judged(theirs)) if theirs.judgement.outcome.agrees() => {
                    return theirs.layout.rows() == layout.rows();
                }
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
        !rotated || matches!(&found[index], Found::Judged(theirs) if theirs.layout.rows() == layout.rows())
    }

    /// Whether the candidate's tensor has the very shape of the reference's: then it says itself in which order its values are.
    fn says_its_shape(&self, index: usize) -> bool {
        let (left, right) = self.both(self.graph.places()[index]);
        left.zip(right).is_some_and(|(left, right)| left.shape == right.shape)
    }

    /// Whether both dumps say in which order the rows of Q and K are: then another one is a mistake.
    fn orders_are_told(&self) -> bool {
        [self.reference, self.candidate].iter().all(|dump| dump.meta().qk_rows.is_some())
    }

    /// The candidate's order of the rows of Q and K, where the two dumps declare different ones.
    fn declared(&self) -> Option<QkRows> {
        let (ours, theirs) = (self.reference.meta().qk_rows?, self.candidate.meta().qk_rows?);
        (ours != theirs).then_some(theirs)
    }
}

/// What the readers of a tap say of the layout in which it agrees; the greatest counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Says {
    /// Neither for nor against it.
    Nothing,
    /// Against it.
    Wrong,
    /// For it.
    Right,
}

/// A correlation, position by position, that misplaced values do not have.
const ALIKE: f64 = 0.4;

/// Whether the first position is the reference's times one factor, over all heads.
fn right_but_for_a_factor(pair: &Pair<'_>, allowed: f64) -> bool {
    let first = by_position(pair, &pair.row_metrics()).into_iter().next();
    first.and_then(|row| row.best_factor()).is_some_and(|best| best.remaining_nmse <= allowed)
}

/// The layout in which a tap agrees.
fn agreeing_layout(found: &Found) -> Option<&Layout> {
    match found {
        Found::Judged(judged) if judged.judgement.outcome.agrees() => Some(&judged.layout),
        _ => None,
    }
}

/// A tap that agrees in a layout of which nobody can say whether it is the dump's.
fn cannot_tell(layout: &impl std::fmt::Display) -> Found {
    Found::Unchecked(format!("it agrees if {layout}, and nothing that follows can confirm it"))
}

/// A tap as it is without the layout that nothing confirmed.
fn as_it_stands(found: &Found) -> Found {
    let Found::Judged(judged) = found else { return Found::Nothing };
    match &judged.plain {
        Some(Plain::Misfit(reason)) => Found::Misfit(reason.clone()),
        Some(Plain::Judged(plain)) => {
            let (shape, positions) = (judged.shape.clone(), judged.positions.clone());
            let judgement = (**plain).clone();
            Found::Judged(Box::new(Judged {
                judgement,
                shape,
                positions,
                layout: Layout::Same,
                plain: None,
                part: judged.part.clone(),
            }))
        }
        None => Found::Nothing,
    }
}

/// Whether an operation takes each value, or each head of a position, by itself: of misplaced values it makes misplaced ones.
fn keeps_places(site: Site) -> bool {
    use Site::{FfnAct, H, HAttn, KNorm, Probs, QNorm, RouterProbs, Scores};
    matches!(site, QNorm | KNorm | Scores | Probs | RouterProbs | FfnAct | HAttn | H)
}

/// Whether a dump that stores one site so is likely to store the other so.
fn same_custom((site, stored): (Site, &Stored), (at, custom): (Site, &Stored)) -> bool {
    let heads = |site: Site| matches!(site.axes(), ['T', 'H' | 'K', 'd']);
    // A context is where heads are merged: in their order it is the mistake, unless others of its kind show that it is not.
    let kind = site == at
        || (heads(site) && heads(at))
        || (site.axes().len() == 2 && at.axes().len() == 2 && site != Site::Context);
    let rows = stored.rows().is_none() || stored.rows() == custom.rows();
    rows && ((kind && stored.order() == custom.order()) || (stored.reversed(site) && custom.reversed(at)))
}

/// What was undone, a line for each layout.
pub(crate) fn undone_orders(found: &[Found]) -> Vec<String> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for layout in found.iter().filter_map(agreeing_layout) {
        let line = match layout {
            Layout::Same | Layout::Reshaped => continue,
            Layout::CandidateAdjacent | Layout::CandidateHalf => format!("Q and K: {layout}; undone in"),
            Layout::Stored(stored) if !stored.moves() => format!("{layout}; read so in"),
            _ => format!("{layout}; undone, as what follows agrees, in"),
        };
        match counts.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => counts.push((line, 1)),
        }
    }
    let line = |(line, count): &(String, usize)| format!("{line} {count} tap{}", if *count == 1 { "" } else { "s" });
    const MOST: usize = 4;
    let more = counts.len().saturating_sub(MOST);
    let lines = counts.iter().take(MOST).map(line);
    lines.chain((more > 0).then(|| format!("{more} other layouts were undone too"))).collect()
}
