//! In which layout did the candidate record each tap? Where its value does not come out as it stands, compare's other layouts are tried against what is
//! due there.
//!
//! A layout in which the value comes out may still be the mistake itself (heads merged without the transpose). What reads the tap decides: it comes out
//! of the values in their right places, and the dump has that layout; or of the values as they stand, and the engine has the mistake. What nothing
//! confirms is unchecked.

pub(crate) mod unmasked;

use std::collections::{BTreeSet, HashMap, HashSet};

use firstdiff_compare::{Layout, LayoutCandidates, LayoutConvention, Pair, Place, Status, keeps_places, layout_notes};
use firstdiff_model::{Profile, Step};
use firstdiff_trace::Site;
use ndarray::ArrayD;

use crate::replay::reason::Reason;
use crate::replay::recorded::{Unusable, own};
use crate::replay::{Done, Due, Replayed, Run};
use crate::search::imitate::Shared;
use crate::search::proof::Target;
use crate::search::{Effort, Search};

/// Rounds of judging: layouts that were settled change what was judged before.
const ROUNDS: usize = 4;
/// A layout is tried where it leaves less than this of a tap, and takes nearly all of its error away.
const NEAR: f64 = 0.05;
const EXPLAINS: f64 = 0.1;
/// Elements that are looked at first.
const SAMPLE: usize = 512;
/// By how much a correlation must differ between two orders of rows, to tell which is meant.
const TELLING: f64 = 0.2;
/// Two tensors that correlate by less may do so by chance.
const BY_CHANCE: f64 = 0.5;

/// What a round of judging shows of the layouts.
#[derive(Default)]
struct Shown {
    /// Taps that come out in another layout, in the order of the Plan.
    agree: Vec<Agreeing>,
    /// Recorded taps that come out in none.
    open: Vec<Place>,
    /// Taps that come out as they stand.
    plain: Vec<Place>,
    /// Whether taps of Q and K come out, in whichever order of rows.
    in_known_rows: bool,
}

impl Shown {
    /// What the taps show that come out, those for which `is`.
    fn known(&self, is: impl Fn(&Agreeing) -> bool) -> Known {
        let moved = self.agree.iter().filter(|a| is(a)).map(|a| (a.place, a.layout.clone())).collect();
        Known { moved, plain: self.plain.clone() }
    }
}

/// A tap that comes out in another layout.
struct Agreeing {
    place: Place,
    layout: Layout,
    /// What is wrong outside of the model's part.
    padding_error: Option<String>,
}

/// The layout that a tap which comes out in none is likely to have.
struct Likely {
    layout: Layout,
    /// Whether all that speaks for it is that its values resemble what is due.
    by_likeness: bool,
}

/// What was settled in the rounds before.
#[derive(Default)]
struct Settled {
    /// As it stands where `None`.
    layouts: HashMap<Place, Option<Layout>>,
    /// What is known of the dump's own layouts.
    known: Known,
}

/// The dump's own layouts, as far as taps show them that come out.
#[derive(Clone, Default)]
struct Known {
    /// Taps that come out in another layout.
    moved: Vec<(Place, Layout)>,
    /// Taps that come out as they stand.
    plain: Vec<Place>,
}

