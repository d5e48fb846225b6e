//! Imitates mistakes in a norm. Right: w · x / √(mean(x²) + eps) over the last axis.

use firstdiff_trace::Site;

use super::mistake::{BeginsLater, Mistake, StandsBehind, sites};
use super::param::Param;

/// A mistake of the norms.
const NORM: Mistake = Mistake { at: sites::NORMS, begins_later: BeginsLater::InOneOperation, ..Mistake::ORDINARY };

/// Values of epsilon that models have, and larger ones to begin a fit from.
pub(crate) const EPSILONS: [f64; 9] = [1e-6, 1e-5, 0.0, 1e-8, 1e-12, 1e-7, 1e-4, 1e-3, 0.1];

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[
    &NORM_PLUS_ONE,
    &NORM_EPS,
    &NORM_EPS_OUTSIDE,
    &NORM_WEIGHT_TWICE,
    &NORM_WEIGHT_OMITTED,
    &NORM_CENTERED,
    &NORM_SUM,
    &NORM_AXIS,
    &NORM_WIDTH,
    &NORM_WRONG_WEIGHT,
    &NORM_OMITTED,
    &QK_NORM_ORDER,
];

pub(crate) static NORM_PLUS_ONE: Mistake = Mistake {
    id: "norm-plus-one",
    what: "the norm's gain has 1 added or taken off, as Gemma's",
    fix: "weigh by the gain as the reference does: as it is stored, or with 1 added",
    in_file: Some("add 1 to the gains once: in the file or in the engine"),
    params: &[Param::words("kind", &["missing"])],
    ..NORM
};
pub(crate) static NORM_EPS: Mistake = Mistake {
    id: "norm-eps",
    shows_one_number_a_row: true,
    what: "the norm adds another epsilon",
    fix: "add what the reference adds in this norm: most often a number of the config (rms_norm_eps, layer_norm_eps)",
    params: &[Param::free("eps")],
    ..NORM
};
pub(crate) static NORM_EPS_OUTSIDE: Mistake = Mistake {
    id: "norm-eps-outside",
    shows_one_number_a_row: true,
    what: "epsilon is added outside the square root",
    fix: "x / sqrt(mean(x^2) + eps)",
    params: &[Param::free("eps")],
    ..NORM
};
pub(crate) static NORM_WEIGHT_TWICE: Mistake = Mistake {
    id: "norm-weight-twice",
    what: "the norm's gain is applied twice",
    fix: "multiply by the gain once",
    ..NORM
};
pub(crate) static NORM_WEIGHT_OMITTED: Mistake =
    Mistake { id: "norm-weight-omitted", what: "the norm's gain is not applied", fix: "multiply by the gain", ..NORM };
pub(crate) static NORM_CENTERED: Mistake = Mistake {
    id: "norm-centered",
    what: "the mean is taken off first, as in LayerNorm",
    fix: "RMSNorm does not centre",
    ..NORM
};
pub(crate) static NORM_SUM: Mistake = Mistake {
    id: "norm-sum",
    what: "the squares are summed, not averaged",
    fix: "divide the sum of squares by the width",
    stands_behind: StandsBehind::All,
    ..NORM
};
pub(crate) static NORM_AXIS: Mistake = Mistake {
    id: "norm-axis",
    what: "the mean square is taken over another axis",
    fix: "one mean for each row, over its last axis",
    params: &[Param::words("kind", &["whole-tensor", "over-positions"])],
    ..NORM
};
pub(crate) static NORM_WIDTH: Mistake = Mistake {
    id: "norm-width",
    shows_one_number_a_row: true,
    what: "the mean square is taken over another width, or not of all channels",
    fix: "divide by the number of elements that are summed: look at padding, at partial reads",
    params: &[Param::words("kind", &["all-heads", "first-left-out", "last-left-out"]), Param::free("width")],
    stands_behind: StandsBehind::All,
    ..NORM
};
pub(crate) static NORM_WRONG_WEIGHT: Mistake = Mistake {
    id: "norm-wrong-weight",
    what: "another norm's gain is applied",
    fix: "look at which tensor is bound to this norm",
    in_file: Some("look at the name under which it is looked up"),
    params: &[Param::other("weight", "the norm whose gain it is"), Param::layer("layer")],
    ..NORM
};
pub(crate) static NORM_OMITTED: Mistake = Mistake {
    id: "norm-omitted",
    what: "the norm is skipped, or done twice",
    fix: "norm here, once",
    at: &[Site::AttnNorm, Site::FfnNorm, Site::QNorm, Site::KNorm, Site::QRope, Site::KRope],
    params: &[Param::words("kind", &["twice", "gain-only", "not-read"])],
    ..NORM
};
pub(crate) static QK_NORM_ORDER: Mistake = Mistake {
    id: "qk-norm-order",
    what: "q or k is normed after the rotation",
    fix: "norm first, then rotate",
    at: &[Site::QNorm, Site::KNorm, Site::QRope, Site::KRope, Site::Qk],
    ..Mistake::ORDINARY
};
