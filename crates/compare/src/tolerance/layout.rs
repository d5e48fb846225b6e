//! Holds the thresholds for explaining a tensor by another layout, order, change or name.

/// Another layout agrees, and a change is reported, only if it leaves less than this share of the error: it must explain, not just fit.
pub const CHANGE_LEAVES: f64 = 0.1;
/// How far off the sampled elements may be before a layout is judged, in multiples of the tolerance.
pub(crate) const SAMPLE_ROOM: f64 = 1e3;
/// A layout or a change whose sampled NMSE is beyond this is not examined further.
pub(crate) const SAMPLE_LEAVES: f64 = 1e-2;
/// A factor this near to -1 is a flipped sign.
pub(crate) const SIGN_FLIPPED: f64 = 1e-6;
/// What a change leaves may be this many times the tolerance at one position.
pub(crate) const CHANGED_POSITION_ROOM: f64 = 100.0;
/// For the anatomy of an error, rounding is assumed to be this many times as large.
pub(crate) const ANATOMY_ROOM: f64 = 4.0;
/// A correlation, position by position, that misplaced values do not reach.
pub(crate) const PLACED_CORRELATION: f64 = 0.4;
/// Misplaced values correlate by less; a mistake in an operation that hardly affects its readers, by more.
pub(crate) const MISPLACED_CORRELATION: f64 = 0.5;
/// The lengths and the first position of a rotated tap may be off by this many times the tolerance for rounding.
pub(crate) const ROTATION_ROOM: f64 = 100.0;
/// One order leaves at most this share of the energy, the other at least the second.
pub(crate) const ORDER_LEAVES: f64 = 0.05;
pub(crate) const OTHER_ORDER_LEAVES: f64 = 0.5;

// Names by content (propose).
/// Fewer values, or values that are all equal, show nothing.
pub(crate) const FEW_FINGERPRINT_VALUES: usize = 16;
/// A tensor counts as another's if its sorted values are this many times nearer than those of the second best.
pub(crate) const NAME_CLEARER: f64 = 100.0;
/// Room beyond a tap's tolerance in the profile: sorting compares values of different places.
pub(crate) const SORTED_ROOM: f64 = 10.0;
/// An NMSE of sorted values below this counts as 0.
pub(crate) const SORTED_EXACT: f64 = 1e-15;
/// What rounding leaves at least of a difference of two energies.
pub(crate) const ENERGIES_ROUNDED: f64 = 0.999;
