//! Where the parts of experts are added, which of them stay, and which tokens' rows and weights they have: one way of each, together.

use std::sync::Arc;

use super::{Routed, Slot, Term, Terms, offer, own};
use crate::describe::choice;
use crate::identify::after::Offers;

/// A part, by where it stands: its slot, its number in the list of its expert, and its number in the list sorted by expert.
struct At {
    slot: Slot,
    in_expert: usize,
    in_all: usize,
}

/// A row or a slot for each part.
type Row = fn(&Routed, &At) -> usize;
type Weight = fn(&Routed, &At) -> Slot;
/// Whether a part takes the place of what stands in its row: of the one that stands there, and the new one.
type Stays = fn(&Routed, &At, &At) -> bool;

const ROWS: [(&str, Row); 8] = [
    ("", |_, at| at.slot.0),
    ("the row of its number in its expert's list", |_, at| at.in_expert),
    ("the row of its number in the list sorted by expert, over the experts of a token", |r, at| at.in_all / r.slots()),
    ("the row of its number in the list sorted by expert, around the end", |r, at| at.in_all % r.tokens()),
    ("the row of the token before", |_, at| at.slot.0.saturating_sub(1)),
    ("the row of the next token", |r, at| (at.slot.0 + 1).min(r.tokens() - 1)),
    ("row k t + s for slot s of token t (k experts for each token), around the end", |r, at| {
        (at.slot.0 * r.slots() + at.slot.1) % r.tokens()
    }),
    ("row t + s for slot s of token t, around the end", |r, at| (at.slot.0 + at.slot.1) % r.tokens()),
];
const WEIGHTS: [(&str, Weight); 8] = [
    ("", |_, at| at.slot),
    ("the weight of the next slot, around the end", |r, at| (at.slot.0, (at.slot.1 + 1) % r.slots())),
    ("the weight of its number in the list of tokens and slots", |r, at| {
        (at.in_all / r.slots(), at.in_all % r.slots())
    }),
    ("the weight of its token's first slot", |_, at| (at.slot.0, 0)),
    ("the weight of its token's last slot", |r, at| (at.slot.0, r.slots() - 1)),
    ("the weight of the token before", |_, at| (at.slot.0.saturating_sub(1), at.slot.1)),
    ("the weight of the next token", |r, at| ((at.slot.0 + 1).min(r.tokens() - 1), at.slot.1)),
    ("the weight that stands there where the memory of all, tokens by slots, is read as slots by tokens", |r, at| {
        let number = at.slot.1 * r.tokens() + at.slot.0;
        (number / r.slots(), number % r.slots())
    }),
];
const STAYS: [(&str, Option<Stays>); 5] = [
    ("", None),
    (
        "only that of the expert of the highest number stays: each is written over the one before, and not added",
        Some(|_, _, _| true),
    ),
    ("only that of the expert of the lowest number stays", Some(|_, _, _| false)),
    ("only that of the largest weight stays", Some(|r, old, new| r.weights[new.slot] > r.weights[old.slot])),
    ("only that of the smallest weight stays", Some(|r, old, new| r.weights[new.slot] < r.weights[old.slot])),
];

fn parts(routed: &Routed) -> Vec<At> {
    let mut counts = vec![0; routed.experts];
    let at = |(in_all, slot): (usize, Slot)| {
        let count = &mut counts[routed.chosen[slot]];
        *count += 1;
        At { slot, in_expert: *count - 1, in_all }
    };
    routed.sorted().into_iter().enumerate().map(at).collect()
}

/// Laws of where parts go, of what they read, of how they are weighed, and of which stays; two of these at most are other than they should be.
pub(super) fn placed(offers: &mut Offers<'_>) {
    let said = |words: &str, what: &str| if words.is_empty() { None } else { Some(what.replace("{}", words)) };
    for (to_words, to) in ROWS {
        for (of_words, of) in ROWS {
            for (by_words, by) in WEIGHTS {
                for (stay_words, stays) in STAYS {
                    let parts_of = [
                        said(to_words, "each part is added to {}, and not to that of its token"),
                        said(of_words, "each part reads {} of the input"),
                        said(by_words, "each part has {}"),
                        said(stay_words, "of the parts of a row {}"),
                    ];
                    let said: Vec<String> = parts_of.into_iter().flatten().collect();
                    if said.is_empty() || said.len() > 2 {
                        continue;
                    }
                    let terms: Terms = Arc::new(move |routed| {
                        let mut kept: Vec<Option<usize>> = vec![None; routed.tokens()];
                        let all = parts(routed);
                        let mut terms: Vec<Option<(Slot, Term)>> = Vec::new();
                        for (number, at) in all.iter().enumerate() {
                            let (row, expert) = (to(routed, at), routed.chosen[at.slot]);
                            let term = Term {
                                expert,
                                token: of(routed, at),
                                weight: routed.weights[by(routed, at)],
                                inner: None,
                            };
                            let Some(stands) = kept.get(row).copied() else { continue };
                            let is_kept = match (stays, stands) {
                                (Some(stays), Some(old)) if stays(routed, &all[old], at) => {
                                    terms[old] = None;
                                    true
                                }
                                (Some(_), Some(_)) => false,
                                _ => true,
                            };
                            if is_kept {
                                kept[row] = Some(number);
                            }
                            terms.push(is_kept.then_some(((row, at.slot.1), term)));
                        }
                        terms.into_iter().flatten().collect()
                    });
                    let bits = 4.0 + said.len() as f64 * (2.0 + choice(ROWS.len()));
                    offer(offers, said.join("; "), bits, terms, own());
                }
            }
        }
    }
}
