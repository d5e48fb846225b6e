//! Gathers the evidence for or against a layout in which a tap agrees with the reference: its readers, the rotation behind it, and the layouts of similar
//! taps.

use firstdiff_trace::{DumpError, QkRows, Site, Tap};

use crate::graph::Place;
use crate::layout::convention::{LayoutConvention, attention_site};
use crate::layout::pair::Pair;
use crate::layout::rotation::Heads;
use crate::layout::types::Layout;
use crate::layout::{Claim, LayoutEvidence, ResolvedClaims, Witness};
use crate::taps::context::{ComparisonContext, TapJudgement};
use crate::taps::tap::TapJudge;
use crate::tolerance::layout::ROTATION_ROOM;

/// The reference's values, with every tap judged against them.
pub(super) struct ReferenceWitness<'r, 'a> {
    context: &'r ComparisonContext<'a>,
    taps: &'r [TapJudgement],
    /// The layout in which each tap agrees.
    agreeing: Vec<Option<Layout>>,
}

impl<'r, 'a> ReferenceWitness<'r, 'a> {
    pub(super) fn new(context: &'r ComparisonContext<'a>, taps: &'r [TapJudgement]) -> ReferenceWitness<'r, 'a> {
        ReferenceWitness { context, taps, agreeing: taps.iter().map(|here| here.agreeing_layout().cloned()).collect() }
    }
}

impl Witness for ReferenceWitness<'_, '_> {
    type Error = DumpError;

    // An operation that differs may have a mistake of its own.
    const IS_OUTWEIGHED: bool = true;

    fn evidence(&mut self, claim: &Claim, resolved: &ResolvedClaims) -> Result<LayoutEvidence, DumpError> {
        let Some(index) = self.index(claim.place) else { return Ok(LayoutEvidence::None) };
        let own = claim.convention();
        if claim.layout.rows().is_some() {
            let rows = self.row_evidence(claim, index, resolved)?;
            if rows != LayoutEvidence::For || own.is_of_rows_alone() {
                return Ok(rows);
            }
        }
        let others = |(i, other): (usize, &Option<Layout>)| Some((i, self.convention(i, other.as_ref()?)));
        let mut others = self.agreeing.iter().enumerate().filter(|(i, _)| *i != index).filter_map(others);
        let contradicted = others.clone().any(|(_, other)| other.speaks_against(&own));
        if others.any(|(i, other)| resolved.agreement_holds(self.place(i)) && other.shows_the_same(&own)) {
            return Ok(LayoutEvidence::For);
        }
        let after = self.readers(index);
        let declared = self.says_its_shape(index);
        // Memory in the reference's own order needs no confirmation unless something contradicts it; with heads, it does where it has readers.
        let plain = own.is_of_the_shape_alone() && !contradicted && (after.is_empty() || !own.is_of_heads());
        let nothing = if plain { LayoutEvidence::For } else { LayoutEvidence::None };
        if after.is_empty() {
            return Ok(if contradicted || declared { LayoutEvidence::Against } else { nothing });
        }
        let (mut evidence, mut works_as_it_stands) = (LayoutEvidence::None, false);
        for &i in &after {
            let reads_it = self.context.graph.reads(i).contains(&index);
            evidence = evidence.max(match &self.agreeing[i] {
                Some(theirs) if reads_it => resolved.of_reader(claim, self.place(i), theirs),
                Some(_) => LayoutEvidence::For,
                // The order that the shape shows is accepted.
                None if self.reads_what_is_wrong(i, index) && own.is_shown() => LayoutEvidence::For,
                None if self.reads_what_is_wrong(i, index) => LayoutEvidence::None,
                None if !reads_it && !declared => LayoutEvidence::None,
                None if is_rotated(self.site(i)) => {
                    let (in_layout, as_it_stands) = self.rotates(index, i, &claim.layout)?;
                    works_as_it_stands |= as_it_stands;
                    // What is rotated in neither order, or in both, has a mistake of its own; but no convention of the dump's is against it.
                    if in_layout && !(as_it_stands && contradicted) {
                        LayoutEvidence::For
                    } else {
                        LayoutEvidence::Against
                    }
                }
                None => self.off_but_nearer(i, &own)?,
            });
        }
        // A tap is misplaced if it contradicts its shape, or similar taps, or if the engine itself reads it as it stands: two of these.
        let witnesses = [declared || own.is_against_its_shape(), contradicted, works_as_it_stands];
        let misplaced = !own.is_shown() && witnesses.iter().filter(|witness| **witness).count() > 1;
        // Rows are looked up whole: no mistake changes the order of an embedding's axes.
        let looked_up = self.site(index) == Site::H0;
        Ok(match evidence {
            LayoutEvidence::For => LayoutEvidence::For,
            LayoutEvidence::Against if misplaced && !looked_up => LayoutEvidence::Against,
            _ if own.exchanges_queries_and_keys() && self.is_made_of_wrong(index) => LayoutEvidence::Against,
            _ => nothing,
        })
    }
}

