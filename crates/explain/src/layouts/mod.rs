//! In which layout did the candidate record each tap? Where its value does not come out as it stands, compare's other layouts are tried against what is
//! due there.
//!
//! A layout in which the value comes out may still be the mistake itself (heads merged without the transpose): compare's [`layout::resolve`] decides, with
//! what comes out of the tap as evidence (`evidence.rs`). What nothing confirms is unchecked. A tap that comes out in no layout is read as similar taps are
//! (`likely.rs`). What is due depends on the layouts of what is read, so taps are judged in rounds until nothing changes.

mod evidence;
mod likely;
mod row_order;
pub(crate) mod unmasked;

use std::collections::{BTreeSet, HashMap};

use firstdiff_compare::layout::{Claim, LayoutEvidence, explains, resolve};
use firstdiff_compare::{Layout, LayoutCandidates, Pair, Place, Status, is_padded, layout_notes};
use firstdiff_model::Step;
use firstdiff_trace::Site;
use ndarray::ArrayD;

use crate::layouts::evidence::OwnValues;
use crate::layouts::row_order::RowOrder;
use crate::replay::reason::Reason;
use crate::replay::recorded::Unusable;
use crate::replay::{Done, Due, Replayed, Run};
use crate::tolerance::layouts::NEAR_LAYOUT;

/// Rounds of judging: layouts that were resolved change what was judged before.
const ROUNDS: usize = 4;

/// What a round of judging shows of the layouts.
#[derive(Default)]
struct Shown {
    /// Taps that come out in another layout, in the order of the Plan.
    agree: Vec<Agreeing>,
    /// Recorded taps that come out in none.
    open: Vec<Place>,
    /// Taps that come out as they stand.
    plain: Vec<Place>,
    /// What the taps of Q and K show of the order of their rows.
    row_order: RowOrder,
}

impl Shown {
    /// How the taps are recorded that come out, of those in another layout the ones for which `is`.
    fn known(&self, is: impl Fn(&Agreeing) -> bool) -> Known {
        let moved = self.agree.iter().filter(|a| is(a)).map(|a| (a.place, Some(a.layout.clone())));
        moved.chain(self.plain.iter().map(|place| (*place, None))).collect()
    }
}

/// A tap that comes out in another layout.
struct Agreeing {
    place: Place,
    layout: Layout,
}

/// Taps that come out, and the layout of each, as it stands where `None`: so far the dump's own layouts are known.
type Known = Vec<(Place, Option<Layout>)>;

/// What was decided in the rounds before.
#[derive(Default)]
struct Decided {
    /// As it stands where `None`.
    layouts: HashMap<Place, Option<Layout>>,
    known: Known,
}

