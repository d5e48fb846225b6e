//! What is done wrong behind the layers? Right: the last hidden state, normed once, times the head's matrix, and nothing more.

use firstdiff_core::{softcap, softmax};
use firstdiff_model::{Role, WeightRef};
use firstdiff_trace::Site;
use ndarray::ArrayD;
use serde_json::json;

use super::catalogue::{BeginsLater, Mistake, OneOf};
use super::param::Param;
use super::{List, rows};

/// A mistake of the logits.
const LOGITS: Mistake = Mistake { at: &[Site::Logits], ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] =
    &[&FINAL_NORM_OMITTED, &HEAD_TIED, &HEAD_UNTIED, &LOGIT_SOFTCAP, &LOGIT_SCALE, &LOGIT_ROW, &RESULT_ACTIVATED];

pub(crate) static FINAL_NORM_OMITTED: Mistake = Mistake {
    id: "final-norm-omitted",
    what: "the final norm is skipped, or done twice",
    fix: "norm the last hidden state once before the head",
    at: &[Site::FinalNorm, Site::Logits],
    params: &[Param::words("kind", &["omitted", "twice", "gain-only"])],
    one_of: Some(OneOf::Divisor),
    ..LOGITS
};
pub(crate) static HEAD_TIED: Mistake = Mistake {
    id: "head-tied",
    what: "the embedding serves as the head",
    fix: "the head has a matrix of its own",
    in_file: Some("load the head's own matrix, output.weight or lm_head.weight"),
    ..LOGITS
};
pub(crate) static HEAD_UNTIED: Mistake = Mistake {
    id: "head-untied",
    what: "the head has a matrix that was never loaded",
    fix: "the embedding is the head: tie_word_embeddings",
    in_file: Some("take the embedding for the head"),
    params: &[Param::words("kind", &["ones"])],
    ..LOGITS
};
pub(crate) static LOGIT_SOFTCAP: Mistake = Mistake {
    id: "logit-softcap",
    what: "the logits are capped otherwise",
    fix: "cap exactly where the reference does, with its number",
    params: &[Param::free("cap")],
    begins_later: BeginsLater::InOneOperation,
    ..LOGITS
};
pub(crate) static LOGIT_SCALE: Mistake = Mistake {
    id: "logit-scale",
    what: "the logits are multiplied by another factor",
    fix: "scale them exactly where the reference does, with its factor",
    params: &[Param::free("factor")],
    begins_later: BeginsLater::InOneOperation,
    is_a_factor: true,
    shows_one_number_a_row: true,
    ..LOGITS
};
pub(crate) static LOGIT_ROW: Mistake = Mistake {
    id: "logit-row",
    what: "the logits are another position's",
    fix: "row t is of token t",
    params: &[Param::words("row", &["before", "behind"])],
    begins_later: BeginsLater::InOneOperation,
    mixes_tokens: true,
    ..LOGITS
};

pub(crate) static RESULT_ACTIVATED: Mistake = Mistake {
    id: "result-activated",
    what: "a sigmoid, softmax or tanh of the result is handed out in its place",
    fix: "hand out the logits or scores as the reference does",
    params: &[Param::words("function", FUNCTIONS)],
    in_programs: true,
    ..LOGITS
};
/// The functions that are taken of logits and scores.
pub(crate) const FUNCTIONS: &[&str] = &["sigmoid", "softmax", "tanh"];

/// One of them, of rows along the last axis.
pub(crate) fn activated(function: &str, x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
    Some(match function {
        "sigmoid" => x.mapv(|x| 1.0 / (1.0 + (-x).exp())),
        "softmax" => softmax(x.view()),
        "tanh" => x.mapv(f64::tanh),
        _ => return None,
    })
}

pub(super) fn listed(list: &mut List<'_>) {
    let embedding = WeightRef { layer: None, role: Role::Embedding };
    if list.model.weights.name(list.step.weights[0]) == list.model.weights.name(embedding) {
        // A head of its own, never loaded.
        list.add(&HEAD_UNTIED, vec![("kind", json!("ones"))], |at| {
            at.product(|_, row, _| row.fill(1.0), at.matrix_shape()?)
        });
    } else {
        list.weights(&HEAD_TIED, vec![], vec![embedding]);
    }
    // The logits of the position before, or behind.
    for (shift, from) in [(1usize, "before"), (usize::MAX, "behind")] {
        list.add(&LOGIT_ROW, vec![("row", json!(from))], move |at| {
            let x = at.right()?;
            let n = x.shape()[0];
            let order: Vec<usize> = (0..n).map(|t| if shift == 1 { (t + n - 1) % n } else { (t + 1) % n }).collect();
            (n > 1).then(|| rows(&x, &order))
        });
    }
    for cap in [30.0, 50.0, 15.0] {
        list.tunable(&LOGIT_SOFTCAP, "cap", cap, |cap, at| Some(at.kept(at.right()?.mapv(|x| softcap(x, cap)))));
    }
    for &function in FUNCTIONS {
        let params = vec![("function", json!(function))];
        list.add(&RESULT_ACTIVATED, params, move |at| Some(at.kept(activated(function, &at.right()?)?)));
    }
    for c in [0.5, 2.0] {
        scale(list, c);
    }
    let root = (list.model.plan.dims.hidden as f64).sqrt();
    scale(list, root);
    scale(list, 1.0 / root);
}

fn scale(list: &mut List<'_>, c: f64) {
    list.tunable(&LOGIT_SCALE, "factor", c, |c, at| Some(at.kept(at.right()?.mapv(|x| x * c))));
}