impl ReferenceWitness<'_, '_> {
    fn place(&self, index: usize) -> Place {
        self.context.graph.places()[index]
    }

    fn site(&self, index: usize) -> Site {
        attention_site(self.place(index).tap)
    }

    fn index(&self, place: Place) -> Option<usize> {
        self.context.graph.places().iter().position(|p| *p == place)
    }

    fn convention(&self, index: usize, layout: &Layout) -> LayoutConvention {
        LayoutConvention::from_tap(self.place(index).tap, layout)
    }

    fn is_compared(&self, index: usize) -> bool {
        self.agreeing[index].is_some() || self.taps[index].is_compared()
    }

    /// The nearest compared taps after one.
    fn readers(&self, index: usize) -> Vec<usize> {
        self.context.graph.nearest_after(index, |i| self.is_compared(i)).0
    }

    /// Whether a tap is still compared once its claim is decided.
    fn remains_compared(&self, index: usize, resolved: &ResolvedClaims) -> bool {
        match resolved.evidence(self.place(index)) {
            Some(LayoutEvidence::None) => false,
            Some(LayoutEvidence::Against) => self.taps[index].as_it_stands().is_compared(),
            Some(LayoutEvidence::For) | None => self.taps[index].is_compared(),
        }
    }

    /// The evidence for or against the dump's own RoPE order of the rows of Q or K.
    fn row_evidence(
        &self,
        claim: &Claim,
        index: usize,
        resolved: &ResolvedClaims,
    ) -> Result<LayoutEvidence, DumpError> {
        let rows = claim.layout.rows();
        if self.context.declared() == rows {
            return Ok(LayoutEvidence::For);
        }
        let orders_are_declared = self.orders_are_told();
        let same = |i: usize| self.agreeing[i].as_ref().is_some_and(|theirs| theirs.rows() == rows);
        let partner = self.partner(index).filter(|&i| self.agreeing[i].is_some() && self.remains_compared(i, resolved));
        let rotated = is_rotated(self.site(index));
        if let (true, Some(partner)) = (rotated, partner) {
            // Rotated Q and K both in the other order have the same products: the order is the dump's own.
            return Ok(if same(partner) { LayoutEvidence::For } else { LayoutEvidence::Against });
        }
        // In that order before the rotation and after it: it was rotated in that order.
        let was_so = rotated && !orders_are_declared && self.context.graph.reads(index).iter().any(|&i| same(i));
        let mut evidence = if was_so { LayoutEvidence::For } else { LayoutEvidence::None };
        for i in self.readers(index) {
            let rotates = is_rotated(self.site(i)) && self.context.graph.reads(i).contains(&index);
            evidence = evidence.max(match &self.agreeing[i] {
                Some(_) if !self.site(i).has_rope_rows() || same(i) => LayoutEvidence::For,
                Some(_) => LayoutEvidence::Against,
                // Rotated in the pairs of the reference's order: the mistake may be here or in the next tap. Where the dumps declare their orders, it is
                // here.
                None if rotates && !orders_are_declared && self.rotates(index, i, &claim.layout)? == (true, false) => {
                    LayoutEvidence::For
                }
                None => LayoutEvidence::None,
            });
        }
        let alone = orders_are_declared || partner.is_some_and(|i| !same(i));
        Ok(if evidence == LayoutEvidence::None && alone { LayoutEvidence::Against } else { evidence })
    }

    /// The tap of K where this is Q's, and the reverse.
    fn partner(&self, index: usize) -> Option<usize> {
        let place = self.place(index);
        let site = match place.tap.site {
            Site::Q => Site::K,
            Site::K => Site::Q,
            Site::QNorm => Site::KNorm,
            Site::KNorm => Site::QNorm,
            Site::QRope => Site::KRope,
            Site::KRope => Site::QRope,
            _ => return None,
        };
        self.index(Place { tap: Tap { site, ..place.tap }, ..place })
    }

