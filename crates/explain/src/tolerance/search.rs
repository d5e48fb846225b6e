//! When does a mistake give the candidate's numbers? What the search leaves room for.

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
/// The same of the share of masked keys, of scores that are rounded to 16 bits.
pub(crate) const LEAK_LEAVES: f64 = 0.05;
/// An error no rounding in f32 makes, over however many layers.
pub(crate) const BEYOND_ROUNDING: f64 = 1e-6;
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
/// As much as this many times our own rounding is as good as nothing.
pub(crate) const AS_NOTHING: f64 = 8.0;
/// Rounding leaves a value within this share of itself: of an operation that adds nothing up, in any 16-bit type.
pub(crate) const ROUNDED_VALUE: f64 = 1.0 / 64.0;
/// Nearer in direction than this one row counts for no more.
pub(crate) const LEAST_ANGLE: f64 = 1e-12;
/// By how much each of several mistakes must lower what the others leave.
pub(crate) const MATTERS: f64 = 100.0;
/// Residuals that are the same to six digits are of the same values by other words.
pub(crate) const SAME_RESIDUAL: f64 = 1e-6;
/// A residual this small is none, whatever is smaller.
pub(crate) const NO_RESIDUAL: f64 = 1e-15;
/// What rounding to f32 leaves of a right value at the most, in one operation.
pub(crate) const F32_LEAVES: f64 = 1e-14;
/// What a plain number for a parameter may leave beside the best one.
pub(crate) const TUNED_TO_ROUNDING: f64 = 1e-13;
/// What a rough value of a parameter may leave of the error at the most, for it to be made finer.
pub(crate) const PART_LEFT: f64 = 0.5;
/// How far on its scale a parameter's value may be off that the first tokens told.
pub(crate) const FIRST_TOKENS_TELL: f64 = 2e-3;
/// Tokens below which mistakes are tried singly only.
pub(crate) const FEW_TOKENS: usize = 4;
/// By how much the order of a sum moves it, in units of its row's root mean square.
pub(crate) const ORDER_MOVES: f64 = 1.0 / (1 << 23) as f64;

// Findings, and another arithmetic (explain).
/// By how much a number that was fitted in two places may differ, as a share of it.
pub(crate) const FITTED_ALIKE: f64 = 3e-3;
/// A number that was fitted is this near to the one of few digits that was meant.
pub(crate) const PLAINLY_THE_SAME: f64 = 1e-5;
/// Rows that differ by no more units of their rounding are one row that was computed again.
pub(crate) const COMPUTED_AGAIN: f64 = 4.0;
/// Rows that differ, of which more prove no more.
pub(crate) const ENOUGH_ROWS: usize = 64;
/// 1 and 1.0 are the same number.
pub(crate) const SAME_NUMBER: f64 = 1e-12;
/// What a mistake must leave of the error of a tap, that others are made as well.
pub(crate) const NEARER: f64 = 0.9;
/// The share of all products that has to be off alike.
pub(crate) const NEARLY_ALL: f64 = 0.8;
/// An NMSE outside of this is no rounding to 4 bits or more.
pub(crate) const QUANTISED_NMSE: std::ops::RangeInclusive<f64> = 1e-9..=0.1;
/// Products are off alike if none is so many times as far off as the median.
pub(crate) const OFF_ALIKE: f64 = 30.0;
/// What an imitation may leave of the error: of one that gives these numbers, and of one that comes near.
pub(crate) const ROUNDING_LEAVES: f64 = 0.01;
pub(crate) const NEAR_ROUNDING_LEAVES: f64 = 0.5;
/// What is left of a product where nearly all others come out: more is a fault.
pub(crate) const OWN_FAULT: f64 = 0.3;

/// Another order of an axis may cost so many bits.
pub(crate) const ORDER_BITS: f64 = 11.0;
/// A function may cost so many.
pub(crate) const FUNCTION_BITS: f64 = 6.0;
/// Edits that cost so many bits more than the first that gives the numbers, and give them too, are said beside it.
pub(crate) const EQUAL_BITS: f64 = 5.0;
/// What is spent of the time for a tap when edits that nobody lists are left.
pub(crate) const UNLISTED_SHARE: f64 = 0.6;
