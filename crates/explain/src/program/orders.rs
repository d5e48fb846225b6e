//! Finds taps that hold the right rows in another order that is their own: those of a sort within each number that is sorted, and those of an expert by another
//! order of places: one order for all taps that stand by it.

use std::collections::HashMap;

use firstdiff_compare::{Status, TapReport};
use firstdiff_program::{Bench, Program, Slice, Tensor};
use ndarray::{ArrayD, Axis};

use crate::program::arrays::array;
use crate::program::held::Held;
use crate::program::places::{Places, Whose};
use crate::program::routing::first_operand;
use crate::program::rows::{Against, Sorted, is_same, order};
use crate::program::slices::reached;
use crate::replay::Replayed;
use crate::replay::reason::Reason;
use crate::replay::right::distance;
use crate::tolerance::replay::ORDER_LEAVES;

/// In which orders the candidate holds rows, as far as its taps have shown.
pub(crate) struct Orders {
    pub(crate) sorted: Sorted,
    pub(crate) places: Places,
}

/// How the rows of a tap stand before it is judged.
pub(crate) struct Standing {
    tap: usize,
    op: usize,
    rows: usize,
    expert: Option<usize>,
    /// Whether all of it was recorded, and nothing that it is computed from stands in an unknown order.
    is_whole: bool,
    is_sorted: bool,
    /// The order into which they were brought, as other taps have it.
    settled: Option<Vec<usize>>,
}

/// A tap's values, what is due, and by what that of others is computed.
pub(crate) struct Both<'a> {
    pub(crate) own: &'a ArrayD<f64>,
    pub(crate) due: &'a ArrayD<f64>,
    pub(crate) program: &'a Program,
    pub(crate) bench: &'a Bench<'a>,
}

impl Orders {
    pub(crate) fn of(program: &Program, held: &Held) -> Orders {
        Orders { sorted: Sorted::of(program), places: Places::of(program, held) }
    }

