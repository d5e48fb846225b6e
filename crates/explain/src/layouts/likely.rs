//! In which layout is a tap that comes out in none, since its own operation is wrong? In that of similar taps, in the one in which it resembles what is due, in
//! the one that its shape shows, or in the one of which something that reads it comes out.

use firstdiff_compare::{Layout, LayoutCandidates, LayoutConvention, Pair, Place};
use firstdiff_trace::Site;

use crate::layouts::{Decided, Known, readers};
use crate::replay::{Done, Due, Replayed, Run};
use crate::tolerance::layouts::{CHANCE_CORRELATION, ORDER_TELLS};

/// The layout that a tap which comes out in none is likely to have.
pub(super) struct Likely {
    pub(super) layout: Layout,
    /// Whether all that speaks for it is that its values resemble what is due.
    by_likeness: bool,
}

impl Run<'_> {
    /// The layout of a tap that comes out in none: that of similar taps, else the one in which it resembles what is due, else the one that its shape shows.
    pub(super) fn likely(&self, place: Place, due: Option<&Due>, known: &Known) -> Done<Option<Likely>> {
        let conventions = self.conventions(place, known);
        let site = place.tap.site;
        let kind = |site: Site| (site.axes().len(), site.axes().contains(&'d'));
        let is_like = |at: &Place| {
            let rows = !site.has_rope_rows() || at.tap.site.has_rope_rows();
            at.step == place.step && rows && kind(at.tap.site) == kind(site)
        };
        let plain = || known.iter().filter(|(_, layout)| layout.is_none()).map(|(at, _)| at);
        let like_stand_plain = plain().any(is_like);
        // An engine records all its layers alike.
        let is_of_another_layer = |at: &Place| {
            at.step == place.step && at.tap.site == site && self.recorded.shape(*at) == self.recorded.shape(place)
        };
        let other_layers_stand_plain = plain().any(is_of_another_layer);
        let own_shape = self.recorded.has_its_own_shape(place);
        let shapes_mislead = known.iter().any(|(_, layout)| layout.as_ref().is_some_and(Layout::contradicts_shape));
        let chosen = self.looked_at(place, due, |layouts| {
            let alike = |pair: &Pair<'_>| if due.is_some() { pair.mean_correlation() } else { 0.0 };
            let plain = layouts.as_it_stands().map_or(0.0, alike);
            let others = self.others(place, layouts);
            let follows = |pair: &&Pair<'_>| follow(site, pair.layout(), &conventions);
            let the_very_same = |pair: &&Pair<'_>| conventions.iter().any(|(_, layout)| *layout == pair.layout());
            let like: Vec<Pair<'_>> = others.iter().filter(follows).cloned().collect();
            let same: Vec<Pair<'_>> = like.iter().filter(the_very_same).cloned().collect();
            let like = like.into_iter().filter(|pair| pair.layout().needs_confirming()).collect();
            // What is as due where it stands is in no other layout, whatever similar taps are in.
            if let Some(pair) = most(if same.is_empty() { like } else { same }, alike)
                && !other_layers_stand_plain
                && !is_rather_as_it_stands(plain, alike(&pair))
                && (!own_shape
                    || !like_stand_plain && (shapes_mislead || !pair.layout().contradicts_shape())
                    || pair.resembles(plain))
            {
                return Some(Likely { layout: pair.layout().clone(), by_likeness: false });
            }
            // Some likeness alone does not speak against a tap's own shape, where no other tap has its axes in another order.
            let in_its_shape = own_shape && conventions.is_empty();
            let is_row_order = |pair: &Pair<'_>| matches!(pair.layout(), Layout::Rows { .. });
            let may_be = |pair: &&Pair<'_>| !in_its_shape || is_row_order(pair);
            let possible = others.iter().filter(may_be).cloned().collect();
            if due.is_some()
                && let Some(pair) = most(possible, alike).filter(|pair| pair.resembles(plain))
            {
                return Some(Likely { layout: pair.layout().clone(), by_likeness: true });
            }
            let misfit = layouts.as_it_stands().is_err();
            let shown: Vec<Pair<'_>> = others.into_iter().filter(|pair| misfit && pair.layout().is_shown()).collect();
            // Padding is empty: keys that were seen are no padding.
            let empty = |pair: &&Pair<'_>| layouts.padding_error(pair).is_none();
            let of_empty: Vec<Pair<'_>> = shown.iter().filter(empty).cloned().collect();
            let shown = if of_empty.is_empty() { shown } else { of_empty };
            let order = |pair: &Pair<'_>| LayoutConvention::new(site, pair.layout());
            // Where axes are of one length, a shape shows several orders.
            let one = shown.windows(2).all(|two| order(&two[0]).is_same_order(&order(&two[1])));
            let shown = most(shown, alike).filter(|_| one);
            shown.map(|pair| Likely { layout: pair.layout().clone(), by_likeness: false })
        })?;
        Ok(chosen.flatten())
    }

    /// What is known of the dump's own layouts that tells something of a place.
    fn conventions<'k>(&self, place: Place, known: &'k Known) -> Vec<(LayoutConvention, &'k Layout)> {
        // An axis of one element may stand anywhere.
        let ones = |at: Place| self.recorded.shape(at).iter().map(|n| *n == 1).collect::<Vec<bool>>();
        let tells = |at: Place| !ones(at).contains(&true) || ones(at) == ones(place);
        let moved = known.iter().filter(|(at, _)| tells(*at)).filter_map(|(at, layout)| Some((at, layout.as_ref()?)));
        moved.map(|(at, layout)| (LayoutConvention::new(at.tap.site, layout), layout)).collect()
    }

    /// Finds the layout of a tap that comes out in none: that of similar taps, or the one of which what reads it comes out. Whether that is new.
    pub(super) fn resolve_open(&mut self, place: Place, taps: &[Replayed], decided: &mut Decided) -> Done<bool> {
        // Rows resemble what is due in another order by chance: a reader that comes out of them as they stand is no chance.
        let all_readers: Vec<Place> = readers(place, taps).map(|t| t.report.place).collect();
        let is_of_rows = matches!(self.recorded.layouts.get(&place), Some(Layout::Rows { .. }));
        if is_of_rows && !decided.layouts.contains_key(&place) && self.is_read_in(place, None, &all_readers)? {
            decided.layouts.insert(place, None);
            return Ok(true);
        }
        let own_shape = self.recorded.has_its_own_shape(place);
        if own_shape && decided.known.iter().all(|(_, layout)| layout.is_none()) || decided.layouts.contains_key(&place)
        {
            return Ok(false);
        }
        let Some(step) = self.recorded.model.plan.step(place.tap) else { return Ok(false) };
        let now = self.recorded.layouts.get(&place).cloned();
        // That a reader comes out of it as it is read now is the best witness.
        if readers(place, taps).any(|reader| reader.report.status.agrees()) {
            decided.layouts.insert(place, now);
            return Ok(false);
        }
        self.forget();
        let due = self.due(step, place.step)?;
        let likely = self.likely(place, due.as_ref().ok(), &decided.known)?;
        // A few values resemble what is due by chance: that a reader comes out of them is no chance.
        let is_open = likely.as_ref().is_none_or(|likely| likely.by_likeness && !own_shape);
        let mut layout = likely.map(|likely| likely.layout);
        if is_open
            && !all_readers.is_empty()
            && !self.is_of_one_order(place)?
            && !self.is_nearly_as_due(place, due.as_ref().ok())?
        {
            // Against its own shape speaks only what similar taps are in.
            let conventions = self.conventions(place, &decided.known);
            let may_be = |layout: &Layout| !own_shape || follow(place.tap.site, layout, &conventions);
            layout = self.layout_for(place, &all_readers, may_be)?.or(layout);
            let is_like = |t: &&Replayed| {
                let at = t.report.place;
                at != place && t.report.status.agrees() && at.tap.site.axes() == place.tap.site.axes()
            };
            let as_its_like = now.is_none() && taps.iter().any(|t| is_like(&t));
            if layout.is_none() && !own_shape && !as_its_like && self.recorded.unordered.insert(place) {
                return Ok(true);
            }
        }
        let is_new = layout != now;
        if is_new {
            decided.layouts.insert(place, layout);
        }
        Ok(is_new)
    }

    /// Whether one of its readers comes out of a tap in this layout.
    fn is_read_in(&mut self, place: Place, layout: Option<Layout>, readers: &[Place]) -> Done<bool> {
        let now = self.swap_layout(place, layout);
        let mut is_read = false;
        for &reader in readers {
            is_read = is_read || self.comes_out(reader)?;
        }
        self.swap_layout(place, now);
        self.forget();
        Ok(is_read)
    }

    /// Whether a tap is nearly as due where it stands: then it is in no other layout, though its readers come out of one, and theirs is the mistake.
    fn is_nearly_as_due(&self, place: Place, due: Option<&Due>) -> Done<bool> {
        let near = |layouts: &LayoutCandidates<'_>| {
            layouts.as_it_stands().is_ok_and(|pair| pair.mean_correlation() > 1.0 - ORDER_TELLS)
        };
        Ok(due.is_some() && self.looked_at(place, due, near)?.unwrap_or(false))
    }

    /// The first layout of a tap, of those for which `may_be` holds, of which one of its readers comes out.
    fn layout_for(
        &mut self,
        place: Place,
        readers: &[Place],
        may_be: impl Fn(&Layout) -> bool,
    ) -> Done<Option<Layout>> {
        let others = self.looked_at(place, None, |layouts| {
            let others = self.others(place, layouts).into_iter().map(|pair| pair.layout().clone());
            others.filter(|layout| may_be(layout)).collect::<Vec<_>>()
        })?;
        for layout in others.unwrap_or_default() {
            if self.is_read_in(place, Some(layout.clone()), readers)? {
                return Ok(Some(layout));
            }
        }
        Ok(None)
    }

    /// Whether there is no order of axes but the vocabulary's that a tap's values could be in.
    fn is_of_one_order(&self, place: Place) -> Done<bool> {
        let one = self.looked_at(place, None, |layouts| {
            layouts.as_it_stands().is_ok()
                && !self.others(place, layouts).iter().any(|pair| pair.layout().needs_confirming())
        })?;
        Ok(one.unwrap_or(false))
    }
}

/// Whether a site of a dump that stores others as `conventions` say is likely to be in a layout.
fn follow(site: Site, layout: &Layout, conventions: &[(LayoutConvention, &Layout)]) -> bool {
    let own = LayoutConvention::new(site, layout);
    let rows = |other: &Layout| !site.has_rope_rows() || other.rows() == layout.rows();
    conventions.iter().any(|(known, other)| own.follows_from(known) && rows(other))
}

/// The pair that is most `alike`.
fn most<'c>(pairs: Vec<Pair<'c>>, alike: impl Fn(&Pair<'_>) -> f64) -> Option<Pair<'c>> {
    let rated = pairs.into_iter().map(|pair| (alike(&pair), pair));
    rated.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, pair)| pair)
}

/// Whether a tap that correlates with what is due by `plain` where it stands is rather in no other layout, in which it does by `other`: nearly as due as it
/// is, or far more so than there and not by chance.
fn is_rather_as_it_stands(plain: f64, other: f64) -> bool {
    let nearly = plain > 1.0 - ORDER_TELLS && other < plain;
    nearly || (plain > CHANCE_CORRELATION && plain - other > ORDER_TELLS)
}