impl Run<'_> {
    /// Judges every step, each tap in its own layout; and says what was not read as it stands.
    pub(crate) fn in_their_layouts(
        &mut self,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Done<(Vec<Replayed>, Vec<String>)> {
        let mut decided = Decided::default();
        let (mut taps, mut shown) = self.one_round(&decided, progress)?;
        for _ in 1..ROUNDS {
            if !self.resolve(&shown, &taps, &mut decided)? {
                break;
            }
            (taps, shown) = self.one_round(&decided, progress)?;
        }
        self.doubt_misdeclared(&mut taps);
        self.order_is_open = shown.row_order.is_open();
        let agree = shown.agree.iter().map(|a| &a.layout);
        let rest = self.recorded.layouts.iter().filter(|(place, _)| shown.agree.iter().all(|a| a.place != **place));
        let mut notes = layout_notes(&agree.chain(rest.map(|(_, layout)| layout)).collect::<Vec<_>>(), "model");
        notes.extend(self.order_is_open.then(|| row_order::OPEN.to_owned()));
        Ok((taps, notes))
    }

    /// Doubts taps that are right in the model's order of rows and not in the one that the dump declares: one of the two is a mistake, and not the engine's.
    fn doubt_misdeclared(&self, taps: &mut [Replayed]) {
        let layout = |place| self.recorded.layouts.get(&place);
        let is_misdeclared =
            |place: Place| layout(place).is_some_and(|l| self.recorded.is_misdeclared(place.tap.site, l));
        for tap in taps.iter_mut().filter(|t| t.report.status.agrees() && is_misdeclared(t.report.place)) {
            tap.report.status = Status::Unchecked;
            tap.reason = Some(Reason::Misdeclared);
        }
    }

    /// Blames taps that are right in the model's part, for what they hold beyond it.
    pub(crate) fn blame_what_is_beyond(&self, taps: &mut [Replayed]) -> Done<()> {
        // Backwards: nothing is made of scores of which the probabilities that are read from them are right, beyond the model's part too.
        for (place, layout) in self.recorded.layouts.iter().rev() {
            let error = |layouts: &LayoutCandidates<'_>| layouts.padding_error(&layouts.under(layout)?);
            let is_right = |t: &Replayed| t.report.place.tap.site == Site::Probs && t.report.status.agrees();
            if let Some(what) = self.looked_at(*place, None, error)?.flatten()
                && !(place.tap.site == Site::Scores && readers(*place, taps).any(is_right))
                && let Some(tap) = taps.iter_mut().find(|t| t.report.place == *place && t.report.status.agrees())
            {
                tap.report.status = Status::Diverged;
                tap.reason = Some(Reason::Padding(what));
            }
        }
        Ok(())
    }

    /// Judges every step, in the order of the Plan.
    fn one_round(&mut self, decided: &Decided, progress: &mut dyn FnMut(usize, usize)) -> Done<(Vec<Replayed>, Shown)> {
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
                taps.push(self.in_its_layout(step, number, decided, &mut shown)?);
                progress(taps.len(), total);
            }
        }
        Ok((taps, shown))
    }

    /// Judges a tap as it stands and, where it does not come out so, in compare's other layouts.
    fn in_its_layout(&mut self, step: &Step, number: u32, decided: &Decided, shown: &mut Shown) -> Done<Replayed> {
        let place = Place { step: number, tap: step.tap };
        if !self.recorded.holds(place) {
            return self.judge(step, number);
        }
        self.recorded.layouts.remove(&place);
        let is_decided = decided.layouts.contains_key(&place);
        if let Some(Some(layout)) = decided.layouts.get(&place) {
            self.recorded.layouts.insert(place, layout.clone());
        }
        let due = self.due(step, number)?;
        // Where nothing is due by what was recorded, the tokens may still tell the order of rows.
        let mut from_tokens = None;
        if due.is_err() && !is_decided && self.has_open_rows(place) {
            from_tokens = self.due_from_whole_taps(step)?;
            if from_tokens.is_none() {
                return self.judged(step, place, due.as_ref());
            }
        }
        let witness = from_tokens.as_ref().map_or(due.as_ref(), Ok);
        let mut replayed = self.judged(step, place, witness)?;
        if replayed.report.status.agrees() {
            self.note_agreeing(place, shown)?;
        } else if !is_decided
            && let Ok(due) = witness
            && let Some((agreeing, in_other)) = self.agreeing(step, place, due, &replayed)?
        {
            shown.row_order.is_known |= place.tap.site.has_rope_rows();
            shown.agree.push(agreeing);
            replayed = in_other;
        } else {
            if let Ok(due) = witness {
                self.note_row_order(place, due, shown)?;
            }
            if from_tokens.is_none() {
                shown.open.push(place);
            }
            if !is_decided {
                let known = [decided.known.clone(), shown.known(|_| true)].concat();
                if let Some(likely) = self.likely(place, witness.ok(), &known)? {
                    self.recorded.layouts.insert(place, likely.layout);
                    replayed = self.judged(step, place, witness)?;
                }
            }
        }
        match from_tokens {
            Some(_) => self.judged(step, place, due.as_ref()),
            None => Ok(replayed),
        }
    }

    /// Notes that a tap comes out in the layout it has now, where that is not as the model has it.
    fn note_agreeing(&self, place: Place, shown: &mut Shown) -> Done<()> {
        shown.row_order.is_known |= place.tap.site.has_rope_rows();
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
            Some(layout) => shown.agree.push(Agreeing { place, layout }),
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

    /// The other layouts that a tap may have: last the model's own, where the dump declares another order of rows.
    fn others<'c>(&self, place: Place, layouts: &LayoutCandidates<'c>) -> Vec<Pair<'c>> {
        let permitted = |pair: &Pair<'_>| self.recorded.permits(place.tap.site, pair.layout());
        let own =
            layouts.as_it_stands().ok().filter(|pair| self.recorded.is_misdeclared(place.tap.site, pair.layout()));
        layouts.others().into_iter().filter(permitted).chain(own.cloned()).collect()
    }

    /// Gives a tap a layout, or none, and says which it had.
    fn swap_layout(&mut self, place: Place, layout: Option<Layout>) -> Option<Layout> {
        match layout {
            Some(layout) => self.recorded.layouts.insert(place, layout),
            None => self.recorded.layouts.remove(&place),
        }
    }

    /// The first other layout in which a tap comes out, which it has from now on, and what is said of it there.
    fn agreeing(
        &mut self,
        step: &Step,
        place: Place,
        due: &Due,
        as_it_stands: &Replayed,
    ) -> Done<Option<(Agreeing, Replayed)>> {
        let near = self.looked_at(place, Some(due), |layouts| {
            let near = self.others(place, layouts).into_iter().filter(|pair| pair.estimated_nmse() <= NEAR_LAYOUT);
            near.map(|pair| pair.layout().clone()).collect::<Vec<_>>()
        })?;
        let was = as_it_stands.report.metrics.and_then(|m| m.nmse());
        let before = self.recorded.layouts.get(&place).cloned();
        for layout in near.unwrap_or_default() {
            self.swap_layout(place, Some(layout.clone()));
            let replayed = self.judged(step, place, Ok(due))?;
            if replayed.report.status.agrees() && replayed.report.metrics.is_some_and(|now| explains(&now, was)) {
                return Ok(Some((Agreeing { place, layout }, replayed)));
            }
        }
        self.swap_layout(place, before);
        Ok(None)
    }

    /// Decides what the round leaves open; whether anything is to be judged again.
    fn resolve(&mut self, shown: &Shown, taps: &[Replayed], decided: &mut Decided) -> Done<bool> {
        let is_open =
            |a: &&Agreeing| a.layout.needs_confirming() || self.recorded.is_misdeclared(a.place.tap.site, &a.layout);
        let claims = shown.agree.iter().filter(is_open);
        let claims = claims.map(|a| Claim { place: a.place, layout: a.layout.clone() }).collect();
        let resolved = resolve(claims, &mut OwnValues { run: self, shown, taps })?;
        let mut changed = false;
        for claim in resolved.claims_with(LayoutEvidence::Against) {
            changed |= decided.layouts.insert(claim.place, None) != Some(None);
        }
        for claim in resolved.claims_with(LayoutEvidence::None) {
            self.recorded.unconfirmed.insert(claim.place, claim.layout.clone());
            changed = true;
        }
        for a in shown.agree.iter().filter(|a| !is_padded(self.recorded.dump, a.place.step, &a.layout)) {
            self.recorded.unconfirmed.insert(a.place, a.layout.clone());
            changed = true;
        }
        decided.known = shown.known(|a| resolved.agreement_holds(a.place));
        for &place in &shown.open {
            changed |= self.resolve_open(place, taps, decided)?;
        }
        Ok(changed)
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
        self.swap_layout(place, kept);
        Ok(agrees)
    }
}

/// The recorded taps that were computed from a tap of the same step.
fn readers(place: Place, taps: &[Replayed]) -> impl Iterator<Item = &Replayed> {
    taps.iter().filter(move |t| t.report.place.step == place.step && t.from.contains(&place.tap))
}
