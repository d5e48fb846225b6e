//! What is done wrong in a residual add? Right: the stream before it plus the branch.

use firstdiff_trace::Site;
use ndarray::Zip;
use serde_json::json;

use super::catalogue::{BeginsLater, Mistake, StandsBehind};
use super::param::Param;
use super::{List, Out, StepContext};

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
    what: "a term of the sum has another factor",
    fix: "add both with the reference's own factors, 1 where it has none",
    params: &[Param::free("factor"), Param::free("stream_factor"), Param::free("sum_factor")],
    is_a_factor: true,
    shows_one_number_a_row: true,
    stands_behind: StandsBehind::Plain,
    ..RESIDUAL
};
pub(crate) static LAYER_SKIPPED: Mistake = Mistake {
    id: "layer-skipped",
    what: "the layer is not run",
    fix: "look at the loop over layers",
    at: &[Site::H],
    of_a_layer: true,
    ..Mistake::ORDINARY
};

pub(super) fn listed(list: &mut List<'_>) {
    let [stream, branch] = list.step.reads[..] else { return };
    let after_attention = list.site() == Site::HAttn;
    // h + h: the branch was written over
    list.add(&RESIDUAL_SOURCE, formula("2*stream"), |at| sum(at, |h, _| h + h));
    // norm(h) + branch: the norm was written over its input
    let norm = list.sibling(if after_attention { Site::AttnNorm } else { Site::FfnNorm });
    if let Some(norm) = norm {
        list.read(&RESIDUAL_SOURCE, formula("normed + branch"), &[norm, branch]);
    }
    if let Some(input) = list.stream().filter(|&input| input != stream) {
        // The layer's input + branch
        list.read(&RESIDUAL_SOURCE, formula("layer input + branch"), &[input, branch]);
        // The layer's input alone
        list.add(&LAYER_SKIPPED, vec![], |at| at.input(0).cloned()).reads = vec![input];
    }
    list.add(&RESIDUAL_OMITTED, vec![], |at| at.input(1).cloned());
    list.add(&RESIDUAL_SOURCE, formula("stream"), |at| at.input(0).cloned());
    list.add(&RESIDUAL_SOURCE, formula("2*branch"), |at| sum(at, |_, b| b + b));
    let layers = f64::from(list.model.plan.dims.layers);
    for c in [0.5, 2.0, std::f64::consts::FRAC_1_SQRT_2, 1.0 / (2.0 * layers).sqrt(), 0.1, -1.0] {
        scale(list, c);
    }
    // The stream with a factor, or both; to begin a fit from.
    for c in [0.9, 2.0] {
        stream_scale(list, c);
        list.tunable(&RESIDUAL_SCALE, "sum_factor", c, |c, at| sum(at, |h, b| c * (h + b)));
    }
    if !after_attention {
        // Both branches read and were added to the layer's input: the attention's output is lost, or counted twice.
        if let (Some(attention), Some(input)) = (list.sibling(Site::AttnOut), list.stream()) {
            list.read(&RESIDUAL_SOURCE, formula("stream + attn_out"), &[stream, attention]);
            list.read(&RESIDUAL_SOURCE, formula("layer input + attn_out"), &[input, attention]);
        }
    }
}

fn formula(text: &'static str) -> super::Params {
    vec![("sum", json!(text))]
}

fn scale(list: &mut List<'_>, c: f64) {
    list.tunable(&RESIDUAL_SCALE, "factor", c, |c, at| sum(at, |h, b| h + c * b));
}

fn stream_scale(list: &mut List<'_>, c: f64) {
    list.tunable(&RESIDUAL_SCALE, "stream_factor", c, |c, at| sum(at, |h, b| c * h + b));
}

fn sum(at: &StepContext<'_>, f: impl Fn(f64, f64) -> f64) -> Out {
    let mut out = at.input(0)?.clone();
    Zip::from(&mut out).and(at.input(1)?).for_each(|h, &b| *h = f(*h, b));
    Some(at.kept(out))
}
