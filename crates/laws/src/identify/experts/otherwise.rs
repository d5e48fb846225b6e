//! Mixtures of which no count of parts tells: other tokens' experts, other matrices, parts that are put back elsewhere.

use std::sync::Arc;

use super::{Made, Routed, Slot, Term, Terms, as_chosen, in_sorted, mixed, of_slots, offer, own, run_by};
use crate::case::{Case, Inner, Taken};
use crate::describe::choice;
use crate::identify::after::Offers;
use crate::identify::output::roundings::digits;
use crate::law::Form;

/// Tokens that are run by other experts, or whose rows and parts are elsewhere.
pub(super) fn routed(offers: &mut Offers<'_>) {
    let before = run_by(|number, _| number.saturating_sub(1));
    let next = run_by(|number, count| (number + 1).min(count - 1));
    let said = "each token in the list sorted by expert is run by the expert of the";
    offer(offers, format!("{said} token before it"), 9.0, before, own());
    offer(offers, format!("{said} next"), 9.0, next, own());
    // Which experts a token has, with its own weights.
    type Chosen = fn(&Routed, Slot) -> Slot;
    let chosen: [(&str, Chosen); 4] = [
        ("the token before (the first: its own)", |_, (t, s)| (t.saturating_sub(1), s)),
        ("the next token (the last: its own)", |r, (t, s)| ((t + 1).min(r.tokens() - 1), s)),
        ("the first token", |_, (_, s)| (0, s)),
        ("the last token", |r, (_, s)| (r.tokens() - 1, s)),
    ];
    for (whose, of) in chosen {
        let terms = of_slots(move |routed, at| Some((routed.chosen[of(routed, at)], routed.weights[at])));
        offer(offers, format!("each token is run by the experts of {whose}, with its own weights"), 8.0, terms, own());
    }
    // Tiles of an expert's own tokens.
    for tile in [2usize, 4, 8, 16, 32, 64] {
        let terms: Terms = Arc::new(move |routed| {
            let mut terms = as_chosen()(routed);
            for expert in 0..routed.experts {
                let list: Vec<usize> = routed.all().filter(|at| routed.chosen[*at] == expert).map(|at| at.0).collect();
                let of_expert = terms.iter_mut().filter(|(_, term)| term.expert == expert);
                of_expert.enumerate().for_each(|(number, (_, term))| term.token = list[number % tile]);
            }
            terms
        });
        let words = format!("every {tile} tokens of an expert read the inputs of its first {tile}");
        offer(offers, words, 9.0 + choice(tile), terms, own());
    }
    // The list is put back by the order that it was taken in, and not by its inverse.
    for (words, is_weighted) in [
        ("parts sorted by expert are put back by that order and not by its inverse", true),
        ("parts sorted by expert are put back by that order and not by its inverse, weighed where they stand", false),
    ] {
        let terms: Terms = Arc::new(move |routed| {
            let sorted = routed.sorted();
            let flat = |(t, s): Slot| t * routed.slots() + s;
            let term = |at: Slot| {
                let from = sorted[flat(at)];
                // What stands at this number of the sorted list goes to the slot of that number.
                let of = sorted[flat(from)];
                let weight = routed.weights[if is_weighted { of } else { at }];
                (at, Term { expert: routed.chosen[of], token: of.0, weight, inner: None })
            };
            routed.all().map(term).collect()
        });
        offer(offers, words.to_owned(), 8.0, terms, own());
    }
}

/// Matrices of other experts or layers, and parts that are rounded.
pub(super) fn made(offers: &mut Offers<'_>) {
    type Other = fn(usize, usize) -> usize;
    let others: [(&str, Other); 5] = [
        ("expert 0", |_, _| 0),
        ("the next expert, around the end", |e, n| (e + 1) % n),
        ("the expert before, around the end", |e, n| (e + n - 1) % n),
        ("the other expert of its pair", |e, n| (e ^ 1).min(n - 1)),
        ("the experts in reverse", |e, n| n - 1 - e),
    ];
    type Put = fn(&mut Inner, usize);
    let matrices: [(&str, Put); 5] = [
        ("gate matrix", |inner, e| inner.gate = e),
        ("up matrix", |inner, e| inner.up = e),
        ("down matrix", |inner, e| inner.down = e),
        ("gate and up matrices", |inner, e| (inner.gate, inner.up) = (e, e)),
        ("gate and down matrices", |inner, e| (inner.gate, inner.down) = (e, e)),
    ];
    for (what, put) in matrices {
        for (whose, other) in others {
            let made: Made = Arc::new(move |expert, experts| {
                let mut inner = Inner::of(expert);
                put(&mut inner, other(expert, experts));
                inner
            });
            offer(offers, format!("each expert has the {what} of {whose}"), 9.0, as_chosen(), made);
        }
    }
    // A buffer that the slots of a token share.
    type Shared = fn(usize, usize) -> Inner;
    let shared: [(&str, Shared); 3] = [
        ("the down matrix", |own, other| Inner { down: other, ..Inner::of(own) }),
        ("what gate and up make", |own, other| Inner { gate: other, up: other, ..Inner::of(own) }),
        ("the gate", |own, other| Inner { gate: other, ..Inner::of(own) }),
    ];
    for (what, inner) in shared {
        for (whose, is_last) in [("first", false), ("last", true)] {
            let terms = in_sorted(move |routed, _, (at, term)| {
                let slot = if is_last { routed.slots() - 1 } else { 0 };
                term.inner = Some(inner(term.expert, routed.chosen[[at.0, slot]]));
            });
            offer(offers, format!("all experts of a token have {what} of its {whose}"), 8.0, terms, own());
        }
    }
    for (words, taken) in [
        ("gate and up are exchanged", Taken::Exchanged),
        ("up is the gate", Taken::GateTwice),
        ("the gate is up", Taken::UpTwice),
        ("gate and up are the even and the odd outputs of both matrices, side by side", Taken::InTurn),
        ("gate and up are the halves of the outputs of both matrices, in turn", Taken::Halves),
    ] {
        let made: Made = Arc::new(move |expert, _| Inner { taken, ..Inner::of(expert) });
        offer(offers, format!("{words} in every expert"), 6.0, as_chosen(), made);
    }
    // The last product ends at a whole tile, at the half, or one early.
    let hidden = offers.hidden();
    let mut counts: Vec<usize> = [128usize, 64, 32, 16, 8, 4].iter().map(|tile| hidden / tile * tile).collect();
    counts.extend([hidden / 2, hidden.saturating_sub(1)]);
    counts.retain(|count| (1..hidden).contains(count));
    counts.sort_unstable();
    counts.dedup();
    for count in counts {
        let made: Made = Arc::new(move |expert, _| Inner { hidden: Some(count), ..Inner::of(expert) });
        let words =
            format!("in every expert the down matrix reads the first {count} of {hidden} hidden elements alone");
        offer(offers, words, 9.0, as_chosen(), made);
    }
    for (by, whose) in [(-1, "the layer before"), (1, "the next layer")] {
        let made: Made = Arc::new(move |expert, _| Inner { layer: by, ..Inner::of(expert) });
        offer(offers, format!("the experts are those of {whose}"), 7.0, as_chosen(), made);
    }
    for (words, bits, f) in digits() {
        let (terms, own) = (as_chosen(), own());
        let made = move |case: &Case<'_>, at: usize| mixed(case, at, &terms, &own, &f);
        offers.offer(Form::Experts, format!("the part of each expert is {words}"), bits + 2.0, made);
    }
}
