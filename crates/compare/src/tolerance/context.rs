//! What is allowed of a tap beside the others: noise of a second run, values in part, ranks, what only a mask hides, what the input could not show.

// A second right run (report/noise.rs, taps/noise.rs).
/// A candidate may be this many times as far from the reference as the second right run: a factor of two in size.
pub const NOISE_ROOM: f64 = 4.0;
/// Rows below which a tap's own distance says little.
pub(crate) const FEW_NOISE_ROWS: usize = 4;
/// How many times as noisy as such few rows the same tap may be as a rule: beyond that the second run is another one there.
pub(crate) const NOISE_OF_FEW_ROWS: f64 = 16.0;
/// A single position may be this many times as far off as the second run's worst one.
pub(crate) const NOISE_ROW_ROOM: f64 = 16.0;
/// An operation may make the error over the noise of what it reads so many times as large.
pub(crate) const NOISE_PASSED_ON: f64 = 2.0;

// Taps that hold a part, and sums over ranks (taps/partial.rs, taps/ranks.rs).
/// Values whose energy is below this many times that of half a unit of their last digit show nothing.
pub(crate) const DIGITS_SHOW: f64 = 100.0;
/// Less than one in so many values of a tap are few.
pub(crate) const FEW_OF_A_TAP: usize = 4;
/// A summand that leaves less than this share of the error explains it.
pub(crate) const SUMMAND_LEAVES: f64 = 1e-3;

/// A sum that is printed may be off by this, beside what f32 and rounding make of it.
pub(crate) const PRINTED_SUM: f64 = 1e-6;

// Rules over all taps, and the conclusion (rules, conclude).
/// What reads a probability is off by this many times what it is allowed, had it read what the mask leaves: then it has not.
pub(crate) const WOULD_SHOW: f64 = 10.0;
/// Of the taps of right runs so many are unclear by chance: 9 of 1,375 in a deep model with channels of great size, 1 in a hundred runs of small ones.
pub(crate) const UNCLEAR_BY_CHANCE: f64 = 0.01;
/// Scores that were not recorded may be off by this many times what is allowed of them, where a choice is made of them.
pub(crate) const CHOICE_ROOM: f64 = 4.0;
/// Rounding sends no more than this many times its own share of tokens to other experts.
pub(crate) const FLIPS_ROOM: f64 = 3.0;
/// Attention whose largest probability is, on average, below this many times the uniform one tells little.
pub(crate) const NEAR_UNIFORM: f64 = 1.3;