    /// Whether what `reader` computes from `index` is a rotation of it: in this layout, and as both stand.
    fn rotates(&self, index: usize, reader: usize, layout: &Layout) -> Result<(bool, bool), DumpError> {
        let own = self.convention(index, layout);
        let like = |pair: &Pair<'_>| LayoutConvention::new(pair.site(), pair.layout()).is_same_order(&own);
        let both = |alignment: &TapJudge<'_>, in_layout: Option<Pair<'_>>| {
            (
                in_layout.map(|pair| Heads::from_pair(&pair)),
                alignment.under(&Layout::Same).map(|pair| Heads::from_pair(&pair)),
            )
        };
        let from =
            self.context.with_tap_judge(self.place(index), |alignment, _| both(alignment, alignment.under(layout)))?;
        let to = self.context.with_tap_judge(self.place(reader), |alignment, allowed| {
            // Exactly this layout, where possible: one order, shown by the shape or by the content, is two layouts.
            let exactly = alignment.under(layout).filter(|pair| pair.layout() == layout);
            let in_layout =
                exactly.or_else(|| alignment.under(&Layout::Same).into_iter().chain(alignment.others()).find(like));
            (both(alignment, in_layout), allowed)
        })?;
        let (Some((from, from_plain)), Some(((to, to_plain), allowed))) = (from, to) else { return Ok((false, false)) };
        let pairs = match layout.rows() {
            Some(rows) => rows.other(),
            None => self.context.reference.meta().qk_rows.unwrap_or(QkRows::Half),
        };
        let rotation = |from: Option<Heads>, to: Option<Heads>| {
            let from_start = self.place(index).step == 0;
            from.zip(to).is_some_and(|(from, to)| to.is_rotation_of(&from, pairs, from_start, ROTATION_ROOM * allowed))
        };
        Ok((rotation(from, to), rotation(from_plain, to_plain)))
    }

    /// Whether an operation also reads something else that agrees in no layout: then its difference shows nothing.
    fn reads_what_is_wrong(&self, reader: usize, index: usize) -> bool {
        let (read, _) = self.context.graph.nearest_before(reader, |i| self.is_compared(i));
        read.iter().any(|&i| i != index && self.agreeing[i].is_none())
    }

    /// Whether the products at a tap are made of Q or K that agree in no layout.
    fn is_made_of_wrong(&self, index: usize) -> bool {
        let (read, _) = self.context.graph.nearest_before(index, |i| self.is_compared(i));
        let is_wrong = |&i: &usize| match &self.agreeing[i] {
            None => true,
            Some(layout) => self.convention(i, layout).exchanges_queries_and_keys() && self.is_made_of_wrong(i),
        };
        read.iter().any(is_wrong)
    }

    /// The evidence of a reader that differs: one that is nearly right in this order, and far off as it stands, may have its own mistake.
    fn off_but_nearer(&self, index: usize, own: &LayoutConvention) -> Result<LayoutEvidence, DumpError> {
        let evidence = |alignment: &TapJudge<'_>, _| {
            let same = |pair: &Pair<'_>| LayoutConvention::new(pair.site(), pair.layout()).is_same_order(own);
            let plain = alignment.under(&Layout::Same).map_or(0.0, |pair| pair.mean_correlation());
            match alignment.others().into_iter().filter(same).any(|pair| pair.resembles(plain)) {
                true => LayoutEvidence::None,
                false => LayoutEvidence::Against,
            }
        };
        Ok(self.context.with_tap_judge(self.place(index), evidence)?.unwrap_or(LayoutEvidence::Against))
    }

    /// Whether the candidate's tensor has the same shape as the reference's: then it states itself in which order its values are.
    fn says_its_shape(&self, index: usize) -> bool {
        let (left, right) = self.context.both(self.place(index));
        left.zip(right).is_some_and(|(left, right)| left.shape == right.shape)
    }

    /// Whether both dumps declare the order of the rows of Q and K: then another one is a mistake.
    fn orders_are_told(&self) -> bool {
        [self.context.reference, self.context.candidate].iter().all(|dump| dump.meta().qk_rows.is_some())
    }
}

/// Whether a site is a result of RoPE.
fn is_rotated(site: Site) -> bool {
    matches!(site, Site::QRope | Site::KRope)
}
