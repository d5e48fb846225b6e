//! Imitates mistakes in a residual add. Right: the stream before it plus the branch.

use firstdiff_trace::Site;

use super::mistake::{BeginsLater, Mistake, StandsBehind};
use super::param::Param;

/// A mistake of a residual add.
const RESIDUAL: Mistake =
    Mistake { at: &[Site::HAttn, Site::H], begins_later: BeginsLater::InOneOperation, ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] =
    &[&RESIDUAL_SOURCE, &RESIDUAL_OMITTED, &RESIDUAL_PARALLEL, &RESIDUAL_SCALE, &LAYER_SKIPPED];

pub(crate) static RESIDUAL_SOURCE: Mistake = Mistake {
    id: "residual-source",
    what: "other tensors are added",
    fix: "the stream before the block plus the block's output: look for a buffer that is written over",
    params: &[Param::words(
        "sum",
        &[
            "2*stream",
            "normed + branch",
            "layer input + branch",
            "stream",
            "2*branch",
            "stream + attn_out",
            "layer input + attn_out",
        ],
    )],
    ..RESIDUAL
};
pub(crate) static RESIDUAL_OMITTED: Mistake = Mistake {
    id: "residual-omitted",
    what: "the stream is not added",
    fix: "add the stream before the block",
    ..RESIDUAL
};
pub(crate) static RESIDUAL_PARALLEL: Mistake = Mistake {
    id: "residual-parallel",
    what: "the feed-forward reads the layer's input",
    fix: "it reads the stream after attention",
    at: &[Site::FfnNorm],
    ..RESIDUAL
};
pub(crate) static RESIDUAL_SCALE: Mistake = Mistake {
    id: "residual-scale",
    shows_one_number_a_row: true,
    what: "a term of the sum has another factor",
    fix: "add both with the reference's own factors, 1 where it has none",
    params: &[Param::free("factor"), Param::free("stream_factor"), Param::free("sum_factor")],
    stands_behind: StandsBehind::Plain,
    ..RESIDUAL
};
pub(crate) static LAYER_SKIPPED: Mistake = Mistake {
    id: "layer-skipped",
    what: "the layer is not run",
    fix: "look at the loop over layers",
    at: &[Site::H],
    ..Mistake::ORDINARY
};
