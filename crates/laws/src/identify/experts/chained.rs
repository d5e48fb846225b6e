//! Experts that read what another expert of the same token has made: one buffer for what goes in and what comes out.

use ndarray::{Array2, ArrayD};

use super::{Routed, made_of};
use crate::case::Case;
use crate::describe::choice;
use crate::identify::after::Offers;
use crate::law::Form;

/// In which order a token's experts run, and what the next one reads.
#[derive(Clone, Copy)]
struct Chain {
    order: Order,
    /// Whether the result is weighed before it is read.
    is_weighed: bool,
    /// Whether it is added to what was read, or stands in its place.
    is_added: bool,
}

#[derive(Clone, Copy)]
enum Order {
    Slots,
    SlotsReversed,
    Experts,
}

impl Order {
    fn of(self, routed: &Routed, t: usize) -> Vec<usize> {
        let mut slots: Vec<usize> = (0..routed.slots()).collect();
        match self {
            Order::Slots => {}
            Order::SlotsReversed => slots.reverse(),
            Order::Experts => slots.sort_by_key(|&s| routed.chosen[[t, s]]),
        }
        slots
    }
}

impl Chain {
    fn value(self, case: &Case<'_>, at: usize) -> Option<ArrayD<f64>> {
        let place = &case.places[at];
        let routed = Routed::of(case, at)?;
        let tokens = routed.tokens();
        let input = place.inputs.first()?;
        let mut x = input.to_shape((tokens, input.len() / tokens.max(1))).ok()?.into_owned();
        let mut out: Option<Array2<f64>> = None;
        for step in 0..routed.slots() {
            let slots: Vec<usize> = (0..tokens).map(|t| self.order.of(&routed, t)[step]).collect();
            let made = made_of(case, at, &routed, &slots, &x)?;
            let out = out.get_or_insert_with(|| Array2::zeros(made.dim()));
            (made.dim() == x.dim()).then_some(())?;
            for (t, row) in made.rows().into_iter().enumerate() {
                let weight = routed.weights[[t, slots[t]]];
                out.row_mut(t).scaled_add(weight, &row);
                let by = if self.is_weighed { weight } else { 1.0 };
                let kept = if self.is_added { 1.0 } else { 0.0 };
                let next = &x.row(t) * kept + &row * by;
                x.row_mut(t).assign(&next);
            }
        }
        out?.into_dyn().to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    }
}

/// Laws of experts that run one after the other.
pub(super) fn chained(offers: &mut Offers<'_>) {
    for (order, which) in [
        (Order::Slots, "in the order of their slots"),
        (Order::SlotsReversed, "from the last slot to the first"),
        (Order::Experts, "in the order of their numbers"),
    ] {
        for (is_weighed, is_added) in [(false, false), (true, false), (false, true), (true, true)] {
            let weighed = if is_weighed { ", times its weight" } else { "" };
            let words = match is_added {
                false => format!(
                    "a token's experts run {which}, each on the result of the one before{weighed}: it was written over the input"
                ),
                true => format!(
                    "a token's experts run {which}, each on its input plus the result of the one before{weighed}"
                ),
            };
            let chain = Chain { order, is_weighed, is_added };
            offers.offer(Form::Experts, words, 6.0 + choice(12), move |case, at| chain.value(case, at));
        }
    }
}