impl Run<'_> {
    /// Judges every step, each tap in its own layout; and says what was not read as it stands.
    pub(crate) fn in_their_layouts(
        &mut self,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Done<(Vec<Replayed>, Vec<String>)> {
        let mut settled = Settled::default();
        let mut round = 1;
        loop {
            let (mut taps, shown) = self.one_round(&settled, progress)?;
            if round < ROUNDS && self.settle(&shown, &taps, &mut settled)? {
                round += 1;
                continue;
            }
            self.order_is_open = self.is_order_open(&shown, &taps)?;
            let mut layouts: Vec<&Layout> = Vec::new();
            for Agreeing { place, layout, padding_error } in &shown.agree {
                layouts.push(layout);
                if let Some(what) = padding_error
                    && !(place.tap.site.axes().contains(&'S') && self.is_confirmed(*place, &taps))
                    && let Some(tap) = taps.iter_mut().find(|t| t.report.place == *place)
                {
                    tap.report.status = Status::Diverged;
                    tap.reason = Some(Reason::Padding(what.clone()));
                }
            }
            let rest = self.recorded.layouts.iter().filter(|(place, _)| shown.agree.iter().all(|a| a.place != **place));
            layouts.extend(rest.map(|(_, layout)| layout));
            let mut notes = layout_notes(&layouts, "model");
            notes.extend(self.order_is_open.then(|| {
                "the rows of Q and K may come in either RoPE order: what is recorded of them is wrong in both; say 'qk_rows' in dump.json".to_owned()
            }));
            return Ok((taps, notes));
        }
    }

    /// Judges every step, in the order of the Plan.
    fn one_round(&mut self, settled: &Settled, progress: &mut dyn FnMut(usize, usize)) -> Done<(Vec<Replayed>, Shown)> {
        let model = self.recorded.model;
        let numbers: BTreeSet<u32> = self.recorded.dump.entries().iter().map(|e| e.step).collect();
        let total = numbers.len() * model.plan.steps.len();
        let (mut taps, mut shown) = (Vec::new(), Shown::default());
        self.forget();
        for &number in &numbers {
            let mut layer = None;
            for step in &model.plan.steps {
                if step.tap.layer != layer {
                    layer = step.tap.layer;
                    self.forget();
                }
                taps.push(self.in_its_layout(step, number, settled, &mut shown)?);
                progress(taps.len(), total);
            }
        }
        Ok((taps, shown))
    }

    /// Judges a tap as it stands and, where it does not come out so, in compare's other layouts.
    fn in_its_layout(&mut self, step: &Step, number: u32, settled: &Settled, shown: &mut Shown) -> Done<Replayed> {
        let place = Place { step: number, tap: step.tap };
        if !self.recorded.holds(place) {
            return self.judge(step, number);
        }
        self.recorded.layouts.remove(&place);
        if let Some(Some(layout)) = settled.layouts.get(&place) {
            self.recorded.layouts.insert(place, layout.clone());
        }
        let due = self.due(step, number)?;
        let as_it_stands = self.judged(step, place, due.as_ref())?;
        if due.is_err() && !settled.layouts.contains_key(&place) && self.has_open_rows(place) {
            self.rows_by_the_tokens(step, shown)?;
            return self.judged(step, place, due.as_ref());
        }
        if as_it_stands.report.status.agrees() {
            self.note_agreeing(place, shown)?;
            return Ok(as_it_stands);
        }
        if settled.layouts.contains_key(&place) {
            shown.open.push(place);
            return Ok(as_it_stands);
        }
        if let Ok(due) = &due
            && let Some((agreeing, replayed)) = self.agreeing(step, place, due, &as_it_stands)?
        {
            shown.in_known_rows |= place.tap.site.has_rope_rows();
            shown.agree.push(agreeing);
            return Ok(replayed);
        }
        shown.open.push(place);
        let mut known = settled.known.clone();
        known.moved.extend(shown.known(|_| true).moved);
        known.plain.extend(&shown.plain);
        match self.likely(place, due.as_ref().ok(), &known)? {
            Some(likely) => {
                self.recorded.layouts.insert(place, likely.layout);
                self.judged(step, place, due.as_ref())
            }
            None => Ok(as_it_stands),
        }
    }

    /// Notes that a tap comes out in the layout it has now, where that is not as the model has it.
    fn note_agreeing(&self, place: Place, shown: &mut Shown) -> Done<()> {
        shown.in_known_rows |= place.tap.site.has_rope_rows();
        let layout = match self.recorded.layouts.get(&place) {
            Some(layout) => Some(layout.clone()),
            None => self
                .looked_at(place, None, |layouts| {
                    let layout = layouts.as_it_stands().ok().map(|pair| pair.layout().clone());
                    layout.filter(Layout::needs_confirming)
                })?
                .flatten(),
        };
        match layout {
            Some(layout) => shown.agree.push(Agreeing { place, layout, padding_error: None }),
            None => shown.plain.push(place),
        }
        Ok(())
    }

    /// The layouts of a tap beside what is due there; nothing where it cannot be read at all.
    fn looked_at<X>(
        &self,
        place: Place,
        due: Option<&Due>,
        then: impl FnOnce(&LayoutCandidates<'_>) -> X,
    ) -> Done<Option<X>> {
        let blank;
        let witness = match due {
            Some(due) => &due.exact,
            None => {
                blank = ArrayD::zeros(self.recorded.shape(place));
                &blank
            }
        };
        match self.recorded.with_layouts(place, witness, then) {
            Ok(found) => Ok(Some(found)),
            Err(Unusable::Dump(error)) => Err(error.into()),
            Err(Unusable::Unfit(_)) => Ok(None),
        }
    }

    /// The other layouts that a tap may have.
    fn others<'c>(&self, place: Place, layouts: &LayoutCandidates<'c>) -> Vec<Pair<'c>> {
        let permitted = |pair: &Pair<'_>| self.recorded.permits(place.tap.site, pair.layout());
        layouts.others().into_iter().filter(permitted).collect()
    }

    /// The first other layout in which a tap comes out, and what is said of it there.
    fn agreeing(
        &mut self,
        step: &Step,
        place: Place,
        due: &Due,
        as_it_stands: &Replayed,
    ) -> Done<Option<(Agreeing, Replayed)>> {
        let near = self.looked_at(place, Some(due), |layouts| {
            let is_near = |pair: &Pair<'_>| pair.sampled_nmse((pair.len() / SAMPLE).max(1) | 1) <= NEAR;
            let near = self.others(place, layouts).into_iter().filter(is_near);
            near.map(|pair| (pair.layout().clone(), layouts.padding_error(&pair))).collect::<Vec<_>>()
        })?;
        let was = as_it_stands.report.metrics.and_then(|m| m.nmse()).unwrap_or(f64::INFINITY);
        let before = self.recorded.layouts.get(&place).cloned();
        for (layout, padding_error) in near.unwrap_or_default() {
            self.recorded.layouts.insert(place, layout.clone());
            let replayed = self.judged(step, place, Ok(due))?;
            let metrics = replayed.report.metrics;
            // A constant tensor is the same in any order.
            let varies = metrics.is_some_and(|m| m.correlation().is_some());
            let explains = metrics.and_then(|m| m.nmse()).is_some_and(|nmse| nmse <= EXPLAINS * was);
            if replayed.report.status.agrees() && varies && explains {
                return Ok(Some((Agreeing { place, layout, padding_error }, replayed)));
            }
        }
        match before {
            Some(layout) => self.recorded.layouts.insert(place, layout),
            None => self.recorded.layouts.remove(&place),
        };
        Ok(None)
    }

    /// The layout of a tap that comes out in none: that of its like, else the one in which it resembles what is due, else the one that its shape shows.
    fn likely(&self, place: Place, due: Option<&Due>, known: &Known) -> Done<Option<Likely>> {
        let conventions = self.conventions(place, known);
        let site = place.tap.site;
        let kind = |site: Site| (site.axes().len(), site.axes().contains(&'d'));
        let is_like = |at: &Place| {
            let rows = !site.has_rope_rows() || at.tap.site.has_rope_rows();
            at.step == place.step && rows && kind(at.tap.site) == kind(site)
        };
        let like_stand_plain = known.plain.iter().any(is_like);
        // An engine records all its layers alike.
        let is_of_another_layer = |at: &Place| {
            at.step == place.step && at.tap.site == site && self.recorded.shape(*at) == self.recorded.shape(place)
        };
        let other_layers_stand_plain = known.plain.iter().any(is_of_another_layer);
        let own_shape = self.recorded.has_its_own_shape(place);
        let shapes_mislead = known.moved.iter().any(|(_, layout)| layout.contradicts_shape());
        let chosen = self.looked_at(place, due, |layouts| {
            let alike = |pair: &Pair<'_>| if due.is_some() { pair.mean_correlation() } else { 0.0 };
            let plain = layouts.as_it_stands().map_or(0.0, alike);
            let others = self.others(place, layouts);
            let follows = |pair: &&Pair<'_>| follow(site, pair.layout(), &conventions);
            let the_very_same = |pair: &&Pair<'_>| conventions.iter().any(|(_, layout)| *layout == pair.layout());
            let like: Vec<Pair<'_>> = others.iter().filter(follows).cloned().collect();
            let same: Vec<Pair<'_>> = like.iter().filter(the_very_same).cloned().collect();
            let like = like.into_iter().filter(|pair| pair.layout().needs_confirming()).collect();
            // What is as due where it stands is in no other layout, whatever its like are in.
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
            let may_be = |pair: &Pair<'_>| !in_its_shape || is_row_order(pair);
            let possible = others.iter().filter(|pair| may_be(pair)).cloned().collect();
            if due.is_some()
                && let Some(pair) = most(possible, alike).filter(|pair| pair.resembles(plain))
            {
                return Some(Likely { layout: pair.layout().clone(), by_likeness: true });
            }
            let misfit = layouts.as_it_stands().is_err();
            let shown: Vec<Pair<'_>> = others.into_iter().filter(|pair| misfit && pair.layout().is_shown()).collect();
            let order = |pair: &Pair<'_>| LayoutConvention::of(site, pair.layout());
            // Where axes are of one length, a shape shows several orders.
            let one = shown.windows(2).all(|two| order(&two[0]).same(&order(&two[1])));
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
        let moved = known.moved.iter().filter(|(at, _)| tells(*at));
        moved.map(|(at, layout)| (LayoutConvention::of(at.tap.site, layout), layout)).collect()
    }

    /// Decides what the round leaves open; whether anything is to be judged again.
    fn settle(&mut self, shown: &Shown, taps: &[Replayed], settled: &mut Settled) -> Done<bool> {
        let mut changed = false;
        let (mut confirmed, mut mistaken) = (HashSet::new(), HashSet::new());
        let mut doubtful: Vec<&Agreeing> = Vec::new();
        // What is read later is settled first.
        for agreeing in shown.agree.iter().rev() {
            let place = agreeing.place;
            if !agreeing.layout.needs_confirming() {
                continue;
            }
            match self.confirmed(agreeing, shown, taps, &confirmed, &mistaken)? {
                Some(true) => {
                    confirmed.insert(place);
                }
                Some(false) => {
                    mistaken.insert(place);
                    changed |= settled.layouts.insert(place, None) != Some(None);
                }
                None => doubtful.push(agreeing),
            }
        }
        let of = |agreeing: &Agreeing| LayoutConvention::of(agreeing.place.tap.site, &agreeing.layout);
        let known: Vec<&Agreeing> = shown.agree.iter().filter(|a| confirmed.contains(&a.place)).collect();
        for agreeing in doubtful {
            let own = of(agreeing);
            let like = known.iter().any(|a| own.follows_from(&of(a)))
                || shown.agree.iter().any(|a| !mistaken.contains(&a.place) && own.shows_the_same(&of(a)));
            // Rows are looked up whole: no mistake makes another order of axes of an embedding.
            let rows_alone = own.is_of_rows_alone() && readers(agreeing.place, taps).next().is_none();
            if like || rows_alone || agreeing.place.tap.site == Site::H0 {
                confirmed.insert(agreeing.place);
                continue;
            }
            self.recorded.unconfirmed.insert(agreeing.place, agreeing.layout.clone());
            changed = true;
        }
        settled.known = shown.known(|a| confirmed.contains(&a.place) || !a.layout.needs_confirming());
        for &place in &shown.open {
            changed |= self.settle_open(place, taps, settled)?;
        }
        Ok(changed)
    }

    /// Whether the layout in which a tap comes out is the dump's own, or the mistake; nothing where nothing tells.
    fn confirmed(
        &mut self,
        agreeing: &Agreeing,
        shown: &Shown,
        taps: &[Replayed],
        confirmed: &HashSet<Place>,
        mistaken: &HashSet<Place>,
    ) -> Done<Option<bool>> {
        let place = agreeing.place;
        let own = LayoutConvention::of(place.tap.site, &agreeing.layout);
        let mut others = Vec::new();
        for reader in readers(place, taps) {
            let at = reader.report.place;
            let theirs =
                shown.agree.iter().find(|a| a.place == at).map(|a| LayoutConvention::of(at.tap.site, &a.layout));
            // What takes each value by itself makes misplaced values of misplaced ones.
            let by_itself = keeps_places(at.tap.site) && theirs.is_some_and(|theirs| theirs.same(&own));
            match (reader.report.status.agrees(), by_itself) {
                (true, false) => return Ok(Some(true)),
                (true, true) if confirmed.contains(&at) => return Ok(Some(true)),
                (true, true) if mistaken.contains(&at) => return Ok(Some(false)),
                (true, true) => {}
                (false, _) => others.push(at),
            }
        }
        let kept = self.recorded.layouts.remove(&place);
        let mut works_as_it_stands = false;
        if kept.is_some() && self.looked_at(place, None, |layouts| layouts.as_it_stands().is_ok())? == Some(true) {
            for reader in others {
                works_as_it_stands |= self.comes_out(reader)?;
            }
        }
        self.recorded.layouts.extend(kept.map(|layout| (place, layout)));
        self.forget();
        Ok(works_as_it_stands.then_some(false))
    }

    /// Whether a recorded tap comes out of what it reads, in any layout.
    fn comes_out(&mut self, place: Place) -> Done<bool> {
        self.forget();
        let Some(step) = self.recorded.model.plan.step(place.tap) else { return Ok(false) };
        let due = self.due(step, place.step)?;
        let now = self.judged(step, place, due.as_ref())?;
        let Ok(due) = due else { return Ok(false) };
        if now.report.status.agrees() {
            return Ok(true);
        }
        let kept = self.recorded.layouts.get(&place).cloned();
        let agrees = self.agreeing(step, place, &due, &now)?.is_some();
        self.recorded.layouts.remove(&place);
        self.recorded.layouts.extend(kept.map(|layout| (place, layout)));
        Ok(agrees)
    }

    /// Finds the layout of a tap that comes out in none: that of its like, or the one of which what reads it comes out. Whether that is new.
    fn settle_open(&mut self, place: Place, taps: &[Replayed], settled: &mut Settled) -> Done<bool> {
        if self.recorded.has_its_own_shape(place) && settled.known.moved.is_empty()
            || settled.layouts.contains_key(&place)
        {
            return Ok(false);
        }
        let Some(step) = self.recorded.model.plan.step(place.tap) else { return Ok(false) };
        let now = self.recorded.layouts.get(&place).cloned();
        let own_shape = self.recorded.has_its_own_shape(place);
        let readers: Vec<Place> = readers(place, taps).map(|t| t.report.place).collect();
        // That a reader comes out of it as it is read now is the best witness.
        if readers.iter().any(|reader| agrees(taps, *reader)) {
            settled.layouts.insert(place, now);
            return Ok(false);
        }
        self.forget();
        let due = self.due(step, place.step)?;
        let likely = self.likely(place, due.as_ref().ok(), &settled.known)?;
        // A few values resemble what is due by chance: that a reader comes out of them is no chance.
        let is_open = likely.as_ref().is_none_or(|likely| likely.by_likeness && !own_shape);
        let mut layout = likely.map(|likely| likely.layout);
        let shape_tells = self.is_of_one_order(place)?;
        let open = is_open && !shape_tells && !readers.is_empty();
        if open && !self.is_nearly_as_due(place, due.as_ref().ok())? {
            // Against its own shape speaks only what its like are in.
            let conventions = self.conventions(place, &settled.known);
            let site = place.tap.site;
            let may_be = |layout: &Layout| !own_shape || follow(site, layout, &conventions);
            layout = self.layout_for(place, &readers, may_be)?.or(layout);
            let like_it = |t: &&Replayed| {
                t.report.place != place
                    && t.report.status.agrees()
                    && t.report.place.tap.site.axes() == place.tap.site.axes()
            };
            let as_its_like = now.is_none() && taps.iter().any(|t| like_it(&t));
            if layout.is_none() && !own_shape && !as_its_like && self.recorded.unordered.insert(place) {
                return Ok(true);
            }
        }
        if layout == now {
            return Ok(false);
        }
        settled.layouts.insert(place, layout);
        Ok(true)
    }

    /// Whether a tap is nearly as due where it stands: then it is in no other layout, though its readers come out of one, and theirs is the mistake.
    fn is_nearly_as_due(&self, place: Place, due: Option<&Due>) -> Done<bool> {
        let Some(due) = due else { return Ok(false) };
        let near = |layouts: &LayoutCandidates<'_>| {
            layouts.as_it_stands().is_ok_and(|pair| pair.mean_correlation() > 1.0 - TELLING)
        };
        Ok(self.looked_at(place, Some(due), near)?.unwrap_or(false))
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
        let now = self.recorded.layouts.remove(&place);
        let mut found = None;
        'layouts: for layout in others.unwrap_or_default() {
            self.recorded.layouts.insert(place, layout.clone());
            for &reader in readers {
                if self.comes_out(reader)? {
                    found = Some(layout);
                    break 'layouts;
                }
            }
        }
        self.recorded.layouts.remove(&place);
        self.recorded.layouts.extend(now.map(|layout| (place, layout)));
        self.forget();
        Ok(found)
    }

    /// Whether there is no order of axes but the vocabulary's that a tap's values could be in.
    fn is_of_one_order(&self, place: Place) -> Done<bool> {
        let one = self.looked_at(place, None, |layouts| {
            layouts.as_it_stands().is_ok()
                && !self.others(place, layouts).iter().any(|pair| pair.layout().needs_confirming())
        })?;
        Ok(one.unwrap_or(false))
    }

    /// Whether something that reads a tap comes out.
    fn is_confirmed(&self, place: Place, taps: &[Replayed]) -> bool {
        readers(place, taps).any(|reader| reader.report.status.agrees())
    }

    /// Whether nobody says in which order the rows of Q and K are, and what is recorded of them is wrong in both, in none of them nearer.
    fn is_order_open(&mut self, shown: &Shown, taps: &[Replayed]) -> Done<bool> {
        if self.recorded.dump.meta().qk_rows.is_some() || shown.in_known_rows {
            return Ok(false);
        }
        let rows = |t: &&Replayed| {
            let place = t.report.place;
            place.tap.site.has_rope_rows() && place.step == 0 && self.recorded.holds(place)
        };
        let places: Vec<Place> = taps.iter().filter(rows).map(|t| t.report.place).collect();
        let mut is_open = false;
        for place in places {
            let Some(step) = self.recorded.model.plan.step(place.tap) else { continue };
            let due = match self.due(step, 0)? {
                Ok(due) => Some(due),
                Err(_) => self.due_from_the_tokens(step)?,
            };
            let Some(due) = due else { continue };
            let near = self.looked_at(place, Some(&due), |layouts| {
                let mut near = [0.0f64; 2];
                let pairs = layouts.as_it_stands().ok().cloned().into_iter().chain(self.others(place, layouts));
                for pair in pairs {
                    let at = usize::from(pair.layout().rows().is_some());
                    near[at] = near[at].max(pair.mean_correlation());
                }
                near
            })?;
            let Some([own, other]) = near else { continue };
            if (own - other).abs() >= TELLING {
                return Ok(false);
            }
            is_open = true;
        }
        Ok(is_open)
    }

    /// Whether nobody says in which order a tap's rows of Q and K are.
    fn has_open_rows(&self, place: Place) -> bool {
        self.recorded.dump.meta().qk_rows.is_none() && place.tap.site.has_rope_rows() && place.step == 0
    }

    /// Finds the order of the rows of Q and K of a tap of which nothing is due but what the tokens give.
    fn rows_by_the_tokens(&mut self, step: &Step, shown: &mut Shown) -> Done<()> {
        let place = Place { step: 0, tap: step.tap };
        let Some(due) = self.due_from_the_tokens(step)? else { return Ok(()) };
        let now = self.judged(step, place, Ok(&due))?;
        if now.report.status.agrees() {
            return self.note_agreeing(place, shown);
        }
        match self.agreeing(step, place, &due, &now)? {
            Some((agreeing, _)) => {
                shown.in_known_rows = true;
                shown.agree.push(agreeing);
            }
            None => {
                if let Some(likely) = self.likely(place, Some(&due), &shown.known(|_| true))? {
                    self.recorded.layouts.insert(place, likely.layout);
                }
            }
        }
        Ok(())
    }

    /// What is due at some positions of a tap of the prefill, computed from the tokens; nothing where that cannot be said.
    fn due_from_the_tokens(&mut self, step: &Step) -> Done<Option<Due>> {
        let place = Place { step: 0, tap: step.tap };
        let Some(step) = self.recorded.model.plan.step(step.tap) else { return Ok(None) };
        let Some((own, Some(positions))) = own(self, place)? else { return Ok(None) };
        let (shared, effort) = (Shared::default(), Effort::quick());
        let target = Target::new(self, step, place, own, Some(positions.clone()), None);
        let search = Search { run: self, shared: &shared, effort: &effort, accepted: &[] };
        let values = [self.profile, Profile::Exact].map(|p| search.value(&target, &[], p));
        let [Some(right), Some(exact)] = values else { return Ok(None) };
        if right.shape() != target.own.shape() {
            return Ok(None);
        }
        let right = right.mapv(|x| x as f32);
        Ok(Some(Due { positions: Some(positions), right, exact, from: Vec::new(), through: Vec::new() }))
    }
}

