//! Imitates mistakes behind the layers. Right: the last hidden state, normed once, times the head's matrix, and nothing more.

use firstdiff_core::softmax;
use firstdiff_trace::Site;
use ndarray::ArrayD;

use super::mistake::{BeginsLater, Mistake};
use super::param::Param;

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
    shows_one_number_a_row: true,
    what: "the logits are multiplied by another factor",
    fix: "scale them exactly where the reference does, with its factor",
    params: &[Param::free("factor")],
    begins_later: BeginsLater::InOneOperation,
    ..LOGITS
};
pub(crate) static LOGIT_ROW: Mistake = Mistake {
    id: "logit-row",
    what: "the logits are another position's",
    fix: "row t is of token t",
    params: &[Param::words("row", &["before", "behind"])],
    begins_later: BeginsLater::InOneOperation,
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
