//! In which form does a run hold the rows of its experts?

/// Of two rows that are no further off than this, as a share of what is due, none is another token's.
pub(crate) const ROW_IS_SAME: f64 = 1e-4;
/// The rows that contradict a form are no more than this share of those that show it.
pub(crate) const ROW_TELLS: f64 = 0.5;
/// A row that one form leaves no more of than this share of what another form leaves is right in that form alone.
pub(crate) const ROW_IS_NEAR: f64 = 0.2;
