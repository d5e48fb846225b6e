//! Defines what is said of each operation that is judged on the candidate's own recorded inputs, and when it is right.

pub(crate) mod operation;
pub(crate) mod outliers;
pub(crate) mod padding;
pub(crate) mod reason;
pub(crate) mod replayed;
pub(crate) mod residual;
pub(crate) mod right;

use firstdiff_compare::is_masked;
use firstdiff_trace::Site;
use ndarray::ArrayD;

pub use crate::replay::reason::{InOnePlace, Reason, UnfitInput};
pub use crate::replay::replayed::{Options, Replay, ReplayError, Replayed, Rerouted, Routing, shared_out};

/// What is said of scores that are right but for what stands where the mask hides keys.
pub(crate) const UNMASKED: &str = "scores were recorded before they were masked, or hold the buffer's own numbers there: read so, and the probabilities are \
     those of the masked ones";

pub(crate) type Done<T> = Result<T, ReplayError>;

/// Whether a recorded input has one outcome: finite, and in scores at least one number a row, as a row of -inf alone makes NaN.
pub(crate) fn can_be_read(site: Site, values: &ArrayD<f64>) -> bool {
    match site {
        Site::Scores => values.rows().into_iter().all(|row| {
            row.iter().any(|x| x.is_finite()) && row.iter().all(|x| x.is_finite() || *x == f64::NEG_INFINITY)
        }),
        _ => values.iter().all(|x| x.is_finite()),
    }
}

/// Takes the other's probabilities in rows of which every key is masked, as those of padding: engines make equal numbers or zeros of such a row, and
/// neither is wrong.
pub(crate) fn leave_hidden_rows(of: &mut ArrayD<f64>, other: &ArrayD<f64>, scores: &ArrayD<f64>) {
    if of.shape() != scores.shape() || other.shape() != scores.shape() {
        return;
    }
    for ((mut row, other), scores) in of.rows_mut().into_iter().zip(other.rows()).zip(scores.rows()) {
        if scores.iter().all(|score| is_masked(Site::Scores, *score)) {
            row.assign(&other);
        }
    }
}
