//! In which form does a run hold the rows of its experts?

/// Of two rows that are no further off than this, as a share of what is due, none is another token's.
pub(crate) const ROW_IS_SAME: f64 = 1e-4;
/// Of the rows that two forms take from other places, the right one leaves no more than this share of what the other leaves.
pub(crate) const ROW_TELLS: f64 = 0.5;
