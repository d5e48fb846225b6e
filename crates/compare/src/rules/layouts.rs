//! Is another layout the dump's own, or the mistake? Settled by what follows, once every tap is judged.

use std::collections::BTreeMap;

use firstdiff_trace::{DumpError, Entry, QkRows, Site, Tap};

use crate::graph::Place;
use crate::layout::convention::LayoutConvention;
use crate::layout::pair::{Layout, Pair};
use crate::layout::rotation::Heads;
use crate::layout::rows::squeezed;
use crate::layout::strided::Stored;
use crate::report::reason::Reason;
use crate::rules::Ruled;
use crate::taps::context::{Found, Judged, Plain, Run};
use crate::taps::tap::Overlay;

impl Run<'_> {
    /// A layout explains a difference away only if what follows agrees; what nothing confirms is judged as it stands.
    pub(crate) fn settle_layouts(&self, found: &mut [Found]) -> Ruled {
        let before: Vec<Option<Layout>> = found.iter().map(|here| agreeing_layout(here).cloned()).collect();
        let (mut open, mut customs) = (Vec::new(), Vec::new());
        for index in (0..found.len()).rev() {
            let Some(layout) = found[index].provisional().cloned() else { continue };
            let custom = LayoutConvention::of(self.site(index), &layout);
            let plain = match self.says(found, &before, index, &layout)? {
                Says::Right => {
                    customs.push(custom);
                    continue;
                }
                Says::Wrong => as_it_stands(&found[index]),
                Says::Nothing => cannot_tell(&layout),
            };
            open.push((index, custom, std::mem::replace(&mut found[index], plain)));
        }
        let mut seen = customs.clone();
        for (index, custom, otherwise) in open {
            if customs.iter().any(|known| custom.follows_from(known)) {
                found[index] = otherwise;
            } else if let Found::Unchecked(_) = found[index] {
                seen.push(custom);
            }
        }
        self.measure_in_custom(found, &seen)?;
        self.doubt_unlike_rows(found);
        Ok(None)
    }

    /// Queries and keys whose rows are in different orders make other products: where no product shows that they are right, nobody can tell.
    fn doubt_unlike_rows(&self, found: &mut [Found]) {
        let places = self.graph.places();
        let of = |place: &Place, sites: &[Site]| sites.contains(&place.tap.site);
        const QUERIES: [Site; 3] = [Site::Q, Site::QNorm, Site::QRope];
        const KEYS: [Site; 3] = [Site::K, Site::KNorm, Site::KRope];
        const PRODUCTS: [Site; 4] = [Site::Qk, Site::Scores, Site::Probs, Site::Context];
        let mut layers: BTreeMap<(u32, Option<u32>), Vec<usize>> = BTreeMap::new();
        for (index, place) in places.iter().enumerate() {
            layers.entry((place.step, place.tap.layer)).or_default().push(index);
        }
        for layer in layers.values() {
            let rows = |sites: &[Site], found: &[Found]| -> Vec<(usize, Layout)> {
                let here = layer.iter().filter(|&&i| of(&places[i], sites));
                here.filter_map(|&i| Some((i, agreeing_layout(&found[i])?.clone()))).collect()
            };
            let (queries, keys) = (rows(&QUERIES, found), rows(&KEYS, found));
            let unlike = queries.iter().any(|(_, q)| keys.iter().any(|(_, k)| q.rows() != k.rows()));
            if !unlike || layer.iter().any(|&i| of(&places[i], &PRODUCTS) && found[i].is_judged()) {
                continue;
            }
            for (index, layout) in queries.iter().chain(&keys).filter(|(_, layout)| layout.rows().is_some()) {
                found[*index] = cannot_tell(layout);
            }
        }
    }

    fn site(&self, index: usize) -> Site {
        self.graph.places()[index].tap.site
    }

    /// Whether the layout in which a tap agrees is the dump's own, or what is wrong there.
    fn says(
        &self,
        found: &[Found],
        before: &[Option<Layout>],
        index: usize,
        layout: &Layout,
    ) -> Result<Says, DumpError> {
        let custom = LayoutConvention::of(self.site(index), layout);
        if layout.rows().is_some() {
            let rows = self.rows_say(found, before, index, layout)?;
            if rows != Says::Right || custom.is_of_rows_alone() {
                return Ok(rows);
            }
        }
        let others =
            |(i, other): (usize, &Option<Layout>)| Some((i, LayoutConvention::of(self.site(i), other.as_ref()?)));
        let mut others = before.iter().enumerate().filter(|(i, _)| *i != index).filter_map(others);
        let contradicted = others.clone().any(|(_, other)| other.speaks_against(&custom));
        let customary = others.any(|(i, other)| found[i].agrees() && other.shows_the_same(&custom));
        if customary {
            return Ok(Says::Right);
        }
        let (after, _) = self.graph.nearest_after(index, |i| before[i].is_some() || found[i].is_judged());
        let declared = self.says_its_shape(index);
        // Memory that is the reference's needs no confirming, unless something speaks against it; of heads, a reader's own.
        let plain = custom.is_of_the_shape_alone() && !contradicted && (after.is_empty() || !custom.is_of_heads());
        let nothing = if plain { Says::Right } else { Says::Nothing };
        if after.is_empty() {
            return Ok(if contradicted || declared { Says::Wrong } else { nothing });
        }
        let (mut says, mut works_as_it_stands) = (Says::Nothing, false);
        for &i in &after {
            says = says.max(match &before[i] {
                Some(theirs) => self.agreeing_says(found, (i, theirs), index, &custom),
                // The shape's own word stands.
                None if self.otherwise_wrong(before, found, i, index) && custom.is_shown() => Says::Right,
                None if self.otherwise_wrong(before, found, i, index) => Says::Nothing,
                None if !self.graph.reads(i).contains(&index) && !declared => Says::Nothing,
                None if matches!(self.site(i), Site::QRope | Site::KRope) => {
                    let (in_layout, as_it_stands) = self.turned(index, i, layout)?;
                    works_as_it_stands |= as_it_stands;
                    // What is turned in neither order, or in both, has a mistake of its own; but no custom of the dump's is against it.
                    if in_layout && !(as_it_stands && contradicted) { Says::Right } else { Says::Wrong }
                }
                None => self.off_but_nearer(i, &custom)?,
            });
        }
        // Misplaced is what stands otherwise than its shape and its like say, or is read by the engine itself as it stands.
        let witnesses = [declared || custom.is_against_its_shape(), contradicted, works_as_it_stands];
        let misplaced = !custom.is_shown() && witnesses.iter().filter(|witness| **witness).count() > 1;
        // Rows are looked up whole: no mistake makes another order of axes of an embedding.
        let looked_up = self.site(index) == Site::H0;
        Ok(match says {
            Says::Right => Says::Right,
            Says::Wrong if misplaced && !looked_up => Says::Wrong,
            _ => nothing,
        })
    }

    /// What a reader that agrees says: it cannot have made that of misplaced values, unless it takes each value by itself and is misplaced alike.
    fn agreeing_says(
        &self,
        found: &[Found],
        (i, theirs): (usize, &Layout),
        index: usize,
        custom: &LayoutConvention,
    ) -> Says {
        let by_itself = keeps_places(self.site(i)) && self.graph.reads(i).contains(&index);
        if !by_itself || !LayoutConvention::of(self.site(i), theirs).same(custom) {
            return Says::Right;
        }
        match &found[i] {
            Found::Unchecked(_) => Says::Nothing,
            other if other.agrees() => Says::Right,
            _ => Says::Wrong,
        }
    }

    /// What there is for and against the rows of Q or K being in the dump's own RoPE order.
    fn rows_say(
        &self,
        found: &[Found],
        before: &[Option<Layout>],
        index: usize,
        layout: &Layout,
    ) -> Result<Says, DumpError> {
        let rows = layout.rows();
        if self.declared() == rows {
            return Ok(Says::Right);
        }
        let told = self.orders_are_told();
        let same = |i: usize| before[i].as_ref().is_some_and(|theirs| theirs.rows() == rows);
        let partner = self.partner(index).filter(|&i| before[i].is_some() && found[i].is_judged());
        let rotated = matches!(self.site(index), Site::QRope | Site::KRope);
        if let (true, Some(partner)) = (rotated, partner) {
            // Rotated Q and K both in the other order have the same products: the order is the dump's own.
            return Ok(if same(partner) { Says::Right } else { Says::Wrong });
        }
        // What was in that order before the rotation and is after it, was turned in it.
        let was_so = rotated && !told && self.graph.reads(index).iter().any(|&i| same(i));
        let mut says = if was_so { Says::Right } else { Says::Nothing };
        let (after, _) = self.graph.nearest_after(index, |i| before[i].is_some() || found[i].is_judged());
        for i in after {
            let of_rows = matches!(self.site(i), Site::QNorm | Site::KNorm | Site::QRope | Site::KRope);
            let turns = matches!(self.site(i), Site::QRope | Site::KRope) && self.graph.reads(i).contains(&index);
            says = says.max(match &before[i] {
                Some(_) if !of_rows || same(i) => Says::Right,
                Some(_) => Says::Wrong,
                // Turned in the pairs of the reference's order it may be the mistake, or the next one's.
                None if turns && self.turned(index, i, layout)? == (true, false) => Says::Right,
                None => Says::Nothing,
            });
        }
        let alone = told || partner.is_some_and(|i| !same(i));
        Ok(if says == Says::Nothing && alone { Says::Wrong } else { says })
    }

    /// The tap of K where this is Q's, and the reverse.
    fn partner(&self, index: usize) -> Option<usize> {
        let place = self.graph.places()[index];
        let site = match place.tap.site {
            Site::Q => Site::K,
            Site::K => Site::Q,
            Site::QNorm => Site::KNorm,
            Site::KNorm => Site::QNorm,
            Site::QRope => Site::KRope,
            Site::KRope => Site::QRope,
            _ => return None,
        };
        let partner = Place { tap: Tap { site, ..place.tap }, ..place };
        self.graph.places().iter().position(|p| *p == partner)
    }

    /// Whether what the rotation `reader` makes of `index` is a rotation of it: in this layout, and as both stand.
    fn turned(&self, index: usize, reader: usize, layout: &Layout) -> Result<(bool, bool), DumpError> {
        let places = self.graph.places();
        let custom = LayoutConvention::of(self.site(index), layout);
        let like = |pair: &Pair<'_>| LayoutConvention::of(pair.site(), pair.layout()).same(&custom);
        let both = |laid: &Overlay<'_>, in_layout: Option<Pair<'_>>| {
            (in_layout.map(|pair| Heads::of(&pair)), laid.under(&Layout::Same).map(|pair| Heads::of(&pair)))
        };
        let from = self.with_overlay(places[index], |laid, _| both(laid, laid.under(layout)))?;
        let to = self.with_overlay(places[reader], |laid, own| {
            // The very same reading, where there is one: the same order by the shape, and by content, is two readings.
            let exactly = laid.under(layout).filter(|pair| pair.layout() == layout);
            let in_layout = exactly.or_else(|| laid.under(&Layout::Same).into_iter().chain(laid.others()).find(like));
            (both(laid, in_layout), own)
        })?;
        let (Some((from, from_plain)), Some(((to, to_plain), own))) = (from, to) else { return Ok((false, false)) };
        let pairs = match layout.rows() {
            Some(rows) => rows.other(),
            None => self.reference.meta().qk_rows.unwrap_or(QkRows::Half),
        };
        let turned = |from: Option<Heads>, to: Option<Heads>| {
            let from_start = places[index].step == 0;
            from.zip(to).is_some_and(|(from, to)| from.turn_into(&to, pairs, from_start, ROTATED * own))
        };
        Ok((turned(from, to), turned(from_plain, to_plain)))
    }

    /// Whether something else that an operation reads agrees in no layout: then that it differs says nothing.
    fn otherwise_wrong(&self, before: &[Option<Layout>], found: &[Found], reader: usize, index: usize) -> bool {
        let (read, _) = self.graph.nearest_before(reader, |i| before[i].is_some() || found[i].is_judged());
        read.iter().any(|&i| i != index && before[i].is_none())
    }

    /// What a reader that differs says: what is nearly right in this order, and far off as it stands, may have its own mistake.
    fn off_but_nearer(&self, index: usize, custom: &LayoutConvention) -> Result<Says, DumpError> {
        let says = |laid: &Overlay<'_>, _| {
            let same = |pair: &Pair<'_>| LayoutConvention::of(pair.site(), pair.layout()).same(custom);
            let plain = laid.under(&Layout::Same).map_or(0.0, |pair| pair.mean_correlation());
            let mut readings = laid.others().into_iter().filter(same);
            match readings.any(|pair| pair.resembles(plain)) {
                true => Says::Nothing,
                false => Says::Wrong,
            }
        };
        Ok(self.with_overlay(self.graph.places()[index], says)?.unwrap_or(Says::Wrong))
    }

    /// What differs is measured in the order that the dump has there, where others show it: else the error could not be read.
    fn measure_in_custom(&self, found: &mut [Found], customs: &[LayoutConvention]) -> Result<(), DumpError> {
        let agreeing: Vec<Layout> = found.iter().filter_map(agreeing_layout).cloned().collect();
        let seen =
            |is: &dyn Fn(&Stored) -> bool| agreeing.iter().any(|l| matches!(l, Layout::Stored(stored) if is(stored)));
        if customs.is_empty() && agreeing.iter().all(|l| l.rows().is_none() && !matches!(l, Layout::Stored(_))) {
            return Ok(());
        }
        let mut changed = false;
        for index in 0..found.len() {
            let place = self.graph.places()[index];
            // What reads what is measured now may have inherited its error.
            if changed && matches!(&found[index], Found::Judged(judged) if !judged.judgement.outcome.agrees()) {
                let here = std::mem::replace(&mut found[index], Found::Nothing);
                found[index] = self.with_inheritance_as_laid(found, index, here)?;
            }
            let (off, permuted) = match &found[index] {
                Found::Judged(judged) if judged.judgement.outcome.agrees() || judged.plain.is_some() => continue,
                Found::Judged(judged) if !matches!(judged.layout, Layout::Stored(_)) => {
                    (judged.judgement.metrics.nmse(), matches!(judged.layout, Layout::Permuted(_)))
                }
                // The order that its shape shows is not its own, where the values are others altogether.
                Found::Judged(judged) if judged.layout.is_shown() && is_unlike(judged) => {
                    (judged.judgement.metrics.nmse(), true)
                }
                Found::Misfit(_) => (None, false),
                _ => continue,
            };
            let custom = |layout: &Layout| {
                let shown = || agreeing.iter().any(|other| other.rows() == layout.rows());
                let rows = layout.rows().is_none() || layout.rows() == self.declared() || shown();
                let Layout::Stored(stored) = layout else { return rows };
                let ordered = match stored.in_order() {
                    // Extents listed otherwise than memory holds them; or padding, which needs no order.
                    true => !permuted || seen(&|other| other.in_order()),
                    false => {
                        customs.iter().any(|custom| LayoutConvention::of(place.tap.site, layout).follows_from(custom))
                    }
                };
                let padded = !stored.pads_positions() || seen(&|other| other.same_positions(stored));
                rows && ordered && padded && (permuted || stored.pads_positions() || stored.moves())
            };
            let in_custom = |laid: &Overlay<'_>, own: f64| laid.in_custom(off, &self.allowance(place, own), custom);
            if let Some(other) = self.with_overlay(place, in_custom)?.flatten() {
                found[index] = self.with_inheritance_as_laid(found, index, other)?;
                changed = true;
            }
        }
        Ok(())
    }

    /// What is far off in another shape than the reference's, though all that follows agrees, may be in an order of axes that nobody found, or was recorded
    /// wrongly: no operation's fault.
    pub(crate) fn doubt_orders(&self, found: &mut [Found]) -> Ruled {
        let strange: Vec<bool> = (0..found.len()).map(|index| self.is_strange(found, index)).collect();
        for index in (0..found.len()).filter(|&index| strange[index]) {
            let (after, _) = self.graph.nearest_after(index, |i| found[i].is_judged() && !strange[i]);
            if !after.is_empty() && after.iter().all(|&i| found[i].agrees()) {
                found[index] = Found::Unchecked(Reason::OrderUnknown);
            }
        }
        Ok(None)
    }

    /// Whether a place of another shape than the reference's, which does not show its order of axes, is as far off as misplaced values are.
    fn is_strange(&self, found: &[Found], index: usize) -> bool {
        let Found::Judged(judged) = &found[index] else { return false };
        let far = is_unlike(judged) && judged.judgement.outcome.differs_by_size() && !judged.layout.is_shown();
        let (left, right) = self.both(self.graph.places()[index]);
        let shape = |entry: &Entry| squeezed(entry.tap.site, &entry.shape);
        far && left.zip(right).is_some_and(|(left, right)| shape(&left) != shape(&right))
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
    pub(crate) fn declared(&self) -> Option<QkRows> {
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

/// Misplaced values correlate by less; a mistake of an operation whose readers hardly feel it, by more.
const MISPLACED: f64 = 0.5;
/// Times what is allowed of rounding, the lengths and the first position of what was turned may be off.
const ROTATED: f64 = 100.0;

/// Whether values are as far off as misplaced ones are: they do not resemble each other, or as many are masked, and not the same ones.
fn is_unlike(judged: &Judged) -> bool {
    let metrics = &judged.judgement.metrics;
    let [ours, theirs] = [metrics.non_finite().inf_reference.count, metrics.non_finite().inf_candidate.count];
    metrics.correlation().is_some_and(|correlation| correlation < MISPLACED) || ours > 0 && ours == theirs
}

/// The layout in which a tap agrees.
fn agreeing_layout(found: &Found) -> Option<&Layout> {
    match found {
        Found::Judged(judged) if judged.judgement.outcome.agrees() => Some(&judged.layout),
        _ => None,
    }
}

/// The layout that was undone: that in which a tap agrees, and the order of rows in which it was measured.
fn undone_layout(found: &Found) -> Option<&Layout> {
    match found {
        Found::Judged(judged) if matches!(judged.layout, Layout::Rows { .. }) => Some(&judged.layout),
        _ => agreeing_layout(found),
    }
}

/// A tap that agrees in a layout of which nobody can say whether it is the dump's.
fn cannot_tell(layout: &Layout) -> Found {
    Found::Unchecked(Reason::Unconfirmed(layout.clone()))
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
pub fn keeps_places(site: Site) -> bool {
    use Site::{FfnAct, H, HAttn, KNorm, Probs, QNorm, RouterProbs, Scores};
    matches!(site, QNorm | KNorm | Scores | Probs | RouterProbs | FfnAct | HAttn | H)
}

/// What was undone, a line for each layout.
pub(crate) fn undone_orders(found: &[Found]) -> Vec<String> {
    let layouts: Vec<&Layout> = found.iter().filter_map(undone_layout).collect();
    layout_notes(&layouts, "reference")
}

/// In which other layouts tensors were read, a line for each; `witness` is what they were held against.
pub fn layout_notes(layouts: &[&Layout], witness: &str) -> Vec<String> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for layout in layouts {
        let words = layout.words(witness);
        let line = match layout {
            Layout::Same | Layout::Reshaped => continue,
            Layout::Rows { .. } => format!("Q and K: {words}; undone in"),
            Layout::Stored(stored) if !stored.moves() => format!("{words}; read so in"),
            _ => format!("{words}; undone, as what follows agrees, in"),
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
