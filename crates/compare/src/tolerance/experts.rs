//! Holds the thresholds that decide in which form a run holds the rows of its experts.

/// A row that two forms both leave no further off than this, as a share of the expected row, decides nothing between them.
pub(crate) const ROW_IS_SAME: f64 = 1e-4;
/// The rows that contradict a form are at most this share of those that confirm it.
pub(crate) const ROW_TELLS: f64 = 0.5;
/// A row is right in one form only if that form leaves at most this share of what another form leaves.
pub(crate) const ROW_IS_NEAR: f64 = 0.2;
