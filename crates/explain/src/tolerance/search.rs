//! Holds when a mistake gives the candidate's numbers: what the search leaves room for.

// The proof (search/proof.rs, search/mod.rs).
/// By how much the rounding of a stretch may exceed what one operation is allowed, where a cause takes all else away.
pub(crate) const SPAN_ADDS_UP: f64 = 3.0;
/// What a cause leaves of the error at most.
pub(crate) const CAUSE_LEAVES: f64 = 1e-3;
/// What it must leave no more of somewhere, however small all is: two roundings of the same numbers are as far from each other as from a third.
pub(crate) const WELL_BELOW: f64 = 0.5;
/// The same where values are rounded to 16 or 8 bits.
pub(crate) const CAUSE_LEAVES_ROUNDED: f64 = 1e-2;
/// The same where no more is left than so many times the rounding of a right run.
pub(crate) const NEARLY_LEAVES: f64 = 0.1;
pub(crate) const ROUNDING_ROOM: f64 = 2.0;
/// Among causes that all prove themselves, one that leaves so many times more than another is not it.
pub(crate) const AS_NEAR: f64 = 100.0;
/// To which share of itself a number is searched for.
pub(crate) const FINEST: f64 = 1e-9;
/// An epsilon that shows in the numbers of a norm: another one is looked for from there on.
pub(crate) const EPS_MATTERS: f64 = 1e-4;
/// An epsilon outside of the root that matters to rows of any size.
pub(crate) const OUTSIDE_MATTERS: f64 = 1e-2;
/// Two forms leave the same where the logarithms of it are as near.
pub(crate) const SAME_SIZE: f64 = 1e-3;
/// Frequencies that follow one base do so within this share of themselves.
pub(crate) const SAME_STEP: f64 = 1e-4;
/// By how much each of several mistakes must lower what the others leave.
pub(crate) const MATTERS: f64 = 100.0;
/// Residuals that are the same to six digits are of the same values by other words.
pub(crate) const SAME_RESIDUAL: f64 = 1e-6;
/// The number before a cap's tanh and the one behind are one number, as each is kept in f32.
pub(crate) const SAME_CAP: f64 = 1e-6;
/// Numbers that differ by no more of what they are made of are one number.
pub(crate) const AS_GOOD_AS_ONE: f64 = 1e-6;
/// Rows are multiples of each other where the best one leaves no more of them.
pub(crate) const ONE_DIRECTION: f64 = 1e-9;
/// A residual this small is none, whatever is smaller.
pub(crate) const NO_RESIDUAL: f64 = 1e-15;
/// What rounding to f32 leaves of a right value at the most, in one operation.
pub(crate) const F32_LEAVES: f64 = 1e-14;
/// What a plain number for a parameter may leave beside the best one.
pub(crate) const TUNED_TO_ROUNDING: f64 = 1e-13;

// Findings, and another arithmetic (explain).
/// By how much a number that was fitted in two places may differ, as a share of it.
pub(crate) const FITTED_ALIKE: f64 = 3e-3;
/// A number that was fitted is this near to the one of few digits that was meant.
pub(crate) const PLAINLY_THE_SAME: f64 = 1e-5;
/// 1 and 1.0 are the same number.
pub(crate) const SAME_NUMBER: f64 = 1e-12;
/// What a mistake must leave of the error of a tap, that others are made as well.
pub(crate) const NEARER: f64 = 0.9;
/// The share of all products that has to be off alike.
pub(crate) const NEARLY_ALL: f64 = 0.8;
/// An NMSE outside of this is no rounding to 4 bits or more.
pub(crate) const QUANTISED_NMSE: std::ops::RangeInclusive<f64> = 1e-9..=0.1;
/// What rounding operands to 16 bits leaves at most.
pub(crate) const ROUNDED_TO_16_BITS: f64 = 1e-3;
/// Products are off alike if none is so many times as far off as the median.
pub(crate) const OFF_ALIKE: f64 = 30.0;
/// What an imitation may leave of the error: of one that gives these numbers, and of one that comes near.
pub(crate) const ROUNDING_LEAVES: f64 = 0.01;
pub(crate) const NEAR_ROUNDING_LEAVES: f64 = 0.5;
/// What is left of a product where nearly all others come out: more is a fault.
pub(crate) const OWN_FAULT: f64 = 0.3;

/// Another order of an axis may cost so many bits.
pub(crate) const ORDER_BITS: f64 = 11.0;
/// What it costs to say that a tensor is nothing but zeros.
pub(crate) const NOTHING_BITS: f64 = 4.0;
/// A function may cost so many.
pub(crate) const FUNCTION_BITS: f64 = 6.0;
/// Edits that cost so many bits more than the first that gives the numbers, and give them too, are said beside it.
pub(crate) const EQUAL_BITS: f64 = 5.0;
/// What is spent of the time for a tap when mistakes of one layer alone are left.
pub(crate) const ONE_LAYER_SHARE: f64 = 0.2;
/// What is spent of the time for a tap when edits that nobody lists are left.
pub(crate) const UNLISTED_SHARE: f64 = 0.6;
/// Rows that differ by no more units of their rounding are one row that was computed again.
pub(crate) const COMPUTED_AGAIN: f64 = 4.0;
/// Rows that differ, of which more prove no more.
pub(crate) const ENOUGH_ROWS: usize = 64;
/// Seconds of evaluations after which no other number is looked for beside what was found.
pub(crate) const BESIDE_FOUND: f64 = 2.0;
/// Matrices above this are not multiplied once more only to say what would not have shown, or what else would.
pub(crate) const LARGE: usize = 1 << 22;
/// What another mistake must leave, of what a set of mistakes leaves by itself, for the set to grow by it.
pub(crate) const GROWS: f64 = 0.95;
/// A set that is made in more places is grown as well where it leaves no more than so many times as much.
pub(crate) const ABOUT_AS_NEAR: f64 = 2.0;
/// By how much more than rounding each result the order of sums may leave.
pub(crate) const SUMS_ADD_UP: f64 = 10.0;
/// Numbers below this are said with an exponent.
pub(crate) const SMALL: f64 = 1e-3;
