//! When does another layout, order, change or name explain a tensor?

/// Another layout agrees, and a change is named, only if it leaves less than this share of the error: it must explain, not just fit.
pub const CHANGE_LEAVES: f64 = 0.1;
/// How far the elements that are looked at before a layout is judged may be off, in times what is allowed.
pub(crate) const SAMPLE_ROOM: f64 = 1e3;
/// The NMSE of some elements from which on a layout or a change is not looked at further.
pub(crate) const SAMPLE_LEAVES: f64 = 1e-2;
/// A factor this near to -1 is a flipped sign.
pub(crate) const SIGN_FLIPPED: f64 = 1e-6;
/// What a change leaves may be this many times what is allowed at one position.
pub(crate) const CHANGED_POSITION_ROOM: f64 = 100.0;
/// Where the anatomy of an error is looked at, rounding is taken this many times as large.
pub(crate) const ANATOMY_ROOM: f64 = 4.0;
/// A correlation, position by position, that misplaced values do not have.
pub(crate) const PLACED_CORRELATION: f64 = 0.4;
/// Misplaced values correlate by less; a mistake of an operation whose readers hardly feel it, by more.
pub(crate) const MISPLACED_CORRELATION: f64 = 0.5;
/// Times what is allowed of rounding, the lengths and the first position of what was turned may be off.
pub(crate) const ROTATION_ROOM: f64 = 100.0;
/// Of one order this share of the energy is left at the most, of the other at least so much.
pub(crate) const ORDER_LEAVES: f64 = 0.05;
pub(crate) const OTHER_ORDER_LEAVES: f64 = 0.5;

// Names by content (propose).
/// Too few values, or values that are all alike, show nothing.
pub(crate) const FEW_FINGERPRINT_VALUES: usize = 16;
/// A tensor counts as another's if its sorted values are this many times nearer than those of the next.
pub(crate) const NAME_CLEARER: f64 = 100.0;
/// Room beyond what the profile allows a tap: sorting compares values of other places.
pub(crate) const SORTED_ROOM: f64 = 10.0;
/// An NMSE of sorted values below this is as good as none.
pub(crate) const SORTED_EXACT: f64 = 1e-15;
