//! Imitates mistakes in the scores. Right: scale · qk, capped where the config says, -inf where a key is later than the query, or a window behind it.

use firstdiff_trace::Site;

use super::mistake::{BeginsLater, Mistake};
use super::param::Param;

/// A mistake of the mask.
const MASK: Mistake = Mistake { at: &[Site::Scores], begins_later: BeginsLater::WithTokens, ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[
    &SCORE_SCALE,
    &SCORE_SOFTCAP,
    &MASK_OMITTED,
    &MASK_SHIFTED,
    &MASK_INVERTED,
    &MASK_FILL,
    &MASK_AFTER_SOFTMAX,
    &WINDOW_SIZE,
];

pub(crate) static SCORE_SCALE: Mistake = Mistake {
    id: "score-scale",
    what: "the products are scaled by another factor",
    fix: "scale the products of q and k as the reference does",
    at: &[Site::Scores],
    params: &[Param::free("scale").or(&[
        "1",
        "1/d",
        "1/sqrt(D)",
        "sqrt(d)",
        "1/sqrt(H)",
        "1/D",
        "1/sqrt(K*d)",
        "1/sqrt(d/2)",
    ])],
    begins_later: BeginsLater::InOneOperation,
    ..Mistake::ORDINARY
};
pub(crate) static SCORE_SOFTCAP: Mistake = Mistake {
    id: "score-softcap",
    what: "the scores are capped otherwise",
    fix: "cap exactly where the reference does, with its number",
    at: &[Site::Scores],
    params: &[Param::free("cap")],
    begins_later: BeginsLater::InOneOperation,
    ..Mistake::ORDINARY
};
pub(crate) static MASK_OMITTED: Mistake = Mistake {
    id: "mask-omitted",
    what: "keys that are to be masked are seen",
    fix: "hide what the reference hides: every key of padding, with a window those beyond it, and in a causal model key s of query t where s > t",
    ..MASK
};
pub(crate) static MASK_SHIFTED: Mistake = Mistake {
    id: "mask-shifted",
    what: "the mask ends at another key",
    fix: "show what the reference shows: in a causal model query t sees keys 0 to t, itself included; in a chunk, t counts from the first position",
    params: &[
        Param::words("kind", &["future", "past", "top-left"]),
        Param::number("by"),
        Param::words("sees", &["the first"]),
    ],
    ..MASK
};
pub(crate) static MASK_INVERTED: Mistake = Mistake {
    id: "mask-inverted",
    what: "the mask's polarity is reversed",
    fix: "hide what the reference hides, and keep the rest: in a causal model hide the future, keep the past",
    params: &[Param::words("kind", &["token-seen"])],
    ..MASK
};
pub(crate) static MASK_FILL: Mistake = Mistake {
    id: "mask-fill",
    what: "hidden scores are filled with a number that takes part",
    fix: "fill with -inf, or with the reference's own number",
    at: &[Site::Scores, Site::Probs],
    params: &[Param::free("fill"), Param::words("how", &["replaced", "added"])],
    ..MASK
};
pub(crate) static MASK_AFTER_SOFTMAX: Mistake = Mistake {
    id: "mask-after-softmax",
    what: "the mask is multiplied in after the softmax",
    fix: "mask before the softmax",
    at: &[Site::Scores, Site::Probs],
    ..MASK
};
pub(crate) static WINDOW_SIZE: Mistake = Mistake {
    id: "window-size",
    what: "another number of keys is seen",
    fix: "take the window from the config: a query of a causal model sees that many keys, itself included, in others most often half as many each way, in the layers that have it",
    params: &[Param::free("window").or(&["ignored"]), Param::free("each_way")],
    ..MASK
};
