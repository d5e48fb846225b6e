//! Holds what explain leaves room for where it finds the layout of a tap; compare has the layouts and their own tolerances.

/// A layout is tried where it leaves less than this of a tap, and takes nearly all of its error away.
pub(crate) const NEAR_LAYOUT: f64 = 0.05;
/// By how much a correlation must differ between two orders, to tell which is meant.
pub(crate) const ORDER_TELLS: f64 = 0.2;