    /// Brings the rows of a tap, which `own` holds as well, into the order that other taps showed.
    pub(crate) fn settle(
        &mut self,
        (program, bench): (&Program, &Bench<'_>),
        slice: &Slice<'_>,
        is_whole: bool,
        held: &mut Held,
        own: &mut ArrayD<f64>,
        reference: &dyn Fn(usize) -> Option<Tensor<'static>>,
    ) -> Standing {
        let (tap, op) = (slice.target(), program.taps()[slice.target()].op);
        let (is_sorted, expert) = (self.sorted.holds(op), self.places.expert(tap));
        let sort = self.sorted.open(op).filter(|sort| is_whole && slice.ops().any(|op| op == *sort));
        if let Some(sort) = sort {
            let among = first_operand(slice, bench, program, sort, &|tap| held.value(tap));
            among.into_iter().for_each(|among| self.sorted.saw(program, sort, &among));
        }
        let rows = own.shape().first().copied().unwrap_or(0);
        if is_sorted && is_whole && !self.sorted.knows(op, rows, expert) {
            let values: HashMap<usize, Tensor<'static>> =
                slice.known().filter_map(|known| Some((known, reference(known)?))).collect();
            let due = slice.evaluate(bench, &|tap| values.get(&tap).map(Tensor::view), &[]).ok().map(|due| array(&due));
            let order = due.zip(reference(tap).map(|own| array(&own))).and_then(|(due, own)| {
                let order = self.sorted.order(op, expert, &own, &due)?;
                let site = held.place(tap).tap.last_site();
                let moved = own.select(Axis(0), &order);
                (distance(site, &due, &moved) <= ORDER_LEAVES * distance(site, &due, &own)).then_some(order)
            });
            order.into_iter().for_each(|order| self.sorted.suppose(op, expert, &order));
        }
        let settled = match is_sorted {
            true => self.sorted.settled(op, rows, expert),
            false => self.places.settled(tap, held),
        };
        let settled = settled.filter(|order| is_whole && order.len() == rows);
        if let Some(order) = &settled {
            held.rearrange(tap, order);
            *own = own.select(Axis(0), order);
        }
        Standing { tap, op, rows, expert, is_whole, is_sorted, settled }
    }

    /// What is said of a tap that was judged as it stands, where `in_order` judges its rows in another order. `before` are the taps that were judged before.
    pub(crate) fn judged(
        &mut self,
        of: &Standing,
        judged: Replayed,
        both: &Both<'_>,
        in_order: &dyn Fn(&[usize]) -> Replayed,
        held: &mut Held,
        before: &mut [Replayed],
    ) -> Replayed {
        match (of.is_whole, of.is_sorted) {
            (true, true) if self.sorted.is_tied(of.op, of.rows, of.expert) => {
                self.of_sort(of, judged, both, in_order, held, before)
            }
            // Rows that nothing ties to their expert are not passed in an order of their own.
            (true, true) if is_wrong(&judged) => {
                let other = order(both.own, both.due).map(|order| in_order(&order));
                match other.filter(|other| is_better(other, &judged)) {
                    Some(_) => {
                        held.close(of.tap);
                        open(judged, Reason::OrderUnknown)
                    }
                    None => judged,
                }
            }
            _ => self.of_expert(of, judged, both, in_order, held),
        }
    }

    /// Rows of a sort of which it is known whose they are.
    fn of_sort(
        &mut self,
        of: &Standing,
        judged: Replayed,
        both: &Both<'_>,
        in_order: &dyn Fn(&[usize]) -> Replayed,
        held: &mut Held,
        before: &mut [Replayed],
    ) -> Replayed {
        let as_recorded = |order: &[usize]| -> Vec<usize> {
            order.iter().map(|&at| of.settled.as_ref().map_or(at, |settled| settled[at])).collect()
        };
        if !is_wrong(&judged) {
            let all = as_recorded(&(0..of.rows).collect::<Vec<_>>());
            self.sorted.learn(of.op, of.expert, &all, both.due, before.len());
            return judged;
        }
        let order = self.sorted.order(of.op, of.expert, both.own, both.due);
        let again = order.map(|order| (in_order(&order), order)).filter(|(other, _)| is_better(other, &judged));
        let Some((other, order)) = again else { return judged };
        let all = as_recorded(&order);
        let (is_open, others) = match self.sorted.against(of.op, of.expert, &all) {
            Against::Much => return judged,
            Against::Nothing => (false, Vec::new()),
            Against::Little(others) => (true, others),
        };
        held.rearrange(of.tap, &order);
        let is_clear = !is_open || is_same(&all);
        for other in others {
            let (from, through) = (before[other].from.clone(), before[other].through.clone());
            before[other] = Replayed { from, through, ..open(before[other].clone(), Reason::OrderUnknown) };
        }
        if !is_clear {
            return open(judged, Reason::OrderUnknown);
        }
        self.sorted.learn(of.op, of.expert, &all, both.due, before.len());
        other
    }

    /// Rows of an expert, which may stand by another order of the places of its choice.
    fn of_expert(
        &mut self,
        of: &Standing,
        judged: Replayed,
        both: &Both<'_>,
        in_order: &dyn Fn(&[usize]) -> Replayed,
        held: &mut Held,
    ) -> Replayed {
        let others = if of.is_whole { self.places.others(of.tap, held) } else { Vec::new() };
        let others = others.into_iter().filter(|(_, order)| order.len() == of.rows);
        let mut others: Vec<(Replayed, Whose, Vec<usize>)> =
            others.map(|(whose, order)| (in_order(&order), whose, order)).collect();
        if !is_wrong(&judged) {
            // Where it is right in no other order, it shows its own.
            if !others.is_empty() && others.iter().all(|(other, ..)| !other.report.status.agrees()) {
                self.places.learn(of.tap, Whose::Scores);
            }
            return judged;
        }
        others.retain(|(other, ..)| is_better(other, &judged));
        others.sort_by_key(|(other, ..)| !other.report.status.agrees());
        match others.into_iter().next() {
            Some((other, whose, order)) => {
                held.rearrange(of.tap, &order);
                self.places.learn(of.tap, whose);
                other
            }
            None if of.is_sorted || of.expert.is_none() => judged,
            None => {
                let own = order(both.own, both.due).filter(|order| of.is_whole && order.len() == of.rows);
                let own = own.map(|order| (in_order(&order), order)).filter(|(other, _)| is_better(other, &judged));
                match own {
                    // Two of its taps in one order: it is the engine's, and what is made of them shows whether the engine keeps to it.
                    Some((other, order)) if self.is_confirmed(of, &order, both, held) => {
                        for tap in self.places.block(of.tap) {
                            if held.get(tap).is_some_and(|own| own.shape().first() == Some(&of.rows)) {
                                held.rearrange(tap, &order);
                            }
                        }
                        other
                    }
                    // Its order follows from the choice of experts: rows that are right in another one are neither passed nor blamed. So are those of other
                    // experts, once the dump has shown that it has orders of its own.
                    own if held.is_in_own_order(of.tap) || held.has_own_orders() && own.is_some() => {
                        held.close(of.tap);
                        let why = "its rows are right only in another order than the choice of experts gives them";
                        open(judged, Reason::NotEvaluated(why.to_owned()))
                    }
                    _ => judged,
                }
            }
        }
    }

    /// Whether another tap of the same expert has its rows in this order too: not as they are stored.
    fn is_confirmed(&self, of: &Standing, order: &[usize], both: &Both<'_>, held: &Held) -> bool {
        let is_in_order = |tap: &usize| {
            let Some(own) = held.get(*tap).map(array).filter(|own| own.shape().first() == Some(&of.rows)) else {
                return false;
            };
            let slice = held.slice(both.program, *tap);
            // What is made of this one says nothing.
            if slice.known().any(|known| known == of.tap) {
                return false;
            }
            let due = held.made(both.bench, &slice, &[]);
            let Some(due) = due.filter(|due| due.shape() == own.shape()) else { return false };
            let moved = own.select(Axis(0), order);
            let site = held.place(*tap).tap.last_site();
            distance(site, &due, &moved) <= ORDER_LEAVES * distance(site, &due, &own)
        };
        // Nor does what this one is made of: the order in which that is due here is its own.
        let known = |tap: usize| held.slice(both.program, tap).known().collect::<Vec<usize>>();
        let makes = reached(known(of.tap), known);
        self.places.block(of.tap).iter().filter(|tap| **tap != of.tap && !makes.contains(tap)).any(is_in_order)
    }
}

fn is_wrong(judged: &Replayed) -> bool {
    judged.report.status == Status::Diverged
}

/// A tap of which nothing is said, and why.
fn open(judged: Replayed, why: Reason) -> Replayed {
    let TapReport { place, op, .. } = judged.report;
    Replayed { reason: Some(why), ..Replayed::of(TapReport::unchecked(place, op)) }
}

/// Whether rows in another order are right, or leave far less, so that it is theirs though they are wrong.
fn is_better(ordered: &Replayed, as_stored: &Replayed) -> bool {
    let size = |judged: &Replayed| judged.report.metrics.and_then(|metrics| metrics.nmse());
    let is_far_nearer = size(ordered).zip(size(as_stored)).is_some_and(|(one, other)| one <= ORDER_LEAVES * other);
    ordered.report.status.agrees() || is_far_nearer
}