/// Whether a site of a dump that stores others as `conventions` say is likely to be in a layout.
fn follow(site: Site, layout: &Layout, conventions: &[(LayoutConvention, &Layout)]) -> bool {
    let own = LayoutConvention::of(site, layout);
    let rows = |other: &Layout| !site.has_rope_rows() || other.rows() == layout.rows();
    conventions.iter().any(|(known, other)| own.follows_from(known) && rows(other))
}

/// The recorded taps that were computed from a tap of the same step.
fn readers(place: Place, taps: &[Replayed]) -> impl Iterator<Item = &Replayed> {
    taps.iter().filter(move |t| t.report.place.step == place.step && t.from.contains(&place.tap))
}

fn agrees(taps: &[Replayed], place: Place) -> bool {
    taps.iter().any(|t| t.report.place == place && t.report.status.agrees())
}

/// The pair that is most `alike`.
fn most<'c>(pairs: Vec<Pair<'c>>, alike: impl Fn(&Pair<'_>) -> f64) -> Option<Pair<'c>> {
    let rated = pairs.into_iter().map(|pair| (alike(&pair), pair));
    rated.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, pair)| pair)
}

/// Whether a tap that correlates with what is due by `plain` where it stands is rather in no other layout, in which it does by `other`: nearly as due as it
/// is, or far more so than there and not by chance.
fn is_rather_as_it_stands(plain: f64, other: f64) -> bool {
    let nearly = plain > 1.0 - TELLING && other < plain;
    nearly || (plain > BY_CHANCE && plain - other > TELLING)
}
